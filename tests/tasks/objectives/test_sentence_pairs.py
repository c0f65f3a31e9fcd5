"""Rows of sentence pairs: rows by hand, the share of labels, masks, and streams that resume."""

import dataclasses
import json

import numpy as np
import pytest

from limba.data.contract import DatasetConfig
from tasks import objectives, pretraining, preview
from tasks.objectives import sentence_pairs
from tasks.pipeline import task_batches
from tasks.registry import TaskRegistry
from tests.limba.models.test_encoder_only_model import WORDS, Words

CLS, SEP, MASK, SIZE = 2, 3, 4, 1000
IDS = objectives.VocabularyIds(SIZE, 0, SEP, CLS, SEP, MASK, special_ids=(0, 1, 2, 3, 4))
# Even ids continue the word of an odd one before them.
OF_WORDS = dataclasses.replace(IDS, continues_word=np.arange(SIZE) % 2 == 0)


def _counting(rows, length):
    """Row r is 100 r + 100, 100 r + 101 …, so that a token tells where it is from."""
    return (100 * np.arange(1, rows + 1)[:, None] + np.arange(length)).astype(np.int32)


def _rows(kind, tokens, lengths=None, seed=0, ids=IDS):
    """Each row's A, B and label, after [CLS] and both [SEP] were found at their places; and its masked places."""
    lengths = np.full(len(tokens), tokens.shape[1]) if lengths is None else np.array(lengths)
    objective = objectives.MaskedLM(pairs=kind)
    made = objective.corrupt(tokens, lengths, objectives.example_seeds(seed, 0, len(tokens)), ids)
    assert made.inputs.shape[1] == objective.lengths(tokens.shape[1] + 3)["inputs"]
    found = []
    for row in range(len(tokens)):
        count = made.targets_lengths[row]
        places = made.others["target_positions"][0][row, :count]
        inputs, end, start = made.inputs[row].copy(), made.inputs_lengths[row], made.others["pair_start"][0][row, 0]
        inputs[places] = made.targets[row, :count]
        assert [inputs[0], inputs[start - 1], inputs[end - 1]] == [CLS, SEP, SEP] and not inputs[end:].any()
        assert count == max(round(0.15 * (end - 3)), 1) and not {0, start - 1, end - 1} & {*places.tolist()}
        a, b = inputs[1 : start - 1].tolist(), inputs[start : end - 1].tolist()
        found.append((a, b, int(made.others["pair_labels"][0][row, 0]), places - start))
    return found


def test_next_sentences_by_hand():
    tokens = _counting(6, 30)
    found = _rows("next_sentence", tokens)
    for row, (a, b, label, _) in enumerate(found):
        assert a == tokens[row, : len(a)].tolist() and 10 <= len(a) <= 20 and len(a) + len(b) == 30
        other = b[0] // 100 - 1
        # The end of this window, or of another one, which is as long.
        assert b == tokens[other, len(a) :].tolist() and label == (1 if other == row else 2)
    assert {label for _, _, label, _ in found} == {1, 2}


def test_sentence_orders_by_hand():
    tokens = _counting(6, 30)
    found = _rows("sentence_order", tokens)
    for row, (a, b, label, _) in enumerate(found):
        assert (a + b if label == 1 else b + a) == tokens[row].tolist() and min(len(a), len(b)) >= 10
    assert {label for _, _, label, _ in found} == {1, 2}


@pytest.mark.parametrize("kind", sentence_pairs.KINDS)
def test_labels_are_half_of_each_and_both_segments_are_masked(kind):
    tokens = np.random.default_rng(0).integers(5, SIZE, (2000, 60)).astype(np.int32)
    found = _rows(kind, tokens)
    assert abs(np.mean([label == 1 for _, _, label, _ in found]) - 0.5) < 0.04
    of_a, of_b = (np.mean([(sign * places > 0).sum() / 9 for *_, places in found]) for sign in (-1, 1))
    assert abs(of_a - 0.5) < 0.03 and of_a + of_b > 0.93  # places - start is 0 at the first token of B
    assert {len(a) for a, *_ in found} == set(range(20, 41))


def test_short_windows():
    tokens = _counting(3, 30)
    # The others are too short to give the first an end of another window; they take theirs from it.
    tokens *= np.arange(30) < np.array([30, 2, 3])[:, None]
    labels = set()
    for seed in range(20):
        first, second, third = _rows("next_sentence", tokens, [30, 2, 3], seed)
        assert first[2] == 1 and first[0] + first[1] == tokens[0].tolist()
        assert [len(second[0]), len(second[1])] == [1, 1] and len(third[0] + third[1]) == 3
        labels |= {second[2], third[2]}
        (alone,) = _rows("next_sentence", tokens[:1], seed=seed)
        assert alone[2] == 1 and alone[0] + alone[1] == tokens[0].tolist()
    assert labels == {1, 2}


@pytest.mark.parametrize("kind", sentence_pairs.KINDS)
def test_segments_begin_with_words(kind):
    tokens = np.random.default_rng(1).integers(5, SIZE, (300, 60)).astype(np.int32)
    found = _rows(kind, tokens, ids=OF_WORDS)
    for row, (a, b, label, _) in enumerate(found):
        assert b[0] % 2 == 1
        if kind == "sentence_order":
            assert a[0] % 2 == 1
            whole = a + b if label == 1 else b + a
            # Pieces of a word that begins in another window are left out.
            left = 60 - len(whole)
            assert tokens[row, left:].tolist() == whole and not (tokens[row, :left] % 2).any()
    assert kind == "next_sentence" or {len(a + b) for a, b, *_ in found} >= {58, 59, 60}


def test_no_word_is_joined_across_the_border():
    # One word of a window: the cut is inside of it, and either part is masked as a word.
    ids = dataclasses.replace(IDS, continues_word=np.ones(SIZE, bool))
    objective = objectives.MaskedLM(0.6, whole_words=True, pairs="sentence_order")
    tokens = _counting(8, 30)
    made = objective.corrupt(tokens, np.full(8, 30), objectives.example_seeds(0, 0, 8), ids)
    starts = made.others["pair_start"][0]
    for row, count in enumerate(made.targets_lengths):
        in_b = made.others["target_positions"][0][row, :count] >= starts[row]
        assert in_b.all() or not in_b.any()


def test_rows_without_pairs_are_as_before():
    tokens = np.random.default_rng(0).integers(5, SIZE, (50, 61)).astype(np.int32)
    lengths = np.random.default_rng(0).integers(2, 62, 50)
    made = objectives.MaskedLM(whole_words=True).corrupt(tokens, lengths, objectives.example_seeds(0, 0, 50), OF_WORDS)
    # Sums of the arrays as they are without pairs in the code; single tokens of words that are too long.
    places = np.arange(1, 64)
    sums = [int((x.astype(np.int64) * places[: x.shape[1]]).sum()) for x in (made.inputs, made.targets)]
    positions = made.others["target_positions"][0]
    assert [*sums, int((positions * places[: positions.shape[1]]).sum())] == BEFORE
    assert made.others.keys() == {"target_positions"}


BEFORE = [13984196, 343357, 19039]


def test_lengths_and_names():
    objective = objectives.MaskedLM(pairs="next_sentence")
    lengths = {"inputs": 512, "targets": 76, "target_positions": 76, "pair_start": 1, "pair_labels": 1}
    assert objective.lengths(512) == lengths and objective.raw_length(512) == 509
    assert objective.name == "masked_lm_0.15_next_sentence"
    with pytest.raises(ValueError, match="inputs_length is 4; a row has at least 5 tokens"):
        objective.lengths(4)
    with pytest.raises(ValueError, match="pairs is 'nsp'; it is 'next_sentence' or 'sentence_order', or ''"):
        objectives.MaskedLM(pairs="nsp")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    rng = np.random.default_rng(0)
    with (folder / "train.jsonl").open("w") as file:
        for _ in range(3000):
            text = " ".join(f"w{i}" for i in rng.integers(0, len(WORDS) - 5, rng.integers(5, 60)))
            file.write(json.dumps({"text": text}) + "\n")
    task = pretraining.register_pretraining_task(
        "test_sentence_pairs",
        data_files={"train": str(folder / "train.jsonl")},
        vocabulary=Words(),
        objective=objectives.MaskedLM(pairs="next_sentence"),
    )
    yield task.name
    TaskRegistry.remove(task.name)


@pytest.mark.parametrize("pack", [False, True])
def test_a_resumed_stream_makes_the_same_rows(task, pack):
    lengths = objectives.lengths(objectives.MaskedLM(pairs="next_sentence"), 48)
    config = DatasetConfig(task, lengths, "train", 16, seed=3, num_readers=2, pack=pack)
    stream = task_batches.get_train_batches(config, "MaskedLanguageModelFeatureConverter")
    batches = [next(stream) for _ in range(5)]
    state = stream.save_state()
    batches += [next(stream) for _ in range(120)]  # more than a group of documents
    resumed = task_batches.get_train_batches(config, "MaskedLanguageModelFeatureConverter")
    resumed.restore_state(state)
    for batch in batches[5:]:
        again = next(resumed)
        assert again.keys() == batch.keys()
        for name, values in batch.items():
            np.testing.assert_array_equal(again[name], values, err_msg=name)
    labels = np.concatenate([batch["pair_labels"].ravel() for batch in batches])
    assert abs((labels[labels > 0] == 1).mean() - 0.5) < 0.05


def test_a_preview_says_whether_b_follows(task, capsys):
    preview.main([task, "--inputs_length=48", "--num=4"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("--- example") and "inputs: 48 of 48 tokens" in line]
    labels = [line for line in lines if line.startswith("--- pair: ")]
    assert len(rows) == len(labels) == 4 and {*labels} == {"--- pair: B follows A", "--- pair: B does not follow A"}
