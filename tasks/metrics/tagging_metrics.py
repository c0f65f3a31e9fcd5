"""Metrics of words with labels: of each word, and of entities, which are words that belong together.

Targets and predictions are lists of labels, one list for each text; shares are in percent.
"""

import collections
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

from limba.tasks.metrics.text_metrics import MetricFn, Metrics, check_lengths, class_scores, label_scores

Labels = Sequence[str]
Entity = tuple[str, int, int]


def are_bio(labels: Sequence[str]) -> bool:
    """Whether labels are those of the BIO scheme: O, and B-… and I-… of kinds of entities."""
    return "O" in labels and len(labels) > 1 and all(x == "O" or (x[:2] in ("B-", "I-") and x[2:]) for x in labels)


def token_accuracy(targets: Sequence[Labels], predictions: Sequence[Labels]) -> Metrics:
    """The share of words whose label is right, and what the most frequent label reaches, which has learned nothing."""
    pairs = _pairs(targets, predictions)
    most_frequent = collections.Counter(target for target, _ in pairs).most_common(1)[0][1]
    right = sum(target == prediction for target, prediction in pairs)
    return {"accuracy": 100 * right / len(pairs), "majority_accuracy": 100 * most_frequent / len(pairs)}


def word_scores(labels: Sequence[str]) -> MetricFn:
    """A metric: `text_metrics.label_scores` of the labels of words."""

    def metric(targets: Sequence[Labels], predictions: Sequence[Labels]) -> Metrics:
        wanted, given = zip(*_pairs(targets, predictions), strict=True)
        numbers = {label: number for number, label in enumerate(labels)}
        return class_scores(labels)(*([numbers.get(label, -1) for label in side] for side in (wanted, given)))

    return metric


def entity_f1(targets: Sequence[Labels], predictions: Sequence[Labels]) -> Metrics:
    """Precision, recall and F1 of whole entities: the words and the kind must be right.

    As conlleval and seqeval (without `strict`) count them, over all texts together; 0 where nothing was predicted, or
    nothing is there. After those of all entities come those of each kind and their means (`text_metrics.label_scores`).
    """
    counts = _entity_counts(targets, predictions)
    precision, recall, f1 = _shares(*_total(counts))
    return {"entity_precision": precision, "entity_recall": recall, "entity_f1": f1} | label_scores(counts)


@functools.cache  # A task that is registered again has the same metric.
def ner_scores(by_kind: bool) -> MetricFn:
    """A metric: what Hugging Face's run_ner.py writes of seqeval's, under its names.

    That is precision, recall and F1 of whole entities and the accuracy of words. `by_kind` gives these as `overall_…`
    and adds those of each kind, and how many entities of it there are: `PER_number`.
    """

    def metric(targets: Sequence[Labels], predictions: Sequence[Labels]) -> Metrics:
        counts, accuracy = _entity_counts(targets, predictions), token_accuracy(targets, predictions)["accuracy"]
        names = ("precision", "recall", "f1", "accuracy")
        overall = dict(zip(names, (*_shares(*_total(counts)), accuracy), strict=True))
        if not by_kind:
            return overall
        found: Metrics = {}
        for kind, of_kind in counts.items():
            found |= {f"{kind}_{name}": share for name, share in zip(names, _shares(*of_kind), strict=False)}
            found[f"{kind}_number"] = of_kind[2]
        return found | {f"overall_{name}": share for name, share in overall.items()}

    return metric


def _entity_counts(targets: Sequence[Labels], predictions: Sequence[Labels]) -> dict[str, list[int]]:
    """For each kind of entity how often it is predicted and right, is predicted, and is there."""
    _pairs(targets, predictions)
    wanted, given = (
        {(number, *entity) for number, labels in enumerate(of_texts) for entity in entities(labels)}
        for of_texts in (targets, predictions)
    )
    of_kinds = [collections.Counter(kind for _, kind, *_ in found) for found in (wanted & given, given, wanted)]
    return {kind: [of_kind[kind] for of_kind in of_kinds] for kind in sorted({*of_kinds[1], *of_kinds[2]})}


def _total(counts: Mapping[str, Sequence[int]]) -> list[int]:
    return [sum(of_kind[place] for of_kind in counts.values()) for place in range(3)]


def _shares(right: int, given: int, wanted: int) -> tuple[float, float, float]:
    """Precision, recall and F1 in percent."""
    return 100 * right / max(given, 1), 100 * right / max(wanted, 1), 200 * right / max(given + wanted, 1)


def entities(labels: Labels) -> Iterator[Entity]:
    """The entities of a text: kind, first word, and the word behind the last.

    One begins with B-, or with an I- whose kind is not that of the entity before it.
    """
    begin, before = 0, ""
    for place, label in enumerate([*labels, "O"]):
        prefix, _, kind = label.partition("-")
        continues = prefix == "I" and kind == before
        if before and not continues:
            yield before, begin, place
        if not continues:
            begin, before = place, "" if prefix == "O" else kind


def _pairs(targets: Sequence[Labels], predictions: Sequence[Labels]) -> list[tuple[str, str]]:
    check_lengths(targets, predictions)
    for number, (target, prediction) in enumerate(zip(targets, predictions, strict=True)):
        if len(target) != len(prediction):
            raise ValueError(f"Text {number} has {len(target)} words and {len(prediction)} predicted labels.")
    pairs = list(
        itertools.chain.from_iterable(zip(*both, strict=True) for both in zip(targets, predictions, strict=True))
    )
    if not pairs:
        raise ValueError("There are no words to measure: all texts are empty.")
    return pairs
