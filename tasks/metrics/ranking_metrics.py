"""Metrics of scored choices: the choice with the best score is the answer. Names and scales are T5's."""

import collections
import logging
from collections.abc import Callable, Sequence

import numpy as np

from limba.tasks.metrics import metric_packages
from limba.tasks.metrics.text_metrics import MetricFn, Metrics, are_finite, auc, check_lengths, class_f1

logger = logging.getLogger(__name__)

# A choice of T5's postprocessor `rank_classification`: `idx`, whether it is right, its weight, its number of tokens.
Choice = tuple[Sequence[int], bool, float, int]


def rank_classification(
    targets: Sequence[Choice],
    scores: Sequence[float],
    num_classes: int | None = None,
    normalize_by_target_length: bool = False,
) -> Metrics:
    """Metrics of the choice with the best score: `accuracy`, and with classes their F1.

    Of two classes also `auc-roc` and `auc-pr`, in percent, of the probability of class 1 (the softmax of the scores).

    Args:
      targets: `(idx, is_correct, weight, number of target tokens)` for each choice, `idx` being the numbers of the
        example and of the choice. Any of several right choices is right, and then there is only the accuracy.
      scores: a log likelihood for each choice.
      num_classes: choices of an example; None if their number differs, which leaves the accuracy.
      normalize_by_target_length: divide scores by the number of tokens.

    Raises:
      ValueError: if the lengths differ, or an example has another number of choices.
    """
    check_lengths(targets, scores)
    if not are_finite("The likeliest choice", scores=scores):
        return {}
    correct, weights, by_example = _by_example(targets, scores, normalize_by_target_length)
    if num_classes and any(len(x) != num_classes for x in by_example):
        found = sorted({len(x) for x in by_example})
        raise ValueError(f"There are {num_classes} classes, and examples with {found} choices: was the split cut?")
    best = [int(np.argmax(x)) for x in by_example]
    weight = np.array([x[i] for x, i in zip(weights, best, strict=True)])
    hits = np.array([x[i] for x, i in zip(correct, best, strict=True)], float)
    if not np.sum(weight) > 0:
        logger.warning("The likeliest choice is undefined and left out: the weights of all examples are 0.")
        return {}
    result = {"accuracy": 100 * float(np.sum(weight * hits) / np.sum(weight))}
    if not num_classes or any(sum(x) != 1 for x in correct):
        return result
    wanted, given = np.argmax(correct, axis=1), np.array(best)
    f1 = [class_f1(wanted, given, label, weight) for label in range(num_classes)]
    if num_classes > 2:
        return result | {f"mean_{num_classes}class_f1": 100 * float(np.mean(f1))}
    areas = auc(wanted, [second - first for first, second in by_example])  # in the order of the probability
    return result | {"f1": 100 * f1[1]} | {name: 100 * area for name, area in areas.items()}


def of_best_choice(rank_fn: Callable[..., Metrics], metric_fns: Sequence[MetricFn]) -> Callable[..., Metrics]:
    """A metric of scores: that of `rank_fn`, and others of the number of the best choice and of the right one."""

    @metric_packages.like(rank_fn, *metric_fns)
    def metric(targets: Sequence[Choice], scores: Sequence[float]) -> Metrics:
        result = dict(rank_fn(targets, scores))
        if not result:  # `rank_fn` has logged the reason
            return result
        correct, _, by_example = _by_example(targets, scores, False)
        if all(sum(x) == 1 for x in correct):
            wanted, given = [int(np.argmax(x)) for x in correct], [int(np.argmax(x)) for x in by_example]
            for metric_fn in metric_fns:
                result |= metric_fn(wanted, given)
        return result

    return metric


def _by_example(
    targets: Sequence[Choice], scores: Sequence[float], normalize: bool
) -> tuple[list[list[bool]], list[list[float]], list[list[float]]]:
    """For each example whether its choices are right, their weights and scores, in the order of `idx`."""
    check_lengths(targets, scores)
    groups: dict[int, list[tuple[int, bool, float, float]]] = collections.defaultdict(list)
    for (idx, is_correct, weight, length), score in zip(targets, scores, strict=True):
        example, choice = (int(x) for x in idx)
        value = float(score) / length if normalize else float(score)
        groups[example].append((choice, bool(is_correct), float(weight), value))
    ordered = [sorted(groups[example]) for example in sorted(groups)]
    return (
        [[x[1] for x in group] for group in ordered],
        [[x[2] for x in group] for group in ordered],
        [[x[3] for x in group] for group in ordered],
    )
