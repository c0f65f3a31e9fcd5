"""Writes metrics to trackio: `train_script.train.metric_writers = [@trackio_writer.TrackioWriter]`.

Needs `pip install trackio` (the extra `trackio`). Metrics stay on this machine, under TRACKIO_DIR; `trackio show`
opens a page of them. Names are `<dataset>/<metric>`: `train/loss`, `training_eval/my_task/accuracy`.
"""

import importlib.util
import os
import secrets
from pathlib import Path
from typing import Any

from limba.gin_config.recipe import Recipe
from limba.reports.tracked_run import TrackedRun
from limba.reports.writers import Scalars

_RECORD = "trackio.json"


def is_installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("trackio") is not None


class TrackioWriter:
    """One run of trackio for one training run, also after it resumes: `MODEL_DIR/trackio.json` keeps its name.

    Args:
      model_dir: of the training run.
      keep_until: the step from which training resumes, -1 for a new run. Later values that trackio already has stay.
      project: None is TRACKIO_PROJECT, or "limba".
      name: of the run; None is the name of MODEL_DIR and four digits.
      space_id: of a Hugging Face Space that shows the run; None is TRACKIO_SPACE_ID, or this machine alone.

    Raises:
      ValueError: if trackio is not installed.
    """

    def __init__(
        self,
        model_dir: Path,
        keep_until: int = -1,
        project: str | None = None,
        name: str | None = None,
        space_id: str | None = None,
    ):
        self.check()
        import trackio

        model_dir.mkdir(parents=True, exist_ok=True)
        self._tracked = TrackedRun(model_dir / _RECORD, keep_until)
        run = self._tracked.id or name or f"{model_dir.name}-{secrets.token_hex(2)}"
        self._config: dict[str, Any] = {}
        self._run: Any = trackio.init(
            project=project or os.environ.get("TRACKIO_PROJECT", "limba"),
            name=run,
            space_id=space_id or os.environ.get("TRACKIO_SPACE_ID"),
            resume="allow",
            config=self._config,
            embed=False,
        )
        self._tracked.begin(run)

    @staticmethod
    def check() -> None:
        """Raises ValueError if trackio is not installed: before a training opens its data."""
        if not is_installed():
            raise ValueError(
                "TrackioWriter needs one more package: pip install trackio. Or remove TrackioWriter from "
                "train.metric_writers."
            )

    def write_scalars(self, step: int, dataset: str, scalars: Scalars) -> None:
        if values := self._tracked.values(step, dataset, scalars):
            self._run.log(values, step=step)
            self._tracked.sent(step)

    def write_text(self, step: int, dataset: str, name: str, text: str) -> None:
        if name == "config":  # It is sent with the first values.
            self._run.config.update({x.name: str(x.value) for x in Recipe.parse(text).bindings})

    def close(self) -> None:
        self._run.finish()
