"""Trackio's and MLflow's own packages, offline, in the environment that has what they need.

One program writes a training that is killed after step 4 and goes on from the checkpoint of step 2.
"""

import json
import subprocess
import sys

import pytest

from limba.reports.mlflow_writer import MlflowWriter
from limba.reports.trackio_writer import TrackioWriter
from tests import house
from tests.convert.conftest import python5  # noqa: F401, a fixture

WRITES = """
import sys
from pathlib import Path
from limba.reports.mlflow_writer import MlflowWriter
from limba.reports.trackio_writer import TrackioWriter

tracker, model_dir = sys.argv[1], Path(sys.argv[2])
kind = {"trackio": TrackioWriter, "mlflow": MlflowWriter}[tracker]
GIN = "BATCH_SIZE = 8\\nMODEL = @models.EncoderDecoderModel()\\ntrain/data.DatasetConfig.batch_size = %BATCH_SIZE\\n"
writer = kind(model_dir)
writer.write_text(0, "train", "config", GIN)
writer.write_scalars(2, "train", {"loss": 3.5, "broken": float("nan")})
writer.write_scalars(2, "training_eval/task", {"accuracy": 0.25})
writer.write_scalars(2, "inference_eval/task", {"eval/em": 20.0})
writer.write_scalars(4, "train", {"loss": 3.0})
writer.close()
writer = kind(model_dir, keep_until=2)
writer.write_text(2, "train", "config", GIN)
writer.write_scalars(4, "train", {"loss": 3.0})
writer.write_scalars(6, "train", {"loss": 2.5})
writer.close()
"""
READS_TRACKIO = """
import json, trackio
run, = trackio.Api().runs("limba")
from trackio.sqlite_storage import SQLiteStorage
logs = SQLiteStorage.get_logs("limba", run.name)
print(json.dumps([run.name, dict(SQLiteStorage.get_run_config("limba", run.name)), logs]))
"""
READS_MLFLOW = """
import json, mlflow
client = mlflow.MlflowClient()
run, = client.search_runs([client.get_experiment_by_name("limba").experiment_id])
names = run.data.metrics
history = {name: [(x.step, x.value) for x in client.get_metric_history(run.info.run_id, name)] for name in names}
print(json.dumps([run.info.run_name, run.info.run_id, run.info.status, run.data.params, history]))
"""
EVALUATED = {
    "training_eval/task/accuracy": 0.25,
    "eval/accuracy": 0.25,
    "inference_eval/task/eval/em": 20.0,
    "eval/em": 20.0,
    "eval/exact_match": 20.0,
}


@pytest.fixture
def python(tmp_path, python5):  # noqa: F811
    """Runs a program there: `python(program, *arguments)` is what it printed last."""
    places = {"TRACKIO_DIR": f"{tmp_path}/trackio", "MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlflow"}
    env = {
        "PATH": "",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(house.ROOT),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        **places,
    }

    def run(program, *arguments):
        command = [python5, "-c", program, *arguments]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        return (done.stdout.splitlines() or [""])[-1]

    return run


def test_trackio_has_one_run_of_a_training_that_goes_on(tmp_path, python):
    python(WRITES, "trackio", str(tmp_path / "my_run"))
    name, config, logs = json.loads(python(READS_TRACKIO))
    assert config["BATCH_SIZE"] == "8" and config["MODEL"] == "@models.EncoderDecoderModel()"
    values = {}
    for line in logs:
        values.setdefault(line["step"], {}).update({k: v for k, v in line.items() if k not in ("step", "timestamp")})
    assert values == {2: {"train/loss": 3.5, **EVALUATED}, 4: {"train/loss": 3.0}, 6: {"train/loss": 2.5}}
    assert [line["step"] for line in logs].count(4) == 1
    assert name.startswith("my_run-")
    assert json.loads((tmp_path / "my_run/trackio.json").read_text()) == {"id": name, "last_step": 6}


def test_mlflow_has_one_run_of_a_training_that_goes_on(tmp_path, python):
    python(WRITES, "mlflow", str(tmp_path / "my_run"))
    name, run_id, status, params, history = json.loads(python(READS_MLFLOW))
    assert (name, status) == ("my_run", "FINISHED")
    assert params["BATCH_SIZE"] == "8" and params["train/data.DatasetConfig.batch_size"] == "%BATCH_SIZE"
    assert history.pop("train/loss") == [[2, 3.5], [4, 3.0], [6, 2.5]]
    assert history == {name: [[2, value]] for name, value in EVALUATED.items()}
    assert json.loads((tmp_path / "my_run/mlflow.json").read_text()) == {"id": run_id, "last_step": 6}


FULL_DISK = """
import logging, sys
from pathlib import Path
from mlflow.exceptions import MlflowException
from limba.reports.mlflow_writer import MlflowWriter
logging.basicConfig(stream=sys.stdout)
writer = MlflowWriter(Path(sys.argv[1]))
def full(*_, **__): raise MlflowException("the disk is full, see https://me:pl4nted@host/")
writer._client.log_batch = full
writer.write_scalars(2, "train", {"loss": 3.5})
"""


def test_what_mlflow_does_not_take_is_a_warning(tmp_path, python):
    said = python(FULL_DISK, str(tmp_path / "my_run"))
    assert (
        "WARNING:limba.reports.mlflow_writer:MLflow did not take the values of step 2 (train): the disk is full" in said
    )
    assert "pl4nted" not in said
    assert json.loads((tmp_path / "my_run/mlflow.json").read_text())["last_step"] == -1


@pytest.mark.parametrize(("writer", "package"), [(TrackioWriter, "trackio"), (MlflowWriter, "mlflow")])
def test_what_is_missing_is_said(tmp_path, monkeypatch, writer, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{writer.__name__} needs one more package: pip install {package}"):
        writer(tmp_path / "run")
    assert not (tmp_path / "run").exists()
