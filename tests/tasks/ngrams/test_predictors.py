"""Counts and predictions of n-grams, beside those worked out one by one."""

import collections
import math

import numpy as np
import pytest

from tasks.ngrams.counts import NgramCounts
from tasks.ngrams.predictors import NgramPredictors
from tasks.ngrams.spliced_texts import NONE, Contexts, SplicedTexts

PIECES = 40
IS_TEXT = np.arange(PIECES) >= 2


def _spliced(texts):
    tokens = np.concatenate(texts).astype(np.int64)
    begins = np.zeros(len(tokens), bool)
    begins[np.cumsum([0, *map(len, texts[:-1])])] = True
    return SplicedTexts(tokens, begins, np.zeros(len(tokens), bool), True, True)


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(1)
    # Some words follow others, so that contexts tell something.
    return [np.cumsum(rng.choice([1, 1, 2, 5, 17], rng.integers(1, 30))) % 38 + 2 for _ in range(25)]


def _by_hand(table, context, word, lower):
    """Interpolated absolute discounting of one word."""
    counts = table[context]
    every = [n for of_context in table.values() for n in of_context.values()]
    once, twice = every.count(1), every.count(2)
    discount = once / (once + 2 * twice) if once and twice else 0.5
    if not counts:
        return lower
    total = sum(counts.values())
    return max(counts[word] - discount, 0) / total + discount * len(counts) / total * lower


def test_probabilities_are_those_worked_out_by_hand(texts):
    tables = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
    for text in map(list, texts):
        for i, word in enumerate(text):
            tables["unigram"][()][word] += 1
            for length in (1, 2):
                if i >= length:
                    tables[length][tuple(text[i - length : i])][word] += 1
            for distance in (1, 2, 3):
                if i + distance < len(text):
                    tables["before", distance][text[i + distance]][word] += 1
    of_unigram = {w: _by_hand(tables["unigram"], (), w, 1 / 38) for w in range(2, PIECES)}

    def expected(left, left_but_one, right, distance):
        bigram = {w: _by_hand(tables[1], (left,), w, p) if left != NONE else p for w, p in of_unigram.items()}
        key = (left_but_one, left)
        trigram = {w: _by_hand(tables[2], key, w, p) if left_but_one != NONE else p for w, p in bigram.items()}
        product = dict(trigram)
        if right != NONE and distance <= 3:
            table = tables["before", distance]
            product = {w: p * _by_hand(table, right, w, of_unigram[w]) / of_unigram[w] for w, p in product.items()}
        return of_unigram, bigram, trigram, {w: p / sum(product.values()) for w, p in product.items()}

    first, second, third = (int(x) for x in texts[0][:3])
    rows = [(third, second, first, 5, 1), (second, first, NONE, 7, 2), (2, NONE, NONE, 6, 3)]
    rows += [(third, second, first, 3, 4), (4, 3, 3, NONE, 0)]
    counts = NgramCounts(PIECES)
    for text in texts:
        counts.add(_spliced([text]))
    contexts = Contexts(*(np.array(x) for x in zip(*rows, strict=True)))
    predicted = NgramPredictors(counts, IS_TEXT).predict(contexts)
    assert list(predicted) == ["unigram", "left_bigram", "left_trigram", "both_sided_ngrams"]
    for row, (word, *context) in enumerate(rows):
        for values, made in zip(expected(*context), predicted.values(), strict=True):
            assert sum(values.values()) == pytest.approx(1)
            assert made.nats[row] == pytest.approx(-math.log(values[word]), rel=1e-12)
            assert made.rank[row] == sum(p > values[word] * (1 + 1e-12) for p in values.values())


def test_counts_do_not_depend_on_the_parts_they_came_in(texts, monkeypatch):
    whole = NgramCounts(PIECES)
    whole.add(_spliced(texts))
    monkeypatch.setattr("tasks.ngrams.counts._MOST_WAITING", 20)
    parts = NgramCounts(PIECES)
    for start in range(0, len(texts), 4):
        parts.add(_spliced(texts[start : start + 4]))
    assert np.array_equal(whole.unigrams, parts.unigrams)
    for a, b in zip(
        [whole.bigrams, whole.trigrams, *whole.before], [parts.bigrams, parts.trigrams, *parts.before], strict=True
    ):
        assert np.array_equal(a.keys, b.keys) and np.array_equal(a.counts, b.counts)


def test_of_too_many_ngrams_the_rarest_are_forgotten(texts):
    whole, small = NgramCounts(PIECES), NgramCounts(PIECES, most_entries=60)
    for counts in (whole, small):
        counts.add(_spliced(texts))
    assert len(whole.trigrams.keys) > 60
    assert 0 < len(small.trigrams.keys) <= 60
    kept = np.isin(whole.trigrams.keys, small.trigrams.keys)
    assert np.array_equal(whole.trigrams.counts[kept], small.trigrams.counts)
    assert whole.trigrams.counts[~kept].max() <= small.trigrams.counts.min()


def test_without_a_token_after_spans_there_is_no_both_sided_predictor(texts):
    counts = NgramCounts(PIECES)
    counts.add(_spliced(texts))
    one = np.array([3])
    contexts = Contexts(one, one, one, np.array([NONE]), np.array([0]))
    assert list(NgramPredictors(counts, IS_TEXT).predict(contexts)) == ["unigram", "left_bigram", "left_trigram"]
    with pytest.raises(ValueError, match=r"3,000,000 pieces do not fit into 64 bits"):
        NgramCounts(3_000_000)
