"""What is measured of a model on an evaluation set, item by item; and the figures of all items or of some of them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from limba.addons.pairs import model_forms, pair_formats, pair_metrics, pair_scores, pairs_tasks, scored_rows
from limba.addons.pairs.pair_metrics import ScoredSentence
from limba.addons.pairs.scoreboard.board_rows import OpenedModel
from limba.addons.pairs.scoreboard.evaluation_sets import SPLIT, EvaluationSet
from limba.addons.pairs.scoreboard.predicted_labels import labels_of_words
from limba.addons.pairs.text_scorer import TextScorer
from limba.inference.embedding import Embedder
from limba.tasks.metrics import tagging_metrics, text_pair_metrics
from limba.tasks.metrics.text_pair_metrics import TextPair

BATCH_SIZE = 32
# The figures of a kind of set, in the order of the table; those of phenomena are in the JSON alone.
NAMES = {
    "texts": ("nats/character", "word found %", "median rank"),
    "pairs": ("accuracy %",),
    "retrieval": ("answer found %", "median rank"),
    "words": ("labels right %", "entity F1 %"),
}


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number with what it rests on.

    Attributes:
      low, high: of its 95 % interval; None where there is none, as of a median.
      count: items that it is of: characters, words, entities, pairs or queries.
      unit: what these are.
      spread: of a mean over seeds, their standard deviation; else None.
    """

    value: float
    low: float | None
    high: float | None
    count: int
    unit: str
    spread: float | None = None


Figures = dict[str, Figure]
# By the name of a figure: it is the ratio of two sums over items, float64 `[items]` each.
Terms = dict[str, tuple[np.ndarray, np.ndarray]]


class Measured(Protocol):
    """What was measured of each item of a set."""

    def figures(self, chosen: np.ndarray) -> Figures:
        """The figures, by name, of the items that `chosen`, bool `[items]`, has as True; at least one is."""
        ...

    def terms(self) -> Terms:
        """Of figures that are ratios of sums, what each item gives to both sums."""
        ...


@dataclasses.dataclass(frozen=True)
class MeasuredTexts:
    """Of texts.

    Attributes:
      nats: of each text, float64 `[texts]`.
      characters: int64 `[texts]`.
      owners: the number of the text of each word, int64 `[words]`.
      ranks: of each word in its blank, int64 `[words]`; None where a model has no blanks.
    """

    nats: np.ndarray
    characters: np.ndarray
    owners: np.ndarray
    ranks: np.ndarray | None

    def figures(self, chosen: np.ndarray) -> Figures:
        nats, characters = self.nats[chosen], self.characters[chosen]
        found = {"nats/character": _ratio(nats, characters, "characters")}
        if self.ranks is None:
            return found
        of_chosen = chosen[self.owners]
        ranks, owners = self.ranks[of_chosen], self.owners[of_chosen]
        words, first = (np.bincount(x, minlength=len(chosen))[chosen] for x in (owners, owners[ranks == 1]))
        found["word found %"] = _at_most(100.0, _ratio(100.0 * first, words, "words"))
        found["median rank"] = Figure(float(np.median(ranks)), None, None, len(ranks), "words")
        return found

    def terms(self) -> Terms:
        found = {"nats/character": (self.nats, self.characters.astype(np.float64))}
        if self.ranks is not None:
            owners = (self.owners[self.ranks == 1], self.owners)
            first, words = (np.bincount(x, minlength=len(self.nats)).astype(np.float64) for x in owners)
            found["word found %"] = (100.0 * first, words)
        return found


@dataclasses.dataclass(frozen=True)
class MeasuredPairs:
    """Of minimal pairs: the sentences, right ones and wrong ones in turn, and their scores, float64 `[sentences]`."""

    sentences: Sequence[ScoredSentence]
    scores: np.ndarray

    def figures(self, chosen: np.ndarray) -> Figures:
        of_sentences = np.flatnonzero(np.repeat(chosen, 2)).tolist()
        sentences = [self.sentences[i] for i in of_sentences]
        found = pair_metrics.pair_accuracy(sentences, self.scores[of_sentences].tolist())
        made = {}
        for name in found:
            if name.partition("/")[0] == "accuracy":
                end = name.removeprefix("accuracy")
                low, high = found[f"accuracy_low{end}"], found[f"accuracy_high{end}"]
                made[f"accuracy %{end}"] = Figure(found[name], low, high, int(found[f"pairs{end}"]), "pairs")
        return made

    def terms(self) -> Terms:
        won = [pair.is_won for pair in pair_metrics.pairs(self.sentences, self.scores.tolist())]
        return {"accuracy %": (100.0 * np.array(won), np.ones(len(won)))}


@dataclasses.dataclass(frozen=True)
class MeasuredRetrieval:
    """Of queries: the rank of the answer of each among all answers, int64 `[queries]`."""

    ranks: np.ndarray

    def figures(self, chosen: np.ndarray) -> Figures:
        ranks = self.ranks[chosen]
        return {
            "answer found %": _share_of(int(np.sum(ranks == 1)), len(ranks), "queries"),
            "median rank": Figure(float(np.median(ranks)), None, None, len(ranks), "queries"),
        }

    def terms(self) -> Terms:
        return {"answer found %": (100.0 * (self.ranks == 1), np.ones(len(self.ranks)))}


@dataclasses.dataclass(frozen=True)
class MeasuredWords:
    """Of sentences the labels of their words: those in the file, and those that a model gives.

    The F1 of entities, which are found as seqeval finds them, is twice the right ones divided by those that are wanted
    and those that are given, together.
    """

    wanted: Sequence[Sequence[str]]
    given: Sequence[Sequence[str]]

    def figures(self, chosen: np.ndarray) -> Figures:
        found = {}
        for name, (right, of) in self.terms().items():
            if of[chosen].any():
                unit = "words" if name == "labels right %" else "entities"
                found[name] = _at_most(100.0, _ratio(right[chosen], of[chosen], unit))
        if "entity F1 %" in found:
            count = sum(len(of) for of, is_chosen in zip(self._entities(self.wanted), chosen, strict=True) if is_chosen)
            found["entity F1 %"] = dataclasses.replace(found["entity F1 %"], count=count)
        return found

    def terms(self) -> Terms:
        sides = zip(self.wanted, self.given, strict=True)
        right = [100.0 * sum(a == b for a, b in zip(*both, strict=True)) for both in sides]
        found = {"labels right %": (np.array(right), np.array([float(len(labels)) for labels in self.wanted]))}
        if tagging_metrics.are_bio(sorted({label for labels in self.wanted for label in labels})):
            both = list(zip(self._entities(self.wanted), self._entities(self.given), strict=True))
            right = [200.0 * len(wanted & given) for wanted, given in both]
            found["entity F1 %"] = (
                np.array(right),
                np.array([float(len(wanted) + len(given)) for wanted, given in both]),
            )
        return found

    @staticmethod
    def _entities(labels: Sequence[Sequence[str]]) -> list[set[tagging_metrics.Entity]]:
        return [set(tagging_metrics.entities(of_sentence)) for of_sentence in labels]


def _share_of(count: int, of: int, unit: str) -> Figure:
    """A share in percent, with Wilson's interval."""
    low, high = pair_metrics.wilson_interval(count, of)
    return Figure(100 * count / of, 100 * low, 100 * high, of, unit)


def _ratio(numerators: np.ndarray, denominators: np.ndarray, unit: str) -> Figure:
    """The ratio of two sums over texts, with an interval that takes texts, and not words, for independent.

    The variance is that of the linearized ratio (W. G. Cochran, Sampling Techniques, 1977, section 6.4): of texts with
    numerators y and denominators x, n / (n - 1) times the sum of (y - r x)^2, divided by the square of the sum of x.
    """
    total, texts = float(denominators.sum()), len(denominators)
    value = float(numerators.sum()) / total
    if texts < 2:
        return Figure(value, None, None, int(total), unit)
    variance = texts / (texts - 1) * float(np.sum((numerators - value * denominators) ** 2)) / total**2
    half = pair_metrics.Z_95 * math.sqrt(variance)
    return Figure(value, max(value - half, 0.0), value + half, int(total), unit)


def _at_most(most: float, figure: Figure) -> Figure:
    return figure if figure.high is None else dataclasses.replace(figure, high=min(figure.high, most))


# ------------------------------------------------------ of a model --------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measurer:
    """Measures a model on sets.

    Attributes:
      params: of the network, on the mesh.
      mode: text in front of the inputs of a model with sentinels.
      score: the kind of score of pairs, of `scored_rows.KINDS`; None is "whole" for decoders, "words" for others.
    """

    opened: OpenedModel
    params: Any
    mode: str = ""
    score: str | None = None

    def measure(self, of: EvaluationSet) -> Measured:
        """What is measured of each item.

        Raises:
          ValueError: for what the model cannot be asked, with the reason.
          NotFiniteError: for an item whose score is not finite.
        """
        kinds = {"texts": self._texts, "pairs": self._pairs, "retrieval": self._retrieval, "words": self._words}
        return kinds[of.kind](of)

    def _mode_of(self, form: str) -> str:
        return self.mode if form == "FilledBlanks" else ""

    def _texts(self, of: EvaluationSet) -> Measured:
        model, partitioner = self.opened.model, self.opened.partitioner
        mode = self._mode_of(model_forms.form_of(model))
        scorer = TextScorer(model, partitioner, self.params, mode, BATCH_SIZE, finds_ranks=True)
        scorer.name_text = lambda number: of.places[number]
        found = scorer.score_words(of.texts)
        return MeasuredTexts(-found.scores, lengths_of(of.texts), found.owners, found.ranks)

    def _pairs(self, of: EvaluationSet) -> Measured:
        model = self.opened.model
        form, longest = model_forms.form_of(model), model_forms.longest_row(model)
        kind = self.score or scored_rows.usual_kind(form)
        task = pairs_task(of, form, model.input_vocabulary, self._mode_of(form), longest)
        scorer = pair_scores.PairScorer(
            model,
            self.opened.partitioner,
            [task],
            kind=kind,
            form=form,
            split=SPLIT,
            batch_size=BATCH_SIZE,
            longest=longest,
        )
        return MeasuredPairs(*scorer.score(task, self.params))

    def _retrieval(self, of: EvaluationSet) -> Measured:
        embedder = Embedder(
            model=self.opened.model,
            restore_checkpoint_cfg=self.opened.restore,
            partitioner=self.opened.partitioner,
            batch_size=BATCH_SIZE,
            normalize=True,
            params=self.params,
        )
        vectors = np.stack(embedder.embed(of.texts))
        pairs = [TextPair(query, answer) for query, answer in of.items]
        return MeasuredRetrieval(text_pair_metrics.retrieval_ranks(pairs, vectors[::2], vectors[1::2]))

    def _words(self, of: EvaluationSet) -> Measured:
        return MeasuredWords(of.labels, labels_of_words(self.opened, self.params, of, self.mode))


def lengths_of(texts: Sequence[str]) -> np.ndarray:
    """The characters of texts, int64 `[texts]`."""
    return np.array([len(text) for text in texts], np.int64)


def pairs_task(of: EvaluationSet, form: str, vocabulary: Any, mode: str = "", longest: int | None = None) -> Any:
    """The task of a set of pairs for a model of a form, with the split `SPLIT`."""
    made = getattr(pair_formats, form)()
    return pairs_tasks.make_pairs_task(
        of.name, {SPLIT: list(of.parts) or of.file}, vocabulary, made, mode, of.columns, longest
    )
