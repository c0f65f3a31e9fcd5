"""Our tasks under SeqIO: registered before and after its import, with the same examples; and SeqIO's tasks as ours."""

import json
import subprocess
import sys

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.addons.diacritics import diacritics_tasks
from limba.addons.seqio import registry_copies
from limba.data import contract
from tasks.pipeline import predictions
from tasks.pretraining import denoising
from tasks.registry import Feature, Mixture, MixtureRegistry, Task, TaskRegistry, mixtures, steps
from tasks.registry import tasks as registered_tasks
from tasks.registry.rows import TOKENS, Tokens
from tasks.sources import corpora, sharded
from tasks.supervised import SupervisedDataset, supervised_tasks
from tasks.vocabularies import ByteVocabulary, PassThroughVocabulary, SentencePieceVocabulary, Vocabulary
from tests.convert import vocabularies


@pytest.fixture
def tasks(data_files, tmp_path, write_jsonl, our_task):
    """One of each kind of ours, by name with lengths."""
    rows = [{"text": f"text {i}", "mood": ("glad", "sad")[i % 2]} for i in range(150)]
    moods = {"validation": write_jsonl(tmp_path / "moods.jsonl", rows)}
    supervised_tasks.register_supervised_task(
        "test_moods",
        SupervisedDataset("mood of: {text}", "mood", labels=["glad", "sad"]),
        vocabulary=ByteVocabulary(100),
        data_files=moods,
    )
    diacritics_tasks.register_diacritics_task(
        "test_marks", data_files=data_files, vocabulary=ByteVocabulary(100), language="ro"
    )
    return {
        "test_ours": {"inputs": 24, "targets": 24},
        "test_moods": {"inputs": 12, "targets": 4},
        "test_moods_rank": None,
        "test_marks": {"inputs": 20, "targets": 20},
    }


@pytest.mark.parametrize("name", ["test_ours", "test_moods", "test_moods_rank", "test_marks"])
def test_examples_are_the_same_through_seqio(tasks, name):
    task, lengths = TaskRegistry.get(name), tasks[name]
    config = contract.DatasetConfig(name, lengths, "validation", 1, seed=11)
    ours = list(predictions.examples(task, config))
    theirs = seqio.get_mixture_or_task(name)
    assert type(theirs) is seqio.Task and theirs.source is task.source and theirs.metric_fns == list(task.metric_fns)
    dataset = theirs.get_dataset(lengths, "validation", shuffle=False, seed=11, num_epochs=1)
    found = list(dataset.as_numpy_iterator())
    assert len(ours) == len(found) > 20
    for mine, example in zip(ours, found, strict=True):
        assert mine.keys() == example.keys()
        for key, value in mine.items():
            np.testing.assert_array_equal(value, example[key])
    for key in ("inputs", "targets"):
        assert found[0][key].dtype == ours[0][key].dtype == np.int32


_REGISTER = """
from tasks import pretraining, vocabularies
from tasks.registry import TaskRegistry
pretraining.register_pretraining_task({name!r}, data_files={files!r}, vocabulary=vocabularies.ByteVocabulary(100))
"""


def test_registered_before_and_after_the_import_of_seqio(data_files):
    code = (
        _REGISTER.format(name="before", files=data_files)
        + "import sys, json\nassert 'tensorflow' not in sys.modules\nimport seqio\n"
        + _REGISTER.format(name="after", files=data_files)
        + """
print(json.dumps([
    [example["inputs"].tolist() for example in seqio.get_mixture_or_task(name).get_dataset(
        {"inputs": 24, "targets": 24}, "validation", shuffle=False, seed=1).take(3).as_numpy_iterator()]
    for name in ("before", "after")
]))
TaskRegistry.remove("before")
assert "before" not in seqio.TaskRegistry.names() and "after" in seqio.TaskRegistry.names()
"""
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    before, after = json.loads(found.stdout)
    assert before == after and len(before) == 3


def test_mixtures_of_ours_under_seqio(tasks, data_files):
    TaskRegistry.add("other", TaskRegistry.get("test_ours").source, TaskRegistry.get("test_ours").output_features)
    mixtures.register_mixture("of_bytes", ["test_ours", "other"], temperature=2.0)
    ours = MixtureRegistry.add("outer", [("of_bytes", 3.0), ("test_marks", 1.0)])
    theirs = seqio.get_mixture_or_task("outer")
    assert type(theirs) is seqio.Mixture and [x.name for x in theirs.tasks] == [x.name for x in ours.tasks]
    shares = {task.name: ours.get_rate(task) / ours.total_rate for task in ours.tasks}
    assert shares == pytest.approx({x.name: theirs.get_rate(x) / theirs.total_rate for x in theirs.tasks})
    assert shares == pytest.approx({"test_ours": 0.375, "other": 0.375, "test_marks": 0.25})
    assert registered_tasks.as_ours(theirs) is ours


@pytest.mark.parametrize("seed", range(8))
def test_rates_are_seqio_s(our_task, seed):
    """Of random nested mixtures, with numbers, functions and defaults."""
    rng = np.random.default_rng(seed)
    names = [f"task_{i}" for i in range(5)]
    for name in names:
        TaskRegistry.add(name, our_task.source, our_task.output_features)
    sizes = dict(zip(names, rng.uniform(0.1, 5, 5).tolist(), strict=True))

    def part(name):
        rate = float(rng.uniform(0.1, 5))
        return (
            [(name, rate), (name, lambda task: sizes[task.name])][int(rng.integers(2))]
            if name in sizes
            else (name, rate)
        )

    arguments = {
        "inner": ([part(name) for name in rng.choice(names, 3, replace=False)], None),
        "default": (list(rng.choice(names, 2, replace=False)), 0.7),
    }
    arguments["outer"] = ([part("inner"), part("default"), *map(part, rng.choice(names, 2, replace=False))], None)
    ours, theirs = None, None
    for name, (parts, default) in arguments.items():
        ours = MixtureRegistry.add(f"ours_{name}", [_renamed(x, "ours", arguments) for x in parts], default)
        theirs = seqio.MixtureRegistry.add(f"theirs_{name}", [_renamed(x, "theirs", arguments) for x in parts], default)
    assert [task.name for task in ours.tasks] == [task.name for task in theirs.tasks]
    assert ours.total_rate == pytest.approx(theirs.total_rate)
    for mine, task in zip(ours.tasks, theirs.tasks, strict=True):
        assert ours.get_rate(mine) == pytest.approx(theirs.get_rate(task))
    converted = registered_tasks.as_ours(theirs)
    assert isinstance(converted, Mixture)
    assert [converted.get_rate(x) for x in converted.tasks] == pytest.approx([ours.get_rate(x) for x in ours.tasks])


def _renamed(part, prefix, mixtures):
    if isinstance(part, tuple):
        return (f"{prefix}_{part[0]}" if part[0] in mixtures else str(part[0]), part[1])
    return str(part)


def test_sources_are_seqio_s(data_files):
    source = corpora.HuggingFaceSource(data_files)
    assert isinstance(source, seqio.DataSource) and issubclass(sharded.ShardedSource, seqio.DataSource)
    assert source.supports_arbitrary_sharding and source.num_input_examples("train") is None
    shards = [
        {x["text"] for x in source.get_dataset("train", True, 1, seqio.ShardInfo(i, 3)).as_numpy_iterator()}
        for i in range(3)
    ]
    assert sum(map(len, shards)) == len(set.union(*shards)) == 200
    in_order = source.get_dataset("train", shuffle=False, num_epochs=2).as_numpy_iterator()
    expected = source.chunks_of("train", False, 0).documents(num_epochs=2)
    assert list(in_order) == [{"text": text} for part in expected for text in part.columns["text"]]


def test_plain_seqio_task(data_files, make_document):
    """A T5X-style task with SeqIO's own preprocessors reads the source."""
    vocabulary = seqio.ByteVocabulary(100)
    task = seqio.TaskRegistry.add(
        "test_plain",
        source=corpora.HuggingFaceSource(data_files),
        preprocessors=[
            lambda ds: ds.map(lambda e: {"inputs": e["text"], "targets": e["text"]}),
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos,
        ],
        output_features={name: seqio.Feature(vocabulary) for name in ("inputs", "targets")},
    )
    examples = list(task.get_dataset({"inputs": 512, "targets": 512}, "validation", shuffle=False).as_numpy_iterator())
    assert len(examples) == 30
    assert vocabulary.decode(examples[3]["targets"].tolist()) == make_document(99, 3)["text"]


def test_our_vocabulary_in_a_task_of_seqio_s(data_files, make_document):
    """T5X's users give `seqio.Feature` a vocabulary that gin files share with the model."""
    vocabulary = ByteVocabulary(100)
    task = seqio.TaskRegistry.add(
        "test_plain",
        source=corpora.HuggingFaceSource(data_files),
        preprocessors=[
            seqio.map_over_dataset(lambda e: {"inputs": e["text"], "targets": e["text"]}),
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos,
        ],
        output_features={name: seqio.Feature(vocabulary) for name in ("inputs", "targets")},
    )
    example = next(task.get_dataset({"inputs": 99, "targets": 99}, "validation", shuffle=False).as_numpy_iterator())
    text = make_document(99, 0)["text"]
    assert example["inputs"].tolist() == [*vocabulary.encode(text), 1]
    assert example["inputs_pretokenized"].decode() == text
    assert vocabulary.encode_tf(tf.constant("aș")).numpy().tolist() == vocabulary.encode("aș")
    ids = tf.constant([[100, 101, 1, 102], [103, 300, 1, 0]])
    assert vocabulary.decode_tf(ids).numpy().tolist() == seqio.ByteVocabulary(100).decode_tf(ids).numpy().tolist()


def test_a_task_of_seqio_s_of_our_parts_is_ours(task_of_our_steps, seqio_task, our_task):
    converted = registered_tasks.as_ours(task_of_our_steps)
    assert isinstance(converted, Task)
    assert converted.output_features == our_task.output_features
    assert (converted.source, converted.shuffle_buffer_size) == (task_of_our_steps.source, 100)
    assert registered_tasks.as_ours(seqio_task) is seqio_task
    assert registered_tasks.as_ours(our_task) is our_task
    assert registered_tasks.as_ours(seqio.TaskRegistry.get("test_ours")) is our_task
    assert registry_copies.seqio_provider(seqio_task) is seqio_task
    assert registry_copies.seqio_provider(our_task) is seqio.TaskRegistry.get("test_ours")


def test_unknown_and_taken_names(our_task, seqio_task):
    with pytest.raises(ValueError, match=r"no task or mixture 'test_seqi'\. The nearest are 'test_seqio'"):
        registered_tasks.get_mixture_or_task("test_seqi")
    with pytest.raises(ValueError, match="No Task or Mixture found"):  # SeqIO's own message
        seqio.get_mixture_or_task("test_our")
    with pytest.raises(ValueError, match="'test_ours' is registered already"):
        TaskRegistry.add("test_ours", our_task.source, our_task.output_features)
    with pytest.raises(ValueError, match="test_seqio"):  # SeqIO's own message
        TaskRegistry.add("test_seqio", our_task.source, our_task.output_features)
    assert "test_seqio" not in TaskRegistry and registered_tasks.get_mixture_or_task("test_seqio") is seqio_task
    TaskRegistry.remove("test_ours")
    again = TaskRegistry.add("test_ours", our_task.source, {"targets": our_task.output_features["targets"]})
    assert list(seqio.TaskRegistry.get("test_ours").output_features) == list(again.output_features) == ["targets"]


class Letters(Vocabulary):
    """A user's own, which SeqIO does not have."""

    eos_id = 1
    unk_id = 2
    _base_vocab_size = 29

    def _encode(self, s):
        return [ord(x) - 94 for x in s]

    def _decode(self, ids):
        return "".join(chr(i + 94) for i in ids if i > 2)


class Spell(steps.Step):
    """Texts as ids."""

    output_features = sequence_length = None
    rows_per_group = 8

    def columns(self):
        return {"targets": TOKENS}

    def rows_function(self):
        return lambda rows, seed: rows.make(
            {"targets": Tokens.of([Letters().encode(text.decode()) for text in rows.columns["text"]])}
        )


@pytest.mark.parametrize("of_model", [ByteVocabulary(100), PassThroughVocabulary(64, 1), "spiece"])
def test_the_vocabularies_of_task_and_model_are_compared_in_any_order(of_model, tmp_path):
    """T5X trains only where the task's, SeqIO's, is not unequal to the model's, which gin files bind to ours."""
    if of_model == "spiece":
        of_model = SentencePieceVocabulary(str(vocabularies.train(tmp_path / "spiece.model")), 100)
    of_task = of_model.to_seqio()
    assert of_task == of_model and (of_task != of_model) is False
    assert of_model == of_task and (of_model != of_task) is False
    assert of_task == of_model.to_seqio() and of_task != "vocabulary"
    for other in (ByteVocabulary(99), PassThroughVocabulary(65, 1)):
        assert of_task != other and (of_task == other) is False
        assert of_task != other.to_seqio()


def test_a_vocabulary_that_seqio_does_not_have(tmp_path, write_jsonl):
    """SeqIO is imported as before, and reads the task, whose steps are ours; its own functions say what is missing."""
    source = corpora.HuggingFaceSource({"train": write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}, {"text": "z"}])})
    task = TaskRegistry.add("letters", source, {"targets": Feature(Letters())}, [Spell()])
    theirs = seqio.get_mixture_or_task("letters")
    assert theirs.output_features["targets"].vocabulary is task.output_features["targets"].vocabulary
    dataset = theirs.get_dataset({"targets": 8}, "train", shuffle=False)
    assert [x["targets"].tolist() for x in dataset.as_numpy_iterator()] == [[3, 4, 5], [28]]
    with pytest.raises(NotImplementedError, match="no vocabulary like Letters: give the class a method to_seqio"):
        theirs.output_features["targets"].vocabulary.encode_tf(tf.constant("a"))


def test_what_seqio_gives_a_step(our_task):
    """SeqIO binds features and lengths, as `bind` does."""
    (step,) = seqio.TaskRegistry.get("test_ours").preprocessors
    assert step == our_task.preprocessors[0] and isinstance(step, denoising.Denoise)
    with pytest.raises(ValueError, match="sequence_length"):
        seqio.get_mixture_or_task("test_ours").get_dataset(None, "train")
