import json

import numpy as np

from limba.reports import results_table


def _row(step, task="a", **metrics):
    loss = {"nats_per_target_token": 2.0 + step, "accuracy": 0.5, "z_loss": 1.0}
    return {
        "task": task,
        "split": "validation",
        "step": step,
        "checkpoint": f"c{step}",
        "loss": loss,
        "metrics": metrics,
    }


def test_calls_add_up_and_replace(tmp_path):
    results_table.add(tmp_path, [_row(20, f1=np.float32(0.5))])
    results_table.add(tmp_path, [_row(3, f1=50), _row(3, task="b"), _row(20, f1=75.0, names=["x"])])
    results_table.add(tmp_path, [_row(20)])  # the loss alone
    rows = results_table.read(tmp_path)
    assert [(row["task"], row["step"]) for row in rows] == [("a", 3), ("a", 20), ("b", 3)]
    assert rows[1]["metrics"] == {"f1": 75.0, "names": ["x"]} and rows[1]["loss"]["z_loss"] == 1.0
    assert results_table.table(rows).splitlines() == [
        "a (validation)",
        "step  nats_per_target_token  token_accuracy  f1",
        "   3                      5             0.5  50",
        "  20                     22             0.5  75",
        "",
        "b (validation)",
        "step  nats_per_target_token  token_accuracy",
        "   3                      5             0.5",
    ]


def test_many_metrics_are_lines():
    names = [f"{label}_{name}" for label in ("glad", "calm", "sad") for name in ("precision", "recall", "f1")]
    lines = results_table.table([_row(step, **dict.fromkeys(names, step)) for step in (3, 20)]).splitlines()
    assert lines[1:4] == [
        "                 step    3   20",
        "nats_per_target_token    5   22",
        "       token_accuracy  0.5  0.5",
    ]
    assert lines[-1] == "               sad_f1    3   20" and len(lines) == 13


def test_numbers_of_other_libraries_are_written_as_numbers(tmp_path):
    results_table.add(tmp_path, [_row(1, em=np.float64(1.5), histogram=np.arange(2), text=object)])
    metrics = json.loads((tmp_path / "results.jsonl").read_text())["metrics"]
    assert metrics["em"] == 1.5 and metrics["histogram"] == [0, 1] and "object" in metrics["text"]


def test_a_damaged_line_is_set_aside(tmp_path):
    row = {"task": "a", "split": "validation", "step": 2, "checkpoint": "c", "loss": {}, "metrics": {"f1": 1.0}}
    results_table.add(tmp_path, [row])
    with (tmp_path / results_table.NAME).open("a") as file:
        file.write('{"task": "a", "spl')
    assert results_table.read(tmp_path) == [row]
    results_table.add(tmp_path, [row | {"step": 3}])
    assert [found["step"] for found in results_table.read(tmp_path)] == [2, 3]
    assert (tmp_path / f"{results_table.NAME}.damaged").read_text() == '{"task": "a", "spl\n'
