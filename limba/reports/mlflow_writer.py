"""Writes metrics to MLflow: `train_script.train.metric_writers = [@mlflow_writer.MlflowWriter]`.

Needs `pip install mlflow-skinny` (the extra `mlflow`) for a server, or the whole `mlflow`, which keeps runs in a
database on this machine. MLFLOW_TRACKING_URI says where. Names are `<dataset>/<metric>`: `train/loss`.
"""

import importlib.util
import logging
import os
import time
from pathlib import Path
from typing import Any

from limba.files import redaction
from limba.gin_config.recipe import Recipe
from limba.reports.tracked_run import TrackedRun
from limba.reports.writers import Scalars

logger = logging.getLogger(__name__)

# Training waits for an answer: its own seven tries take minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")

_RECORD = "mlflow.json"
# What MLflow takes in one call, and of one parameter.
_METRICS_AT_ONCE, _PARAMS_AT_ONCE, _LONGEST_PARAM = 1000, 100, 6000


def is_installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("mlflow") is not None


class MlflowWriter:
    """One run of MLflow for one training run, also after it resumes: `MODEL_DIR/mlflow.json` keeps its id.

    The parameters of MLflow's run are the operative gin configuration. Values that its server does not take are a
    warning, and training goes on: `metrics.jsonl` has them.

    Args:
      model_dir: of the training run.
      keep_until: the step from which training resumes, -1 for a new run. Later values that MLflow already has stay.
      experiment: None is MLFLOW_EXPERIMENT_NAME, or "limba".
      name: of the run; None is the name of MODEL_DIR.

    Raises:
      ValueError: if MLflow is not installed.
      RuntimeError: if its server or folder cannot be used.
    """

    def __init__(self, model_dir: Path, keep_until: int = -1, experiment: str | None = None, name: str | None = None):
        self.check()
        import mlflow

        model_dir.mkdir(parents=True, exist_ok=True)
        self._tracked = TrackedRun(model_dir / _RECORD, keep_until)
        experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "limba")
        try:
            self._client: Any = mlflow.MlflowClient()
            self._run_id = self._tracked.id or self._new_run(experiment, name or model_dir.name)
            self._client.set_terminated(self._run_id, status="RUNNING")
        except Exception as error:  # Its stores raise many kinds.
            where = redaction.redact(os.environ.get("MLFLOW_TRACKING_URI", "its own default"))
            raise RuntimeError(
                f"MLflow cannot keep this run at {where} (MLFLOW_TRACKING_URI): {redaction.redact(str(error))[:300]}"
            ) from error
        self._tracked.begin(self._run_id)

    @staticmethod
    def check() -> None:
        """Raises ValueError if MLflow is not installed: before a training opens its data."""
        if not is_installed():
            raise ValueError(
                "MlflowWriter needs one more package: pip install mlflow, or mlflow-skinny for a server elsewhere. Or "
                "remove MlflowWriter from train.metric_writers."
            )

    def _new_run(self, experiment: str, name: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        return self._client.create_run(number, run_name=name).info.run_id

    def write_scalars(self, step: int, dataset: str, scalars: Scalars) -> None:
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        if values := self._tracked.values(step, dataset, scalars):
            now = int(time.time() * 1000)
            metrics = [Metric(name, float(x), now, step) for name, x in values.items()]
            try:
                for begin in range(0, len(metrics), _METRICS_AT_ONCE):
                    self._client.log_batch(self._run_id, metrics=metrics[begin : begin + _METRICS_AT_ONCE])
            except MlflowException as error:
                said = redaction.redact(str(error))[:300]
                logger.warning("MLflow did not take the values of step %d (%s): %s", step, dataset, said)
                return
            self._tracked.sent(step)

    def write_text(self, step: int, dataset: str, name: str, text: str) -> None:
        from mlflow.entities import Param

        if name != "config":
            return
        # A parameter cannot be changed: those of a resumed run with other bindings stay as they were.
        had = self._client.get_run(self._run_id).data.params
        params = {x.name.replace("@", ""): str(x.value)[:_LONGEST_PARAM] for x in Recipe.parse(text).bindings}
        new = [Param(key, value) for key, value in params.items() if key not in had]
        for begin in range(0, len(new), _PARAMS_AT_ONCE):
            self._client.log_batch(self._run_id, params=new[begin : begin + _PARAMS_AT_ONCE])

    def close(self) -> None:
        self._client.set_terminated(self._run_id)
