"""Makes `import tasks` and `import convert` find this repository's packages.

Many T5X projects have a `tasks.py` of their own in a folder on the Python path, and `import tasks` takes the first one.
"""

import importlib.util
import logging
import sys
from pathlib import Path

from limba.files import python_path

logger = logging.getLogger(__name__)

# The folder of gin/, so that `gin/runs/pretrain.gin` is found from any working directory.
REPOSITORY = Path(__file__).resolve().parents[2]


_OURS = ("tasks", "convert")


def claim() -> None:
    """Imports this repository's packages from its folder, unless they are already imported."""
    for name in _OURS:
        file = REPOSITORY / name / "__init__.py"
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
        assert spec is not None and spec.loader is not None
        module = sys.modules.setdefault(name, importlib.util.module_from_spec(spec))
        if module.__spec__ is spec:
            spec.loader.exec_module(module)


def hidden_modules() -> list[Path]:
    """Modules of the user that cannot be imported because Limba's packages have their names."""
    folders = map(Path, python_path.folders())
    files = [folder / file for folder in folders for name in _OURS for file in (f"{name}.py", f"{name}/__init__.py")]
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
