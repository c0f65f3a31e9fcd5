"""Which families there are: ours, and those of installed packages (entry points of the group `limba.families`)."""

import functools
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from convert.families import byt5, mt5, t5_1_0, t5_1_1, umt5
from convert.families.family import Family
from limba.network.t5 import T5Config

# The order counts: a network is of the first family that it fits, and others must be named. mT5 is never the first.
_ROWS = (t5_1_0, t5_1_1, mt5, umt5, byt5)
_GROUP = "limba.families"


@functools.cache
def all_families() -> Mapping[str, Family]:
    """By name. Packages are looked for at the first call.

    Raises:
      ValueError: if a package's entry point is not a `Family`, or its name is taken.
    """
    families = {row.FAMILY.name: row.FAMILY for row in _ROWS}
    for point in importlib.metadata.entry_points(group=_GROUP):
        family = point.load()
        if not isinstance(family, Family) or family.name in families:
            wrong = (
                "has a name that is taken" if isinstance(family, Family) else "is not a convert.families.family.Family"
            )
            raise ValueError(f"{point.value}, an entry point of the group {_GROUP}, {wrong}.")
        families[family.name] = family
    return families


def find_family(network: T5Config, vocabulary: Mapping[str, Any] | None, name: str | None = None) -> Family:
    """The family of a network with this vocabulary: the one that the user names, or the first that fits.

    Raises:
      ValueError: if the network cannot be of that family.
    """
    found = next(family for family in all_families().values() if family.fits(network, vocabulary))
    if name is None:
        return found
    if name not in all_families():
        raise ValueError(f"--family {name}: it is none of {', '.join(all_families())}.")
    if all_families()[name].fits(network, vocabulary):
        return all_families()[name]
    raise ValueError(f"--family {name}: the network is {found.name}: {found.recognized_by}.")


def of_model_type(model_type: Any) -> Family | None:
    """The first family that has the `model_type` of a config.json; None if no family has it."""
    return next((family for family in all_families().values() if family.model_type == model_type), None)
