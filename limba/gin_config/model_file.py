"""RUN/model.gin: the bindings of a run that make its model, for trainings that start from the run's checkpoints."""

from collections.abc import Mapping
from typing import Any

from gin import config as gin_config

from limba.files import redaction
from limba.gin_config import operative_text, references

NAME = "model.gin"
_HEAD = """\
# The network, vocabulary, loss and optimizer of the run in this folder, for a training that starts from it:
#
#   limba train RUN/model.gin gin/runs/finetune.gin --gin.INITIAL_CHECKPOINT_PATH="'RUN'" …      (docs/finetune.md)
"""


def text() -> str | None:
    """The content of model.gin, without credentials; None if nothing binds `train.model`."""
    config: Mapping[tuple[str, str], Mapping[str, Any]] = gin_config._CONFIG
    models = [values["model"] for (_, name), values in config.items() if name.endswith("train") and "model" in values]
    model = next((reference for value in models for reference in references.references(value)), None)
    if model is None:
        return None
    # What a run puts around its model, such as replaced-token detection, is no part of it.
    while (inner := _model_of(config, model)) is not None:
        model = inner
    reached = reached_by(config, [model])
    # A user's network may configure its layers by name alone.
    modules = {module for _, name in reached if not (module := name.rpartition(".")[0]).startswith(("limba.", "gin"))}
    chosen = {key: values for key, values in config.items() if key in reached or key[1].rpartition(".")[0] in modules}
    chosen.setdefault(("MODEL", "gin.macro"), {"value": model})  # which the files of gin/runs/ read
    written = gin_config._config_str(chosen)
    return _HEAD + redaction.redact(operative_text.without_unused_imports(written))


def _model_of(config: Mapping[tuple[str, str], Mapping[str, Any]], reference: Any) -> Any | None:
    """The reference that is bound to the argument `model` of what a reference stands for; None without one."""
    bound = [x["model"] for (_, name), x in config.items() if name == reference.configurable.selector and "model" in x]
    return next((inner for value in bound for inner in references.references(value)), None)


def reached_by(config: Mapping[tuple[str, str], Mapping[str, Any]], begin: list[Any]) -> set[tuple[str, str]]:
    """The keys of the bindings of what references stand for, methods too, and of all that these refer to."""
    reached: set[tuple[str, str]] = set()
    todo = begin
    while todo:
        reference = todo.pop()
        scope, _, _ = reference.scoped_selector.rpartition("/")
        selector = reference.configurable.selector
        for key, values in config.items():
            is_meant = key[0] == scope if selector == "gin.macro" else True
            if (key[1] == selector or key[1].startswith(f"{selector}.")) and is_meant and key not in reached:
                reached.add(key)
                todo += [x for value in values.values() for x in references.references(value)]
    return reached
