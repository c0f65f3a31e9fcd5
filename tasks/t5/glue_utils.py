"""GLUE and SuperGLUE by the builder configurations of TensorFlow Datasets, under the names of `t5.data.glue_utils`."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from limba.tasks.metrics import text_metrics as metrics
from limba.tasks.supervised import postprocessors
from limba.tasks.t5 import t5_data_sets, t5_postprocessors

# Examples by task, which are the rates of T5's mixtures; test sets have none.
_GLUE_RATES = {
    "glue_cola_v002": 8_551.0,
    "glue_sst2_v002": 67_349.0,
    "glue_mrpc_v002": 3_668.0,
    "glue_qqp_v002": 363_849.0,
    "glue_stsb_v002": 5_749.0,
    "glue_mnli_v002": 392_702.0,
    "glue_qnli_v002": 104_743.0,
    "glue_rte_v002": 2_490.0,
    "glue_mnli_mismatched_v002": 0.0,
    "glue_mnli_matched_v002": 0.0,
    "glue_ax_v002": 0.0,
}
_SUPER_GLUE_RATES = {
    "dpr_v001_simple": 1_322.0,
    "super_glue_wsc_v102_simple_train": 259.0,
    "super_glue_wsc_v102_simple_eval": 0.0,
    "super_glue_boolq_v102": 9_427.0,
    "super_glue_cb_v102": 250.0,
    "super_glue_copa_v102": 400.0,
    "super_glue_multirc_v102": 27_243.0,
    "super_glue_record_v102": 138_854.0,
    "super_glue_rte_v102": 2_490.0,
    "super_glue_wic_v102": 5_428.0,
    "super_glue_axb_v102": 0.0,
    "super_glue_axg_v102": 0.0,
}
_Metrics = list[Callable[..., Any]]
_GLUE_METRICS: Mapping[str, _Metrics] = {
    "cola": [metrics.matthews_corrcoef],
    "sst2": [metrics.accuracy],
    "mrpc": [metrics.f1_score_with_invalid, metrics.accuracy],
    "stsb": [metrics.pearson_corrcoef, metrics.spearman_corrcoef],
    "qqp": [metrics.f1_score_with_invalid, metrics.accuracy],
    **{name: [metrics.accuracy] for name in ("mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli")},
    "ax": [],
}
_SUPER_GLUE_METRICS: Mapping[str, _Metrics] = {
    "cb": [metrics.mean_multiclass_f1(num_classes=3), metrics.accuracy],
    "multirc": [metrics.multirc_f1_over_all_answers, metrics.mean_group_metric(metrics.all_match)],
    "record": [metrics.deduplicate_metric(metrics.squad)],
    **{name: [metrics.accuracy] for name in ("boolq", "copa", "rte", "wic")},
    "axb": [],
    "axg": [],
}
# Diagnostic sets are read as the task whose labels they have.
_READ_AS = {"mnli_matched": "mnli", "mnli_mismatched": "mnli", "ax": "mnli", "axb": "rte", "axg": "rte"}
_FEATURES = {"multirc": ("question", "answer", "paragraph"), "wic": ("sentence1", "sentence2", "word")}


def get_glue_weight_mapping() -> dict[str, float]:
    """The rates of T5's GLUE mixture, by task."""
    return dict(_GLUE_RATES)


def get_super_glue_weight_mapping() -> dict[str, float]:
    """The rates of T5's SuperGLUE mixture, by task."""
    return dict(_SUPER_GLUE_RATES)


def get_glue_text_preprocessor(builder_config: Any) -> Callable[..., Any]:
    """What makes texts of the examples of a builder configuration, such as `glue/qqp` or `super_glue/wic`."""
    name = builder_config.name
    special = {"stsb": t5_data_sets.stsb, "wsc.fixed": t5_data_sets.wsc, "record": t5_data_sets.record}
    return special.get(name) or functools.partial(
        t5_data_sets.glue,
        benchmark_name=_READ_AS.get(name, name),
        label_names=builder_config.label_classes,
        feature_names=_FEATURES.get(name),
    )


def get_glue_postprocess_fn(builder_config: Any) -> Callable[..., Any]:
    """What makes values of the answers for `get_glue_metric` and `get_super_glue_metric`."""
    special: Mapping[str, Callable[..., Any]] = {
        "stsb": postprocessors.string_to_float,
        "multirc": t5_postprocessors.multirc,
        "record": t5_postprocessors.record,
    }
    return special.get(builder_config.name) or functools.partial(
        postprocessors.string_label_to_class_id, label_classes=builder_config.label_classes
    )


def get_glue_metric(task_name: str) -> _Metrics:
    """The metrics of a GLUE task, by the name of its builder configuration; KeyError for another."""
    return _GLUE_METRICS[task_name]


def get_super_glue_metric(task_name: str) -> _Metrics:
    """The metrics of a SuperGLUE task, by the name of its builder configuration; KeyError for another."""
    return _SUPER_GLUE_METRICS[task_name]
