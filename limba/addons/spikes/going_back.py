"""What a run does at a spike: it writes a record, and starts again from a checkpoint as it would after a kill.

Each spike is a line of `MODEL_DIR/spikes.jsonl`, written before the run goes back. A checkpoint has in
`run/spikes.json` the figures that the next step is compared with, and how many batches were passed over before it.
Both together say what to pass over after a restart, so a run that is killed on the way makes the same steps.
"""

import collections
import itertools
import json
import logging
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils
from tqdm import tqdm

from limba.addons.spikes import spike_rule
from limba.addons.spikes.spike_rule import Figures
from limba.checkpoint_files.run_folder import FOLDER
from limba.checkpoint_files.small_files import load_files
from limba.checkpoints.checkpointing import Checkpointer, SaveCheckpointConfig, checkpoint_path, checkpoint_steps
from limba.data.contract import BatchIterator
from limba.files import json_text, storage, untrusted_json
from limba.files.storage import AnyPath
from limba.models import metrics as metrics_lib
from limba.reports import json_lines, run_end
from limba.training.spike_guard import REPEAT, SpikeGuard
from limba.training.trainer import BaseTrainer
from limba.workers import distributed

logger = logging.getLogger(__name__)

FILE_NAME = "spikes.jsonl"
STATE_NAME = "spikes.json"
_KEYS = ("step", "back_to", "passed")

Record = dict[str, Any]


class GoBackError(run_end.StartsAgainError):
    """The run is to start again from an earlier checkpoint; the record of the spike is written."""


class Spikes:
    """The spikes of a run between its checkpoints.

    Args:
      directory: MODEL_DIR on this machine, with the record.
      checkpointer, save: of the run.
      step: that the run begins with; `resumed` if it comes from a checkpoint of the run.

    Attributes:
      passed: batches that were passed over before the present step.

    Raises:
      ValueError: if the checkpoint's file is damaged.
    """

    def __init__(
        self,
        guard: SpikeGuard,
        directory: Path,
        checkpointer: Checkpointer,
        save: SaveCheckpointConfig,
        step: int,
        resumed: bool,
    ):
        self._guard, self._file, self._checkpointer, self._save = guard, directory / FILE_NAME, checkpointer, save
        self._before: collections.deque[Figures] = collections.deque(maxlen=guard.window)
        self._stage: str | None = None  # of the steps in `_before`; None where it is not known
        self.passed = 0
        if resumed:
            self.passed, before, self._stage = _read_state(checkpoint_path(checkpointer.model_dir, step))
            self._before.extend(before)
        self._records = distributed.from_first("spikes of the run", lambda: self._own_records(step if resumed else -1))

    def _own_records(self, step: int) -> list[Record]:
        """The records behind a run that begins at `step`: the last ones are removed that went back to later steps.

        Their checkpoints are gone, and the run will come to these spikes again.
        """
        is_record = lambda line: all(untrusted_json.COUNT[0](line.get(key)) for key in _KEYS)  # noqa: E731
        found = json_lines.read_and_repair(self._file, is_record)
        own = list(found)
        while own and own[-1]["back_to"] > step:
            own.pop()
        if len(own) < len(found):
            storage.replace_text(self._file, "".join(map(json_lines.to_line, own)))
        return own

    # --------------------------------------------------- at the start -----------------------------------------------

    def pass_over(self, batches: BatchIterator, step: int) -> None:
        """Reads the batches that the last going back to `step` is to pass over, and notes which documents they had."""
        if not self._records or self._records[-1]["back_to"] != step:  # the checkpoint is newer than the last spike
            return
        record = self._records[-1]
        count, self.passed = record["passed"] - self.passed, record["passed"]
        if count <= 0:
            return
        documents: dict[tuple[str, str], set[int]] = collections.defaultdict(set)
        for _ in tqdm(range(count), desc="passing over", unit="batch", disable=None):
            next(batches)
            for document in getattr(batches, "documents", list)():
                documents[document.task, document.file].add(document.row)
        mine = [{"task": task, "file": file, "rows": sorted(rows)} for (task, file), rows in sorted(documents.items())]
        of_all = distributed.exchange("documents passed over", json_text.dumps(mine, ensure_ascii=False))
        if "documents" not in record:
            record["documents"] = list(itertools.chain.from_iterable(map(json.loads, of_all)))
            self._write()
        logger.info("Passed over %d batches after step %d; %s has their documents.", count, step, self._file)

    @property
    def repeats(self) -> int:
        """How often steps of this run are made with other dropout."""
        return len(self._records) if self._guard.remedy == REPEAT else 0

    # --------------------------------------------------- between steps ----------------------------------------------

    def see(self, step: int, metrics: metrics_lib.Metrics, stage: str = "") -> str | None:
        """Why a step is a spike; None if it is not one, and then later steps are compared with it too.

        Each step must be shown once, in order. It is compared with those of its own stage of the data: the losses of
        another have another level.
        """
        if self._stage not in (None, stage):
            self._before.clear()
        self._stage = stage
        figures = figures_of(metrics)
        if (reason := spike_rule.find(self._guard, list(self._before), figures)) is None:
            self._before.append(figures)
        return reason

    def state_files(self) -> dict[str, bytes]:
        """What a checkpoint of the last step has in `run/`."""
        before = [[x.loss, x.gradient_norm] for x in self._before]
        return {STATE_NAME: json_text.dumps({"passed": self.passed, "before": before, "stage": self._stage}).encode()}

    def go_back(self, step: int, reason: str, describe: Callable[[], Exception]) -> Exception:
        """The error that ends the loop at a spike: `GoBackError`, or why the run cannot go back.

        Args:
          describe: the error of a run that ends here; it searches for the cause.
        """
        self._checkpointer.wait()
        directory = self._checkpointer.model_dir
        saved = distributed.from_first("checkpoints before a spike", lambda: checkpoint_steps(directory))
        # Not to one that a request to stop has left: a run that was never stopped does not have it.
        good = [x for x in saved if x < step and self._save.is_due(x)] or [x for x in saved if x < step]
        recent = [record["step"] for record in self._records if record["step"] > step - self._guard.within]
        if not good or len(recent) >= self._guard.most:
            error = describe()
            if recent:
                error.add_note(
                    f"It is spike number {len(recent) + 1} within {self._guard.within} steps (SpikeGuard.most = "
                    f"{self._guard.most}); before it came those of steps {', '.join(map(str, recent))} ({self._file})."
                )
            return error
        # Where a run comes to a spike again as soon after the same checkpoint, that may be the cause.
        last = self._records[-1] if self._records else None
        is_suspect = last is not None and last["back_to"] == good[-1] and step <= last["step"] + self._guard.least
        back_to = good[-2] if is_suspect and len(good) > 1 else good[-1]
        passed = self.passed + step - back_to
        if self._guard.remedy == REPEAT:
            passed, *_ = _read_state(checkpoint_path(directory, back_to))
        self._records.append({"step": step, "back_to": back_to, "passed": passed, "reason": reason})
        self._remove_after(back_to)
        self._write()
        what = (
            "passes over the batches in between" if self._guard.remedy != REPEAT else "repeats them with other dropout"
        )
        logger.warning("Step %d is a spike: %s. The run goes back to step %d and %s.", step, reason, back_to, what)
        return GoBackError(reason)

    def _remove_after(self, step: int) -> None:
        """Removes newer checkpoints, before the record names an older one: a restart must not begin with them."""
        directory = self._checkpointer.model_dir
        if jax.process_index() == 0:
            for newer in checkpoint_steps(directory):
                if newer > step:
                    storage.remove_tree(checkpoint_path(directory, newer))
        multihost_utils.sync_global_devices(f"spikes:{directory}:removed")

    def _write(self) -> None:
        if jax.process_index() == 0:
            storage.replace_text(self._file, "".join(map(json_lines.to_line, self._records)))


def _read_state(checkpoint: AnyPath) -> tuple[int, list[Figures], str | None]:
    """What `Spikes.state_files` has written: batches passed over, the figures of the steps before, and their stage."""
    content = load_files(checkpoint, FOLDER).get(STATE_NAME) if storage.is_dir(checkpoint / FOLDER) else None
    if content is None:  # An earlier start of the run did not look for spikes.
        return 0, [], None
    where = f"{checkpoint}/{FOLDER}/{STATE_NAME}"
    saved = untrusted_json.parse_object(content, where)
    try:
        before = [Figures(float(loss), None if norm is None else float(norm)) for loss, norm in saved["before"]]
        return operator.index(saved["passed"]), before, saved.get("stage")
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{where} is damaged: it needs `passed` and `before` ({error!r:.200}).") from error


def figures_of(metrics: metrics_lib.Metrics) -> Figures:
    """The figures of a step: of a model of a user's own by T5X's metric if it has one, else by `loss`."""
    names = (metrics_lib.MEAN, "loss_per_nonpadding_target_token", "loss")
    loss = next(metrics[name] for name in names if name in metrics)
    norm = next((metrics[name] for name in ("gradient_norm", "weight_gradient_norm") if name in metrics), None)
    return Figures(float(loss.compute()), None if norm is None else float(norm.compute()))


def check(checkpoint: AnyPath) -> None:
    """Raises ValueError if the file of a run's checkpoint with the figures of its last steps is damaged."""
    _read_state(checkpoint)


def begin(
    guard: SpikeGuard,
    directory: Path,
    checkpointer: Checkpointer,
    save: SaveCheckpointConfig | None,
    trainer: BaseTrainer,
    batches: BatchIterator,
    step: int,
    resumed: bool,
) -> Spikes | None:
    """The spikes of a run whose state of `step` was restored or made; its batches and its dropout are made ready.

    None, with a line in the log, for a run without checkpoints, or without positions in them.
    """
    if save is None or not save.save_dataset:
        logger.warning(
            "This run looks for no spikes (train.spikes): it would go back to checkpoints with the position in the "
            "data, and keeps none (CheckpointConfig.save, SaveCheckpointConfig.save_dataset)."
        )
        return None
    spikes = Spikes(guard, directory, checkpointer, save, step, resumed)
    if spikes.repeats:
        trainer.draw_other_dropout(spikes.repeats)
    spikes.pass_over(batches, step)
    return spikes
