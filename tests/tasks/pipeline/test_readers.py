"""What readers deliver: every document once per epoch; a position that is small, readable and belongs to its data.

Of tasks of ours, and of SeqIO's tasks over sources of ours.
"""

import collections
import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from limba.data import contract
from tasks import objectives
from tasks.pipeline import fingerprints, streams, task_batches
from tasks.pretraining import denoising
from tasks.registry import Feature, TaskRegistry, steps
from tasks.registry import tasks as registered_tasks
from tasks.registry.rows import TOKENS, Tokens
from tasks.sources import corpora
from tasks.vocabularies import PassThroughVocabulary

LENGTHS = {"inputs": 3, "targets": 3}
_SMALL_GROUP = 16


@dataclasses.dataclass(frozen=True)
class NameDocument(steps.Step):
    """One example per document, whose tokens say which it is: epoch, shard and row, each plus 1.

    With `draws` the targets are random.
    """

    draws: bool = False
    output_features: Mapping[str, Any] | None = None
    sequence_length: Mapping[str, int] | None = None

    is_random: ClassVar[bool] = True
    rows_per_group: ClassVar[int] = 4

    def columns(self):
        return {"inputs": TOKENS, "targets": TOKENS}

    def rows_function(self):
        assert self.sequence_length == LENGTHS

        def name(rows, seed):
            tokens = Tokens.of((rows.document + 1).tolist())
            drawn = Tokens.of(np.random.default_rng(seed).integers(1, 1000, (len(rows.document), 3)).tolist())
            return rows.make({"inputs": tokens, "targets": drawn if self.draws else tokens})

        return name


def _register_ours(name, data_files, draws=False):
    return TaskRegistry.add(
        name,
        source=corpora.HuggingFaceSource({"train": data_files}, chunk_documents=8),
        preprocessors=[NameDocument(draws)],
        output_features=dict.fromkeys(LENGTHS, Feature(PassThroughVocabulary(1000))),
        shuffle_buffer_size=90,
    )


def _register_with_seqio(name, data_files, draws=False):
    """The same in functions of `tf.data.Dataset`s, which get the text only: it begins with shard and row."""
    import seqio
    import tensorflow as tf

    def _name_document(dataset):
        def name(example):
            place = tf.strings.regex_replace(example["text"], r"^\D*(\d+)\D+(\d+)(.|\n)*", r"-1 \1 \2")
            tokens = tf.strings.to_number(tf.strings.split(place), tf.int32) + 1
            return {"inputs": tokens, "targets": tokens}

        return dataset.map(name)

    @seqio.map_over_dataset(num_seeds=1)
    def _draw(example, seed):
        return {**example, "targets": tf.random.stateless_uniform([3], seed, 1, 1000, tf.int32)}

    return seqio.TaskRegistry.add(
        name,
        source=corpora.HuggingFaceSource({"train": data_files}, chunk_documents=8),
        preprocessors=[_name_document, _draw] if draws else [_name_document],
        output_features={feature: seqio.Feature(seqio.PassThroughVocabulary(1000)) for feature in LENGTHS},
        shuffle_buffer_size=90,
    )


@pytest.fixture(params=[_register_ours, _register_with_seqio], ids=["ours", "seqio"])
def register_named(request):
    return request.param


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    """A group of documents is otherwise many epochs of these corpora."""
    monkeypatch.setattr(streams, "_DOCUMENTS_PER_GROUP", _SMALL_GROUP)


def read_documents(batches, steps):
    """(epoch, shard, row) in the order in which they come; an epoch that is not known is how often it came before."""
    rows = np.concatenate([next(batches)["encoder_input_tokens"] for _ in range(steps)])
    seen: collections.Counter[tuple[int, ...]] = collections.Counter()
    found = []
    for epoch, *place in (rows - 1).tolist():
        found.append((seen[tuple(place)] if epoch < 0 else epoch, *place))
        seen[tuple(place)] += 1
    return found


@pytest.mark.parametrize(
    ("register_named", "num_readers"),
    [(_register_ours, 1), (_register_ours, 3), (_register_with_seqio, 3)],
    indirect=["register_named"],
)
def test_every_document_once_per_epoch(register_named, data_files, places, num_readers):
    """Through the readers and their shuffle buffers, over 7 uneven shards, for the first two epochs and more."""
    register_named("test_named", data_files["train"])
    config = contract.DatasetConfig("test_named", LENGTHS, "train", 48, seed=2, num_readers=num_readers)
    documents = read_documents(task_batches.get_train_batches(config), 18)
    counts = collections.Counter(documents)
    assert {place: count for place, count in counts.items() if place[0] < 2} == {
        (epoch, *place): 1 for epoch in (0, 1) for place in places
    }
    assert set(counts.values()) == {1}
    orders = [[place for epoch, *place in documents if epoch == wanted] for wanted in (0, 1)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("rows", [[20], [1] * 17, [0, 18, 0]], ids=str)
def test_16_readers_of_few_documents(tmp_path, write_jsonl, rows):
    """No reader starves: of one shard, of shards with fewer rows than readers, and with empty shards between them."""
    for shard, count in enumerate(rows):
        write_jsonl(tmp_path / f"{shard:02d}.jsonl", [{"text": f"{shard} {row}"} for row in range(count)])
    _register_ours("test_few", str(tmp_path / "*.jsonl"))
    config = contract.DatasetConfig("test_few", LENGTHS, "train", 16, shuffle=False, seed=2, num_readers=16)
    first = read_documents(task_batches.get_train_batches(config), 1)
    assert len(set(first)) == 16
    assert {epoch for epoch, *_ in first} == {0}


def _state(batches):
    return {name: json.loads(content) for name, content in batches.save_state().items()}


def test_the_state_is_small_and_readable(register_named, data_files):
    register_named("test_named", data_files["train"])
    config = contract.DatasetConfig("test_named", LENGTHS, "train", 48, seed=2, num_readers=2)
    batches = task_batches.get_train_batches(config)
    assert all(state["position"] == {} for state in _state(batches).values())
    read_documents(batches, 9)
    saved = batches.save_state()
    assert sorted(saved) == ["reader-0000-of-0002.json", "reader-0001-of-0002.json"]
    assert max(map(len, saved.values())) < 2000
    state = json.loads(saved["reader-0000-of-0002.json"])
    assert state["batches"] == 9 and state["examples"] == 9 * 24
    place = state["position"]["test_named"]
    # 216 examples in shuffle blocks of 45: the fifth began with example 180, the fifth of a group of 16.
    assert (place["epoch"], place["example"], place["taken"]) == (1, 180 % 16, 36)
    assert place["file"] == f"train-{place['shard']}.jsonl"
    assert isinstance(place["row"], int)


def test_random_preprocessors_draw_anew_in_every_group(register_named, data_files):
    """Seeds belong to an example's place: they do not begin again with a group of documents."""
    register_named("test_random", data_files["train"], draws=True)
    config = contract.DatasetConfig("test_random", LENGTHS, "train", 50, seed=2, num_readers=1)
    batches = task_batches.get_train_batches(config)
    drawn = [tuple(row) for _ in range(8) for row in next(batches)["decoder_target_tokens"].tolist()]
    assert len(set(drawn)) > 0.99 * len(drawn)
    state = batches.save_state()
    assert max(place["epoch"] for place in json.loads(state["reader-0000-of-0001.json"])["position"].values()) >= 1
    expected = next(batches)["decoder_target_tokens"]
    restored = task_batches.get_train_batches(config)
    restored.restore_state(state)
    np.testing.assert_array_equal(next(restored)["decoder_target_tokens"], expected)


@pytest.mark.parametrize(
    ("register", "before", "now"),
    [
        (_register_ours, r"NameDocument\(draws=False", r"NameDocument\(draws=True"),
        (_register_with_seqio, r".*_name_document'\]", r".*_name_document', .*_draw'\]"),
    ],
)
def test_another_preprocessor_is_refused(data_files, register, before, now):
    register("test_named", data_files["train"])
    config = contract.DatasetConfig("test_named", LENGTHS, "train", 48, seed=2, num_readers=2)
    state = task_batches.get_train_batches(config).save_state()
    for registry in registered_tasks.registries():
        registry.remove("test_named")
    register("test_named", data_files["train"], draws=True)
    with pytest.raises(ValueError, match=rf"test_named\.preprocessors was .*{before}.* and is .*{now}"):
        task_batches.get_train_batches(config).restore_state(state)


def test_another_task_and_another_corpus_are_named_with_the_remedies(data_files, corpus, tmp_path, write_jsonl):
    """Neither is a damaged position, whatever the number of files and of readers."""
    _register_ours("test_named", data_files["train"])
    config = contract.DatasetConfig("test_named", LENGTHS, "train", 48, seed=2, num_readers=2)
    batches = task_batches.get_train_batches(config)
    read_documents(batches, 3)
    state = batches.save_state()
    remedies = "start a new run in another MODEL_DIR, with INITIAL_CHECKPOINT_PATH to begin with the weights of this"
    _register_ours("test_other", str(write_jsonl(tmp_path / "other.jsonl", [{"text": "0 1"}] * 60)))
    for readers in (2, 4, None):
        other = dataclasses.replace(config, mixture_or_task_name="test_other", num_readers=readers)
        message = (
            f"This run is of task 'test_named', and MIXTURE_OR_TASK_NAME is 'test_other': set it back, or {remedies}"
        )
        with pytest.raises(ValueError, match=message):
            task_batches.get_train_batches(other).restore_state(state)
    files = sorted(corpus.glob("train-*.jsonl"))
    files[0].write_text(files[0].read_text() + files[0].read_text())
    for file in files[2:]:
        file.unlink()
    write_jsonl(corpus / "train-9.jsonl", [{"text": "9 0"}] * 9)
    source = r"tasks\.test_named\.source\.files"
    changes = rf"{source}\.train-0\.jsonl had \d+ bytes and has \d+; {source}\.train-2\.jsonl is missing; .*"
    with pytest.raises(
        ValueError, match=rf"belongs to other data: {changes}-9\.jsonl is new\. Restore .*, or {remedies}"
    ):
        task_batches.get_train_batches(config).restore_state(state)


def test_preprocessors_are_described_without_addresses():
    step = functools.partial(_register_ours, sizes=[1, 2], like={"a": object()})
    assert fingerprints.describe(step) == "_register_ours(sizes=[1, 2], like={'a': object})"
    denoise = denoising.Denoise(objectives.SpanCorruption(0.2))
    assert fingerprints.describe(denoise).startswith("Denoise(objective=SpanCorruption(noise_density=0.2, ")
