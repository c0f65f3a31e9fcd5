"""Which writers get the metrics of predictions."""

import types

from limba.reports import writers
from limba.training.actions import ActionMode
from limba.training.periodic_evaluation import TrainingEvaluation


class _Writer:
    def __init__(self):
        self.written = []

    def write_scalars(self, step, dataset, scalars):
        self.written.append((step, dataset, scalars))


class _TensorBoard(_Writer, writers.TensorBoardWriter):
    """Only its kind matters."""


def test_all_writers_but_tensorboard_get_the_metrics_of_predictions():
    """TensorBoard has them from the evaluator's own loggers, and only the means from here; W&B had nothing."""
    evaluator = types.SimpleNamespace(
        eval_tasks=("a", "b"),
        counts={"a": {"num_examples": 3}},
        evaluate=lambda params, step, check: {"a": {"f1": 50.0}, "b": {"f1": 100.0}},
    )
    own, tensorboard = _Writer(), _TensorBoard()
    averages = {"mean/f1": ("a", "b")}
    evaluation = TrainingEvaluation(None, {}, None, evaluator, {}, averages, {}, [own, tensorboard])
    results = evaluation.run(types.SimpleNamespace(params=None), 7, lambda line: None, lambda: None)
    assert results[ActionMode.INFER_EVAL]["a"] == {"f1": 50.0, "num_examples": 3}  # actions may look at counts too
    assert own.written == [
        (7, "inference_eval/a", {"eval/f1": 50.0, "num_examples": 3}),
        (7, "inference_eval/b", {"eval/f1": 100.0}),
        (7, "inference_eval/mean", {"eval/f1": 75.0}),
    ]
    of_means = [line for line in tensorboard.written if line[1] != "train"]  # which has the time
    assert of_means == [(7, "inference_eval/mean", {"eval/f1": 75.0})]


def _said(metrics):
    evaluator = types.SimpleNamespace(eval_tasks=("a",), counts={}, evaluate=lambda *_: {"a": metrics})
    lines = []
    evaluation = TrainingEvaluation(None, {}, None, evaluator, {}, {}, {}, [])
    evaluation.run(types.SimpleNamespace(params=None), 7, lines.append, lambda: None)
    return lines


def test_a_line_has_the_metrics_that_matter_and_counts_the_others():
    of_labels = {f"{label}_{x}": 1.0 for label in ("glad", "sad", "macro") for x in ("precision", "recall", "f1")}
    assert _said({"accuracy": 59.2, "majority_accuracy": 41.0, **of_labels}) == [
        "step 7: a (inference_eval): accuracy 59.2, majority_accuracy 41, macro_f1 1, 8 more in metrics.jsonl"
    ]
    kinds = ("ARG", "VERB", "TIME")
    of_kinds = {f"{kind}_{x}": 1.0 for kind in kinds for x in ("precision", "recall", "f1", "number")}
    of_all = {f"overall_{x}": float(i) for i, x in enumerate(("precision", "recall", "f1", "accuracy"))}
    assert _said(of_kinds | of_all) == [
        "step 7: a (inference_eval): overall_f1 2, overall_accuracy 3, 14 more in metrics.jsonl"
    ]
    many = {f"metric_{i}": float(i) for i in range(20)}
    shown = ", ".join(f"metric_{i} {i}" for i in range(6))
    assert _said(many) == [f"step 7: a (inference_eval): {shown}, 14 more in metrics.jsonl"]
    few = {"precision": 1.0, "recall": 2.0, "f1": 3.0, "glad_f1": 4.0}
    assert _said(few) == ["step 7: a (inference_eval): precision 1, recall 2, f1 3, glad_f1 4"]
