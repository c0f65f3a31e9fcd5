"""Masked language modelling: shares, places and whole words."""

import dataclasses

import numpy as np
import pytest

from tasks import objectives

CLS, SEP, MASK, SIZE = 2, 3, 4, 1000
IDS = objectives.VocabularyIds(SIZE, 0, SEP, CLS, SEP, MASK, special_ids=(0, 1, 2, 3, 4))


def _corrupt(objective, tokens, lengths=None, seed=0, ids=IDS):
    lengths = np.full(len(tokens), tokens.shape[1]) if lengths is None else np.array(lengths)
    return objective.corrupt(tokens, lengths, objectives.example_seeds(seed, 0, len(tokens)), ids)


def _text(rows, length, seed=0):
    return np.random.default_rng(seed).integers(5, SIZE, (rows, length)).astype(np.int32)


def test_targets_at_their_positions_give_back_the_text():
    tokens, lengths = _text(50, 126), np.full(50, 126)
    lengths[-4:] = 2, 3, 17, 100
    tokens *= np.arange(126) < lengths[:, None]
    batch = _corrupt(objectives.MaskedLM(), tokens, lengths)
    positions, counts = batch.others["target_positions"]
    assert batch.inputs.shape == (50, 128) and batch.targets.shape == positions.shape == (50, 19)
    np.testing.assert_array_equal(counts, batch.targets_lengths)
    np.testing.assert_array_equal(batch.inputs_lengths, lengths + 2)
    # 15 %, rounded, at least one; BERT's number.
    np.testing.assert_array_equal(counts, np.maximum(np.rint(0.15 * lengths), 1))
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        inputs, places = batch.inputs[row].copy(), positions[row, :count]
        assert (np.diff(places) > 0).all() and not positions[row, count:].any() and not batch.targets[row, count:].any()
        inputs[places] = batch.targets[row, :count]
        assert inputs.tolist() == [CLS, *tokens[row, :length], SEP, *[0] * (126 - length)]


def test_shares_of_masks_random_tokens_and_unchanged_ones():
    tokens = _text(3000, 100)
    batch = _corrupt(objectives.MaskedLM(0.3), tokens)
    positions = batch.others["target_positions"][0]
    at_places = np.take_along_axis(batch.inputs, positions, axis=1)
    assert batch.targets.shape == (3000, 30)
    assert abs((at_places == MASK).mean() - 0.8) < 0.005
    assert abs((at_places == batch.targets).mean() - 0.1) < 0.005
    drawn = at_places[(at_places != MASK) & (at_places != batch.targets)]
    assert drawn.min() == 5 and drawn.max() == SIZE - 1  # no special token
    # Every place is as likely.
    assert np.abs(np.bincount(positions.ravel(), minlength=102)[1:101] / 3000 - 0.3).max() < 0.05


def test_a_row_depends_on_its_seed_alone():
    tokens = _text(8, 40)
    seeds = objectives.example_seeds(3, 0, 8)
    for objective in (objectives.MaskedLM(), objectives.MaskedLM(whole_words=True)):
        ids = dataclasses.replace(IDS, continues_word=np.arange(SIZE) % 2 == 0)
        whole = objective.corrupt(tokens, np.full(8, 40), seeds, ids)
        one = objective.corrupt(tokens[5:6], np.full(1, 40), seeds[5:6], ids)
        np.testing.assert_array_equal(whole.inputs[5], one.inputs[0])
        np.testing.assert_array_equal(whole.others["target_positions"][0][5], one.others["target_positions"][0][0])
        assert not np.array_equal(whole.inputs, _corrupt(objective, tokens, seed=4, ids=ids).inputs)


def test_whole_words_are_masked_whole():
    # Even ids continue the word of an odd one before them.
    ids = dataclasses.replace(IDS, continues_word=np.arange(SIZE) % 2 == 0)
    tokens = _text(400, 100)
    batch = _corrupt(objectives.MaskedLM(0.15, whole_words=True), tokens, ids=ids)
    positions, counts = batch.others["target_positions"]
    word = np.cumsum(np.column_stack([np.ones(400, bool), tokens[:, 1:] % 2 == 1]), axis=1)
    for row, count in enumerate(counts):
        chosen = np.zeros(100, bool)
        chosen[positions[row, :count] - 1] = True
        whole = {number: chosen[word[row] == number] for number in word[row]}
        assert all(pieces.all() or not pieces.any() for pieces in whole.values())
    assert counts.max() == 15 and 13.5 < counts.mean() < 15


def test_of_a_word_longer_than_all_that_may_be_masked_single_tokens_are():
    """As of a clause of Thai or Chinese: they were the first ones of each row."""
    ids = dataclasses.replace(IDS, continues_word=np.ones(SIZE, bool))
    batch = _corrupt(objectives.MaskedLM(0.15, whole_words=True), _text(200, 40), ids=ids)
    np.testing.assert_array_equal(batch.targets_lengths, 6)
    of_place = np.bincount(batch.others["target_positions"][0].ravel(), minlength=42)[1:41]
    assert of_place.min() >= 15 and of_place.max() <= 50  # 30 of each are expected


def test_lengths():
    objective = objectives.MaskedLM()
    assert objective.lengths(512) == {"inputs": 512, "targets": 76, "target_positions": 76}
    assert objective.raw_length(512) == 510 and objective.name == "masked_lm_0.15"
    assert objectives.MaskedLM(0.3, whole_words=True).name == "masked_lm_0.3_words"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: objectives.MaskedLM(1.0), "noise_density is 1.0; it lies between 0 and 1"),
        (lambda: objectives.MaskedLM(mask_rate=0.95), "mask_rate is 0.95 and random_token_rate 0.1"),
        (lambda: objectives.MaskedLM().lengths(3), "inputs_length is 3; a row has at least 4 tokens"),
        (lambda: _corrupt(objectives.MaskedLM(whole_words=True), _text(1, 9)), "whole_words needs a vocabulary that"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("frame", "before", "behind", "row"),
    [
        ((1, 1), None, None, [CLS, "text", SEP]),
        ((1, 1), (), (), [CLS, "text", SEP]),  # A tokenizer without a template, in the recipe of one's own.
        ((0, 0), (), (), ["text"]),
        ((2, 1), (CLS, 7), (SEP,), [CLS, 7, "text", SEP]),
        ((0, 2), (), (8, SEP), ["text", 8, SEP]),
    ],
)
def test_rows_have_the_frame_of_the_tokenizer(frame, before, behind, row):
    objective, ids = objectives.MaskedLM(frame=frame), dataclasses.replace(IDS, before=before, behind=behind)
    width = objective.raw_length(12)
    assert width == 12 - sum(frame)
    tokens, lengths = _text(2, width), [width, 5]
    tokens[1, 5:] = 0
    batch = _corrupt(objective, tokens, lengths, ids=ids)
    for i, length in enumerate(lengths):
        inputs = batch.inputs[i].copy()
        count = batch.targets_lengths[i]
        inputs[batch.others["target_positions"][0][i, :count]] = batch.targets[i, :count]
        place = row.index("text")
        whole = [*row[:place], *tokens[i, :length].tolist(), *row[place + 1 :]]
        assert inputs.tolist() == [*whole, *[0] * (12 - len(whole))]


def test_a_frame_that_is_not_the_tokenizers_is_refused():
    ids = dataclasses.replace(IDS, before=(CLS, 7), behind=(SEP,))
    with pytest.raises(ValueError, match=r"puts 2 special tokens .*set objectives.MaskedLM.frame = \(2, 1\)"):
        objectives.MaskedLM().check_ids(ids)
    with pytest.raises(ValueError, match=r"MaskedLM.frame is \(0, 0\)"):
        objectives.MaskedLM(frame=(0, 0)).check_ids(IDS)
