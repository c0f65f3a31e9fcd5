"""Metrics under the names and in the numbers of Hugging Face's scripts, so that a run shows one number everywhere.

Their shares are from 0 to 1, as `eval_accuracy`. Those of `tasks.metrics` are in percent, as T5 has them.
"""

import functools
from collections.abc import Collection, Mapping
from typing import Any

from tasks.metrics.text_metrics import MetricFn, Metrics

# Ends of names of metrics that are shares.
_SHARES = ("accuracy", "precision", "recall", "f1", "exact_match", "corrcoef")
# SQuAD's F1, and that of SQuAD 2, which comes with `exact`.
_F1 = ("f1", "HasAns_f1", "NoAns_f1")
_CORRELATIONS = {"pearson_corrcoef": "pearson", "spearman_corrcoef": "spearmanr"}
# The scripts' names, by the answers of `script_task.row_dataset`.
_NAMES: Mapping[str, Mapping[str, str]] = {
    "text": {"em": "exact_match"},
    "label": {"matthews_corrcoef": "matthews_correlation"},
    "number": _CORRELATIONS,
}


def names(answers: str) -> Mapping[str, str]:
    """The scripts' names of metrics that have others in `tasks.metrics`."""
    return _NAMES.get(answers, {})


def is_share(name: str, others: Collection[str]) -> bool:
    """Whether a metric of `tasks.metrics` is a share; `others` are the metrics beside it.

    SQuAD's F1, which comes with an exact match, is in percent in its script too, as ROUGE and BLEU are.
    """
    return name.endswith(_SHARES) and not (name in _F1 and {"em", "exact"} & {*others})


@functools.cache  # A task that is registered again has the same metric.
def of_script(metric: MetricFn, answers: str) -> MetricFn:
    """A metric as the scripts have it: its signature stays, and it is its `__wrapped__`."""

    @functools.wraps(metric)
    def measured(*targets: Any, **predictions: Any) -> Metrics:
        found = metric(*targets, **predictions)
        return {
            names(answers).get(name, name): x / 100 if isinstance(x, int | float) and is_share(name, found) else x
            for name, x in found.items()
        }

    return measured
