"""Mixtures of tasks whose rates follow from their sizes, with a temperature and a cap."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from limba.tasks.registry import registering
from limba.tasks.registry.providers import find_provider
from limba.tasks.registry.tasks import Mixture, MixtureRegistry, is_mixture
from limba.tasks.sources.sharded import ShardedSource


def mixing_rate(size: float, temperature: float = 1.0, maximum: float | None = None) -> float:
    """`min(size, maximum) ** (1 / temperature)`: T5's rate (arXiv:1910.10683, section 3.5.2), as SeqIO computes it.

    A temperature of 1 mixes in proportion to the sizes, a high one evenly. mT5's exponent of 0.3 (arXiv:2010.11934) is
    the temperature `1 / 0.3`.

    Sizes are in any unit that all tasks share; one beyond `maximum`, T5's cap K, counts as that.

    Raises:
      ValueError: if one of them is not positive.
    """
    if min(size, temperature, 1 if maximum is None else maximum) <= 0:
        raise ValueError(
            f"A mixing rate of size {size}, temperature {temperature} and maximum {maximum}: all must be positive."
        )
    return (size if maximum is None else min(size, maximum)) ** (1 / temperature)


def num_bytes(task: Any, split: str = "train") -> float:
    """The bytes of a task's files as they are stored: comparable between corpora of one format and compression.

    Raises:
      ValueError: if its source does not know them.
    """
    if not isinstance(task.source, ShardedSource):
        raise ValueError(
            f"The size of task {task.name!r} is not known: its source is a {type(task.source).__name__}. Give the "
            "sizes of all tasks, such as register_mixture(…, {'task_a': 2e6, 'task_b': 5e5})."
        )
    return float(sum(task.source.fingerprint(split)["files"].values()))


@registering.once(MixtureRegistry)
def register_mixture(
    name: str,
    tasks: Mapping[str, float] | Sequence[str],
    *,
    temperature: float = 1.0,
    maximum: float | None = None,
    split: str = "train",
) -> Mixture:
    """Registers a mixture whose rates are `mixing_rate` of the sizes of its tasks.

    Nothing is read before the mixture is used. Registering a name again with the same arguments is harmless.

    Args:
      tasks: tasks with their sizes, in any unit, of which mixtures are possible too; or names of tasks only, whose
        sizes are then the bytes of their files.
      temperature: 1 mixes in proportion to the sizes, more brings small tasks forward; mT5 has `1 / 0.3`.
      maximum: no size counts as more than this, in the same unit.
      split: whose files are measured.

    Raises:
      ValueError: for an unknown task, a size, temperature or maximum that is not positive, and a name that is taken by
        a mixture with other arguments.
    """
    for task in tasks:
        if is_mixture(find_provider(task)) and not isinstance(tasks, Mapping):
            raise ValueError(
                f"Mixture {name!r} contains the mixture {task!r}, whose size is not known: give {{name: size}} of all."
            )
    mixing_rate(1, temperature, maximum)  # Checked now, and not when data are read.
    rates = (
        [(task, mixing_rate(size, temperature, maximum)) for task, size in tasks.items()]
        if isinstance(tasks, Mapping)
        else [(task, functools.partial(_rate_of_bytes, temperature, maximum, split)) for task in tasks]
    )
    return MixtureRegistry.add(name, rates)


def _rate_of_bytes(temperature: float, maximum: float | None, split: str, task: Any) -> float:
    return mixing_rate(num_bytes(task, split), temperature, maximum)
