"""T5X's module names, for gin files and task modules written for T5X.

`t5x.adafactor.Adafactor` is `limba.adafactor.Adafactor`: the same object, so bindings under both names are one.
Modules are aliased lazily and only while no real T5X is asked for: the environment variable `LIMBA_T5X` is "alias"
(the default) or "installed".
"""

import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

# T5X's module: where its names live here, in the order they are looked for.
MODULES: Mapping[str, tuple[str, ...]] = {
    "t5x": (),
    "t5x.adafactor": ("limba.adafactor",),
    "t5x.checkpoints": ("limba.checkpoints",),
    "t5x.decoding": ("limba.decoding",),
    "t5x.gin_utils": ("limba.gin_utils",),
    "t5x.losses": ("limba.losses",),
    "t5x.metrics": ("limba.metrics",),
    "t5x.models": ("limba.models",),
    "t5x.optimizers": ("limba.optimizers",),
    "t5x.partitioning": ("limba.partitioning",),
    "t5x.train_state": ("limba.train_state",),
    "t5x.trainer": ("limba.trainer",),
    "t5x.utils": ("limba.data", "limba.checkpoints", "limba.schedules"),
    "t5x.examples": (),
    "t5x.examples.t5": (),
    "t5x.examples.t5.layers": ("limba.layers", "limba.attention"),
    "t5x.examples.t5.network": ("limba.network",),
}


def uses_installed_t5x() -> bool:
    """Whether `LIMBA_T5X` asks for a real T5X.

    Raises:
      ValueError: for another value, or if T5X is asked for and not installed.
    """
    choice = os.environ.get("LIMBA_T5X", "alias")
    if choice not in ("alias", "installed"):
        raise ValueError(f"LIMBA_T5X is {choice!r}; it is 'alias' (Limba under T5X's names) or 'installed'.")
    if choice == "installed" and importlib.util.find_spec("t5x") is None:
        raise ValueError("LIMBA_T5X is 'installed', but there is no module t5x; install T5X, or unset it.")
    return choice == "installed"


def install() -> None:
    """Makes `import t5x.…` find Limba. Does nothing the second time, or when the installed T5X is asked for."""
    if uses_installed_t5x():
        logger.info("t5x is the installed T5X (LIMBA_T5X=installed).")
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        logger.debug("t5x is Limba (LIMBA_T5X=alias).")


class _Alias(types.ModuleType):
    """A module of T5X whose names are looked up in Limba when they are used."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        for target in MODULES[self.__name__]:
            module = importlib.import_module(target)
            if hasattr(module, name):
                return getattr(module, name)
        provided = _public_names(self.__name__)
        nearest = difflib.get_close_matches(name, provided, n=3)
        raise AttributeError(
            f"Limba does not provide {self.__name__}.{name}."
            + (f" Did you mean {', '.join(nearest)}?" if nearest else f" It provides {', '.join(provided)}.")
        )


def _public_names(module_name: str) -> list[str]:
    names: set[str] = set()
    for target in MODULES[module_name]:
        module = importlib.import_module(target)
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", None) == target:
                names.add(name)
    return sorted(names)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] != "t5x":
            return None
        if fullname not in MODULES:
            nearest = difflib.get_close_matches(fullname, MODULES, n=3)
            known = ", ".join(nearest or sorted(MODULES))
            raise ModuleNotFoundError(f"Limba does not provide {fullname}. It provides {known}.", name=fullname)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Alias(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing runs: names are found when they are asked for."""
