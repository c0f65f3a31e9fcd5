"""How long a run trains: in steps, in steps after the initial checkpoint, or in epochs, whose rows are counted once."""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tqdm import tqdm

from limba.data.contract import DatasetConfig, GetEvalDatasetFn
from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0, AT_LEAST_1
from limba.inference import tasks_door
from limba.workers import distributed

logger = logging.getLogger(__name__)

# A source with more rows is taken for an endless stream.
_MOST_ROWS = 10_000_000


@dataclasses.dataclass(frozen=True)
class TrainingLength:
    """The steps of a run.

    Attributes:
      initial_step: at which the run began, before it was ever resumed.
      total_steps: the step to end at.
      rows_per_epoch: as they were counted; None for a length in steps.
    """

    initial_step: int
    total_steps: int
    rows_per_epoch: int | None = None


# The macros of our gin files for arguments of `train()`.
_MACROS = {
    "total_steps": "TRAIN_STEPS",
    "relative_steps": "TRAIN_STEPS_RELATIVE",
    "eval_steps": "EVAL_STEPS",
    "eval_period": "EVAL_PERIOD",
}


def check_step_counts(
    total_steps: Any,
    relative_steps: Any,
    epochs: Any,
    eval_steps: Any,
    eval_period: Any,
    stats_period: Any,
    log_every: Any = None,
) -> None:
    """Raises ValueError unless `train()`'s numbers of steps are whole and at least 1, or None where they may be."""
    if epochs is not None:
        check_epochs(epochs, relative_steps)
    numbers = {"total_steps": total_steps} if relative_steps is None and epochs is None else {}
    numbers["eval_period"] = eval_period
    optional = {"relative_steps": relative_steps, "stats_period": stats_period, "eval_steps": eval_steps}
    optional["log_every"] = log_every
    numbers |= {name: value for name, value in optional.items() if value is not None}
    for name, value in numbers.items():
        macro = f" ({_MACROS[name]})" if name in _MACROS else ""
        write = f": write {int(value)}" if isinstance(value, float) and value.is_integer() and value >= 1 else ""
        number_ranges.check(f"train.{name}{macro}", value, AT_LEAST_1, write)


def check_epochs(epochs: Any, relative_steps: int | None) -> None:
    """Raises ValueError unless `epochs` is a number above 0 and the only length that is given."""
    number_ranges.check("train.epochs (TRAIN_EPOCHS)", epochs, ABOVE_0, ", such as 3 or 0.5")
    if relative_steps is not None:
        raise ValueError(
            f"train.epochs (TRAIN_EPOCHS) is {epochs} and train.relative_steps (TRAIN_STEPS_RELATIVE) is "
            f"{relative_steps}; give one of the two."
        )


def check_stages(epochs: float | None, config: DatasetConfig) -> None:
    """Raises ValueError for a length in epochs of a training with stages: an epoch has other rows in each."""
    if epochs is not None and config.stages:
        raise ValueError(
            f"train.epochs (TRAIN_EPOCHS) is {epochs}, and DatasetConfig.stages begin after numbers of batches: give "
            "the length in steps too, as TRAIN_STEPS or TRAIN_STEPS_RELATIVE."
        )


def ends_before(total_steps: int, first_step: int) -> str:
    """Why a new run whose initial checkpoint is at `first_step` cannot end at `total_steps`."""
    return (
        f"train.total_steps (TRAIN_STEPS) is {total_steps}, and the initial checkpoint is at step {first_step}: "
        "it counts. Give a later step, or the steps to add as relative_steps (TRAIN_STEPS_RELATIVE)."
    )


def is_known(epochs: float | None, record: Mapping[str, Any]) -> bool:
    """Whether `find_length` would count no rows."""
    return epochs is None or bool(record.get("rows_per_epoch"))


def find_length(
    total_steps: int,
    relative_steps: int | None,
    epochs: float | None,
    first_step: int,
    resumed: bool,
    record: Mapping[str, Any],
    batch_size: int,
    count: Callable[[], int],
) -> TrainingLength:
    """The length of a run whose state is at `first_step`. A resumed run keeps the end it had.

    Args:
      record: `run.json` of the newest checkpoint.
      count: counts the rows of an epoch, on worker 0, if the record does not have them.

    Raises:
      ValueError: if the initial checkpoint lies after `total_steps`, or as `count`.
    """
    recorded = record.get("initial_step") if resumed else None
    initial_step = first_step if recorded is None else recorded
    rows: int | None = None
    if epochs is not None:
        rows = record.get("rows_per_epoch") or distributed.from_first("rows of an epoch", count)
        relative_steps = steps_of(epochs, rows, batch_size)
        logger.info(f"{epochs:g} epochs of {rows:,} rows in batches of {batch_size} are {relative_steps:,} steps.")
    if relative_steps is not None:
        total_steps = initial_step + relative_steps
    elif first_step > total_steps and not resumed:
        raise ValueError(ends_before(total_steps, first_step))
    return TrainingLength(initial_step, total_steps, rows)


def steps_of(epochs: float, rows: int, batch_size: int) -> int:
    """Steps in which every row of an epoch was trained `epochs` times, the last batch filled up by the next epoch."""
    return math.ceil(epochs * rows / batch_size)


def count_rows(
    config: DatasetConfig, get_dataset_fn: GetEvalDatasetFn | None, feature_converter_cls: Any, most: int = _MOST_ROWS
) -> int:
    """The rows of an epoch: examples, or packed rows. Of a mixture, those of all its tasks together.

    Args:
      config: of the training stream; its split is read once, in the order of the files.
      get_dataset_fn: as evaluation batches are opened; None is `data.get_training_eval_datasets`.

    Raises:
      ValueError: if the split has more rows than `most`, or none.
    """
    once = dataclasses.replace(config, shuffle=False, use_memory_cache=False, num_readers=None)
    sets = dict((get_dataset_fn or tasks_door.get_training_eval_datasets)(once, 0, 1, None, feature_converter_cls))
    if len(sets) > 1:
        sets.pop(config.name, None)  # the mixture, which ends with the first of its tasks
    rows = 0
    with tqdm(desc=f"counting {config.name} for epochs", unit="row", unit_scale=True, disable=None) as bar:
        for name, batches in sets.items():
            for batch in batches:
                found = int(np.count_nonzero(np.any(np.asarray(batch["decoder_loss_weights"]) > 0, axis=1)))
                rows += found
                bar.update(found)
                if rows > most:
                    raise ValueError(
                        f"train.epochs (TRAIN_EPOCHS): the {config.split!r} split of {name!r} has more than {most:,} "
                        "rows, or no end. Say how long to train in steps: TRAIN_STEPS or TRAIN_STEPS_RELATIVE."
                    )
    if not rows:
        raise ValueError(f"train.epochs (TRAIN_EPOCHS): the {config.split!r} split of {config.name!r} has no row.")
    return rows
