"""Checkpoints: one directory per step with the train state, the readers' positions and the operative gin.

    MODEL_DIR/checkpoint_1000/state/     the train state, by Orbax, in the tree of T5X's checkpoints
    MODEL_DIR/checkpoint_1000/dataset/   one small file per logical reader
    MODEL_DIR/checkpoint_1000/run/       config.gin, run.json, spiece.model, for using the model elsewhere

With `use_orbax=False` the train state is in T5X's classic format instead. A directory gets its final name only when it
is complete. Orbax saves in the background; the next save, or the end of the run, waits for it.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from limba.checkpoint_files import assignment_maps, classic_format, run_folder, state_checksums
from limba.checkpoint_files.directories import (
    PINNED,
    PREFIX,
    START_VALUES,
    checkpoint_path,
    checkpoint_steps,
    find_checkpoint,
)
from limba.checkpoint_files.run_folder import load_run_info
from limba.checkpoint_files.small_files import forget_files, load_files, write_files
from limba.checkpoints import state_transformations
from limba.checkpoints.best import metric_values, nearest_metrics
from limba.checkpoints.restore import (
    CheckpointMismatchError,
    RestoreCheckpointConfig,
    check_dtype,
    check_state,
    load_params,
    load_sharded_params,
    load_state,
)
from limba.checkpoints.state_transformations import SaveStateTransformationFn
from limba.checkpoints.train_state import TrainState
from limba.files import disk, number_ranges, storage
from limba.files.number_ranges import AT_LEAST_1
from limba.files.storage import AnyPath
from limba.workers import distributed

if TYPE_CHECKING:
    from limba.checkpoints.orbax_saving import OrbaxSaver

__all__ = [
    "CheckpointConfig",
    "CheckpointMismatchError",
    "Checkpointer",
    "OrbaxCheckpointManagerInterface",
    "RestoreCheckpointConfig",
    "SaveBestCheckpointer",
    "SaveCheckpointConfig",
    "checkpoint_path",
    "checkpoint_steps",
    "find_checkpoint",
    "load_files",
    "load_params",
    "load_run_info",
    "load_sharded_params",
    "load_state",
]

logger = logging.getLogger(__name__)
PyTree = Any
_T = TypeVar("_T")

_UNFINISHED = (".orbax-checkpoint-tmp", ".limba-tmp")


@dataclasses.dataclass(frozen=True)
class ParameterInfo:
    """The description of a tensor for a `SaveStateTransformationFn`."""

    name: str
    shape: tuple[int, ...]


class SaveError(OSError):
    """A checkpoint cannot be written."""

    exit_code = 74  # EX_IOERR of sysexits.h


class Checkpointer:
    """Saves and restores the checkpoints of one run. Keeps all checkpoints, or the newest `config.keep`.

    It writes nothing before `begin` or `save` is called.

    Args:
      model_dir: the run's directory. A relative path starts at the working directory.
      config: dtype, number of checkpoints, and transformations of the state.
      use_orbax: False writes T5X's classic format, and not in the background. For a bucket this is always so, because
        Orbax would need a cloud library.
    """

    def __init__(self, model_dir: str | AnyPath, config: "SaveCheckpointConfig", use_orbax: bool = True):
        self.model_dir = storage.as_path(model_dir)
        self._remote = storage.is_remote(self.model_dir)
        if self._remote and use_orbax:
            logger.info("%s is in a bucket: checkpoints are written in T5X's classic format.", model_dir)
            use_orbax = False
        self._config = config
        self._saving: AnyPath | None = None  # written in the background
        self._use_orbax = use_orbax

    @functools.cached_property
    def _orbax(self) -> "OrbaxSaver | None":
        if not self._use_orbax:
            return None
        from limba.checkpoints import orbax_saving  # 0.25 s, which commands that only read do not wait for

        return orbax_saving.OrbaxSaver()

    def begin(self) -> None:
        """Makes the directory, and removes checkpoints that an earlier start has left unfinished.

        Every worker must call it.
        """
        if jax.process_index() == 0 and not self._remote:
            self.model_dir.mkdir(parents=True, exist_ok=True)
            self._remove_unfinished()
        _ = self._orbax  # now, and not while the run waits for its first checkpoint
        multihost_utils.sync_global_devices(f"checkpointer:{self.model_dir}")

    def save(self, state: TrainState, dataset_state: Mapping[str, bytes] | None, run_files: Mapping[str, bytes]) -> int:
        """Starts to save a checkpoint; returns its step. `check` and `wait` say whether it could be written.

        Args:
          state: the train state. Its arrays may be donated to the next step as soon as this returns.
          dataset_state: the result of `BatchIterator.save_state`; None saves no positions.
          run_files: the content of `run/`, the same on every process.

        Raises:
          SaveError: if it, or the checkpoint before, cannot be written.
          ValueError: if a transformation of the configuration does not return a state.
        """
        self.wait()
        step = int(state.step)
        tree = self._transformed(state.state_dict())
        self._saving = path = checkpoint_path(self.model_dir, step)
        with self._explaining_failures():
            self._write(path, tree, dataset_state, run_files)
        return step

    def _write(
        self,
        path: AnyPath,
        tree: PyTree,
        dataset_state: Mapping[str, bytes] | None,
        run_files: Mapping[str, bytes],
    ) -> None:
        checksums = state_checksums.to_file(state_checksums.of_state(tree))
        run_files = {**run_files, **checksums} if jax.process_index() == 0 else {}
        if self._orbax is not None:
            self._orbax.save(path, tree, dataset_state or {}, run_files)
            return
        # A bucket cannot rename: there a checkpoint is complete when its index, the last file, is written.
        folder = path if self._remote else path.with_name(f"{path.name}{_UNFINISHED[1]}")
        if jax.process_index() == 0:
            storage.remove_tree(folder)
        multihost_utils.sync_global_devices(f"checkpointer:{path}:emptied")
        write_files(folder / "dataset", dataset_state or {})
        write_files(folder / run_folder.FOLDER, run_files)
        classic_format.write(folder, tree)
        if jax.process_index() == 0 and not self._remote:
            folder.rename(path)
        multihost_utils.sync_global_devices(f"checkpointer:{path}:complete")

    @contextlib.contextmanager
    def _explaining_failures(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # Of TensorStore, every error is a ValueError.
            raise self.save_error(error) from error

    def save_error(self, error: Exception) -> SaveError:
        """What the user is told when nothing more can be written; removes what is unfinished of a checkpoint."""
        path, self._saving = self._saving or self.model_dir, None
        if not self._remote and jax.process_index() == 0:
            self._remove_unfinished()
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if not self._remote and disk.is_full(error):
            why = f"the disk is full ({disk.free_bytes(Path(self.model_dir)) / 1e6:,.1f} MB free)"
        steps = checkpoint_steps(self.model_dir)
        good = "No checkpoint was saved before."
        if steps:
            good = f"The last good one is {checkpoint_path(self.model_dir, steps[-1])}."
        return SaveError(
            f"{path} cannot be written: {why}. {good} Training stopped. Make room, or keep less "
            "(SaveCheckpointConfig.keep, a longer period), and give the same command again: it goes on there."
        )

    def _remove_unfinished(self) -> None:
        for name in storage.list_names(self.model_dir):
            if name.startswith(PREFIX) and any(mark in name for mark in _UNFINISHED):
                storage.remove_tree(self.model_dir / name)
                steps = checkpoint_steps(self.model_dir)
                last = f"the last whole one is checkpoint_{steps[-1]}" if steps else "there is no other"
                path = self.model_dir / name.partition(".")[0]
                logger.warning("%s was not written to its end, and is removed; %s.", path, last)

    def _transformed(self, tree: PyTree) -> PyTree:
        """The state after the transformations, with parameters in the configured dtype."""
        if self._config.state_transformation_fns:
            flat = assignment_maps.flatten_state_dict(tree)
            infos = {name: ParameterInfo(name, tuple(leaf.shape)) for name, leaf in flat.items()}
            infos = assignment_maps.unflatten_state_dict(infos)
            tree = state_transformations.for_saving(self._config.state_transformation_fns, tree, infos)
        dtype = jnp.dtype(self._config.dtype or "float32")
        if dtype != jnp.float32:
            tree = {**tree, "target": jax.tree.map(lambda x: x.astype(dtype), tree["target"])}
        return tree

    def check(self) -> None:
        """Raises SaveError if the checkpoint that is written in the background cannot be."""
        if self._saving is not None and self._orbax is not None:
            with self._explaining_failures():
                self._orbax.check()

    def wait(self) -> None:
        """Waits until the last checkpoint is on disk, and removes those that are no longer kept.

        Raises:
          SaveError: if it cannot be written.
        """
        if self._saving is not None and self._orbax is not None:
            with self._explaining_failures():
                self._orbax.wait()
        self._saving = None
        multihost_utils.sync_global_devices(f"checkpointer:{self.model_dir}:finished")
        if jax.process_index() == 0:
            self._remove_old()

    def close(self) -> None:
        """Finishes the last checkpoint. Waits for no other worker, so that a worker that fails can call it.

        Raises:
          SaveError: if it cannot be written.
        """
        if "_orbax" in vars(self) and self._orbax is not None:
            with self._explaining_failures():
                self._orbax.close()
        if jax.process_index() == 0:
            self._remove_old()

    def _superfluous(self, steps: list[int], keep: int) -> list[int]:
        """The steps, of a run's ascending ones, whose checkpoints are not kept."""
        return steps[:-keep]

    def _remove_old(self) -> None:
        if storage.is_file(self.model_dir / START_VALUES) and checkpoint_steps(self.model_dir):
            storage.remove_file(self.model_dir / START_VALUES)
        if self._config.keep is not None:
            for step in self._superfluous(checkpoint_steps(self.model_dir), self._config.keep):
                path = checkpoint_path(self.model_dir, step)
                if not storage.is_file(path / PINNED):
                    storage.remove_tree(path)
        if self._config.keep_dataset_checkpoints is not None:
            for step in checkpoint_steps(self.model_dir)[: -self._config.keep_dataset_checkpoints]:
                directory = checkpoint_path(self.model_dir, step) / "dataset"
                if any(not name.startswith("checksums-") for name in storage.list_names(directory)):
                    forget_files(directory)

    def restore_latest(
        self, shapes: TrainState, restore: RestoreCheckpointConfig | None = None
    ) -> tuple[TrainState, dict[str, bytes]] | None:
        """The newest readable checkpoint as `(state, dataset state)`, or None if the run has none.

        Skips checkpoints that cannot be read, with a warning. Runs of T5X are resumed too; their checkpoints have no
        positions of Limba's readers, so the dataset state is empty.

        Args:
          shapes: `jax.ShapeDtypeStruct`s with shardings.
          restore: its transformations are called, with `is_resuming=True`.

        Raises:
          ValueError: if a readable checkpoint has another network or optimizer.
          RuntimeError: if there are checkpoints and none can be read.
        """
        config = _for_resuming(restore)
        found = self._newest_readable(lambda path: (load_state(path, shapes, config), load_dataset_state(path)))
        if found is None:
            return None
        step, newest, restored = found
        if step != newest:
            path = checkpoint_path(self.model_dir, step)
            logger.warning("Resuming from %s, the newest readable checkpoint.", path)
            self._forget_after(step)
        return restored

    def check_latest(
        self, shapes: TrainState, restore: RestoreCheckpointConfig | None = None
    ) -> tuple[AnyPath, int, dict[str, bytes]] | None:
        """The checkpoint that `restore_latest` would restore, its step and dataset state; reads no tensors.

        Raises:
          ValueError, RuntimeError: as `restore_latest`.
        """
        config = _for_resuming(restore)
        found = self._newest_readable(lambda path: (check_state(path, shapes, config), load_dataset_state(path)))
        return None if found is None else (checkpoint_path(self.model_dir, found[0]), *found[2])

    def _newest_readable(self, read: Callable[[AnyPath], _T]) -> tuple[int, int, _T] | None:
        """The newest checkpoint that can be read, the newest one, and what `read` returns; None if the run has none."""
        # Worker 0 lists the checkpoints, and all workers must be able to read their parts of the chosen one.
        steps = distributed.from_first("list of checkpoints", lambda: checkpoint_steps(self.model_dir))
        for step in reversed(steps):
            path = checkpoint_path(self.model_dir, step)
            problem = None
            try:
                found = read(path)
            except CheckpointMismatchError:
                raise
            # A damaged file makes TensorStore or the JSON parser raise many kinds of errors, with one remedy.
            except Exception as error:
                first_line = str(error).strip().splitlines()[0][:200] if str(error) else ""
                problem = f"{type(error).__name__}: {first_line}"
            if (first := distributed.first_problem("restoring of a checkpoint", problem)) is not None:
                who = f" by {distributed.worker_name(first[0])}" if distributed.process_count() > 1 else ""
                logger.warning("Checkpoint %s cannot be read%s (%s); trying the one before.", path, who, first[1])
                continue
            return step, steps[-1], found
        if steps:
            raise RuntimeError(
                f"None of the checkpoints {steps} in {self.model_dir} can be read. Restore one from a backup, or move "
                "them away to start from scratch."
            )
        return None

    def _forget_after(self, step: int) -> None:
        """Renames the unreadable checkpoints after `step`, so that these steps can be saved again."""
        if jax.process_index() == 0:
            for bad in [s for s in checkpoint_steps(self.model_dir) if s > step]:
                path = checkpoint_path(self.model_dir, bad)
                if self._remote:
                    storage.remove_tree(path)
                else:
                    unreadable = path.with_name(f"unreadable_{path.name}")
                    storage.remove_tree(unreadable)  # of an earlier restart
                    path.rename(unreadable)
        multihost_utils.sync_global_devices(f"checkpointer:{self.model_dir}:renamed")


def _for_resuming(restore: RestoreCheckpointConfig | None) -> RestoreCheckpointConfig:
    transformations = restore.transformations() if restore else ()
    return RestoreCheckpointConfig(
        state_transformation_fns=[functools.partial(f, is_resuming=True) for f in transformations]
    )


def load_dataset_state(path: str | AnyPath) -> dict[str, bytes]:
    """The positions of Limba's readers at a checkpoint; {} if they were not saved.

    Raises:
      ValueError: if the files are damaged.
    """
    path = storage.as_path(path)
    return load_files(path, "dataset") if storage.is_dir(path / run_folder.FOLDER) else {}


class SaveBestCheckpointer(Checkpointer):
    """Keeps the `config.keep` best checkpoints by a metric, and the newest one: T5X's class of that name.

    Of equal ones the first is the best, as in transformers: a later equal value is no improvement.

    Args:
      model_dir, config, use_orbax: as `Checkpointer`; the metrics are those of the directory's `metrics.jsonl`.
      metric_name_to_monitor: dataset and metric, `training_eval/my_task/loss`.
      metric_mode: "max" or "min".
      keep_checkpoints_without_metrics: False removes them before those with a metric.
      force_keep_period: checkpoints at multiples of this step always stay.

    Raises:
      ValueError: for an unknown mode, or a metric without its dataset.
    """

    def __init__(
        self,
        model_dir: str | AnyPath,
        config: "SaveCheckpointConfig",
        use_orbax: bool = True,
        metric_name_to_monitor: str = "train/accuracy",
        metric_mode: str = "max",
        keep_checkpoints_without_metrics: bool = True,
        force_keep_period: int | None = None,
    ):
        if metric_mode not in ("max", "min"):
            raise ValueError(f"SaveBestCheckpointer.metric_mode is {metric_mode!r}; use 'max' or 'min'.")
        if not isinstance(metric_name_to_monitor, str) or "/" not in metric_name_to_monitor:
            raise ValueError(
                f"SaveBestCheckpointer.metric_name_to_monitor is {metric_name_to_monitor!r}; write dataset and metric, "
                "such as 'inference_eval/my_task/eval/accuracy'."
            )
        super().__init__(model_dir, config, use_orbax)
        self._metric = metric_name_to_monitor
        self._sign = 1.0 if metric_mode == "max" else -1.0
        self._keep_without = keep_checkpoints_without_metrics
        self._force_keep_period = force_keep_period
        self._has_warned = False

    def _superfluous(self, steps: list[int], keep: int) -> list[int]:
        candidates = steps[:-1]
        if self._force_keep_period:
            candidates = [step for step in candidates if step % self._force_keep_period]
        values = metric_values(self.model_dir, self._metric)
        if not values and not self._has_warned:
            self._has_warned = True
            nearest = ", ".join(nearest_metrics(self.model_dir, self._metric)) or "nothing"
            logger.warning(
                "SaveBestCheckpointer: %s is not yet a metric of %s, so no checkpoint is the best; the nearest metrics "
                "there: %s.",
                self._metric,
                self.model_dir,
                nearest,
            )
        if self._keep_without:
            candidates = [step for step in candidates if step in values]
        without = [step for step in candidates if step not in values]
        latest_first = sorted((step for step in candidates if step in values), reverse=True)
        ranked = without + sorted(latest_first, key=lambda step: self._sign * values[step])
        return ranked[: max(0, len(ranked) - keep)]


class OrbaxCheckpointManagerInterface(Checkpointer):
    """T5X's name of the default of `SaveCheckpointConfig.checkpoint_manager_cls`."""


@dataclasses.dataclass
class SaveCheckpointConfig:
    """When and how to save: T5X's `utils.SaveCheckpointConfig`.

    Attributes:
      dtype: of the saved parameters, "float32" or "bfloat16"; None is float32. Optimizer state stays float32.
      period: steps between checkpoints; None saves at `checkpoint_steps` only. The last step is always saved.
      checkpoint_steps: further steps to save at.
      keep: number of checkpoints to keep, the newest or those that `checkpointer_cls` chooses; None keeps all. A
        checkpoint with a file PINNED always stays.
      keep_dataset_checkpoints: number of newest checkpoints that keep the position in the data; None is all.
      save_dataset: whether to save the position in the training data.
      checkpointer_cls: called with the directory, this configuration and `use_orbax`: `Checkpointer` or
        `SaveBestCheckpointer`.
      state_transformation_fns: called in turn as `fn(state_dict, parameter_infos)` before writing; they return both.
      checkpoint_manager_cls: T5X's name of `checkpointer_cls` with Orbax; used if it is not the default.

    Raises:
      ValueError: for a period or a number to keep below 1, or an unknown dtype.
    """

    dtype: str | None = "float32"
    period: int | None = 1000
    checkpoint_steps: Sequence[int] | None = None
    keep: int | None = None
    keep_dataset_checkpoints: int | None = None
    save_dataset: bool = True
    checkpointer_cls: Callable[..., Checkpointer] = Checkpointer
    state_transformation_fns: Sequence[SaveStateTransformationFn] = ()
    checkpoint_manager_cls: Callable[..., Checkpointer] = OrbaxCheckpointManagerInterface

    def __post_init__(self) -> None:
        for name in ("period", "keep", "keep_dataset_checkpoints"):
            number_ranges.check(f"SaveCheckpointConfig.{name}", getattr(self, name), AT_LEAST_1._replace(or_none=True))
        check_dtype("SaveCheckpointConfig.dtype", self.dtype)

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is saved after this step."""
        return bool(self.period and step % self.period == 0) or step in (self.checkpoint_steps or ())

    def make_checkpointer(self, model_dir: str | AnyPath, use_orbax: bool = True) -> Checkpointer:
        """The checkpointer of a run."""
        make = self.checkpointer_cls
        if use_orbax and self.checkpoint_manager_cls is not OrbaxCheckpointManagerInterface:
            make = self.checkpoint_manager_cls
        return make(model_dir, self, use_orbax=use_orbax)


@dataclasses.dataclass
class CheckpointConfig:
    """How a run saves, and from which checkpoint it starts. None saves nothing, or starts from scratch."""

    save: SaveCheckpointConfig | None = dataclasses.field(default_factory=SaveCheckpointConfig)
    restore: RestoreCheckpointConfig | None = dataclasses.field(default_factory=RestoreCheckpointConfig)
