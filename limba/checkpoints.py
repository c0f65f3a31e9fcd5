"""Checkpoints: one directory per step with the train state, the readers' positions and the operative gin.

    MODEL_DIR/checkpoint_1000/state/     the train state, by Orbax, in the tree of T5X's checkpoints
    MODEL_DIR/checkpoint_1000/dataset/   one small file per logical reader
    MODEL_DIR/checkpoint_1000/run/       config.gin, run.json, spiece.model: what using the model elsewhere needs

A directory appears under its final name only when it is complete. Saving is asynchronous; the next save, or the end of
the run, waits for it.
"""

import dataclasses
import json
import logging
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath

from limba.train_state import TrainState

logger = logging.getLogger(__name__)
PyTree = Any

_PREFIX = "checkpoint"
_CHECKSUMS = "checksums-"
_FLOAT_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class SaveCheckpointConfig:
    """When and how to save: T5X's `utils.SaveCheckpointConfig`.

    Attributes:
      period: steps between checkpoints. The last step is always saved.
      dtype: of the saved parameters, "float32" or "bfloat16"; optimizer state stays float32.
      keep: how many to keep, the newest; None keeps all.
      save_dataset: also save where the training stream stands.

    Raises:
      ValueError: for a period or keep below 1, or another dtype.
    """

    period: int = 1000
    dtype: str = "float32"
    keep: int | None = None
    save_dataset: bool = True

    def __post_init__(self):
        if self.period < 1:
            raise ValueError(f"SaveCheckpointConfig.period is {self.period}; it must be at least 1 step.")
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"SaveCheckpointConfig.keep is {self.keep}; keep at least 1, or None for all.")
        _check_dtype("SaveCheckpointConfig.dtype", self.dtype)


@dataclasses.dataclass(frozen=True)
class RestoreCheckpointConfig:
    """Where to start from: T5X's `utils.RestoreCheckpointConfig`.

    Attributes:
      path: a checkpoint, or a run's directory with `mode = "latest"`. Empty means from scratch.
      mode: "specific" (the path is one checkpoint) or "latest" (the newest whole one below the path).
      dtype: of the restored parameters, for evaluation and inference; training is in float32.

    Raises:
      ValueError: for another mode or dtype, or several paths.
    """

    path: str | Sequence[str] = ()
    mode: str = "specific"
    dtype: str = "float32"

    def __post_init__(self):
        if self.mode not in ("specific", "latest"):
            raise ValueError(f"RestoreCheckpointConfig.mode is {self.mode!r}; use 'specific' or 'latest'.")
        if not isinstance(self.path, str) and len(self.path) > 1:
            raise ValueError(f"RestoreCheckpointConfig.path names {len(self.path)} checkpoints; give one.")
        _check_dtype("RestoreCheckpointConfig.dtype", self.dtype)

    @property
    def checkpoint(self) -> str | None:
        """The directory to restore, or None for a start from scratch.

        Raises:
          FileNotFoundError: if there is no checkpoint; or if `mode` is "specific" and the path is not one itself.
        """
        path = self.path if isinstance(self.path, str) else next(iter(self.path), "")
        if not path:
            return None
        found = find_checkpoint(path)
        if self.mode == "specific" and found != Path(path).expanduser().absolute():
            raise FileNotFoundError(
                f"{path} is a run's directory; name one checkpoint of it, such as {found}, or set "
                "RestoreCheckpointConfig.mode = 'latest'."
            )
        return str(found)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """How a run saves and where it starts."""

    save: SaveCheckpointConfig = dataclasses.field(default_factory=SaveCheckpointConfig)
    restore: RestoreCheckpointConfig = dataclasses.field(default_factory=RestoreCheckpointConfig)


def _check_dtype(where: str, dtype: str) -> None:
    if dtype == "float16":
        raise ValueError(f"{where} is 'float16', in whose range T5's weights and activations overflow; use 'bfloat16'.")
    if dtype not in _FLOAT_DTYPES:
        raise ValueError(f"{where} is {dtype!r}; use one of {_FLOAT_DTYPES}.")


# ---------------------------------------------------- directories ----------------------------------------------------


def checkpoint_steps(model_dir: str | Path) -> list[int]:
    """Steps of the finished checkpoints in a run's directory, ascending."""
    directory = epath.Path(model_dir)
    if not directory.exists():
        return []
    matches = (re.fullmatch(rf"{_PREFIX}_(\d+)", entry.name) for entry in directory.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def checkpoint_path(model_dir: str | Path, step: int) -> Path:
    return Path(model_dir) / f"{_PREFIX}_{step}"


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint that a path means: itself, or the newest one of a run's directory.

    Raises:
      FileNotFoundError: if there is none.
    """
    path = Path(path).expanduser().absolute()
    if (path / "state").is_dir():
        return path
    steps = checkpoint_steps(path)
    if not steps:
        what = "holds no checkpoint_<step> directory" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"No checkpoint at {path}: it {what}. Give a run's directory or one checkpoint of it.")
    return checkpoint_path(path, steps[-1])


# ------------------------------------------------------ small files --------------------------------------------------


class _FilesHandler(ocp.CheckpointHandler):
    """Stores named byte strings; every process writes its own, so names must not collide between processes.

    Each process also lists its files with their CRC-32, so that damage is noticed when they are read.
    """

    def save(self, directory: epath.Path, args: "_FilesSave") -> None:
        for name, content in args.files.items():
            (directory / name).write_bytes(content)
        checksums = {name: zlib.crc32(content) for name, content in args.files.items()}
        (directory / f"{_CHECKSUMS}{jax.process_index()}.json").write_text(json.dumps(checksums))

    def restore(self, directory: epath.Path, args: "_FilesRestore | None" = None) -> dict[str, bytes]:
        del args
        lists = [entry for entry in directory.iterdir() if entry.name.startswith(_CHECKSUMS)]
        if not lists:
            raise ValueError(f"{directory} lacks its list of files")
        files = {}
        for entry in lists:
            for name, checksum in json.loads(entry.read_text()).items():
                path = directory / name
                files[name] = path.read_bytes() if path.exists() else b""
                if zlib.crc32(files[name]) != checksum:
                    raise ValueError(f"{path} is damaged or missing")
        return files


@ocp.args.register_with_handler(_FilesHandler, for_save=True)
@dataclasses.dataclass
class _FilesSave(ocp.args.CheckpointArgs):
    files: Mapping[str, bytes]


@ocp.args.register_with_handler(_FilesHandler, for_restore=True)
@dataclasses.dataclass
class _FilesRestore(ocp.args.CheckpointArgs):
    pass


# --------------------------------------------------------- a run -----------------------------------------------------


class Checkpointer:
    """Saves and restores the checkpoints of one run.

    Args:
      model_dir: the run's directory; made if needed. A relative one is taken from the working directory.
      config: dtype and number of checkpoints.
    """

    def __init__(self, model_dir: str | Path, config: SaveCheckpointConfig):
        self.model_dir = Path(model_dir).expanduser().absolute()
        self._config = config
        self._manager = ocp.CheckpointManager(
            self.model_dir,
            options=ocp.CheckpointManagerOptions(
                step_prefix=_PREFIX, max_to_keep=config.keep, create=True, cleanup_tmp_directories=True
            ),
            item_handlers={
                "state": ocp.StandardCheckpointHandler(),
                "dataset": _FilesHandler(),
                "run": _FilesHandler(),
            },
        )

    def save(self, state: TrainState, dataset_state: Mapping[str, bytes] | None, run_files: Mapping[str, bytes]) -> int:
        """Begins to save; returns the step.

        Args:
          state: the train state. Its arrays may be donated to the next step right after.
          dataset_state: what `BatchIterator.save_state` returned, or None where the position is not kept.
          run_files: the content of `run/`, the same on every process.
        """
        step = int(state.step)
        tree = state.state_dict()
        dtype = jnp.dtype(self._config.dtype)
        if dtype != jnp.float32:
            tree["target"] = jax.tree.map(lambda x: x.astype(dtype), tree["target"])
        items = {
            "state": ocp.args.StandardSave(tree),
            "run": _FilesSave(run_files if jax.process_index() == 0 else {}),
            "dataset": _FilesSave(dataset_state or {}),
        }
        self._manager.save(step, args=ocp.args.Composite(**items))
        return step

    def wait(self) -> None:
        """Returns when everything begun is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()

    def restore_latest(self, shapes: TrainState) -> tuple[TrainState, dict[str, bytes]] | None:
        """The newest whole checkpoint as `(state, dataset state)`, or None if the run has none.

        A checkpoint that cannot be read is passed over, with a warning that names it and the one used instead.

        Raises:
          ValueError: if a checkpoint is whole but of another network or optimizer.
          RuntimeError: if there are checkpoints and none can be read.
        """
        steps = checkpoint_steps(self.model_dir)
        for step in reversed(steps):
            path = checkpoint_path(self.model_dir, step)
            try:
                _check_readable(path / "state")
                state = load_state(path, shapes)
                dataset_state = load_files(path, "dataset")
            except CheckpointMismatchError:
                raise
            # Whatever a damaged file makes Orbax, TensorStore or the JSON parser raise, the remedy is the same.
            except Exception as error:
                logger.warning("Checkpoint %s cannot be read (%s); trying the one before.", path, _first_line(error))
                continue
            if step != steps[-1]:
                logger.warning("Going on from %s, the newest whole checkpoint.", path)
                self._forget_after(step)
            return state, dataset_state
        if steps:
            raise RuntimeError(
                f"None of the checkpoints {steps} in {self.model_dir} can be read. Restore one from a backup, or move "
                "them away to start from scratch."
            )
        return None

    def _forget_after(self, step: int) -> None:
        """Renames unreadable checkpoints after `step`, so that their steps can be saved again."""
        if jax.process_index() == 0:
            for bad in [s for s in checkpoint_steps(self.model_dir) if s > step]:
                path = checkpoint_path(self.model_dir, bad)
                path.rename(path.with_name(f"unreadable_{path.name}"))
        self._manager.reload()


class CheckpointMismatchError(ValueError):
    """A checkpoint is whole, but its tensors are not those of the configured network or optimizer."""


def _check_readable(state_dir: Path) -> None:
    """Walks the index of a state directory; damage shows here at once instead of once per tensor."""
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{state_dir}/"}}
    if not ts.KvStore.open(spec).result().list().result():
        raise ValueError(f"{state_dir} holds no tensors")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"


# ------------------------------------------------------ one checkpoint -----------------------------------------------


def load_state(path: str | Path, shapes: TrainState) -> TrainState:
    """Restores one checkpoint into the shapes, dtypes and shardings of `shapes`.

    Raises:
      CheckpointMismatchError: naming the first tensors that are missing, extra or of another shape.
    """
    template = shapes.state_dict()
    with ocp.StandardCheckpointer() as reader:
        _check_same_tensors(path, _saved_tensors(reader, Path(path) / "state"), template)
        restored = reader.restore(Path(path) / "state", template)
    return shapes.restore_state(restored)


def _saved_tensors(reader: ocp.StandardCheckpointer, directory: Path) -> PyTree:
    metadata = reader.metadata(directory)
    return getattr(metadata, "item_metadata", metadata)


def _named_shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: hasattr(x, "shape"))
    return {
        "/".join(str(getattr(key, "key", key)) for key in path): tuple(leaf.shape)
        for path, leaf in leaves
        if hasattr(leaf, "shape")
    }


def _check_same_tensors(path: str | Path, saved: PyTree, wanted: PyTree) -> None:
    saved_shapes, wanted_shapes = _named_shapes(dict(saved)), _named_shapes(wanted)
    problems = [
        f"{name}: saved as {saved_shapes[name]}, configured as {shape}"
        for name, shape in wanted_shapes.items()
        if name in saved_shapes and saved_shapes[name] != shape
    ]
    problems += [f"{name}: missing" for name in wanted_shapes if name not in saved_shapes]
    problems += [f"{name}: not in the configured model" for name in saved_shapes if name not in wanted_shapes]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise CheckpointMismatchError(
            f"{path} holds another network or optimizer than the gin files configure: {'; '.join(problems[:5])}{more}. "
            "Use the gin files of that run, or another MODEL_DIR."
        )


def load_params(path: str | Path) -> dict[str, PyTree]:
    """The parameters of a checkpoint as NumPy arrays in nested dicts, without any model.

    Args:
      path: a checkpoint, or a run's directory for its newest one.
    """
    path = find_checkpoint(path)
    with ocp.PyTreeCheckpointer() as reader:
        saved = dict(_saved_tensors(reader, path / "state"))["target"]
        target = jax.tree.map(lambda m: np.zeros((), m.dtype), saved, is_leaf=lambda x: hasattr(x, "shape"))
        restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
        return _restore_target(reader, path, target, restore_args)


def load_sharded_params(path: str | Path, shapes: PyTree) -> PyTree:
    """The parameters of a checkpoint with the shapes, dtypes and shardings of `shapes`; other state stays on disk.

    Raises:
      CheckpointMismatchError: as `load_state`.
    """
    path = find_checkpoint(path)
    with ocp.PyTreeCheckpointer() as reader:
        saved = dict(_saved_tensors(reader, path / "state"))["target"]
        _check_same_tensors(path, saved, shapes)
        return _restore_target(reader, path, shapes, ocp.checkpoint_utils.construct_restore_args(shapes))


def _restore_target(reader: ocp.PyTreeCheckpointer, path: Path, target: PyTree, restore_args: PyTree) -> PyTree:
    """Naming only `target` leaves the optimizer state on disk."""
    restore = ocp.args.PyTreeRestore(
        item={"target": target}, restore_args={"target": restore_args}, partial_restore=True
    )
    return reader.restore(path / "state", args=restore)["target"]


def load_files(path: str | Path, item: str) -> dict[str, bytes]:
    """The small files of `dataset/` or `run/` of a checkpoint.

    Raises:
      ValueError: if the directory, or a file in it, is missing or damaged.
    """
    directory = epath.Path(path) / item
    if not directory.exists():
        raise ValueError(f"{directory} is missing")
    return _FilesHandler().restore(directory)


def load_run_info(path: str | Path) -> dict[str, Any]:
    """What `run/run.json` of a checkpoint says; see `limba.train.run_info`.

    Raises:
      FileNotFoundError: if the checkpoint has none.
      ValueError: if it is damaged.
    """
    path = find_checkpoint(path)
    if not (path / "run" / "run.json").is_file():
        raise FileNotFoundError(f"{path}/run/run.json does not exist: this is not a checkpoint that Limba wrote.")
    return json.loads(load_files(path, "run")["run.json"])
