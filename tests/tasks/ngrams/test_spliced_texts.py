"""Spans go back to their places, and n-grams know no more of a target than a model sees."""

import numpy as np
import pytest

from limba.data import contract
from tasks import objectives
from tasks.ngrams.spliced_texts import NONE, contexts, splice
from tasks.pipeline import converters

IDS = objectives.VocabularyIds(vocab_size=60, num_sentinels=10, eos_id=1)  # <extra_id_0> is 59


def _texts(spliced):
    """The texts, one list each."""
    return [part.tolist() for part in np.split(spliced.tokens, np.flatnonzero(spliced.begins)[1:])]


def _padded(rows, length):
    return np.array([row + [0] * (length - len(row)) for row in rows], np.int32)


def _by_target(texts):
    found = contexts(texts)
    rows = zip(found.words, found.left, found.left_but_one, found.right, found.distance, strict=True)
    return {int(word): tuple(map(int, rest)) for word, *rest in rows}


def test_contexts_of_spans():
    # The text is 10 … 18, and [11, 12], [15] and the end [18] were left out.
    inputs = _padded([[10, 59, 13, 14, 58, 16, 17, 57, 1]], 12)
    targets = _padded([[59, 11, 12, 58, 15, 57, 18, 1]], 10)
    texts = splice(contract.encoder_decoder_features(inputs, targets), IDS)
    assert _texts(texts) == [list(range(10, 19))]
    assert _by_target(texts) == {11: (10, NONE, 13, 2), 12: (11, 10, 13, 1), 15: (14, 13, 16, 1), 18: (17, 16, NONE, 0)}


@pytest.mark.parametrize("packs", [False, True])
def test_all_texts_of_span_corruption_come_back(packs):
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 41, 30)
    texts = [rng.integers(2, 50, length) for length in lengths]
    tokens = _padded([x.tolist() for x in texts], 40)
    corrupted = objectives.SpanCorruption().corrupt(tokens, lengths, np.arange(30, dtype=np.uint64), IDS)
    features = {"inputs": corrupted.inputs, "targets": corrupted.targets}
    if packs:  # Two short ones to a row.
        features = {
            name: np.concatenate([np.pad(x, ((0, 0), (0, 2 * x.shape[1]))) for x in (rows,)])
            for name, rows in features.items()
        }
    made = splice(converters.encoder_decoder(features, packs), IDS)
    found = sorted(_texts(made))
    assert found == sorted(x.tolist() for x in texts)
    assert made.is_target.sum() == np.isin(corrupted.targets, range(2, 50)).sum() > 100


def test_continuations_follow_their_prefix():
    features = contract.encoder_decoder_features(_padded([[10, 11, 1]], 4), _padded([[12, 13, 1]], 4))
    texts = splice(features, IDS)
    assert _texts(texts) == [[10, 11, 12, 13]]
    assert _by_target(texts) == {12: (11, 10, NONE, 0), 13: (12, 11, NONE, 0)}


def test_decoders_see_what_is_before_in_the_same_document():
    features = converters.language_model({"targets": _padded([[10, 11, 1, 12, 13, 14]], 7)}, False)
    texts = splice(features, IDS)
    assert _texts(texts) == [[10, 11], [12, 13, 14]]
    assert _by_target(texts)[14] == (13, 12, NONE, 0) and _by_target(texts)[12][0] == NONE
    packed = converters.language_model({"targets": _padded([[10, 11], [12, 13]], 7)}, True)
    assert packed["decoder_target_tokens"].shape[0] == 1
    assert _texts(splice(packed, IDS)) == [[10, 11], [12, 13]]


def test_masked_words_do_not_see_each_other():
    # [CLS] 10 [MASK] [MASK] 13 [SEP], where 11 and 12 are asked for.
    ids = objectives.VocabularyIds(60, 0, eos_id=3, cls_id=2, sep_id=3, mask_id=4, special_ids=(0, 2, 3, 4))
    features = {
        "inputs": _padded([[2, 10, 4, 4, 13, 3]], 8),
        "targets": _padded([[11, 12]], 3),
        "target_positions": _padded([[2, 3]], 3),
    }
    texts = splice(converters.masked_language_model(features, False), ids)
    assert _texts(texts) == [[10, 11, 12, 13]]
    assert _by_target(texts) == {11: (10, NONE, 13, 2), 12: (NONE, NONE, 13, 1)}
