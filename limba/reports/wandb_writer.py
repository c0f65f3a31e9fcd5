"""Metrics on Weights & Biases, beside TensorBoard's: `train_script.train.metric_writers = [@wandb_writer.WandbWriter]`.

Needs `pip install wandb` (the extra `wandb`). WANDB_MODE=offline writes into MODEL_DIR/wandb and asks nobody; `wandb
sync` uploads that later. Names are `<dataset>/<metric>`: `train/loss`, `training_eval/my_task/accuracy`.
"""

import json
import math
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gin import config_parser

from limba.writers import Scalars

_RECORD = "wandb.json"


class WandbWriter:
    """One W&B run for one training, also where it is stopped and goes on: its id is kept in `MODEL_DIR/wandb.json`.

    The run's configuration is the operative gin's values, under their gin names.

    Args:
      model_dir: of the training.
      keep_until: the step that a training goes on from, -1 for a new one. What W&B has after it stays, and is not
        written again: a resumed training repeats the same numbers.
      project: on W&B; None is WANDB_PROJECT, or "limba".
      name: of the run; None is WANDB_NAME, or the name of MODEL_DIR.
      entity: whose project it is; None is WANDB_ENTITY, or the user's own.
      group: of runs, such as a sweep's; None is WANDB_RUN_GROUP.
      tags: of the run.
      mode: "online", "offline" or "disabled"; None is WANDB_MODE, or online.

    Raises:
      ValueError: if wandb is not installed, or for another mode.
      RuntimeError: if W&B cannot be reached, or there is no key.
    """

    def __init__(
        self,
        model_dir: Path,
        keep_until: int = -1,
        project: str | None = None,
        name: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        mode: str | None = None,
    ):
        if mode not in (None, "online", "offline", "disabled"):
            raise ValueError(f"WandbWriter.mode is {mode!r}; use 'online', 'offline' or 'disabled'.")
        try:
            import wandb
        except ImportError:
            raise ValueError(
                "WandbWriter needs one more package: pip install wandb. Without it leave WandbWriter out of "
                "train.metric_writers."
            ) from None
        self._record = model_dir / _RECORD
        known = json.loads(self._record.read_text("utf-8")) if self._record.is_file() else {}
        # An agent of a sweep has chosen the id already.
        run_id = os.environ.get("WANDB_RUN_ID") or known.get("id") or secrets.token_hex(4)
        self._last_step = known.get("last_step", -1) if known.get("id") == run_id else -1
        self._keep_until = keep_until
        model_dir.mkdir(parents=True, exist_ok=True)
        try:
            self._run: Any = wandb.init(
                project=project or os.environ.get("WANDB_PROJECT", "limba"),
                name=name or os.environ.get("WANDB_NAME") or model_dir.name,
                entity=entity,
                group=group,
                tags=list(tags) or None,
                mode=mode,  # type: ignore[arg-type]
                id=run_id,
                resume="allow",
                dir=str(model_dir),
            )
        except wandb.errors.Error as error:
            raise RuntimeError(
                f"Weights & Biases does not begin a run ({error}). Set WANDB_API_KEY or run `wandb login`; "
                "WANDB_MODE=offline asks nobody."
            ) from error
        self._id = run_id
        self._remember()

    def _remember(self) -> None:
        written = self._record.with_suffix(".tmp")
        written.write_text(json.dumps({"id": self._id, "last_step": self._last_step}) + "\n", "utf-8")
        written.replace(self._record)

    def write_scalars(self, step: int, dataset: str, scalars: Scalars) -> None:
        # W&B's steps only rise: what was sent before a training was stopped is there, and the same.
        if step <= self._last_step and step > self._keep_until >= 0:
            return
        self._run.log({f"{dataset}/{name}": x for name, x in scalars.items() if math.isfinite(x)}, step=step)
        if step > self._last_step:
            self._last_step = step
            self._remember()

    def write_text(self, step: int, dataset: str, name: str, text: str) -> None:
        if name == "config":
            self._run.config.update(gin_values(text), allow_val_change=True)

    def close(self) -> None:
        self._run.finish()


class _AsText(config_parser.ParserDelegate):
    """References and macros stay what they are in the text."""

    def configurable_reference(self, scoped_name: str, evaluate: bool) -> str:
        return f"@{scoped_name}{'()' if evaluate else ''}"

    def macro(self, scoped_name: str) -> str:
        return f"%{scoped_name}"


def gin_values(text: str) -> dict[str, Any]:
    """The bindings of a gin file, `{"BATCH_SIZE": 8, "trainer.Trainer.num_microbatches": 1}`; includes are not read."""
    values = {}
    for statement in config_parser.ConfigParser(text, _AsText()):
        if isinstance(statement, config_parser.BindingStatement):
            scope = f"{statement.scope}/" if statement.scope else ""
            name = f"{statement.selector}.{statement.arg_name}" if statement.arg_name else statement.selector
            values[scope + name] = statement.value
    return values
