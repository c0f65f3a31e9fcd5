"""The packages of `limba[report]`, imported where they are used; where one is missing, a line says what installs it."""

import importlib
from typing import Any


def plotille() -> Any:
    """The module that draws in a terminal."""
    return _imported("plotille", "limba runs --plot")


def bokeh(module: str) -> Any:
    """A module of bokeh, which draws in a page."""
    return _imported(f"bokeh.{module}", "limba report")


def _imported(module: str, command: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ImportError(f"`{command}` draws with {package}, which is missing: pip install 'limba[report]'") from error
