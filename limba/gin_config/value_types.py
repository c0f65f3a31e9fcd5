"""Bound values of a wrong type: a text where a number is read, or 'False', which is true."""

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from gin import config as gin_config

from limba.files import untrusted_files
from limba.gin_config import macros
from limba.gin_config.messages import GinError
from limba.gin_config.recipe import Recipe

# What parameters of these types take, for a sentence.
_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a text in quotes", type(None): "None"}
# `gin_files.require_training_bindings` has an example for each.
_CHECKED_LATER = {"MODEL_DIR", "MIXTURE_OR_TASK_NAME"}
# Functions of others annotate less strictly, or not at all.
_OURS = ("limba", "tasks", "convert")


def check(texts: Mapping[str, str], bindings: Sequence[str]) -> None:
    """Checks the values in gin's configuration.

    Args:
      texts: of the files that were parsed, by name.
      bindings: of the command line.

    Raises:
      GinError: for a text where True or False is read, or a macro whose value no parameter of that type takes. It has
        the place of the macro's value.
    """
    for (_, selector), values in gin_config._CONFIG.items():
        for parameter, value in values.items():
            names, meant = macros.resolved(value)
            name = f"{selector.rpartition('.')[2]}.{parameter}"
            if isinstance(meant, str) and _is_switch(selector, parameter, meant):
                read_as = f"{name} ({names[0]})" if names else name
                what = f"{read_as} is the text {untrusted_files.shown(meant)}; write True or False, without quotes."
            elif {*names} - _CHECKED_LATER and (types_of := _types(selector, parameter)) and not _fits(meant, types_of):
                words = " or ".join(_WORDS[kind] for kind in _WORDS if kind in types_of)
                what = (
                    f"{names[-1]} is {untrusted_files.shown(meant)}, and {name} is {words}{_remedy(meant, types_of)}."
                )
            else:
                continue
            raise GinError(what, _places(names[-1], meant, texts, bindings) if names else ())


def _is_switch(selector: str, parameter: str, text: str) -> bool:
    """Whether a parameter is True or False by its annotation; without one by its default, where `text` is such a word.

    A user's function may have `path=False` and take texts.
    """
    found = _parameter(selector, parameter)
    if found is None:
        return False
    if found.annotation is not inspect.Parameter.empty:
        return found.annotation in (bool, "bool")
    return isinstance(found.default, bool) and text.lower() in ("true", "false")


def _parameter(selector: str, parameter: str) -> inspect.Parameter | None:
    try:
        return inspect.signature(gin_config._REGISTRY[selector].wrapped).parameters[parameter]
    except (KeyError, TypeError, ValueError):  # gin.macro; a builtin without a signature
        return None


def _types(selector: str, parameter: str) -> set[type]:
    """The types that a parameter of Limba's takes, if all are plain ones; else none."""
    found = _parameter(selector, parameter)
    if found is None or gin_config._REGISTRY[selector].wrapped.__module__.partition(".")[0] not in _OURS:
        return set()
    annotation = found.annotation
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    return set(members) if all(member in _WORDS for member in members) else set()


def _fits(value: Any, types_of: set[type]) -> bool:
    """Whether a literal is of one of these types. None and truth values fit anywhere: what reads them says more."""
    if value is None or isinstance(value, bool) or not isinstance(value, str | int | float | list | tuple | dict):
        return True
    return isinstance(value, tuple(types_of)) or (float in types_of and isinstance(value, int))


def _remedy(value: Any, types_of: set[type]) -> str:
    """What to write in place of a number in quotes, or of a whole number with a point."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return ""
    if number.is_integer() and {int, float} & types_of:
        return f": write {int(number)}"
    return f": write {value}" if isinstance(value, str) and float in types_of else ""


def _places(macro: str, value: Any, texts: Mapping[str, str], bindings: Sequence[str]) -> list[tuple[str, int]]:
    """The file and line where a macro got a value; none if that is on the command line."""
    if macro in Recipe.parse("\n".join(bindings)).macros:
        return []
    places = [
        (file, binding.line)
        for file, text in texts.items()
        for binding in Recipe.parse(text, file).bindings
        if binding.name == macro and binding.value == value
    ]
    return places[-1:]
