"""The user's own Python modules: the one place that makes ready what they import, and imports them.

Tasks, networks and attention layers that were written for T5X import `t5x`, `t5`, `seqio` and `datasets`. Every command
that imports such a module comes here first: `load` for a module's name, `prepare` where gin or pickle imports it.
"""

import importlib
import sys
import types

from gin import config as gin_config

from limba.devices import library_patches
from limba.gin_config import closed_list, t5x_names


def prepare() -> None:
    """Gives the process T5X's and T5's names, and Limba's changes to other libraries. Does nothing the second time."""
    t5x_names.install()
    library_patches.install()


def of_gin_files() -> list[str]:
    """The modules that the gin files of the configuration import, under their whole names."""
    return [statement.module for statement in gin_config._IMPORTS]


def load(name: str) -> types.ModuleType:
    """The module of that name, imported, for a file or flag that names it.

    Raises:
      RefusedNameError: for a module that is not imported yet and that no file may name (`closed_list`).
      Exception: whatever the module raises.
    """
    prepare()
    if name not in sys.modules:
        closed_list.check_module(name)
    return importlib.import_module(name)
