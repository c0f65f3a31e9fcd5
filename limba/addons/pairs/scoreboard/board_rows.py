"""The rows of a scoreboard: checkpoints of runs, averages, exports and folders of transformers; and how each is opened.

A folder of transformers is measured as the run that `limba convert from-hf` makes of it, in a temporary folder.
"""

import argparse
import contextlib
import dataclasses
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gin

from limba.checkpoint_files import directories, run_folder, saved_average, saved_tensors
from limba.checkpoints import checkpointing, parameters, run_configuration
from limba.files import storage
from limba.gin_config import gin_files, run_folders
from limba.inference import embedding
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner

LATEST, ALL = "latest", "all"


@dataclasses.dataclass(frozen=True)
class BoardRow:
    """A model to measure.

    Attributes:
      name: as it was given.
      checkpoint: of a run, or "" for a folder of transformers before `with_runs`.
      step: None where the source does not say one.
      is_average: whether it is the average of the parameters that the checkpoint's run kept.
      group: what the runs that differ by their seed are called together; "" for a model of its own.
    """

    name: str
    checkpoint: str
    step: int | None
    is_average: bool = False
    group: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}, average" if self.is_average else self.name


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """A model whose parameters are not read yet."""

    model: BaseTransformerModel
    restore: checkpointing.RestoreCheckpointConfig
    partitioner: PjitPartitioner

    def params(self) -> Any:
        """The parameters, on the mesh."""
        return parameters.load_model_params(self.model, self.partitioner, self.restore)[0]


def open_checkpoint(
    *,
    model: BaseTransformerModel,
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    partitioner: PjitPartitioner,
) -> OpenedModel:
    """The model of a checkpoint as gin binds it, but in float32, so that other programs have the same figures."""
    return OpenedModel(embedding.in_dtype(model, "float32"), restore_checkpoint_cfg, partitioner)


def find(names: Sequence[str], which: str) -> list[BoardRow]:
    """The rows of names, in their order: a row for each checkpoint, and one more for an average that its run kept.

    Args:
      names: folders, or `NAME=FOLDER,FOLDER,…` for runs that differ by their seed.
      which: `LATEST`, `ALL`, or steps such as "500,1000", of the runs; folders of transformers have one row each.

    Raises:
      FileNotFoundError: for a name that is neither a run nor a folder of transformers, and a step that is not there.
      ValueError: for steps that are no numbers, a checkpoint of T5X, a folder of another program, and a name of seeds
        without a folder.
    """
    if which not in (LATEST, ALL) and not all(step.isdigit() for step in which.split(",")):
        raise ValueError(f"--checkpoints is {which!r}; give {LATEST}, {ALL}, or steps such as 500,1000.")
    rows = [
        dataclasses.replace(row, group=group)
        for given in names
        for group, name in _seeds(given)
        for row in _rows_of(name, which)
    ]
    if twice := [row.title for i, row in enumerate(rows) if row in rows[:i]]:
        raise ValueError(f"{twice[0]} is given twice; give each model once.")
    return rows


def _seeds(given: str) -> list[tuple[str, str]]:
    """The folders that an argument names, each with the name of its group."""
    group, equals, folders = given.partition("=")
    if not equals or Path(given).exists():
        return [("", given)]
    found = [folder for folder in folders.split(",") if folder]
    if not group or not found:
        raise ValueError(f"{given!r} names no model; write NAME=FOLDER,FOLDER for runs that differ by their seed.")
    return [(group, folder) for folder in found]


def _rows_of(name: str, which: str) -> Iterator[BoardRow]:
    if not directories.has_checkpoint(name):
        from limba.convert import from_hf

        folder = from_hf.find(name)
        if not from_hf.has_weights(folder):
            raise FileNotFoundError(f"{folder} has no weights of a model: name a run, an export or a folder with some.")
        yield BoardRow(name, "", None)
        return
    for checkpoint in _checkpoints(name, which):
        if run_folder.find_gin(checkpoint) is None:
            raise FileNotFoundError(
                f"{checkpoint} has no run/config.gin: it is none of Limba's. A checkpoint of T5X becomes a run with "
                f"`limba convert from-t5x {checkpoint} OUT`."
            )
        step = parameters.checkpoint_step(str(checkpoint))
        yield BoardRow(name, str(checkpoint), step)
        tensors = saved_tensors.open_tensors(checkpoint)
        if any(map(saved_average.is_part, tensors)):
            yield BoardRow(name, str(checkpoint), step, is_average=True)


def _checkpoints(name: str, which: str) -> list[storage.AnyPath]:
    run = directories.run_directory(name)
    if which == LATEST or directories.is_checkpoint(run):
        return [directories.find_checkpoint(name)]
    steps = directories.checkpoint_steps(run)
    wanted = steps if which == ALL else [*map(int, which.split(","))]
    if missing := [step for step in wanted if step not in steps]:
        raise FileNotFoundError(f"--checkpoints {missing[0]}: {name} has checkpoints of the steps {steps}.")
    return [directories.checkpoint_path(run, step) for step in wanted]


def with_runs(rows: Sequence[BoardRow], folder: Path) -> list[BoardRow]:
    """The rows, with a run below `folder` for each folder of transformers.

    Raises:
      ValueError: for a model that Limba does not have.
    """
    from limba.convert import from_hf

    made = []
    for number, row in enumerate(rows):
        if not row.checkpoint:
            with contextlib.redirect_stdout(io.StringIO()):  # It prints how to train the run, which is temporary.
                written = from_hf.from_hf(row.name, folder / str(number), verify=False)
            row = dataclasses.replace(row, checkpoint=str(written), step=_recorded_step(written))
        made.append(row)
    return made


def _recorded_step(checkpoint: Path) -> int | None:
    """The step that an export records; None of other folders, whose checkpoints have step 0."""
    return parameters.checkpoint_step(str(checkpoint)) or None


def open_row(row: BoardRow) -> OpenedModel:
    """The model of a row; gin forgets that of the row before."""
    gin.clear_config()
    run_folders.read_run(row.checkpoint)
    flags = argparse.Namespace(run_dir=row.checkpoint, gin_file=[], gin_bindings=[], gin_search_paths="")
    bindings = {"CHECKPOINT_PATH": row.checkpoint, "board/checkpoints.RestoreCheckpointConfig.average": row.is_average}
    run_configuration.parse(flags, "gin/runs/scoreboard.gin", bindings, needs_tasks=False)
    return gin_files.configurable(open_checkpoint, module="limba.addons.pairs.scoreboard.board_rows")()
