"""Keeps `tasks` and `convert` this repository's, whatever else is on the path.

Many a T5X project has a `tasks.py` of its own in the folder that its launcher puts on the path, and `import tasks`
takes the first that it finds.
"""

import importlib.util
import logging
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

# The folder that holds gin/, so that `gin/runs/pretrain.gin` is found from anywhere.
REPOSITORY = Path(__file__).resolve().parent.parent


def claim() -> None:
    """Imports this repository's packages by their place, unless they are imported already."""
    for name in ("tasks", "convert"):
        file = REPOSITORY / name / "__init__.py"
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
        assert spec is not None and spec.loader is not None
        module = sys.modules.setdefault(name, importlib.util.module_from_spec(spec))
        if module.__spec__ is spec:
            spec.loader.exec_module(module)


def warn_of_hidden_modules() -> None:
    """Says which modules of the user's own cannot be imported because they have a name of ours."""
    for folder in dict.fromkeys(Path(entry or ".").resolve() for entry in sys.path):
        for name in ("tasks", "convert"):
            for file in (folder / f"{name}.py", folder / name / "__init__.py"):
                if file.is_file() and folder != REPOSITORY:
                    logger.warning(
                        "%s is hidden by Limba's own package %r: give it another name if anything imports it.",
                        *(file, name),
                    )
