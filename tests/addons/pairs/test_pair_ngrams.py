"""Pairs scored by n-grams, beside counts by hand."""

import json

import numpy as np
import pytest

from limba.addons.pairs import pair_formats, pair_ngrams, pairs_tasks
from tasks.ngrams import spliced_texts
from tasks.ngrams.counts import NgramCounts
from tasks.vocabularies import ByteVocabulary

BYTES = ByteVocabulary(100)


def _counts(*texts):
    counts = NgramCounts(BYTES.vocab_size)
    ids = [np.array(BYTES.encode(text), np.int64) for text in texts]
    tokens = np.concatenate(ids)
    begins = np.concatenate([np.arange(len(x)) == 0 for x in ids])
    counts.add(spliced_texts.SplicedTexts(tokens, begins, np.zeros(len(tokens), bool), True, False))
    return counts


def _accuracies(tmp_path, rows, counts):
    file = tmp_path / "pairs.jsonl"
    names = ("sentence_good", "sentence_bad", "phenomenon")
    file.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    task = pairs_tasks.make_pairs_task("p", {"pairs": str(file)}, BYTES, pair_formats.FilledBlanks())
    return pair_ngrams.accuracies(task, "pairs", counts, BYTES)


def test_how_far_each_order_sees(tmp_path):
    # b is more frequent than c; behind a there is always c; behind xa always b.
    counts = _counts(*["b"] * 50, *["ac"] * 8, *["xab"] * 3)
    rows = [("b", "c", "alone"), ("ac", "ab", "one"), ("xab", "xac", "two")]
    found = _accuracies(tmp_path, rows, counts)
    wins = {name: [metrics[f"accuracy/{x}"] for x in ("alone", "one", "two")] for name, metrics in found.items()}
    assert wins == {"unigram": [100, 0, 100], "bigram": [100, 100, 0], "trigram": [100, 100, 100]}
    assert found["trigram"]["accuracy"] == 100 and found["trigram"]["pairs"] == 3
    assert "accuracy_per_token" not in found["trigram"]


def test_pairs_without_a_differing_token_are_ties(tmp_path, monkeypatch):
    # As if a vocabulary had the same pieces for both sentences.
    monkeypatch.setattr(pair_ngrams, "_differing", lambda right, wrong: (len(right), 0))
    metrics = _accuracies(tmp_path, [("a b", "a c", "x")], _counts("ab"))["bigram"]
    assert metrics["pairs"] == metrics["ties"] == 1 and metrics["accuracy"] == 0


def test_what_is_left_out_changes_no_difference():
    """The log probability of whole sentences, by a predictor that knows no differences of tokens."""
    rng = np.random.default_rng(0)
    right, wrong = ([7, 8, 9, *rng.integers(3, 20, 3).tolist(), 5, 6, 5, 6] for _ in range(2))
    sentences = [np.array(right, np.int64), np.array([*wrong[:-1], 6], np.int64)]
    contexts, (owner, place) = pair_ngrams._contexts(sentences, pair_ngrams._differing_parts(sentences))
    made_up = np.sin(contexts.words + 3.0 * contexts.left + 7.0 * contexts.left_but_one)
    scores = np.zeros(2)
    np.add.at(scores, owner, made_up[place])
    whole = []
    for ids in sentences:
        padded = np.concatenate([[-1, -1], ids]).astype(float)
        whole.append(np.sum(np.sin(padded[2:] + 3.0 * padded[1:-1] + 7.0 * padded[:-2])))
    assert scores[0] - scores[1] == pytest.approx(whole[0] - whole[1])
    assert len(place) < 2 * len(right)
