"""The baselines below the models of a scoreboard: n-grams of the training corpus, and chance."""

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from limba.addons.pairs import pair_ngrams
from limba.addons.pairs.scoreboard.evaluation_sets import SPLIT, EvaluationSet
from limba.addons.pairs.scoreboard.majority_labels import MajorityLabels
from limba.addons.pairs.scoreboard.measures import (
    Figure,
    Figures,
    Measured,
    MeasuredPairs,
    MeasuredTexts,
    MeasuredWords,
    lengths_of,
    pairs_task,
)
from limba.addons.pairs.word_files import LabelledSentence
from limba.files.untrusted_files import cut, some
from limba.tasks.metrics import tagging_metrics
from limba.tasks.ngrams import spliced_texts
from limba.tasks.ngrams.counts import NgramCounts
from limba.tasks.vocabularies import sentencepiece_models

# Why n-grams have no figure of a kind of set.
WITHOUT = {
    "retrieval": "n-grams give no vectors of texts.",
    "words": "n-grams of texts give words no labels.",
}
NO_CHANCE = "The loss of chance depends on the vocabulary."
# The row of the most frequent label of each word in the files of --train_words.
MAJORITY = "most frequent label of each word"
NO_MAJORITY = "A table of words and their labels scores no texts."


class NgramCounter:
    """Counts of the first documents of a corpus, with the tokens of a vocabulary.

    Args:
      most_tokens: documents are counted until so many were.
    """

    def __init__(self, vocabulary: Any, most_tokens: int):
        self._vocabulary, self._most = vocabulary, most_tokens
        size = sentencepiece_models.ids_of(vocabulary).vocab_size
        self.counts = NgramCounts(size, before=False)

    def read(self, documents: Sequence[str]) -> None:
        """Counts documents, unless there were enough."""
        if not documents or self.counts.num_tokens >= self._most:
            return
        tokens = pair_ngrams.tokens_of(documents, self._vocabulary)
        flat = np.concatenate(tokens)
        begins = np.zeros(len(flat), bool)
        lengths = np.array([len(of_text) for of_text in tokens])
        begins[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        self.counts.add(spliced_texts.SplicedTexts(flat, begins, np.zeros(len(flat), bool), True, False))


def measure(of: EvaluationSet, counts: NgramCounts, form: str, vocabulary: Any) -> dict[str, Measured]:
    """What n-grams measure on a set, by their short names; nothing where `WITHOUT` has a reason.

    Args:
      form: the class of `pair_formats` that the model of the vocabulary has.
    """
    if of.kind in WITHOUT:
        return {}
    if of.kind == "pairs":
        task = pairs_task(of, form, vocabulary)
        targets, found = pair_ngrams.scores(task, SPLIT, counts, vocabulary)
        return {name: MeasuredPairs(targets, scores) for name, scores in found.items()}
    texts = pair_ngrams.tokens_of(of.texts, vocabulary)
    whole = [(0, len(tokens)) for tokens in texts]
    found = pair_ngrams.log_probabilities(texts, whole, counts, vocabulary)
    nothing, characters = np.zeros(0, np.int64), lengths_of(of.texts)
    return {name: MeasuredTexts(-scores, characters, nothing, None) for name, scores in found.items()}


def majority(of: EvaluationSet, sentences: Sequence[LabelledSentence]) -> MeasuredWords:
    """The most frequent label of each word, as learned from other sentences.

    Raises:
      ValueError: if these have none of the labels of the set.
    """
    table = MajorityLabels([x.words for x in sentences], [x.labels for x in sentences])
    known = {label for x in sentences for label in x.labels}
    if not known & {label for labels in of.labels for label in labels}:
        raise ValueError(f"--train_words has the labels {cut(some(sorted(known)))}, and {of.file} has others.")
    return MeasuredWords(of.labels, [table.of(text.split()) for text in of.texts])


def chance(of: EvaluationSet) -> Figures:
    """What a random guess gets right, of words the most frequent label; of texts there is no figure."""
    if of.kind == "texts":
        return {}
    if of.kind == "words":
        counts = collections.Counter(label for labels in of.labels for label in labels)
        ((_, most),) = counts.most_common(1)
        found = {"labels right %": Figure(100 * most / counts.total(), None, None, counts.total(), "words")}
        if tagging_metrics.are_bio(sorted(counts)):
            entities = sum(1 for labels in of.labels for _ in tagging_metrics.entities(labels))
            # The most frequent label is O.
            found["entity F1 %"] = Figure(0.0, None, None, entities, "entities")
        return found
    count = len(of.items)
    if of.kind == "pairs":
        return {"accuracy %": Figure(50.0, None, None, count, "pairs")}
    share, rank = (
        Figure(100 / count, None, None, count, "queries"),
        Figure((count + 1) / 2, None, None, count, "queries"),
    )
    return {"answer found %": share, "median rank": rank}


def read_once(parts: Iterable[Sequence[str]], readers: Sequence[Any]) -> Iterator[int]:
    """Has each reader read the parts of a corpus, and yields how many documents a part had."""
    for part in parts:
        for reader in readers:
            reader.read(part)
        yield len(part)
