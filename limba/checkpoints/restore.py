"""Restores checkpoints: chooses the checkpoint and its tensors, and handles those that are missing or do not fit."""

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from limba.checkpoint_files import (
    assignment_maps,
    layer_layouts,
    pretraining_parts,
    run_folder,
    saved_average,
    saved_tensors,
    state_checksums,
)
from limba.checkpoint_files.assignment_maps import AssignmentMap
from limba.checkpoint_files.directories import all_checkpoints, find_checkpoint, given_directory, is_checkpoint
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.checkpoints import initial_values, state_transformations
from limba.checkpoints.state_transformations import RestoreStateTransformationFn
from limba.checkpoints.train_state import TrainState
from limba.files import storage
from limba.files.storage import AnyPath
from limba.files.untrusted_files import some

logger = logging.getLogger(__name__)
PyTree = Any

_FLOAT_DTYPES = ("float32", "bfloat16")
_MODES = ("specific", "latest", "all")
_RESETS = ("step", "optimizer")
_EMBEDDING, _SIZES_OF_EMBEDDING = "target/token_embedder/embedding", ("vocab_size", "emb_dim")
_STATISTICS = "state/param_states/"


class CheckpointMismatchError(ValueError):
    """A checkpoint is readable, but its tensors are not those of the configured network or optimizer."""


def check_dtype(where: str, dtype: str | None) -> None:
    """Raises ValueError for a dtype that parameters cannot have."""
    if dtype == "float16":
        raise ValueError(f"{where} is 'float16', but T5's weights and activations overflow in it; use 'bfloat16'.")
    if dtype is not None and dtype not in _FLOAT_DTYPES:
        raise ValueError(f"{where} is {dtype!r}; use one of {_FLOAT_DTYPES}, or None.")


@dataclasses.dataclass
class RestoreCheckpointConfig:
    """The checkpoint to start from: T5X's `utils.RestoreCheckpointConfig`.

    Attributes:
      path: a checkpoint or a run's directory, of Limba or T5X, on this machine or in a bucket; or a list of them. Empty
        means from scratch.
      mode: "specific" (the path is one checkpoint, or contains only one), "latest" (the path, or the newest checkpoint
        below it), or "all" (all below it, ascending; not for training).
      assignment_map: pairs (pattern of names in the model, name in the checkpoint or None); see
        `limba.checkpoint_files.assignment_maps.apply_assignment_map`.
      strict: whether a tensor that the model does not have is an error. With an assignment map or transformations it
        never is.
      fallback_to_scratch: whether tensors that the checkpoint lacks are initialized, and named in the log, instead of
        an error.
      initialize: regular expressions of whole names, `target/.*/lora_a`; such tensors may be missing.
      reset: parts of the checkpoint to ignore: "step" (training begins at step 0) and "optimizer" (its state is
        initialized).
      dtype: of the restored parameters in evaluation and inference; None is float32. Training is in float32.
      restore_dataset: whether to restore the position in the data. The checkpoint's run must have had the same task and
        the same number of readers.
      average: take the average of the parameters that the checkpoint's run kept (`optimizers.averaging`) in the place
        of the parameters.
      checkpointer_cls: its `state_transformation_fns`, if any, come before those here; the checkpoint shows its format.
      state_transformation_fns: called in turn as `fn(state_dict, target_state_dict)` after the assignment map; with
        `is_resuming=True` when a run resumes from its own checkpoint.
      checkpoint_manager_cls: unused, likewise.

    Raises:
      ValueError: for an unknown mode, dtype or part to reset.
    """

    path: str | Sequence[str] = ()
    mode: str = "latest"
    assignment_map: AssignmentMap | None = None
    strict: bool = True
    fallback_to_scratch: bool = False
    initialize: Sequence[str] = ()
    reset: Sequence[str] = ()
    dtype: str | None = None
    restore_dataset: bool = False
    checkpointer_cls: Any = None
    state_transformation_fns: Sequence[RestoreStateTransformationFn] = ()
    checkpoint_manager_cls: Any = None
    average: bool = False

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ValueError(f"RestoreCheckpointConfig.mode is {self.mode!r}; use one of {_MODES}.")
        paths = [self.path] if isinstance(self.path, str | Path) else self.path
        if not isinstance(paths, list | tuple) or not all(isinstance(path, str | Path) for path in paths):
            raise ValueError(
                f"RestoreCheckpointConfig.path (INITIAL_CHECKPOINT_PATH) is {self.path!r}; it is a run's directory or "
                "a checkpoint, as a text in quotes: 'runs/pretrained'."
            )
        check_dtype("RestoreCheckpointConfig.dtype", self.dtype)
        if isinstance(self.reset, str) or set(self.reset) - set(_RESETS):
            raise ValueError(f"RestoreCheckpointConfig.reset is {self.reset!r}; give a list of some of {_RESETS}.")

    @property
    def paths(self) -> list[str | Path]:
        """The paths that are given; none for a start from scratch."""
        return [x for x in ([self.path] if isinstance(self.path, (str, Path)) else self.path) if x]

    @property
    def checkpoints(self) -> list[AnyPath]:
        """The checkpoints to restore, none for a start from scratch.

        Raises:
          FileNotFoundError: if there is no checkpoint; or if `mode` is "specific" and the path contains several.
        """
        found: list[AnyPath] = []
        for path in self.paths:
            is_run = not is_checkpoint(given_directory(path))
            if self.mode == "all" and is_run:
                found += all_checkpoints(path)
                continue
            newest = find_checkpoint(path)
            # A converted model has one checkpoint; choosing one of several would be a guess.
            if self.mode == "specific" and is_run and len(several := all_checkpoints(path)) > 1:
                raise FileNotFoundError(
                    f"{path} is a run's directory with {len(several)} checkpoints; name one of them, such as {newest}, "
                    "or set RestoreCheckpointConfig.mode = 'latest'."
                )
            found.append(newest)
        return found

    @property
    def checkpoint(self) -> str | None:
        """The one checkpoint to restore, or None for a start from scratch.

        Raises:
          FileNotFoundError: as `checkpoints`.
          ValueError: if there are several.
        """
        found = self.checkpoints
        if len(found) > 1:
            raise ValueError(
                f"RestoreCheckpointConfig names {len(found)} checkpoints ({found[0]}, {found[1]} …); give one."
            )
        return str(found[0]) if found else None

    def transformations(self) -> list[RestoreStateTransformationFn]:
        """The functions to apply to the state of a checkpoint, in order."""
        functions = [*getattr(self.checkpointer_cls, "state_transformation_fns", ()), *self.state_transformation_fns]
        if self.assignment_map is None:
            return functions
        rename = functools.partial(assignment_maps.apply_assignment_map, assignment_map=self.assignment_map)
        return [rename, *functions]


_EXACT = RestoreCheckpointConfig()


def load_state(
    path: str | AnyPath,
    shapes: TrainState,
    config: RestoreCheckpointConfig = _EXACT,
    init_fn: Callable[[], TrainState] | None = None,
) -> TrainState:
    """Restores one checkpoint into the shapes, dtypes and shardings of `shapes`.

    If the checkpoint has no optimizer state, a new one is initialized. Scanned and unrolled layers are converted.

    Args:
      path: the checkpoint.
      shapes: `jax.ShapeDtypeStruct`s with shardings.
      config: transformations, and which tensors may be missing or extra.
      init_fn: returns a new state, for missing tensors; it is traced, and only these are computed.

    Raises:
      CheckpointMismatchError: naming the first tensors that are missing, extra or of another shape.
      DamagedStateError: if a tensor is not what was saved.
    """
    template = shapes.state_dict()
    wanted = assignment_maps.flatten_state_dict(template)
    tensors, checksums, begun, missing = _matched(path, template, wanted, config)
    new = _initialize(path, missing, wanted, init_fn)
    restored = saved_tensors.read_tensors(tensors, {n: want for n, want in wanted.items() if n not in new})
    changed = {*begun, *(["state/step"] if "step" in config.reset else [])}
    checksums.compare({name: x for name, x in restored.items() if name not in changed})
    flat = assignment_maps.flatten_state_dict(template, keep_empty_nodes=True)
    empty = {name: leaf for name, leaf in flat.items() if leaf is traverse_util.empty_node}
    return shapes.restore_state(assignment_maps.unflatten_state_dict(restored | new | empty))


def check_state(
    path: str | AnyPath, shapes: TrainState, config: RestoreCheckpointConfig = _EXACT, may_initialize: bool = False
) -> int:
    """Compares the names and shapes of a checkpoint's tensors with a state, as `load_state` does before it reads them.

    Args:
      may_initialize: whether `load_state` gets an `init_fn`.

    Returns:
      The step of the state.

    Raises:
      CheckpointMismatchError: as `load_state`.
    """
    template = shapes.state_dict()
    wanted = assignment_maps.flatten_state_dict(template)
    tensors, _, _, missing = _matched(path, template, wanted, config)
    if missing and not may_initialize:
        raise _mismatch(path, [f"{name}: missing" for name in missing])
    return int(np.asarray(tensors["state/step"])) if "state/step" in tensors else 0


def load_sharded_params(path: str | AnyPath, shapes: PyTree, config: RestoreCheckpointConfig = _EXACT) -> PyTree:
    """The parameters of a checkpoint with the shapes, dtypes and shardings of `shapes`; reads nothing else.

    Raises:
      CheckpointMismatchError: as `load_state`.
    """
    path = find_checkpoint(path)
    template = {"target": shapes, "state": {"step": jax.ShapeDtypeStruct((), np.int32)}}
    wanted = assignment_maps.flatten_state_dict({"target": shapes})
    opened, checksums = _open(path, template, config)
    tensors = {name: tensor for name, tensor in opened.items() if name.startswith("target/")}
    if missing := _missing(path, tensors, wanted, config):
        raise _mismatch(path, [f"{name}: missing" for name in missing])
    restored = saved_tensors.read_tensors(tensors, wanted)
    checksums.compare(restored)
    return assignment_maps.unflatten_state_dict(restored)["target"]


def load_params(path: str | AnyPath) -> dict[str, PyTree]:
    """The parameters of a checkpoint as NumPy arrays in nested dicts, for use without a model.

    The path is a checkpoint, or a run's directory for its newest one.
    """
    opened = state_checksums.open_tensors(find_checkpoint(path))
    tensors = {name: tensor for name, tensor in opened.items() if name.startswith("target/")}
    wanted = {name: jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    return assignment_maps.unflatten_state_dict(saved_tensors.read_tensors(tensors, wanted))["target"]


def _matched(
    path: str | AnyPath, template: PyTree, wanted: Mapping[str, jax.ShapeDtypeStruct], config: RestoreCheckpointConfig
) -> tuple[dict[str, SavedTensor], state_checksums.SavedChecksums, list[str], list[str]]:
    """A checkpoint's tensors for a state, their checksums, the names that begin with the average, and the missing ones.

    Raises:
      CheckpointMismatchError: as `load_state`.
    """
    opened, checksums = _open(path, template, config)
    tensors, begun = _with_average(path, opened, wanted, "optimizer" in config.reset)
    return tensors, checksums, begun, _missing(path, tensors, wanted, config)


def _open(
    path: str | AnyPath, template: PyTree, config: RestoreCheckpointConfig
) -> tuple[dict[str, SavedTensor], state_checksums.SavedChecksums]:
    """A checkpoint's tensors after the configured transformations, in the model's layout of the layers.

    Also their checksums; tensors that a transformation made have none.
    """
    checksums = state_checksums.SavedChecksums(storage.as_path(path))
    tensors = saved_tensors.open_tensors(storage.as_path(path))
    checksums.compare_shapes({name: tensor.shape for name, tensor in tensors.items()})
    if config.average:
        tensors, checksums = saved_average.instead_of_parameters(tensors, path), checksums.of_average()
    if not any(map(pretraining_parts.is_part, assignment_maps.flatten_state_dict(template))):
        tensors = pretraining_parts.without(tensors, path)
    if transformations := config.transformations():
        flat = state_transformations.for_restoring(transformations, tensors, template)
        tensors = {name: saved_tensors.from_array(leaf) for name, leaf in flat.items()}
        checksums = state_checksums.SavedChecksums(None)
    if "optimizer" in config.reset:
        tensors = {name: x for name, x in saved_average.without(tensors).items() if not name.startswith(_STATISTICS)}
    if "step" in config.reset:
        tensors["state/step"] = saved_tensors.from_array(np.zeros((), np.int32))
    tensors, message = layer_layouts.convert(tensors, assignment_maps.flatten_state_dict(template))
    if message:
        logger.info("%s: %s.", path, message)
    return tensors, checksums


def _with_average(
    path: str | AnyPath,
    tensors: Mapping[str, SavedTensor],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    is_reset: bool,
) -> tuple[dict[str, SavedTensor], list[str]]:
    """The tensors with the average that the optimizer keeps, and which of them begin here; without one none keeps."""
    had = any(map(saved_average.is_part, tensors))
    if not any(map(saved_average.is_part, wanted)):
        if had:
            logger.info(
                "%s has an average of the parameters, and the optimizer keeps none (averaging.AveragedOptimizer): it "
                "is dropped.",
                path,
            )
        return saved_average.without(tensors), []
    complete, new = saved_average.begun(tensors, wanted)
    if new:
        what = f"lacks the average of {len(new)} parameters" if had else "has no average of the parameters"
        if is_reset:
            what = "gives no average, which is reset with the optimizer"
        logger.info("%s %s: it begins from the parameters of this checkpoint.", path, what)
    return complete, new


def _missing(
    path: str | AnyPath,
    tensors: Mapping[str, SavedTensor],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    config: RestoreCheckpointConfig,
) -> list[str]:
    """The names of the tensors to initialize, after checks of all others.

    Raises:
      CheckpointMismatchError: if a shape differs, or a tensor is missing or extra where the configuration forbids it.
    """
    problems = [
        f"{name}: saved as {tensors[name].shape}, configured as {tuple(want.shape)}"
        for name, want in wanted.items()
        if name in tensors and tensors[name].shape != tuple(want.shape)
    ]
    missing = [name for name in wanted if name not in tensors]
    without_optimizer = not any(name.startswith(_STATISTICS) for name in tensors)
    for pattern in config.initialize:
        if not any(re.fullmatch(pattern, name) for name in wanted):
            raise ValueError(
                f"RestoreCheckpointConfig.initialize has {pattern!r}, which matches no tensor of the model. It must "
                f"match a whole name, such as {next(iter(wanted))}."
            )
    statistics = {name for name in missing if without_optimizer and not name.startswith("target/")}
    patterns = [re.compile(pattern) for pattern in config.initialize]
    # A training makes new parts of its own; nothing else may do with them what it does with trained ones.
    is_training = any(name.startswith(_STATISTICS) for name in wanted)
    parts = [name for name in missing if is_training and pretraining_parts.is_part(name)]
    new = [name for name in missing if name in parts or any(x.fullmatch(name) for x in patterns)]
    others = [name for name in missing if name not in statistics and name not in new]
    if not config.fallback_to_scratch:
        if others and not problems and all(map(pretraining_parts.is_part, others)):
            raise CheckpointMismatchError(
                f"{path} is the encoder of a pre-training without its generator, which fills masks: it was converted "
                "from the encoder's folder. Train it on, which makes a new generator, or begin a classifier with it "
                "(docs/encoders.md); to fill masks, convert the generator's folder (`ElectraForMaskedLM`)."
            )
        problems += [f"{name}: missing" for name in others]
    extra = [name for name in tensors if name not in wanted]
    if extra and config.strict and not config.transformations():
        problems += [f"{name}: not in the configured model" for name in extra]
    elif extra:
        logger.warning("%s: not in the configured model and left out: %s.", path, some(extra))
    if problems:
        raise _mismatch(path, [*_other_settings(tensors, wanted), *problems])
    if new:
        logger.info("%s: %d tensors are new and initialized, such as %s.", path, len(new), new[0])
    if "optimizer" in config.reset and any(name.startswith(_STATISTICS) for name in wanted):
        logger.info("%s: the optimizer state is initialized, because of RestoreCheckpointConfig.reset.", path)
    elif missing and without_optimizer:
        logger.warning("%s has no optimizer state: the optimizer state is initialized.", path)
    if others:
        logger.warning("%s: initialized from scratch (fallback_to_scratch): %s.", path, some(others, 50))
    return missing


def _other_settings(tensors: Mapping[str, SavedTensor], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> list[str]:
    """The settings of a T5Config that the embedding shows to be others: many tensors differ with them."""
    if _EMBEDDING not in tensors or _EMBEDDING not in wanted:
        return []
    sizes = zip(_SIZES_OF_EMBEDDING, tensors[_EMBEDDING].shape, wanted[_EMBEDDING].shape, strict=False)
    return [f"{setting} was {old} and is {new}" for setting, old, new in sizes if old != new]


def _mismatch(path: str | AnyPath, problems: Sequence[str]) -> CheckpointMismatchError:
    adapters = any(re.match(r"target/(.*/)?lora_[ab]: not in", problem) for problem in problems)
    merge = "It has LoRA's factors; `limba convert to-t5x` merges them into the kernels. " if adapters else ""
    own = storage.as_path(path) / run_folder.FOLDER / run_folder.GIN
    values = f" ({own} has its values)" if storage.is_file(own) else ""
    return CheckpointMismatchError(
        f"{path} holds another network or optimizer than the gin files configure: {some(problems, 5, '; ')}. {merge}"
        f"Use the gin files of that run{values}, or another MODEL_DIR. To start from this checkpoint anyway, set "
        "RestoreCheckpointConfig.fallback_to_scratch (missing tensors), .strict = False (extra ones), "
        ".assignment_map (other names) or .reset = ['optimizer'] (another optimizer)."
    )


def _initialize(
    path: str | AnyPath,
    names: Sequence[str],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    init_fn: Callable[[], TrainState] | None,
) -> dict[str, jax.Array]:
    """New values of the named tensors, computed with their shardings."""
    if not names:
        return {}
    if init_fn is None:
        raise _mismatch(path, [f"{name}: missing" for name in names])

    def chosen() -> dict[str, jax.Array]:
        flat = assignment_maps.flatten_state_dict(init_fn().state_dict())
        return {name: flat[name].astype(wanted[name].dtype) for name in names}

    return initial_values.compute(chosen, {name: wanted[name].sharding for name in names})
