"""What a run's checkpoints need on disk, before the first is written."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import jax

from limba.checkpoint_files.directories import checkpoint_steps
from limba.checkpoints.checkpointing import SaveCheckpointConfig
from limba.checkpoints.train_state import TrainState
from limba.files import disk
from limba.files.storage import AnyPath, is_remote


@dataclasses.dataclass(frozen=True)
class Need:
    """Of a run, from one step to another.

    Attributes:
      checkpoint: bytes of each.
      number: how many are written.
      kept: how many stay.
      needed: bytes that must be free now; those that are there already go as new ones come.
      free: bytes; None for a bucket.
    """

    checkpoint: int
    number: int
    kept: int
    needed: int
    free: int | None

    @property
    def is_short(self) -> bool:
        return self.free is not None and self.needed > self.free

    def __str__(self) -> str:
        return f"{self.number} checkpoints of {gigabytes(self.checkpoint)}, of which {self.kept} stay"


def need(home: AnyPath, save: SaveCheckpointConfig, state: TrainState, first_step: int, last_step: int) -> Need:
    """What a training from `first_step` to `last_step` writes into its directory; `state` may be shapes."""
    due: Sequence[int] = [step for step in (save.checkpoint_steps or ()) if first_step < step <= last_step]
    # Counted, not listed: a configuration may name any last step.
    begin, period = (-(-(first_step + 1) // save.period) * save.period, save.period) if save.period else (0, 0)
    number = max(0, (last_step - begin) // period + 1) if period else 0
    number += sum(not period or step < begin or step % period > 0 for step in {*due, last_step})
    size = checkpoint_bytes(state, save)
    kept = number if save.keep is None else min(number, save.keep)
    if is_remote(home):
        return Need(size, number, kept, kept * size, None)
    # One more is written before the oldest goes.
    more = max(kept + (kept < number) - len(checkpoint_steps(home)), 1)
    return Need(size, number, kept, more * size, disk.free_bytes(Path(home)))


def checkpoint_bytes(state: TrainState, save: SaveCheckpointConfig) -> int:
    """Bytes of a checkpoint of this state: parameters in the configured dtype, optimizer state in its own."""
    size = 2 if save.dtype == "bfloat16" else 4
    tree = state.state_dict()
    parameters = sum(math.prod(x.shape) * size for x in jax.tree.leaves(tree["target"]))
    return parameters + sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree["state"]))


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"
