"""run_glue.py's combined_score."""

import pytest

from limba.addons.run import script_task
from limba.addons.run.glue_metrics import combined_score
from tasks.metrics.text_metrics import mse

# As `glue_compute_metrics` of transformers 4.57 gives acc_and_f1 and corr.
CASES = [
    ("glue_mrpc", "label", [1, 0, 0, 1], [1, 0, 1, 1], {"accuracy": 0.75, "f1": 0.8, "combined_score": 0.775}),
    ("glue_qqp", "text", [1, 0, 0, 1], [1, 0, 1, 1], {"accuracy": 0.75, "f1": 0.8, "combined_score": 0.775}),
    (
        *("glue_stsb", "number", [1.0, 3.0, 2.0, 4.0], [1.0, 2.0, 3.0, 5.0]),
        {"pearson": 0.8315218406203, "spearmanr": 0.8, "combined_score": 0.8157609203101499},
    ),
]


@pytest.mark.parametrize(("entry", "answers", "targets", "predictions", "wanted"), CASES)
def test_it_is_the_mean_of_both_metrics(entry, answers, targets, predictions, wanted):
    given = (entry, None, "", None, None)
    form = script_task.row_dataset(*given, None, answers=answers)
    found = {name: x for metric in form.metrics for name, x in metric(targets, predictions).items()}
    assert found == pytest.approx(wanted)
    assert form == script_task.row_dataset(*given, None, answers=answers)  # a task may be registered again
    chosen = script_task.row_dataset(*given, ["mse"], answers=answers)
    assert len(chosen.metrics) == 1  # metric_names has priority


def test_other_tasks_have_none():
    for entry in ("glue_sst2", "glue_cola"):
        form = script_task.row_dataset(entry, None, "", None, None, None, answers="label")
        assert "combined_score" not in {name for metric in form.metrics for name in metric([1, 0], [1, 0])}
    assert combined_score(mse)([float("nan")], [0.0]) == {}
