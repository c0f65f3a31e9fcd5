"""Where Limba's files are, and what `import tasks` and `import convert` find.

The packages are `limba.tasks` and `limba.convert`. In a clone their folders lie beside `limba`, which has links to
them, and `tasks` and `convert` are other names of the same modules, whatever else has these names. Installed from a
wheel, `tasks` and `convert` are such names only where nobody else's module is called so: many T5X projects have a
`tasks.py`.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

from limba.files import python_path

logger = logging.getLogger(__name__)

# The folder `limba`.
PACKAGE = Path(python_path.PACKAGE)
IN_CLONE = python_path.IN_CLONE
# The folder of gin/ and launch/, so that `gin/runs/pretrain.gin` is found from any working directory.
REPOSITORY = Path(python_path.REPOSITORY)

_NAMES = ("tasks", "convert")
# Other names of packages and modules, which files of users have; `claim` adds those of add-ons.
_other_names = {name: f"limba.{name}" for name in _NAMES}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds the modules of `limba.tasks` under the name `tasks`, and the like: the same objects, not a second copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if (real := _real_name(fullname)) is None:
            return None
        top = fullname.partition(".")[0]
        if fullname in _NAMES:
            if not IN_CLONE and _spec_of_others(fullname) is not None:
                return None
        elif top in _NAMES and sys.modules.get(top) is not sys.modules.get(f"limba.{top}"):
            return None  # It is in somebody else's package of this name.
        found = importlib.util.find_spec(real)
        return None if found is None else importlib.machinery.ModuleSpec(fullname, self, origin=found.origin)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(_real_name(spec.name) or spec.name)
        # The import system gives what it is handed the spec of this name; `exec_module` gives the own one back.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs nothing: the module has run under its own name."""
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> types.CodeType | None:
        """For `python -m convert`, which runs a module's code as `__main__`."""
        spec = importlib.util.find_spec(_real_name(fullname) or fullname)
        assert spec is not None and isinstance(spec.loader, importlib.abc.InspectLoader)
        return spec.loader.get_code(spec.name)

    def get_source(self, fullname: str) -> str | None:
        spec = importlib.util.find_spec(_real_name(fullname) or fullname)
        assert spec is not None and isinstance(spec.loader, importlib.abc.InspectLoader)
        return spec.loader.get_source(spec.name)


def _real_name(name: str) -> str | None:
    """`limba.tasks.objectives` of `tasks.objectives`; None if it is no other name."""
    parts = name.split(".")
    for number in range(len(parts), 0, -1):  # the longest first
        if (real := _other_names.get(".".join(parts[:number]))) is not None:
            return ".".join([real, *parts[number:]])
    return None


def claim(others: Mapping[str, str] | None = None) -> None:
    """Makes `tasks` and `convert` names of Limba's packages, and the others too: other names and real ones."""
    # `from tasks.pipeline import cached` asks for `limba.tasks.pipeline.cached`.
    for other, real in (others or {}).items():
        _other_names.update({other: real, f"limba.{other.removeprefix('limba.')}": real})
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0 if IN_CLONE else len(sys.meta_path), _Finder())


def take_name(name: str) -> None:
    """In a clone, for the package whose folder Python has found as `tasks` or `convert`: it is `limba.tasks`."""
    claim()
    sys.modules[name] = importlib.import_module(f"limba.{name}")


def is_of_limba(name: str) -> bool:
    """Whether a module's name, such as `tasks.objectives`, is one of Limba's where it would be imported now."""
    top = name.partition(".")[0]
    if top not in _NAMES or IN_CLONE:
        return top in (*_NAMES, "limba")
    return _spec_of_others(top) is None


def meant(name: str) -> str:
    """`limba.tasks.objectives` of `tasks.objectives` in `from tasks import objectives`, where `tasks` is not Limba's.

    Whatever Limba's package has is Limba's: its own gin files say so, and a folder somebody downloaded may hold a
    `tasks` too.
    """
    if is_of_limba(name) or name in _NAMES or name.partition(".")[0] not in _NAMES:
        return name
    return f"limba.{name}" if importlib.util.find_spec(f"limba.{name}") is not None else name


def _spec_of_others(top: str) -> importlib.machinery.ModuleSpec | None:
    """Where somebody else's module of this name is, in the working directory too; nothing is imported."""
    if (module := sys.modules.get(top)) is not None:
        return None if module is sys.modules.get(f"limba.{top}") else module.__spec__
    return importlib.machinery.PathFinder.find_spec(top, python_path.folders())


def hidden_modules() -> list[Path]:
    """Modules of the user that cannot be imported because Limba's packages have their names, in a clone."""
    if not IN_CLONE:
        return []
    folders = map(Path, python_path.folders())
    files = [folder / file for folder in folders for name in _NAMES for file in (f"{name}.py", f"{name}/__init__.py")]
    return [file for file in files if file.is_file() and REPOSITORY not in (file.parent, file.parent.parent)]


def remedy_of_hidden(file: Path) -> str:
    """The sentence for one of `hidden_modules`."""
    name = file.stem if file.stem != "__init__" else file.parent.name
    return (
        f"{file} is hidden by Limba's own package {name!r}: rename it, to my_{name} for example, and name that "
        f"instead (--module my_{name})."
    )


def warn_of_hidden_modules() -> None:
    for file in hidden_modules():
        logger.warning("%s", remedy_of_hidden(file))
