"""JSON that is written is JSON: of what is not finite null is left, in every file and every command."""

import ast
import json

import numpy as np
import pytest

from limba.files import json_text
from limba.inference import metric_loggers
from limba.reports import json_lines, results_table, writers
from tasks.pipeline import predictions
from tests.house import ROOT

NAN, INFINITE = float("nan"), float("inf")


def _strict(text):
    """Values of a text by a reader that takes JSON alone."""

    def refuse(token):
        raise AssertionError(f"{token} is no JSON: {text}")

    return json.loads(text, parse_constant=refuse)


class _Encoder(json.JSONEncoder):
    def default(self, value):
        return value.tolist()


@pytest.mark.parametrize(
    ("value", "options", "expected"),
    [
        (1.5, {}, 1.5),
        (NAN, {}, None),
        ({"a": [INFINITE, -INFINITE, (NAN, 2)]}, {"indent": 1, "sort_keys": True}, {"a": [None, None, [None, 2]]}),
        ({"nan": "NaN", "ț": INFINITE}, {"ensure_ascii": False}, {"nan": "NaN", "ț": None}),
        ([np.array([1.0, NAN])], {"default": np.ndarray.tolist}, [[1.0, None]]),
        ([np.array([INFINITE])], {"cls": _Encoder}, [[None]]),
        ([np.float64(NAN)], {}, [None]),
    ],
)
def test_what_is_not_finite_is_null(value, options, expected):
    assert _strict(json_text.dumps(value, **options)) == expected


def test_what_is_finite_is_as_python_writes_it():
    value = {"b": 0.1, "a": [1e300, "NaN", None, True, "ț"]}
    for options in ({}, {"indent": 2}, {"sort_keys": True, "separators": (",", ":")}, {"ensure_ascii": False}):
        assert json_text.dumps(value, **options) == json.dumps(value, **options)
    for bad, kind in (({"a": object()}, TypeError), (cycle := [], ValueError)):
        cycle.append(cycle)
        with pytest.raises(kind):
            json_text.dumps(bad)


def test_every_writer_uses_it():
    """A call of `json.dump` or `json.dumps` elsewhere must refuse NaN itself."""
    found = []
    for package in ("limba", "tasks", "convert"):
        for file in (ROOT / package).rglob("*.py"):
            for call in (node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)):
                if ast.unparse(call.func) in ("json.dump", "json.dumps", "dump", "dumps"):
                    found += [f"{file.relative_to(ROOT)}:{call.lineno}"] * ("allow_nan=False" not in ast.unparse(call))
    assert [place.partition(":")[0] for place in found] == ["limba/files/json_text.py"]


def test_files_of_results_are_json(tmp_path, capsys):
    row = {"task": "a", "split": "b", "step": 1, "checkpoint": "c", "loss": {"nats_per_target_token": NAN}}
    results_table.add(tmp_path, [row | {"metrics": {"pearson": np.float32(NAN), "all": np.array([1.0, INFINITE])}}])
    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    assert _strict(line)["metrics"] == {"pearson": None, "all": [1.0, None]}
    assert results_table.table(results_table.read(tmp_path)).splitlines()[1:] == [
        "step  nats_per_target_token    pearson",
        "   1              undefined  undefined",
    ]
    writer = writers.JsonLinesWriter(tmp_path)
    writer.write_scalars(3, "train", {"loss": NAN, "rate": 0.5})
    writer.close()
    assert _strict((tmp_path / "metrics.jsonl").read_text()) == {
        "step": 3,
        "dataset": "train",
        "loss": None,
        "rate": 0.5,
    }
    examples = predictions.Examples([{"inputs_pretokenized": b"x"}])
    predictions.write_inferences_to_file(str(tmp_path / "p"), ([-INFINITE], {"scores": [NAN]}), examples, "score", None)
    assert _strict((tmp_path / "p").read_text()) == {
        "inputs": {"inputs_pretokenized": "x"}, "score": None, "aux": {"scores": None},
    }  # fmt: skip
    log = metric_loggers.JSONLogger(str(tmp_path))
    log("t", 5, {"f1": metric_loggers.Scalar(np.float32(NAN))}, examples, {"output": [np.array([NAN])]}, [1.0])
    assert _strict((tmp_path / "t-metrics.jsonl").read_text()) == {"step": 5, "f1": None}
    assert _strict((tmp_path / "t-000005.jsonl").read_text())["output"] == [None]
    assert _strict(json_lines.to_line({"a": NAN})) == {"a": None}
