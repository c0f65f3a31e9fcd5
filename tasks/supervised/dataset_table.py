"""The table of data sets: GLUE, SuperGLUE, SQuAD, summaries and translations, with T5's texts and the official metrics.

    from tasks import supervised
    supervised.register_supervised_task("glue_mrpc", vocabulary="vocab/spiece.model")

Sizes are those of the training splits. A label of -1, in test sets, is kept secret.
"""

import difflib
import functools
from collections.abc import Mapping
from typing import Any

from limba.tasks.metrics import text_metrics as metrics
from limba.tasks.supervised.dataset import SupervisedDataset
from limba.tasks.supervised.row_formats import MultiRc, Record, Similarity, Squad, Translation, Winograd, prompt

_FALSE_TRUE = ("False", "True")
_ENTAILMENT = ("entailment", "not_entailment")
_F1_AND_ACCURACY = (metrics.f1_score_with_invalid, metrics.accuracy)
_VALIDATION_AND_TEST = {"validation": "validation", "test": "test"}
_MATCHED = {"train": "train", "validation": "validation_matched", "test": "test_matched"}
_ALL_SPLITS = {"train": "train", **_VALIDATION_AND_TEST}


def _of_classes(
    hub: str, config: str, inputs: str, labels: tuple[str, ...], *metric_fns: metrics.MetricFn, **options: Any
) -> SupervisedDataset:
    fns = metric_fns or (metrics.accuracy,)
    options = {"splits": _ALL_SPLITS, **options}
    return SupervisedDataset(inputs, "label", dict(enumerate(labels)), -1, fns, hub, config, **options)


_glue = functools.partial(_of_classes, "nyu-mll/glue")
_super_glue = functools.partial(_of_classes, "aps/super_glue")
_glue_form = functools.partial(SupervisedDataset, hub="nyu-mll/glue", splits=_ALL_SPLITS)
_super_glue_form = functools.partial(SupervisedDataset, hub="aps/super_glue", splits=_ALL_SPLITS)
_MNLI_LABELS = ("entailment", "neutral", "contradiction")
_mnli = functools.partial(_glue, inputs=prompt("mnli", "hypothesis", "premise"), labels=_MNLI_LABELS)

GLUE: Mapping[str, SupervisedDataset] = {
    "glue_cola": _glue(
        "cola", prompt("cola", "sentence"), ("unacceptable", "acceptable"), metrics.matthews_corrcoef, num_examples=8551
    ),
    "glue_sst2": _glue("sst2", prompt("sst2", "sentence"), ("negative", "positive"), num_examples=67_349),
    "glue_mrpc": _glue(
        "mrpc",
        prompt("mrpc", "sentence1", "sentence2"),
        ("not_equivalent", "equivalent"),
        *_F1_AND_ACCURACY,
        num_examples=3668,
    ),
    "glue_qqp": _glue(
        "qqp",
        prompt("qqp", "question1", "question2"),
        ("not_duplicate", "duplicate"),
        *_F1_AND_ACCURACY,
        num_examples=363_849,
    ),
    "glue_stsb": _glue_form(
        Similarity(),
        metric_fns=(metrics.pearson_corrcoef, metrics.spearman_corrcoef),
        config="stsb",
        num_examples=5749,
    ),
    "glue_mnli": _mnli("mnli", splits=_MATCHED, num_examples=392_702),
    "glue_mnli_matched": _mnli("mnli_matched", splits=_VALIDATION_AND_TEST),
    "glue_mnli_mismatched": _mnli("mnli_mismatched", splits=_VALIDATION_AND_TEST),
    "glue_qnli": _glue("qnli", prompt("qnli", "question", "sentence"), _ENTAILMENT, num_examples=104_743),
    "glue_rte": _glue("rte", prompt("rte", "sentence1", "sentence2"), _ENTAILMENT, num_examples=2490),
    "glue_wnli": _glue("wnli", prompt("wnli", "sentence1", "sentence2"), _ENTAILMENT[::-1], num_examples=635),
    "glue_ax": _mnli("ax", splits={"test": "test"}),
}

_RTE = prompt("rte", "hypothesis", "premise")

SUPER_GLUE: Mapping[str, SupervisedDataset] = {
    "super_glue_boolq": _super_glue("boolq", prompt("boolq", "passage", "question"), _FALSE_TRUE, num_examples=9427),
    "super_glue_cb": _super_glue(
        "cb",
        prompt("cb", "hypothesis", "premise"),
        ("entailment", "contradiction", "neutral"),
        metrics.mean_multiclass_f1(3),
        metrics.accuracy,
        num_examples=250,
    ),
    "super_glue_copa": _super_glue(
        "copa", prompt("copa", "choice1", "choice2", "premise", "question"), ("choice1", "choice2"), num_examples=400
    ),
    "super_glue_multirc": _super_glue_form(
        MultiRc(),
        metric_fns=(metrics.multirc_f1_over_all_answers, metrics.mean_group_metric(metrics.all_match)),
        config="multirc",
        num_examples=27_243,
    ),
    "super_glue_record": _super_glue_form(
        Record(), metric_fns=(metrics.deduplicate_metric(metrics.squad),), config="record", num_examples=138_854
    ),
    "super_glue_rte": _super_glue("rte", _RTE, _ENTAILMENT, num_examples=2490),
    "super_glue_wic": _super_glue(
        "wic", prompt("wic", "sentence1", "sentence2", "word"), _FALSE_TRUE, num_examples=5428
    ),
    "super_glue_wsc": _super_glue_form(
        Winograd(), metric_fns=(metrics.accuracy,), config="wsc.fixed", num_examples=554
    ),
    # Diagnostics of RTE, which are only tested.
    "super_glue_axb": _super_glue(
        "axb", "rte hypothesis: {sentence2} premise: {sentence1}", _ENTAILMENT, splits={"test": "test"}
    ),
    "super_glue_axg": _super_glue("axg", _RTE, _ENTAILMENT, splits={"test": "test"}),
}

_summaries = functools.partial(SupervisedDataset, metric_fns=(metrics.rouge,), splits=_ALL_SPLITS)
_translations = functools.partial(SupervisedDataset, metric_fns=(metrics.bleu,), splits=_ALL_SPLITS)

TEXTS: Mapping[str, SupervisedDataset] = {
    "squad": SupervisedDataset(
        Squad(),
        metric_fns=(metrics.squad,),
        hub="rajpurkar/squad",
        config="plain_text",
        splits={"train": "train", "validation": "validation"},
        num_examples=87_599,
    ),
    "cnn_dailymail": _summaries(
        "summarize: {article}", "highlights", hub="abisee/cnn_dailymail", config="3.0.0", num_examples=287_113
    ),
    "wmt14_ende": _translations(Translation("en", "de"), hub="wmt/wmt14", config="de-en", num_examples=4_508_785),
    "wmt14_enfr": _translations(Translation("en", "fr"), hub="wmt/wmt14", config="fr-en", num_examples=40_836_715),
    "wmt16_enro": _translations(Translation("en", "ro"), hub="wmt/wmt16", config="ro-en", num_examples=610_320),
}

DATASETS: Mapping[str, SupervisedDataset] = {**GLUE, **SUPER_GLUE, **TEXTS}


def find_dataset(name: str) -> SupervisedDataset:
    """The entry of that name.

    Raises:
      ValueError: if there is none; the message has the nearest names.
    """
    if name not in DATASETS:
        nearest = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.3) or sorted(DATASETS)
        raise ValueError(
            f"The table of data sets has no {name!r}. The nearest are {', '.join(map(repr, nearest))}; for data of "
            "your own give a SupervisedDataset."
        )
    return DATASETS[name]
