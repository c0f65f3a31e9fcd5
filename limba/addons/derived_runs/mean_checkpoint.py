"""The mean of several checkpoints' parameters, as a checkpoint: read and written one tensor at a time."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons.derived_runs import configured_network, source_run
from limba.checkpoint_files import (
    assignment_maps,
    classic_format,
    pretraining_parts,
    run_folder,
    saved_tensors,
    state_checksums,
)
from limba.checkpoint_files.directories import checkpoint_path
from limba.checkpoint_files.run_folder import load_run_info
from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.checkpoint_files.small_files import load_files, write_files
from limba.files import storage
from limba.files.storage import AnyPath

_TARGET = "target/"
# Of the run, beside its checkpoints, what the mean has too.
_GIN_FILES = ("config.gin", "model.gin")


def last_checkpoints(run: str, number: int) -> list[AnyPath]:
    """The last checkpoints of a run, ascending.

    Raises:
      FileNotFoundError: if it is no run.
      ValueError: if it has fewer, or the number is below 2.
    """
    if number < 2:
        raise ValueError(f"--last is {number}; a mean needs at least 2 checkpoints.")
    directory, steps = source_run.find(run)
    if len(steps) < number:
        remedy = f"give --last {len(steps)}, or train" if len(steps) > 1 else "train"
        raise ValueError(
            f"{directory} has {len(steps)} checkpoints (steps {', '.join(map(str, steps))}), and --last is {number}: "
            f"{remedy} with SaveCheckpointConfig.keep = {number} or more, and a shorter period."
        )
    return [checkpoint_path(directory, step) for step in steps[-number:]]


def open_means(paths: Sequence[AnyPath]) -> dict[str, "Mean"]:
    """The mean of each parameter over the checkpoints, by name. Parts that only a pre-training needs are left out.

    Raises:
      ValueError: if the checkpoints have other vocabularies or parameters, or parameters of other shapes; if these are
        not those of the network that the newest one's configuration has; if a gin file of the run is a link that leads
        out of it.
    """
    for file in _gin_files(paths[-1].parent):
        storage.check_stays(file)
    files = [file for path in paths if (file := run_folder.find_vocabulary(path))]
    if len({storage.read_bytes(file) for file in files}) > 1:
        found = ", ".join(map(str, files))
        raise ValueError(f"The checkpoints have several vocabularies ({found}): those of one have a mean.")
    opened = [_parameters(state_checksums.open_tensors(path)) for path in paths]
    newest, last = paths[-1], opened[-1]
    for path, tensors in zip(paths, opened, strict=True):
        if other := sorted(tensors.keys() ^ last.keys()):
            has, lacks = (path, newest) if other[0] in tensors else (newest, path)
            raise ValueError(f"{has} has {other[0]} and {lacks} does not: checkpoints of one network have a mean.")
        for name, tensor in tensors.items():
            if tensor.shape != last[name].shape:
                raise ValueError(
                    f"{name} is {list(tensor.shape)} in {path} and {list(last[name].shape)} in {newest}: checkpoints "
                    "of one network have a mean."
                )
    configured_network.check_configured(newest)
    return {name: Mean(name, [tensors[name] for tensors in opened]) for name in sorted(last)}


def _parameters(tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
    return {n: t for n, t in tensors.items() if n.startswith(_TARGET) and not pretraining_parts.is_part(n)}


@dataclasses.dataclass
class Mean:
    """The mean of tensors of one name, float32, computed when it is read.

    Attributes:
      checksum: of what was read last.
    """

    name: str
    tensors: Sequence[SavedTensor]
    checksum: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensors[0].shape

    @property
    def num_bytes(self) -> int:
        return 4 * math.prod(self.shape)

    def read(self) -> np.ndarray:
        """Sums up in float32, in the order of the checkpoints, and divides once.

        Raises:
          DamagedStateError: if a tensor is not what was saved.
        """
        total = np.zeros(self.shape, np.float32)
        for tensor in self.tensors:
            total += np.asarray(tensor).astype(np.float32)
        total /= np.float32(len(self.tensors))
        self.checksum = int(state_checksums.checksum(total))
        return total


def write(
    folder: Path, paths: Sequence[AnyPath], means: Mapping[str, Mean], advance: Callable[[int], Any] = lambda _: None
) -> Path:
    """Writes `FOLDER/checkpoint_<step>` with the step and `run/` of the newest checkpoint, and without optimizer state.

    Args:
      paths: of the checkpoints, ascending.
      advance: called with the bytes of each tensor.
    """
    newest = paths[-1]
    step = np.asarray(saved_tensors.open_tensors(newest)["state/step"])
    path = folder / newest.name

    def lazily(mean: Mean) -> SavedTensor:
        def read(index: Index) -> np.ndarray:
            array = mean.read()
            advance(mean.num_bytes)
            return array[index]

        return SavedTensor(mean.shape, np.dtype(np.float32), read)

    flat = {name: lazily(mean) for name, mean in means.items()} | {"state/step": step}
    classic_format.write(path, assignment_maps.unflatten_state_dict(flat))
    write_files(path / "dataset", {})  # a mean stands nowhere in the data
    checksums = {name: ["float32", list(mean.shape), mean.checksum] for name, mean in means.items()}
    checksums |= state_checksums.of_state({"state": {"step": step}})
    if run_folder.has_run_info(newest):
        info = load_run_info(newest) | {"mean_of": {"steps": [step_of(x) for x in paths], "run": newest.parent.name}}
        files = {n: x for n, x in load_files(newest, run_folder.FOLDER).items() if n != state_checksums.FILE_NAME}
        files |= {run_folder.RECORD: run_folder.record(info), **state_checksums.to_file(checksums)}
        write_files(path / run_folder.FOLDER, files)
    for file in _gin_files(newest.parent):
        (folder / file.name).write_bytes(storage.read_bytes(file))
    return path


def _gin_files(home: AnyPath) -> list[AnyPath]:
    return [file for name in _GIN_FILES if storage.is_file(file := home / name)]


def step_of(path: AnyPath) -> int:
    return int(path.name.rpartition("_")[2])
