"""Whatever rows have no example: the others train, each once an epoch, on any number of readers and hosts."""

import collections
import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from limba.data import contract
from tasks.pipeline import deals, streams, task_batches
from tasks.registry import Feature, TaskRegistry, rows, steps
from tasks.registry.rows import TOKENS, Tokens
from tasks.sources import corpora, splits
from tasks.vocabularies import PassThroughVocabulary

LENGTHS = {"inputs": 3, "targets": 3}
ROWS = 48
# By name: which rows have a text of which an example is made.
PATTERNS = {
    "all": lambda row: True,
    **{f"each {step}th from {first}": lambda row, s=step, f=first: row % s == f for step, first in
       [(2, 0), (2, 1), (3, 2), (8, 7)]},
    "a block at the end": lambda row: row >= 40,
    "blocks of eight": lambda row: row // 8 % 2 == 0,
    "the first": lambda row: row == 0,
    "the last": lambda row: row == ROWS - 1,
    "two": lambda row: row in (9, 30),
}  # fmt: skip
DEAD = {"blank": "", "spaces": "   ", "null": None, "dropped": "drop this one", "short": "x"}
LAYOUTS = [(1, 1), (3, 1), (4, 2), (8, 4)]


@dataclasses.dataclass(frozen=True)
class NameTexts(steps.Step):
    """One example per document of some length that is not to be dropped: its epoch, shard and row, each plus 1."""

    output_features: Mapping[str, Any] | None = None
    sequence_length: Mapping[str, int] | None = None

    rows_per_group: ClassVar[int] = 4

    def columns(self):
        return {"inputs": TOKENS, "targets": TOKENS}

    def rows_function(self):
        def name(given, seed):
            texts = [bytes(text).decode().strip() for text in rows.texts(given, "text")]
            kept = np.array([i for i, x in enumerate(texts) if len(x) > 2 and not x.startswith("drop")], np.int64)
            tokens = Tokens.of((given.document[kept] + 1).tolist())
            return given.make({"inputs": tokens, "targets": tokens}, kept)

        return name


def _write(folder, suffix, texts):
    """Two files, of 30 and 18 rows."""
    for number, part in enumerate((texts[:30], texts[30:])):
        file, table = folder / f"{number}.{suffix}", pa.table({"text": pa.array(part, pa.string())})
        if suffix == "parquet":
            pa.parquet.write_table(table, file)
        elif suffix == "jsonl":
            file.write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
        elif suffix == "csv":
            file.write_text("n,text\n" + "".join(f"{i},{text or ''}\n" for i, text in enumerate(part)))
        else:
            file.write_text("".join(f"{text or ''}\n" for text in part))
    return str(folder / f"*.{suffix}")


def _register(folder, pattern, dead="blank", suffix="jsonl"):
    is_there = PATTERNS[pattern]
    texts = [f"the words of {row}" if is_there(row) else DEAD[dead] for row in range(ROWS)]
    source = corpora.HuggingFaceSource({"train": _write(folder, suffix, texts)}, chunk_documents=8)
    features = dict.fromkeys(LENGTHS, Feature(PassThroughVocabulary(1000)))
    TaskRegistry.add(
        "dealt", source=source, preprocessors=[NameTexts()], output_features=features, shuffle_buffer_size=4
    )
    return {(row // 30, row - row // 30 * 30) for row in range(ROWS) if is_there(row)}


def _open(readers, hosts, shuffle=False):
    config = contract.DatasetConfig(
        "dealt", LENGTHS, "train", 2 * readers, shuffle=shuffle, seed=3, num_readers=readers
    )
    return [task_batches.get_train_batches(config, process_index=i, process_count=hosts) for i in range(hosts)]


def _places(batch):
    return [tuple(row) for row in (batch["decoder_target_tokens"] - 1).tolist()]


def _check(places, readers, hosts):
    """Each document once an epoch; and no reader is far ahead of another."""
    streams = _open(readers, hosts)
    found = collections.Counter()
    for _ in range(max(1, len(places) // readers) + 4):
        batches = [next(stream) for stream in streams]
        assert [len(batch["decoder_target_tokens"]) for batch in batches] == [2 * readers // hosts] * hosts
        found.update(itertools.chain(*map(_places, batches)))
    for stream in streams:
        stream.close()
    assert set(found.values()) == {1}
    first_epoch = {(shard, row) for epoch, shard, row in found if epoch == 0}
    assert first_epoch == places


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_documents_that_are_there_train(tmp_path, pattern):
    places = _register(tmp_path, pattern)
    for readers, hosts in LAYOUTS:
        _check(places, readers, hosts)


@pytest.mark.sample(8)
@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv", "txt"])
@pytest.mark.parametrize("dead", DEAD)
def test_in_all_formats(tmp_path, dead, suffix):
    _check(_register(tmp_path, "two", dead, suffix), 4, 2)


@pytest.mark.parametrize(
    ("pattern", "deal"),
    [("all", None), ("each 2th from 1", deals.EXAMPLES), ("two", deals.EXAMPLES), ("each 3th from 2", None)],
)
def test_positions_are_exact(tmp_path, pattern, deal):
    _register(tmp_path, pattern)
    (batches,) = _open(8, 1, shuffle=True)
    for _ in range(9):
        next(batches)
    state = batches.save_state()
    assert all(json.loads(saved).get("deals") == (deal and {"dealt": deal}) for saved in state.values())
    expected = [_places(next(batches)) for _ in range(6)]
    (resumed,) = _open(8, 1, shuffle=True)
    resumed.restore_state(state)
    assert [_places(next(resumed)) for _ in range(6)] == expected


def test_no_example_of_any_reader_is_an_error(tmp_path):
    PATTERNS["none"] = lambda row: False
    _register(tmp_path, "none", "dropped")
    (batches,) = _open(4, 1)
    with pytest.raises(RuntimeError, match="No example can be made of the documents of task 'dealt'"):
        next(batches)


@pytest.mark.parametrize("pattern", ["each 2th from 0", "each 2th from 1", "all"])
def test_of_a_corpus_that_is_far_away_the_first_rows_are_looked_at(tmp_path, monkeypatch, pattern):
    """Many hosts would open too many connections to look at more."""
    places = _register(tmp_path, pattern)
    monkeypatch.setattr(corpora.HuggingFaceSource, "is_remote", lambda source, split: True)
    asked = []
    has_part = corpora.HuggingFaceSource.has_blank_part
    monkeypatch.setattr(
        corpora.HuggingFaceSource, "has_blank_part", lambda *args: asked.append(has_part(*args)) or asked[-1]
    )
    monkeypatch.setattr(streams.Stream, "_has_examples", None)
    _check(places, 4, 2)
    assert asked == [pattern != "all"] * 2
    assert _deals_of(_open(4, 1)[0]) == {deals.ROTATED_ROWS if pattern != "all" else None}


def test_of_a_corpus_that_is_far_away_dropped_rows_are_an_error(tmp_path, monkeypatch):
    _register(tmp_path, "each 2th from 1", "dropped")
    monkeypatch.setattr(corpora.HuggingFaceSource, "is_remote", lambda source, split: True)
    (batches,) = _open(4, 1)
    with pytest.raises(RuntimeError, match=r"the part of reader 0 of 4 .*fewer readers have larger parts"):
        for _ in range(4):
            next(batches)


def _register_one_file(folder, texts, **options):
    file = folder / "all.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = corpora.HuggingFaceSource({"train": str(file)}, **options)
    features = dict.fromkeys(LENGTHS, Feature(PassThroughVocabulary(1000)))
    TaskRegistry.add("dealt", source=source, preprocessors=[NameTexts()], output_features=features)
    return source


def _deals_of(batches):
    return {json.loads(saved).get("deals", {}).get("dealt") for saved in batches.save_state().values()}


def test_without_blank_rows_the_deal_stays(tmp_path):
    """Also where a split keeps more documents of one reader than of another: batches stay what they were."""
    source = _register_one_file(tmp_path, [f"the words of {row}" for row in range(ROWS)], splits=splits.held_out(0.5))
    texts, documents = zip(*source.count_texts("train", 4), strict=True)
    assert texts == documents and max(texts) - min(texts) > 1
    assert _deals_of(_open(4, 1)[0]) == {None}


def test_a_large_corpus_is_dealt_by_rotated_rows_first(tmp_path, monkeypatch):
    """Each reader then makes its own examples alone."""
    monkeypatch.setattr("tasks.sources.sharded._SMALL_CORPUS", 0)
    _register_one_file(tmp_path, [f"the words of {row}" if row % 2 else "" for row in range(ROWS)])
    (batches,) = _open(4, 1)
    assert _deals_of(batches) == {deals.ROTATED_ROWS}
    assert len(next(batches)["decoder_target_tokens"]) == 8
