"""Minimal pairs and texts scored by n-grams of a corpus: what a model that sees one or two words before gets right."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from limba.addons.pairs import pair_metrics
from limba.addons.pairs.pairs_tasks import ScorePairs
from limba.tasks.metrics.text_metrics import Metrics
from limba.tasks.ngrams import predictors, spliced_texts
from limba.tasks.ngrams.counts import NgramCounts
from limba.tasks.vocabularies import sentencepiece_models
from limba.tasks.vocabularies.vocabulary import encode_batch

# Those that look to the left, as they score sentences; with short names.
NAMES = {predictors.UNIGRAM: "unigram", predictors.BIGRAM: "bigram", predictors.TRIGRAM: "trigram"}
_LONGEST_CONTEXT = 2


def accuracies(task: Any, split: str, counts: NgramCounts, vocabulary: Any) -> dict[str, Metrics]:
    """The metrics of `pair_metrics.pair_accuracy` by n-grams, for each of `NAMES`, by their short names.

    There is no `accuracy_per_token`: the scores leave out tokens that both sentences have.

    Args:
      task, split, counts, vocabulary: as of `scores`.
    """
    targets, found = scores(task, split, counts, vocabulary)
    metrics = {name: pair_metrics.pair_accuracy(targets, of_name.tolist()) for name, of_name in found.items()}
    return {name: {x: y for x, y in found.items() if x != "accuracy_per_token"} for name, found in metrics.items()}


def scores(
    task: Any, split: str, counts: NgramCounts, vocabulary: Any
) -> tuple[list[pair_metrics.ScoredSentence], dict[str, np.ndarray]]:
    """The sentences of pairs, right ones and wrong ones in turn, and their scores by n-grams, float64 `[sentences]`.

    The score is the log probability of the whole sentence, in which what both sentences begin or end with is left
    out as far as its probability is the same.

    Args:
      task: of `pairs_tasks.make_pairs_task`.
      counts: of the texts of a corpus, with the ids of the vocabulary.
    """
    (step,) = (step for step in task.preprocessors if isinstance(step, ScorePairs))
    rows = [step.columns_of_rows.read(document) for _, _, document in task.source.numbered_documents(split)]
    sentences = tokens_of([text for row in rows for text in row[:2]], vocabulary)
    targets = [
        pair_metrics.ScoredSentence(number, is_right, row[2], 1, "")
        for number, row in enumerate(rows)
        for is_right in (True, False)
    ]
    return targets, log_probabilities(sentences, _differing_parts(sentences), counts, vocabulary)


def tokens_of(texts: Sequence[str], vocabulary: Any) -> list[np.ndarray]:
    """The tokens of texts, without those that n-grams do not predict: int64 `[tokens]` of each."""
    flat, lengths = encode_batch(vocabulary, [text.encode("utf-8", "replace") for text in texts])
    is_text = spliced_texts.text_ids(sentencepiece_models.ids_of(vocabulary))
    return [ids[is_text[ids]] for ids in np.split(flat.astype(np.int64), np.cumsum(lengths)[:-1])]


def log_probabilities(
    texts: Sequence[np.ndarray], parts: Sequence[tuple[int, int]], counts: NgramCounts, vocabulary: Any
) -> dict[str, np.ndarray]:
    """The log probability of a part of each text, float64 `[texts]`, for each of `NAMES`, by their short names.

    Args:
      texts: of `tokens_of`.
      parts: the tokens `[begin, end)` of each text that count; those before them are their contexts.
    """
    contexts, owners = _contexts(texts, parts)
    is_text = spliced_texts.text_ids(sentencepiece_models.ids_of(vocabulary))
    predicted = predictors.NgramPredictors(counts, is_text).predict(contexts)
    found = {}
    for name, short in NAMES.items():
        found[short] = np.zeros(len(texts))
        if name in predicted:  # Without a token that counts all of them are 0.
            np.add.at(found[short], owners[0], -predicted[name].nats[owners[1]])
    return found


def _contexts(
    texts: Sequence[np.ndarray], parts: Sequence[tuple[int, int]]
) -> tuple[spliced_texts.Contexts, tuple[np.ndarray, np.ndarray]]:
    """Each word to predict once, with the two before it; and the text and the word of each that is scored."""
    triples, owners = [], []
    for number, (ids, (begin, end)) in enumerate(zip(texts, parts, strict=True)):
        padded = np.concatenate([np.full(_LONGEST_CONTEXT, spliced_texts.NONE), ids])
        places = np.arange(begin, end)
        triples.append(np.stack([padded[places], padded[places + 1], padded[places + 2]], axis=1))
        owners.append(np.full(len(places), number))
    unique, inverse = np.unique(np.concatenate(triples), axis=0, return_inverse=True)
    nothing = np.full(len(unique), spliced_texts.NONE)
    contexts = spliced_texts.Contexts(unique[:, 2], unique[:, 1], unique[:, 0], nothing, np.zeros_like(nothing))
    return contexts, (np.concatenate(owners), inverse.reshape(-1))


def _differing_parts(sentences: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Of pairs, right and wrong sentences in turn: the tokens `[begin, end)` whose probability may differ."""
    pairs = zip(sentences[::2], sentences[1::2], strict=True)
    return [(begin, len(ids) - end) for pair in pairs for begin, end in [_differing(*pair)] for ids in pair]


def _differing(right: np.ndarray, wrong: np.ndarray) -> tuple[int, int]:
    """How many tokens at the beginning, and at the end, have the same probability in both sentences."""
    most = min(len(right), len(wrong))
    begin = next((i for i in range(most) if right[i] != wrong[i]), most)
    most -= begin
    end = next((i for i in range(most) if right[-1 - i] != wrong[-1 - i]), most)
    return begin, max(end - _LONGEST_CONTEXT, 0)
