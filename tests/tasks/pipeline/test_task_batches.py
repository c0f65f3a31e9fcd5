import dataclasses
import json
import logging
import re
import subprocess
import sys

import numpy as np
import pytest

from limba.addons import table
from limba.data import contract
from limba.inference import tasks_door
from tasks import objectives, pretraining
from tasks.pipeline import task_batches
from tasks.registry import get_mixture_or_task, task_vocabularies
from tasks.vocabularies import ByteVocabulary, PassThroughVocabulary


def config_for(task, lengths, **options):
    options = {"split": "train", "batch_size": 8, "num_readers": 4, "seed": 3, **options}
    return contract.DatasetConfig(task.name, lengths, **options)


def take(batches, count):
    return [next(batches) for _ in range(count)]


def assert_equal(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def position(state, reader):
    name = next(name for name in state if name.startswith(f"reader-{reader:04d}"))
    return json.loads(state[name])


def test_batches_have_the_contract_s_features(task, lengths):
    batch = next(task_batches.get_train_batches(config_for(task, lengths)))
    assert {name: (value.shape, value.dtype.name) for name, value in batch.items()} == {
        "encoder_input_tokens": ((8, 64), "int32"),
        "decoder_target_tokens": ((8, lengths["targets"]), "int32"),
        "decoder_input_tokens": ((8, lengths["targets"]), "int32"),
        "decoder_loss_weights": ((8, lengths["targets"]), "int32"),
    }
    # Full rows: the corpus is concatenated, so nothing but the leftover of a batch of documents is padding.
    assert batch["decoder_loss_weights"].mean() > 0.9


@pytest.mark.parametrize("provider", ["task", "mixture"])
@pytest.mark.parametrize("pack", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_restored_stream_equals_the_uninterrupted_one(provider, pack, lengths, request):
    """Over several epochs, with a buffer larger than any shard, in the middle of an epoch and of a chunk."""
    config = config_for(request.getfixturevalue(provider), lengths, pack=pack)
    batches = task_batches.get_train_batches(config)
    take(batches, 7)
    states = [batches.save_state()]
    expected = take(batches, 60)
    states.append(batches.save_state())
    rest = take(batches, 5)
    restored = task_batches.get_train_batches(config)
    restored.restore_state(states[0])
    assert_equal(take(restored, 60), expected)
    restored.restore_state(states[1])
    assert_equal(take(restored, 5), rest)
    assert position(states[1], 0)["batches"] == 67
    for task, place in position(states[1], 0)["position"].items():
        assert place["file"] == ("validation.jsonl" if task == "test_mix_b" else f"train-{place['shard']}.jsonl")
    assert max(len(content) for content in states[1].values()) < 3000


def test_the_documents_of_a_batch_are_known(task, lengths, make_document):
    """The first whole words of each row are in one of them."""
    batches, compared = task_batches.get_train_batches(config_for(task, lengths)), 0
    for _ in range(3):
        batch, documents = next(batches), batches.documents()
        assert {document.task for document in documents} == {task.name} and len(documents) <= 8
        shards = [int(re.search(r"train-(\d)\.jsonl$", document.file)[1]) for document in documents]
        places = zip(shards, documents, strict=True)
        texts = [make_document(shard, document.row)["text"] for shard, document in places]
        for row in batch["encoder_input_tokens"]:  # up to the first sentinel or the next document
            begin = bytes(int(x) - 3 if 3 <= x < 259 else 0 for x in row).split(b"\0")[0].decode()
            begin = begin[: begin.find("shard", 1)] if "shard" in begin[1:] else begin
            compared += len(begin[:8])
            assert any(begin[:8] in text for text in texts)
    assert compared > 100


@pytest.mark.slow
def test_restored_in_another_process(task, lengths, data_files, tmp_path):
    batches = task_batches.get_train_batches(config_for(task, lengths))
    take(batches, 9)
    for name, content in batches.save_state().items():
        (tmp_path / name).write_bytes(content)
    expected = take(batches, 20)
    code = f"""
import pathlib, sys, numpy as np
from limba.data import contract as data
from tasks import objectives, sources, vocabularies
from tasks.pipeline import task_batches as pipeline
from tasks.pretraining import denoising as preprocessors
from tasks.registry import Feature, TaskRegistry
feature = Feature(vocabularies.ByteVocabulary(extra_ids=100), add_eos=True)
TaskRegistry.add(
    "test_task",
    source=sources.HuggingFaceSource({data_files!r}, chunk_documents=8),
    preprocessors=[preprocessors.Denoise(objectives.SpanCorruption(), documents_per_batch=32)],
    output_features={{"inputs": feature, "targets": feature}},
    shuffle_buffer_size=400,
)
batches = pipeline.get_train_batches(
    data.DatasetConfig("test_task", {lengths!r}, "train", batch_size=8, num_readers=4, seed=3))
batches.restore_state({{path.name: path.read_bytes() for path in pathlib.Path({str(tmp_path)!r}).glob("reader-*")}})
np.save({str(tmp_path / "result.npy")!r}, np.stack([next(batches)["encoder_input_tokens"] for _ in range(20)]))
assert not {{"tensorflow", "seqio"}} & set(sys.modules)
"""
    # It also ends: readers that run ahead once kept the process from it.
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    np.testing.assert_array_equal(
        np.load(tmp_path / "result.npy"), np.stack([batch["encoder_input_tokens"] for batch in expected])
    )


def test_global_batch_is_the_same_on_any_number_of_hosts(mixture, lengths):
    config = config_for(mixture, lengths)
    expected = take(task_batches.get_train_batches(config), 12)
    saved = {}
    for count in (2, 4):
        hosts = [task_batches.get_train_batches(config, process_index=i, process_count=count) for i in range(count)]
        for step in range(6):
            parts = [next(host) for host in hosts]
            assert_equal([{k: np.concatenate([part[k] for part in parts]) for k in parts[0]}], [expected[step]])
        saved = {name: content for host in hosts for name, content in host.save_state().items()}
    # Saved by four hosts, restored by one.
    restored = task_batches.get_train_batches(config)
    restored.restore_state(saved)
    assert_equal(take(restored, 6), expected[6:])


def test_epochs_and_seeds_differ(task, lengths):
    config = config_for(task, lengths, num_readers=1)
    first = take(task_batches.get_train_batches(config), 3)
    assert_equal(take(task_batches.get_train_batches(config), 3), first)
    other = take(task_batches.get_train_batches(dataclasses.replace(config, seed=4)), 3)
    assert not np.array_equal(first[0]["encoder_input_tokens"], other[0]["encoder_input_tokens"])
    rows = [row.tobytes() for batch in first for row in batch["encoder_input_tokens"]]
    assert len(set(rows)) == len(rows)


def test_mixture_rates(mixture, lengths):
    batches = task_batches.get_train_batches(config_for(mixture, lengths, num_readers=1, batch_size=64))
    counts = np.zeros(2)
    for _ in range(10):
        batch = next(batches._readers[0]._iterator)
        counts += np.bincount(batch["position"][:, 0], minlength=2)
    assert abs(counts[0] / counts.sum() - 0.75) < 0.06


def test_no_seed_draws_one_and_keeps_it(task, lengths, caplog):
    config = config_for(task, lengths, seed=None)
    with caplog.at_level(logging.WARNING):
        batches = task_batches.get_train_batches(config)
    assert "this run draws" in caplog.text
    take(batches, 3)
    state = batches.save_state()
    expected = take(batches, 3)
    restored = task_batches.get_train_batches(config)
    restored.restore_state(state)
    assert_equal(take(restored, 3), expected)


def test_a_changed_run_is_refused_and_says_what_changed(task, lengths, corpus):
    config = config_for(task, lengths)
    batches = task_batches.get_train_batches(config)
    state = batches.save_state()
    for changes, message in [
        ({"seed": 4}, "seed was 3 and is 4"),
        ({"batch_size": 16}, "batch_size was 8 and is 16"),
        ({"split": "validation"}, "split was 'train' and is 'validation'"),
        ({"shuffle": False}, "shuffle was True and is False"),
    ]:
        with pytest.raises(ValueError, match=message):
            task_batches.get_train_batches(dataclasses.replace(config, **changes)).restore_state(state)
    with pytest.raises(ValueError, match=r"has no 'reader-0000-of-0002\.json'"):
        task_batches.get_train_batches(dataclasses.replace(config, num_readers=2)).restore_state(state)
    with pytest.raises(ValueError, match="damaged"):
        batches.restore_state({name: content[:100] for name, content in state.items()})
    with (corpus / "train-2.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"text": "one more document", "n": 25}\n')
    with pytest.raises(ValueError, match=r"files\.train-2\.jsonl had \d+ bytes and has \d+"):
        task_batches.get_train_batches(config).restore_state(state)


def test_facts_that_hosts_compare(task, mixture, lengths, corpus):
    config = config_for(task, lengths)
    facts = tasks_door.facts(config)
    size = sum(file.stat().st_size for file in corpus.glob("train-*.jsonl"))
    assert facts == {
        "task": "test_task",
        "split": "train",
        "seed": "3",
        "source of test_task": f"7 files of {size} bytes",
        "vocabulary of test_task": "359 ids, checksum 00000000",
        "data order": facts["data order"],
    }
    assert tasks_door.facts(config) == facts
    assert {"source of test_mix_a", "source of test_mix_b"} < tasks_door.facts(config_for(mixture, lengths)).keys()
    longer = tasks_door.facts(dataclasses.replace(config, task_feature_lengths={**lengths, "inputs": 128}))
    assert {name for name in facts if longer[name] != facts[name]} == {"data order"}
    # Of the same size under another name.
    (corpus / "train-2.jsonl").rename(corpus / "train-7.jsonl")
    renamed = tasks_door.facts(config)
    assert {name for name in facts if renamed[name] != facts[name]} == {"data order"}


@pytest.mark.parametrize("cache", [True, False])
def test_evaluation_is_finite_complete_and_repeatable(task, lengths, cache, make_document):
    config = config_for(task, lengths, split="validation", num_readers=None, use_memory_cache=cache)
    (batches,) = task_batches.get_eval_batches(config).values()
    assert next(iter(batches)) is not None  # stopping early loses nothing
    passes = [list(batches), list(batches)]
    assert_equal(*passes)
    assert batches.is_cached == cache and all((x is y) == cache for x, y in zip(*passes, strict=True))
    text = b"".join(make_document(99, row)["text"].encode() for row in range(30))
    examples = np.concatenate([batch["encoder_input_tokens"] for batch in passes[0]])
    weights = np.concatenate([batch["decoder_loss_weights"] for batch in passes[0]])
    assert len(examples) % 8 == 0
    real = examples.any(axis=1)
    assert not weights[~real].any()
    # Bytes of the text: what is neither sentinel nor EOS nor padding, in inputs and targets together.
    targets = np.concatenate([batch["decoder_target_tokens"] for batch in passes[0]])
    tokens = np.concatenate([examples.ravel(), targets.ravel()])
    tokens = tokens[(tokens >= 3) & (tokens < 259)]
    np.testing.assert_array_equal(
        np.bincount(tokens - 3, minlength=256), np.bincount(np.frombuffer(text, np.uint8), minlength=256)
    )
    # Four hosts see the same rows between them.
    hosts = [
        next(iter(task_batches.get_eval_batches(config, process_index=i, process_count=4).values())) for i in range(4)
    ]
    for parts, whole in zip(zip(*hosts, strict=True), passes[0], strict=True):
        assert_equal([{k: np.concatenate([part[k] for part in parts]) for k in whole}], [whole])


def test_evaluation_has_every_task_of_a_mixture(mixture, lengths):
    sets = task_batches.get_eval_batches(config_for(mixture, lengths))
    assert set(sets) == {"test_mix_a", "test_mix_b", "test_mixture"}
    lengths = {name: len(list(batches)) for name, batches in sets.items()}
    # The mixture ends with the first of its tasks that does.
    assert min(lengths.values()) > 0 and lengths["test_mixture"] <= lengths["test_mix_a"] + lengths["test_mix_b"]


def test_a_task_object_is_read_as_its_name(task, lengths):
    config = config_for(task, lengths)
    by_object = dataclasses.replace(config, mixture_or_task_name=get_mixture_or_task(config.name))
    assert by_object.name == config.name
    assert_equal(take(task_batches.get_train_batches(by_object), 1), take(task_batches.get_train_batches(config), 1))


def test_vocabularies_of_a_task(task, lengths):
    inputs, targets = task_vocabularies.task_vocabularies(config_for(task, lengths))
    assert inputs == targets == ByteVocabulary(extra_ids=100)


def test_use_cached_is_for_tasks_that_can_be_cached(task, lengths):
    """As in SeqIO: a task without a `CacheDatasetPlaceholder` is read as it is."""
    config = config_for(task, lengths)
    cached = dataclasses.replace(config, use_cached=True)
    assert_equal(take(task_batches.get_train_batches(cached), 2), take(task_batches.get_train_batches(config), 2))


def test_errors(task, lengths, caplog, tmp_path, monkeypatch):
    config = config_for(task, lengths)
    with pytest.raises(ValueError, match=r"task_feature_lengths of 'test_task' is None"):
        task_batches.get_train_batches(dataclasses.replace(config, task_feature_lengths=None))
    with pytest.raises(ValueError, match=r"num_workers is -1; it is a whole number of at least 0, or None"):
        dataclasses.replace(config, num_workers=-1)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=r"num_workers = 2 needs an add-on that"):
        patch.delitem(table.ADDONS, "reader_processes")
        task_batches.get_train_batches(dataclasses.replace(config, num_workers=2))
    with (
        monkeypatch.context() as patch,
        pytest.raises(ValueError, match=r"parts of SeqIO's, needs an add-on"),
    ):
        patch.delitem(table.ADDONS, "seqio")
        task_batches.get_train_batches(config, "LMFeatureConverterOfSeqIO")
    with pytest.raises(ValueError, match=r"no task or mixture 'test_tsk'.*'test_task'.*import"):
        task_batches.get_train_batches(dataclasses.replace(config, mixture_or_task_name="test_tsk"))
    with pytest.raises(ValueError, match="There is no module 'no_such_module'"):
        task_batches.get_train_batches(dataclasses.replace(config, module="no_such_module"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_task.py").write_text("X = {}\nX['y']\n")
    with pytest.raises(ValueError, match=r"'broken_task' .* cannot be imported: .*broken_task.py, line 2: KeyError"):
        task_batches.get_train_batches(dataclasses.replace(config, module="broken_task"))
    with pytest.raises(ValueError, match="no split 'test'; it has 'train', 'validation'"):
        task_batches.get_train_batches(dataclasses.replace(config, split="test"))
    with pytest.raises(ValueError, match="The nearest are 'EncDecFeatureConverter'"):
        task_batches.get_train_batches(config, "EncDecFeatureConvertor")
    with pytest.raises(ValueError, match=r"64 inputs are 14 targets, and 10 would cut them; set targets to 14"):
        task_batches.get_train_batches(dataclasses.replace(config, task_feature_lengths={"inputs": 64, "targets": 10}))
    with pytest.raises(ValueError, match="no length for"):
        task_batches.get_train_batches(dataclasses.replace(config, task_feature_lengths={"inputs": 64}))
    with caplog.at_level(logging.WARNING):
        task_batches.get_train_batches(dataclasses.replace(config, task_feature_lengths={"inputs": 64, "targets": 28}))
    assert "28 wastes 50% of the decoder" in caplog.text


def test_vocabularies_of_task_and_model_must_agree(task):
    config = contract.DatasetConfig("test_task", {"inputs": 64, "targets": 14}, "train", 8)
    ours = get_mixture_or_task("test_task").output_features["targets"].vocabulary
    task_vocabularies.check_task_vocabularies(config, ours, ours)
    with pytest.raises(ValueError, match=r"makes targets with .*359 ids.*PassThroughVocabulary \(128 ids\)"):
        task_vocabularies.check_task_vocabularies(config, ours, PassThroughVocabulary(128))


def test_features_that_a_converter_cannot_use(task, lengths, data_files):
    """Before anything is read, packed or not."""
    pretraining.register_pretraining_task(
        "test_lm", data_files=data_files, vocabulary=ByteVocabulary(100), objective=objectives.FullLM()
    )
    for pack in (False, True):
        of_lm = contract.DatasetConfig("test_lm", {"targets": 14}, "train", 8, pack=pack)
        for converter in ("EncDecFeatureConverter", "PrefixLMFeatureConverter"):
            with pytest.raises(ValueError, match=rf"{converter} needs inputs and .*'test_lm' makes \['targets'\]"):
                task_batches.get_train_batches(of_lm, converter)
        with pytest.raises(ValueError, match=r"reads targets only, and task 'test_task' makes \['inputs', 'targets'\]"):
            task_batches.get_eval_batches(config_for(task, lengths, pack=pack), "LMFeatureConverter")
