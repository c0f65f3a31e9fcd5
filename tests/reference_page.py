"""docs/reference.md, written from signatures and docstrings: `python -m tests.reference_page`."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "docs/reference.md"

_BEGIN = """# Reference

What your modules and gin files may name, with its arguments. `python -m tests.reference_page` writes this page from the
signatures and docstrings of the code. In a clone a name is `tasks.objectives.SpanCorruption`; everywhere it is
`limba.tasks.objectives.SpanCorruption`, too.

Until 1.0, a minor version (0.2) may change what is here: CHANGELOG.md says what, and how to change your files. A patch
(0.1.1) does not. What is not on this page may change at any time. T5X's names for the same things, which its gin files
use, stay as T5X has them ([t5x.md](t5x.md)). Keys of files: [run_keys.md](run_keys.md),
[config_keys.md](config_keys.md). Commands: `limba --help`.
"""

# Headings, and where their names are: a module with `__all__`, or a module and names.
_PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Tasks of plain text", "tasks.pretraining", ()),
    ("Tasks of rows", "tasks.supervised", ()),
    ("Sources", "tasks.sources", ()),
    ("Objectives", "tasks.objectives", ()),
    ("Vocabularies", "tasks.vocabularies", ()),
    ("The registry", "tasks.registry", ()),
    ("Models", "limba.models", ()),
    ("Networks", "limba.network.t5", ("T5Config",)),
    ("Networks", "limba.network.encoders.config", ("EncoderConfig",)),
    ("Optimizers and schedules", "limba.optimizers.adafactor", ("Adafactor",)),
    ("Optimizers and schedules", "limba.optimizers.definitions", ("MultiOptimizer", "adamw_scale", "muon")),
    ("Optimizers and schedules", "limba.optimizers.schedules", ("create_learning_rate_scheduler",)),
    ("Training", "limba.train", ("train",)),
    ("Training", "limba.data.contract", ("DatasetConfig", "Stage")),
    ("Training", "limba.partitioning.meshes", ("PjitPartitioner",)),
    ("Training", "limba.training.trainer", ("Trainer",)),
    ("Training", "limba.training.spike_guard", ("SpikeGuard",)),
    ("Training", "limba.training.baselines", ("NgramBaselines",)),
    ("Training", "limba.training.from_counts.start_from_counts", ("StartFromCounts",)),
    (
        "Actions",
        "limba.training.actions",
        ("EarlyStoppingAction", "StopOnPlateauAction", "DropOnPlateauAction", "TerminateOnNanAction"),
    ),
    ("Checkpoints", "limba.checkpoints.checkpointing", ("CheckpointConfig", "SaveCheckpointConfig")),
    ("Checkpoints", "limba.checkpoints.restore", ("RestoreCheckpointConfig",)),
    ("Evaluation and inference", "limba.eval", ("evaluate",)),
    ("Evaluation and inference", "limba.infer", ("infer",)),
    ("Evaluation and inference", "limba.inference.answering", ("Answerer",)),
    ("Evaluation and inference", "limba.models.decoding", ("temperature_sample",)),
    ("Evaluation and inference", "limba.models.beam_search", ("beam_search",)),
    ("Trackers", "limba.reports.writers", ("JsonLinesWriter", "TensorBoardWriter")),
    ("Trackers", "limba.reports.wandb_writer", ("WandbWriter",)),
    ("Trackers", "limba.reports.mlflow_writer", ("MlflowWriter",)),
    ("Trackers", "limba.reports.trackio_writer", ("TrackioWriter",)),
    ("Add-on: instructions", "tasks.supervised", ("register_instruction_mixture", "register_instruction_task")),
    ("Add-on: word_labels", "tasks.supervised", ("TokenDataset", "register_token_task")),
    ("Add-on: pairs", "limba.addons.pairs", ()),
    ("Add-on: diacritics", "limba.addons.diacritics", ()),
)
# Of defaults that are objects: where they lie in memory.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LONGEST_DEFAULT = 80


def page() -> str:
    text, heading = _BEGIN, ""
    for title, module_name, names in _PARTS:
        module = importlib.import_module(module_name)
        if title != heading:
            text += f"\n## {title}\n"
            heading = title
        for name in names or sorted(module.__all__):
            text += "".join(_entry(module_name, name, getattr(module, name)))
    return text


def _entry(module: str, name: str, value: Any) -> Iterator[str]:
    is_code = inspect.isclass(value) or inspect.isfunction(value)
    yield f"\n### {module}.{name}\n"
    if not is_code:
        yield f"\n{_as_page(_docstring(type(value)))}\n" if _is_ours(type(value)) else f"\nA value: `{value!r:.300}`.\n"
        return
    if signature := _signature(name, value):
        yield "\n" + "".join(f"    {line}\n" for line in signature.split("\n"))
    if text := _docstring(value):
        yield f"\n{_as_page(text)}\n"


def _docstring(value: Any) -> str:
    """The docstring of its own; a dataclass without one gets its signature from `dataclasses`, which is no text."""
    text = inspect.cleandoc(value.__doc__ or "")
    return "" if dataclasses.is_dataclass(value) and text.startswith(f"{value.__name__}(") else text


def _signature(name: str, value: Any) -> str:
    try:
        parameters = [x for x in inspect.signature(value).parameters.values() if x.name != "self"]
    except (TypeError, ValueError):
        return ""
    if getattr(value, "_is_protocol", False):
        return ""
    # Flax adds `parent` and `name` to all of its modules.
    shown = [x for x in parameters if not (x.name in ("parent", "name") and x.default is not inspect.Parameter.empty)]
    lines = []
    for parameter in shown:
        default = "" if parameter.default is inspect.Parameter.empty else f" = {_default(parameter.default)}"
        star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        lines.append(f"{star}{parameter.name}{default}")
    whole = f"{name}({', '.join(lines)})"
    return whole if len(whole) <= 110 else f"{name}(\n    " + ",\n    ".join(lines) + ",\n)"


def _default(value: Any) -> str:
    if inspect.isfunction(value) or inspect.isclass(value):
        return str(value.__name__)
    if type(value).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
        return "…"
    text = _ADDRESS.sub("", repr(value))
    return text if len(text) <= _LONGEST_DEFAULT else "…"


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("limba.")


def _as_page(text: str) -> str:
    """A docstring's sections as lists; `Args:` and what follows it is a paragraph with items."""
    lines, in_section = [], False
    for line in text.split("\n"):
        if re.fullmatch(r"(Args|Attributes|Returns|Raises|Yields):", line):
            in_section = True
            lines += [f"**{line}**", ""]
        elif in_section and (found := re.match(r"  (\S.*)", line)):
            item = found[1]
            name, colon, rest = item.partition(": ")
            is_named = bool(colon) and re.fullmatch(r"[\w, .*`\[\]()]+", name)
            lines.append(f"- `{name}`: {rest}" if is_named and "`" not in name else f"- {item}")
        elif in_section and line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            in_section = in_section and not line
            lines.append(line)
    return "\n".join(lines).strip("\n")


if __name__ == "__main__":
    FILE.write_text(page(), "utf-8")
