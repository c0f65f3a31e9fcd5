"""Texts with blank lines between their documents: every reader gets documents, each document once an epoch."""

import collections
import itertools

import numpy as np
import pytest

from limba.data import contract
from tasks import objectives
from tasks.pipeline import task_batches
from tasks.pretraining import denoising
from tasks.registry import Feature, TaskRegistry
from tasks.sources import corpora
from tasks.sources.chunks import Piece
from tasks.vocabularies import ByteVocabulary


@pytest.mark.parametrize(("step", "rotates"), [(1, True), (2, True), (8, True), (8, False)])
def test_pieces_share_rows_and_know_which_are_theirs(step, rotates):
    pieces = [Piece(0, offset, step, rotates) for offset in range(step)]
    for count in (0, 3, step, 5 * step + 1, 70):
        parts = [piece.rows(count).tolist() for piece in pieces]
        assert sorted(itertools.chain(*parts)) == list(range(count))
        assert all(part == sorted(part) for part in parts) and max(map(len, parts)) - min(map(len, parts)) <= 1
        assert all(piece.has(row) for piece, part in zip(pieces, parts, strict=True) for row in part)
    # A later chunk goes on where the one before ended.
    whole = pieces[-1].rows(10 * step)
    np.testing.assert_array_equal(np.append(pieces[-1].rows(4 * step), 4 * step + pieces[-1].rows(6 * step, 4)), whole)


def test_every_second_row_is_in_every_piece_that_rotates():
    even = [sum(row % 2 == 0 for row in Piece(0, offset, 8, True).rows(160).tolist()) for offset in range(8)]
    assert even == [10] * 8
    assert [sum(row % 2 == 0 for row in Piece(0, offset, 8).rows(160).tolist()) for offset in range(8)] == [20, 0] * 4


def _source(tmp_path, lines):
    file = tmp_path / "text.txt"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return corpora.HuggingFaceSource({"train": str(file), "validation": str(file)}, chunk_documents=8)


def _paragraphs(count, blank=1):
    return [line for i in range(count) for line in [f"document {i} of this text", *[""] * blank]]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("blank", [1, 2, 3, 7])
def test_readers_have_equally_many_documents(tmp_path, monkeypatch, blank, large):
    if large:  # files that are too large to be counted are shared by stripes
        monkeypatch.setattr("tasks.sources.sharded._SMALL_CORPUS", 0)
    source = _source(tmp_path, _paragraphs(240, blank))
    found = collections.Counter()
    for reader in range(8):
        chunks = source.chunks_of("train", True, 3, reader, 8).documents(1)
        texts = [text for rows in chunks for text in rows.columns["text"] if text]
        assert 24 <= len(texts) <= 36
        found.update(texts)
    assert set(found.values()) == {1} and len(found) == 240


def test_a_text_of_paragraphs_trains_and_resumes(tmp_path):
    feature = Feature(ByteVocabulary(extra_ids=100), add_eos=True)
    task = TaskRegistry.add(
        "blank_lines_task",
        source=_source(tmp_path, _paragraphs(100)),
        preprocessors=[denoising.Denoise(objectives.SpanCorruption(), documents_per_batch=32)],
        output_features={"inputs": feature, "targets": feature},
        shuffle_buffer_size=40,
    )
    lengths = objectives.span_corruption_lengths(64, 0.15, 3.0)
    config = contract.DatasetConfig(task.name, lengths, "train", 8, seed=3)
    batches = task_batches.get_train_batches(config)
    for _ in range(20):
        next(batches)
    state = batches.save_state()
    assert len(state) == 8
    expected = [next(batches) for _ in range(30)]
    again = task_batches.get_train_batches(config)
    again.restore_state(state)
    for batch in expected:
        np.testing.assert_array_equal(next(again)["encoder_input_tokens"], batch["encoder_input_tokens"])


def test_few_documents_have_fewer_readers(tmp_path):
    source = _source(tmp_path, _paragraphs(9))
    assert [source.has_documents("train", count) for count in (1, 2, 4, 8)] == [True, True, False, False]


def test_only_texts_with_blank_lines_have_another_order(tmp_path):
    assert "blank_lines" in _source(tmp_path, _paragraphs(9)).fingerprint("train")
    source = _source(tmp_path, [f"document {i}" for i in range(40)])
    assert "blank_lines" not in source.fingerprint("train")
    chunks = [source.chunks_of("train", False, 0, reader, 8).documents(1) for reader in (0, 7)]
    texts = [next(iter(rows)).columns["text"] for rows in chunks]
    assert [t.tolist()[:2] for t in texts] == [[b"document 0", b"document 8"], [b"document 7", b"document 15"]]
