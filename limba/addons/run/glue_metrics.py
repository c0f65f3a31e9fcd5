"""GLUE's `combined_score`, which run_glue.py gives beside two metrics of one task: their mean."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from limba.tasks.metrics import text_metrics
from limba.tasks.metrics.text_metrics import MetricFn, Metrics


def combined_score(*metrics: MetricFn) -> MetricFn:
    """A metric: the mean of what these give, and nothing where none of them is defined."""

    def metric(targets: Sequence[Any], predictions: Sequence[Any]) -> Metrics:
        found = [value for each in metrics for value in each(targets, predictions).values()]
        return {"combined_score": float(np.mean(found))} if found else {}

    return metric


_ACCURACY_AND_F1 = combined_score(text_metrics.accuracy, text_metrics.f1_score_with_invalid)
# By the entry of the table of data sets.
COMBINED_SCORES: Mapping[str, MetricFn] = {
    "glue_mrpc": _ACCURACY_AND_F1,
    "glue_qqp": _ACCURACY_AND_F1,
    "glue_stsb": combined_score(text_metrics.pearson_corrcoef, text_metrics.spearman_corrcoef),
}
