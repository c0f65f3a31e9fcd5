"""Where a run begins: at its own newest checkpoint, at an initial one, or with new parameters."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax

from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing
from limba.checkpoints.restore import check_state
from limba.checkpoints.train_state import TrainState, TrainStateInitializer
from limba.data import contract
from limba.data.contract import BatchIterator
from limba.devices import host_memory
from limba.files import storage
from limba.files.storage import AnyPath
from limba.inference import tasks_door
from limba.training.start_checks import Scope
from limba.training.trainer import BaseTrainer
from limba.workers import distributed

logger = logging.getLogger(__name__)

PyTree = Any
InitialValues = Callable[..., PyTree]
Change = Callable[[PyTree], PyTree]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a run begins, as its files show before they are read.

    Attributes:
      checkpoint: None for a start from scratch.
      resumes: whether it is a checkpoint of this run.
      is_known: False where it takes the network to know it.
    """

    step: int = 0
    checkpoint: str | AnyPath | None = None
    resumes: bool = False
    is_known: bool = True


@dataclasses.dataclass(frozen=True)
class Beginning:
    """Finds and makes the state that a run begins with.

    Attributes:
      restore: the initial checkpoint; None starts from scratch.
      init_rng: of new parameters.
      batches: are set to the position of the checkpoint; None where a start that only checks has not opened them.
    """

    checkpointer: checkpointing.Checkpointer
    restore: checkpointing.RestoreCheckpointConfig | None
    initializer: TrainStateInitializer
    init_rng: jax.Array
    trainer: BaseTrainer
    batches: BatchIterator | None

    def check(self, scope: Scope) -> Place:
        """Looks for what `make` would refuse, without reading tensors or moving the batches.

        Raises:
          ValueError, RuntimeError, FileNotFoundError: as `make`; for a run on CPUs whose state is larger than their
            memory.
        """
        state = jax.tree.leaves(self.trainer.train_state)
        if too_large := host_memory.excess(state, "The state of this training (parameters and optimizer)"):
            if not scope.checks_only:
                raise ValueError(too_large)
            # Recipes for accelerators are checked on laptops, too.
            scope.left_out["memory"] = f"a run on this machine is refused: {too_large.rstrip('.')}"
        if not scope.reaches("model_dir", self.checkpointer.model_dir):
            return Place(is_known=False)
        shapes, restore = self.trainer.sharded_state_shapes(), self.restore
        if (own := self.checkpointer.check_latest(shapes, restore)) is not None:
            path, step, dataset_state = own
            self._check_position(dataset_state, path)
            return Place(step, path, resumes=True)
        if restore is None or not scope.reaches("checkpoint_cfg.restore", *restore.paths):
            return Place(is_known=restore is None)
        if (initial := self._initial_checkpoint()) is None:
            return Place()
        step = check_state(initial, shapes, restore, may_initialize=True)
        if restore.restore_dataset:
            self._check_position(checkpointing.load_dataset_state(initial), initial)
        return Place(step, initial)

    def make(self, change: Change | None) -> tuple[TrainState, bool]:
        """The state to begin with, and whether it is from a checkpoint of this run; `change` is of new parameters."""
        shapes, restore = self.trainer.sharded_state_shapes(), self.restore
        if (own := self.checkpointer.restore_latest(shapes, restore)) is not None:
            state, dataset_state = own
            model_dir = self.checkpointer.model_dir
            self._restore_position(dataset_state, checkpointing.checkpoint_path(model_dir, int(state.step)))
            instead = f"; {restore.path} (INITIAL_CHECKPOINT_PATH) is for a new run" if restore and restore.path else ""
            logger.info("Resuming from step %d in %s%s.", int(state.step), model_dir, instead)
            return state, True
        path = self._initial_checkpoint()
        if restore is None or path is None:
            state = self.initializer.from_scratch(self.init_rng)
            return (state if change is None else self.initializer.changed(state, change)), False
        new_state = functools.partial(self.initializer.new_state, self.init_rng)
        state = checkpointing.load_state(path, shapes, restore, new_state)
        if restore.restore_dataset:
            self._restore_position(checkpointing.load_dataset_state(path), path)
        logger.info("Starting from %s at step %d.", path, int(state.step))
        return state, False

    def _initial_checkpoint(self) -> str | None:
        restore = self.restore
        if restore is None:
            return None
        path = distributed.from_first("initial checkpoint", lambda: restore.checkpoint)
        if path is not None and restore.dtype not in (None, "float32"):
            raise ValueError(f"RestoreCheckpointConfig.dtype is {restore.dtype!r}; training is in float32.")
        return path

    def _check_position(self, dataset_state: Mapping[str, bytes], checkpoint: str | AnyPath) -> None:
        check_it = getattr(self.batches, "check_state", None)  # a stream of a user's own need not have it
        if dataset_state and check_it is not None:
            _explaining_vocabularies(check_it, dataset_state, checkpoint)

    def _restore_position(self, dataset_state: Mapping[str, bytes], checkpoint: str | AnyPath) -> None:
        assert self.batches is not None
        if dataset_state:
            _explaining_vocabularies(self.batches.restore_state, dataset_state, checkpoint)
        else:
            logger.warning(
                "The checkpoint does not say where Limba's data stood: they start from the beginning. "
                "SaveCheckpointConfig.save_dataset = True keeps the position."
            )


def _explaining_vocabularies(
    use: Callable[[Mapping[str, bytes]], None], dataset_state: Mapping[str, bytes], checkpoint: str | AnyPath
) -> None:
    """Calls `use`; its error of a changed vocabulary says where the run's own is."""
    try:
        use(dataset_state)
    except contract.ChangedVocabularyError as error:
        kept = run_folder.find_vocabulary(storage.as_path(checkpoint))
        remedy = f"The run's own is kept in {kept}: copy it to {error.file}" if kept else "Restore the old file"
        raise ValueError(f"{error} {remedy}, or start a new run in another directory.") from error


def check_initial_values(
    initial_values_fn: InitialValues | None,
    model: Any,
    get_dataset_fn: contract.GetDatasetFn | None,
    initializer: TrainStateInitializer,
) -> None:
    """Raises ValueError for an `initial_values_fn` that cannot change this network or this state."""
    if initial_values_fn is None:
        return
    if not hasattr(initializer, "changed"):
        raise ValueError(
            f"train.initial_values_fn needs a method `changed` of train_state_initializer_cls, and {type(initializer)} "
            "has none: derive it from limba.checkpoints.train_state.TrainStateInitializer."
        )
    if hasattr(initial_values_fn, "check"):
        initial_values_fn.check(model, tasks_door.is_own(get_dataset_fn))
