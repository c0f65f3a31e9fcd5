"""The length of a training in epochs: the rows of the training split are counted once, as they are trained."""

import dataclasses
import logging
import math
from typing import Any

import numpy as np
from tqdm import tqdm

from limba import data
from limba.data import DatasetConfig, GetEvalDatasetFn

logger = logging.getLogger(__name__)

# A source with more is a stream for all that a run can know.
_MOST_ROWS = 10_000_000


def check_epochs(epochs: Any, relative_steps: int | None) -> None:
    """Raises ValueError unless `train()` can train so many epochs."""
    if isinstance(epochs, bool) or not isinstance(epochs, int | float) or not 0 < epochs < math.inf:
        raise ValueError(f"train.epochs (TRAIN_EPOCHS) is {epochs!r}; it is a number above 0, such as 3 or 0.5.")
    if relative_steps is not None:
        raise ValueError(
            f"train.epochs (TRAIN_EPOCHS) is {epochs} and train.relative_steps (TRAIN_STEPS_RELATIVE) is "
            f"{relative_steps}; give one of the two."
        )


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
      feature_converter_cls: of the model.
      most: more rows than that are not counted.

    Raises:
      ValueError: if there is no end to it, or no row.
    """
    once = dataclasses.replace(config, shuffle=False, use_memory_cache=False, num_readers=None)
    sets = dict((get_dataset_fn or data.get_training_eval_datasets)(once, 0, 1, None, feature_converter_cls))
    if len(sets) > 1:
        sets.pop(config.name, None)  # the mixture, which ends with the first of its tasks
    rows = 0
    with tqdm(desc=f"counting {config.name} for epochs", unit="row", unit_scale=True) as bar:
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
