"""Counts and bigrams of earlier starts: what they belong to, and what happens to damaged ones."""

import logging
import os
import types

import jax
import numpy as np
import pytest

from limba.data.contract import DatasetConfig
from limba.network import t5
from limba.tasks import pretraining
from limba.tasks.pipeline import corpus_ngrams
from limba.tasks.registry import TaskRegistry
from limba.tasks.vocabularies import ByteVocabulary
from limba.training.from_counts import fit_processes, kept_parts
from limba.training.from_counts.start_from_counts import StartFromCounts
from tests.limba import small

PART = {"keys": np.arange(5), "counts": np.ones(5)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kept_parts.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_a_part_is_found_by_all_that_it_depends_on(folder, monkeypatch):
    kept_parts.write("counts", {"most_tokens": 5}, PART)
    found = kept_parts.read("counts", {"most_tokens": 5})
    assert sorted(found) == ["counts", "keys"]
    for name, x in PART.items():
        np.testing.assert_array_equal(found[name], x)
    assert kept_parts.read("counts", {"most_tokens": 6}) is kept_parts.read("bigrams", {"most_tokens": 5}) is None
    monkeypatch.setattr(kept_parts, "_VERSION", 0)
    assert kept_parts.read("counts", {"most_tokens": 5}) is None
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("damage", [lambda x: x[:-40], lambda x: x.replace(b"\x01\x00", b"\x02\x00"), lambda _: b"{}"])
def test_a_damaged_part_is_removed_with_a_warning(folder, caplog, damage):
    kept_parts.write("counts", {}, PART)
    (file,) = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert kept_parts.read("counts", {}) is None
    assert caplog.text.count("the counts are made again") == 1 and not file.exists()


def test_no_more_are_kept_than_there_is_room_for(folder, monkeypatch):
    for number in range(3):
        kept_parts.write("counts", {"number": number}, PART)
        for age, file in enumerate(sorted(folder.iterdir(), key=lambda x: x.stat().st_mtime_ns), -9):
            os.utime(file, (1e9 + age, 1e9 + age))
    assert kept_parts.read("counts", {"number": 0}) is not None  # and is the one that was used last
    size = next(folder.iterdir()).stat().st_size
    monkeypatch.setattr(kept_parts, "MAX_BYTES", 2 * size)
    kept_parts.write("counts", {"number": 3}, PART)
    assert [kept_parts.read("counts", {"number": n}) is not None for n in range(4)] == [True, False, False, True]


def test_off_keeps_nothing_and_a_folder_that_is_none_is_a_warning(folder, monkeypatch, caplog):
    folder.write_text("a file")
    kept_parts.write("bigrams", {}, PART)
    assert f"The bigrams cannot be kept in {folder}" in caplog.text and kept_parts.VARIABLE in caplog.text
    monkeypatch.setenv(kept_parts.VARIABLE, "off")
    kept_parts.write("bigrams", {}, PART)
    assert kept_parts.read("bigrams", {}) is None and caplog.text.count("cannot be kept") == 1


def test_checksums_are_of_names_shapes_and_values():
    arrays = [PART, {**PART, "keys": np.arange(5) + 1}, {"a": PART["keys"]}, {"b": PART["keys"]}]
    arrays.append({"a": PART["keys"].reshape(5, 1)})
    assert len({kept_parts.checksum(x) for x in arrays}) == 5


@pytest.fixture
def start(folder, tmp_path, monkeypatch):
    """Makes a start on a corpus of a few texts; gives its parameters, and what was counted and fitted for it."""
    (tmp_path / "texts.jsonl").write_text('{"text": "a text of some words, and of more of them"}\n' * 40)
    pretraining.register_pretraining_task(
        "kept_parts", data_files={"train": str(tmp_path / "*.jsonl")}, vocabulary=ByteVocabulary(100)
    )
    vocabulary = TaskRegistry.get("kept_parts").output_features["targets"].vocabulary
    config = small.config(vocab_size=vocabulary.vocab_size, **small.TWO_LAYERS)
    model = types.SimpleNamespace(
        module=t5.Transformer(config),
        input_vocabulary=vocabulary,
        output_vocabulary=vocabulary,
        FEATURE_CONVERTER_CLS="EncDecFeatureConverter",
    )
    tokens = np.ones((1, 4), np.int32)
    params = jax.jit(lambda key: model.module.init(key, *[tokens] * 3, enable_dropout=False))(jax.random.key(0))
    dataset = DatasetConfig("kept_parts", {"inputs": 32, "targets": 32}, "train", 8, seed=0)
    made: list[str] = []
    count = corpus_ngrams.count

    def fits(asked):
        for number, fit in enumerate(asked):
            made.append(f"rank {fit.rank}")
            yield number, fit.make()

    monkeypatch.setattr(fit_processes.Fit, "is_small", False)
    monkeypatch.setattr(fit_processes, "make", fits)
    monkeypatch.setattr(corpus_ngrams, "count", lambda **asked: made.append("counts") or count(**asked))

    def begin(**settings):
        made.clear()
        return StartFromCounts(fit_steps=2, **settings)(params["params"], model, dataset), list(made)

    yield begin
    TaskRegistry.remove("kept_parts")


def test_a_second_start_is_the_same_and_a_killed_one_makes_what_is_missing(start, folder, tmp_path):
    first, made = start()
    assert made == ["counts", "rank 76", "rank 25"] and len(list(folder.iterdir())) == 3
    second, made = start()
    assert made == []
    jax.tree.map(np.testing.assert_array_equal, first, second)
    max(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns).unlink()
    third, made = start()
    assert len(made) == 1
    jax.tree.map(np.testing.assert_array_equal, first, third)
    assert start(discount=0.5)[1] == ["rank 76", "rank 25"]
    assert start(most_tokens=500)[1][0] == "counts"
    (tmp_path / "texts.jsonl").write_text('{"text": "another text of other words entirely, as long"}\n' * 40)
    assert start()[1] == ["counts", "rank 76", "rank 25"]
