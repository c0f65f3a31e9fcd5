import functools
import itertools

import numpy as np
import pytest

from limba.data import contract
from tasks import objectives
from tasks.pipeline import task_batches
from tasks.pretraining import pretraining_tasks
from tasks.registry import MixtureRegistry, mixtures
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary


@pytest.fixture
def tasks(data_files):
    """Two corpora of which one is some times as large, each with two objectives."""
    made = {}
    for corpus, split in (("large", "train"), ("small", "validation")):
        source = corpora.HuggingFaceSource({"train": data_files[split]}, chunk_documents=8)
        for objective in (objectives.SpanCorruption(), objectives.PrefixLM()):
            name = f"test_{corpus}_{objective.name}"
            made[name] = pretraining_tasks.register_pretraining_task(
                name,
                data_files=source,
                vocabulary=ByteVocabulary(extra_ids=100),
                objective=objective,
                shuffle_buffer_size=64,
            )
    return made


def test_rates_are_t5_s_and_mt5_s():
    assert mixtures.mixing_rate(1000) == 1000
    assert mixtures.mixing_rate(1000, maximum=300) == 300
    sizes = np.array([1e9, 1e6])
    rates = np.array([mixtures.mixing_rate(size, 1 / 0.3) for size in sizes])
    assert rates / rates.sum() == pytest.approx(sizes**0.3 / (sizes**0.3).sum())

    import seqio

    class Task:
        name, cache_dir = "counted", None

        def num_input_examples(self, split):
            return 5_000_000

    for temperature, maximum in ((1.0, None), (2.0, None), (3.0, 2**21), (1.0, 10**9)):
        expected = seqio.mixing_rate_num_examples(Task(), maximum, temperature=temperature)
        assert mixtures.mixing_rate(5_000_000, temperature, maximum) == pytest.approx(expected)


def test_sizes_are_the_bytes_of_the_files_unless_they_are_given(tasks, corpus):
    large, small = "test_large_prefix_lm", "test_small_prefix_lm"
    num_bytes = sum(path.stat().st_size for path in corpus.glob("train-*.jsonl"))
    assert mixtures.num_bytes(tasks[large]) == num_bytes
    num_bytes_small = (corpus / "validation.jsonl").stat().st_size
    rates = {
        "even": ({"temperature": 1e9}, 0.5),
        "bytes": ({}, num_bytes / (num_bytes + num_bytes_small)),
        "capped": ({"maximum": num_bytes_small}, 0.5),
        "root": ({"temperature": 2.0}, num_bytes**0.5 / (num_bytes**0.5 + num_bytes_small**0.5)),
    }
    for name, (options, share) in rates.items():
        mixture = mixtures.register_mixture(name, [large, small], **options)
        assert mixture.get_rate(tasks[large]) / mixture.total_rate == pytest.approx(share), name
        assert mixtures.register_mixture(name, [large, small], **options) is mixture
    given = mixtures.register_mixture("given", {large: 9.0, small: 1.0}, temperature=2.0)
    assert (given.get_rate(tasks[large]), given.get_rate(tasks[small])) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tasks": ["test_large_prefix"]}, ["'test_large_prefix'", "nearest", "test_large_prefix_lm"]),
        ({"tasks": ["test_large_prefix_lm"], "temperature": 0}, ["temperature 0", "positive"]),
        ({"tasks": {"test_large_prefix_lm": -1.0}}, ["size -1.0", "positive"]),
        ({"tasks": ["inner"]}, ["mixture 'inner'", "size is not known"]),
        ({"tasks": ["test_small_prefix_lm"], "name": "inner"}, ["'inner' is registered already"]),
    ],
)
def test_what_cannot_be_mixed_is_refused(tasks, arguments, words):
    mixtures.register_mixture("inner", {"test_large_prefix_lm": 1.0})
    with pytest.raises(ValueError) as error:
        mixtures.register_mixture(**{"name": "outer", **arguments})
    for word in words:
        assert word in str(error.value)


def test_a_source_of_unknown_size_is_named():
    import seqio

    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"])
    task = seqio.TaskRegistry.add("test_function", source, output_features={}, preprocessors=[])
    mixture = mixtures.register_mixture("of_a_function", ["test_function"])
    with pytest.raises(ValueError, match=r"'test_function'.*FunctionDataSource.*Give the sizes"):
        mixture.get_rate(task)


def test_losses_are_grouped_by_task_source_and_objective(tasks):
    """Two corpora with two objectives each: the batches say whose an example is, and epochs are counted by task."""
    for corpus in ("large", "small"):
        mixtures.register_mixture(corpus, dict.fromkeys([name for name in tasks if corpus in name], 1.0))
    mixture = mixtures.register_mixture("both", {"large": 3.0, "small": 1.0})
    names = [task.name for task in mixture.tasks]
    lengths = {"inputs": 64, "targets": 64}
    config = functools.partial(contract.DatasetConfig, "both", lengths, "train", 32, seed=0, num_readers=2)
    batches = task_batches.get_train_batches(config())

    def numbers(*words):
        return [number for number, name in enumerate(names) if all(word in name for word in words)]

    assert batches.task_groups == {
        **{name: [number] for number, name in enumerate(names)},
        "large": numbers("large"),
        "small": numbers("small"),
        "objective_prefix_lm": numbers("prefix_lm"),
        "objective_span3_0.15": numbers("span3"),
    }
    drawn = np.zeros(4)
    seen = [batches.epochs()]
    for _ in range(30):
        batch = next(batches)
        drawn += batch["example_tasks"].sum(axis=0)
        is_prefix_lm = batch["example_tasks"][:, numbers("prefix_lm")].any(axis=1)
        assert ((batch["decoder_target_tokens"] >= 259).any(axis=1) == ~is_prefix_lm).all()
        seen.append(batches.epochs())
    assert drawn.sum() == 30 * 32 and drawn[numbers("large")].sum() / drawn.sum() == pytest.approx(0.75, abs=0.04)
    assert seen[0] == {} and seen[1].keys() <= set(names) and seen[-1].keys() == set(names)
    assert all(later[name] >= before[name] for before, later in itertools.pairwise(seen) for name in before)
    # The small corpus has been gone through more often, and fractions are known by now.
    assert seen[-1]["test_small_prefix_lm"] > seen[-1]["test_large_prefix_lm"] >= 1
    assert any(epochs % 1 for epochs in seen[-1].values())
    restored = task_batches.get_train_batches(config())
    restored.restore_state(batches.save_state())
    assert restored.epochs() == batches.epochs()
    assert np.array_equal(next(restored)["example_tasks"], next(batches)["example_tasks"])

    packed = task_batches.get_train_batches(config(pack=True))
    assert packed.task_groups == {} and "example_tasks" not in next(packed)


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((-1.0, 1.0), "The rate of 'test_large_prefix_lm' in the mixture 'odd_rates' is -1.0; it is at least 0"),
        ((float("nan"), 1.0), "is nan; it is at least 0"),
        ((0, 0.0), "'odd_rates' with a split 'train' have the rate 0"),
        ((lambda task: None * 2, 1.0), r"'odd_rates' cannot be computed \(.*num_input_examples\); a number is a rate"),
    ],
)
def test_rates_that_cannot_be_are_refused(tasks, rates, words):
    MixtureRegistry.remove("odd_rates")
    MixtureRegistry.add("odd_rates", list(zip(("test_large_prefix_lm", "test_small_prefix_lm"), rates, strict=True)))
    config = contract.DatasetConfig("odd_rates", {"inputs": 64, "targets": 32}, "train", 4, seed=0)
    with pytest.raises(ValueError, match=words):
        task_batches.get_train_batches(config)
