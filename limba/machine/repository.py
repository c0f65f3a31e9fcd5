"""Makes `import tasks` and `import convert` find this repository's packages.

Many T5X projects have a `tasks.py` of their own in a folder on the Python path, and `import tasks` takes the first one.
"""

import importlib.util
import logging
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

# The folder of gin/, so that `gin/runs/pretrain.gin` is found from any working directory.
REPOSITORY = Path(__file__).resolve().parents[2]


def claim() -> None:
    """Imports this repository's packages from its folder, unless they are already imported."""
    for name in ("tasks", "convert"):
        file = REPOSITORY / name / "__init__.py"
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
        assert spec is not None and spec.loader is not None
        module = sys.modules.setdefault(name, importlib.util.module_from_spec(spec))
        if module.__spec__ is spec:
            spec.loader.exec_module(module)


def warn_of_hidden_modules() -> None:
    """Warns of modules of the user that cannot be imported because Limba's packages have their names."""
    for folder in dict.fromkeys(Path(entry or ".").resolve() for entry in sys.path):
        for name in ("tasks", "convert"):
            for file in (folder / f"{name}.py", folder / name / "__init__.py"):
                if file.is_file() and folder != REPOSITORY:
                    logger.warning(
                        "%s is hidden by Limba's own package %r: rename it if anything imports it.",
                        *(file, name),
                    )
