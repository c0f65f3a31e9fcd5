"""The average of the parameters in a checkpoint, `state/average/`: by whom it is kept, `limba.optimizers.averaging`.

state/average/parameters/<parameter>   of the trained parameters; a frozen one is its own average
state/average/updates                  since the average began
"""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor, from_array
from limba.files.storage import AnyPath

Tensor = TypeVar("Tensor")

NAME = "average"
_PREFIX = f"state/{NAME}/"
_PARAMETERS, UPDATES = f"{_PREFIX}parameters/", f"{_PREFIX}updates"
_TARGET = "target/"


def is_part(name: str) -> bool:
    """Whether a tensor's name is of the average."""
    return name.startswith(_PREFIX)


def name_of(parameter: str) -> str:
    """Where the average of a parameter, `target/encoder/encoder_norm/scale`, lies."""
    return _PARAMETERS + parameter.removeprefix(_TARGET)


def without(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not is_part(name)}


def instead_of_parameters(tensors: Mapping[str, Tensor], path: str | AnyPath | None) -> dict[str, Tensor]:
    """The tensors with the average under the names of the parameters.

    Raises:
      ValueError: naming `path`, if there is no average.
    """
    if not any(name.startswith(_PARAMETERS) for name in tensors):
        raise ValueError(
            f"{path} has no average of the parameters: its run was trained without averaging.AveragedOptimizer "
            "(gin/runs/average.gin). `limba average RUN --last 5` makes the mean of a run's last checkpoints."
        )
    return {n: tensors.get(name_of(n), t) if n.startswith(_TARGET) else t for n, t in tensors.items()}


def chosen(tensors: Mapping[str, Tensor], path: str | AnyPath, average: bool) -> dict[str, Tensor]:
    """The tensors of one model: with the average in the place of the parameters, or without it.

    Raises:
      ValueError: as `instead_of_parameters`.
    """
    return without(instead_of_parameters(tensors, path) if average else tensors)


def begun(tensors: Mapping[str, SavedTensor], wanted: Mapping[str, object]) -> tuple[dict[str, SavedTensor], list[str]]:
    """The tensors with an average that begins as the parameters where it is wanted and missing; the names of these.

    A parameter that is missing itself has none.
    """
    parameters = [n for n in wanted if n.startswith(_PARAMETERS) and n not in tensors]
    sources = {name: _TARGET + name.removeprefix(_PARAMETERS) for name in parameters}
    new = {name: tensors[source] for name, source in sources.items() if source in tensors}
    if UPDATES in wanted and UPDATES not in tensors:
        new[UPDATES] = from_array(np.zeros((), np.int32))
    return {**tensors, **new}, list(new)
