"""RUN/model.gin: the bindings of a run that make its model, for trainings that start from the run's checkpoints."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gin import config as gin_config

from limba.gin_config import macros
from limba.machine import redaction

NAME = "model.gin"
_HEAD = """\
# The network, vocabulary, loss and optimizer of the run in this folder, for a training that starts from it:
#
#   limba train RUN/model.gin gin/runs/finetune.gin --gin.INITIAL_CHECKPOINT_PATH="'RUN'" …      (docs/finetune.md)
"""
_IMPORT = re.compile(r"(?:from [\w.]+ )?import ([\w.]+)(?: as (\w+))?")


def text() -> str | None:
    """The content of model.gin, without credentials; None if nothing binds `train.model`."""
    config: Mapping[tuple[str, str], Mapping[str, Any]] = gin_config._CONFIG
    models = [values["model"] for (_, name), values in config.items() if name.endswith("train") and "model" in values]
    model = next((reference for value in models for reference in macros.references(value)), None)
    if model is None:
        return None
    reached = _reached(config, [model])
    # A user's network may configure its layers by name alone.
    modules = {module for _, name in reached if not (module := name.rpartition(".")[0]).startswith(("limba.", "gin"))}
    chosen = {key: values for key, values in config.items() if key in reached or key[1].rpartition(".")[0] in modules}
    chosen.setdefault(("MODEL", "gin.macro"), {"value": model})  # which the files of gin/runs/ read
    written = gin_config._config_str(chosen)
    lines = written.splitlines()
    kept = [line for line in lines if not (found := _IMPORT.match(line)) or _is_used(found, lines)]
    return _HEAD + redaction.redact("\n".join(kept) + "\n")


def _is_used(statement: re.Match[str], lines: Iterable[str]) -> bool:
    """Whether the lines have a name of the module that the statement imports."""
    name = re.compile(rf"\b{re.escape(statement[2] or statement[1])}\.")
    return statement[1] == "dynamic_registration" or any(name.search(x) for x in lines if not _IMPORT.match(x))


def _reached(config: Mapping[tuple[str, str], Mapping[str, Any]], begin: list[Any]) -> set[tuple[str, str]]:
    """The keys of the bindings of what a reference stands for, and of all that these refer to."""
    reached: set[tuple[str, str]] = set()
    todo = begin
    while todo:
        reference = todo.pop()
        scope, _, _ = reference.scoped_selector.rpartition("/")
        selector = reference.configurable.selector
        for key, values in config.items():
            is_meant = key[0] == scope if selector == "gin.macro" else True
            if key[1] == selector and is_meant and key not in reached:
                reached.add(key)
                todo += [x for value in values.values() for x in macros.references(value)]
    return reached
