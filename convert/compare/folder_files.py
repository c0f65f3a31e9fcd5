"""What of a Hugging Face folder `comparison.compare` does not read: weights in further formats, lost and damaged files.

A folder may have its weights several times, and a check of one of them says nothing of the others.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from convert.compare import encoder_outputs, t5_outputs
from convert.compare.comparison_rows import Comparison
from convert.families.config_keys import keys
from convert.model_files import any_format
from convert.model_files.hf import hf_tokenizer, stray_weights
from convert.model_files.model import Model, ModelHints
from convert.tensors import weight_files
from limba.files import untrusted_json
from limba.files.output_folder import read_report
from limba.files.untrusted_files import cut, shown_list

_GENERATION = "generation_config.json"


def compare(label: str, model: Model, hints: ModelHints) -> Iterator[Comparison]:
    """The rows of a folder's other files; none for a checkpoint.

    Args:
      label: of the model in the table.
      model: that was opened with the hints.
    """
    folder = Path(str(model.path))
    if model.folder is None or not folder.is_dir():
        return
    names = sorted(file.name for file in folder.iterdir())
    yield from _lost(label, folder, names)
    yield from _damaged(label, folder, names)
    known = set()
    for format_ in weight_files.formats(names):
        known |= {*weight_files.of_format(names, format_)}
        if format_ != model.folder.format:
            yield _of_format(label, model, format_, hints)
    if others := [file for file in stray_weights.named(stray_weights.files_below(folder)) if file not in known]:
        yield Comparison(f"files not read, {label}", None, 0, f"not compared: {shown_list(others)}")


def compare_generation(a: Model, b: Model) -> Iterator[Comparison]:
    """The row of the settings of `generate` in two folders, which no network has: those that differ are named."""
    folders = [Path(str(model.path)) for model in (a, b) if model.folder is not None and model.family.has_decoder]
    if len(folders) < 2 or not all(folder.is_dir() for folder in folders):
        return
    of_a, of_b = (_settings(folder) for folder in folders)
    differ = [key for key in sorted({*of_a, *of_b}) if of_a.get(key) != of_b.get(key)]
    if differ:
        yield Comparison("settings of generate", None, 0, f"not compared: {', '.join(map(cut, differ))}")
    else:
        yield Comparison("settings of generate", 0, 0, f"of {len(of_a)}, in {_GENERATION}")


def _settings(folder: Path) -> dict[str, Any]:
    """Those that are no default of transformers."""
    content = hf_tokenizer.read_json(folder / _GENERATION)
    known = {key.name: key for key in keys.GENERATION}
    return {name: x for name, x in content.items() if name in known and not known[name].passes(x)}


def _lost(label: str, folder: Path, names: list[str]) -> Iterator[Comparison]:
    """Of an export, which `conversion_report.json` lists."""
    if listed := read_report(folder).get("files"):
        missing = sorted({*map(str, listed)} - {*names} if isinstance(listed, list) else ["the list of files"])
        note = f"of {len(listed)} that {folder.name} had{': ' if missing else ''}{', '.join(map(cut, missing[:4]))}"
        yield Comparison(f"files missing, {label}", len(missing), 0, note)


def _damaged(label: str, folder: Path, names: list[str]) -> Iterator[Comparison]:
    problems = []
    found = [name for name in names if name.endswith(".json")]
    for name in found:
        try:
            untrusted_json.read(folder / name)
        except (OSError, ValueError) as error:
            problems.append(str(error))
    note = f"of {len(found)} of JSON{': ' if problems else ''}{'; '.join(problems[:2])}"
    yield Comparison(f"files damaged, {label}", len(problems), 0, note)


def _of_format(label: str, model: Model, format_: str, hints: ModelHints) -> Comparison:
    """Whether the weights in a further format are those that were read."""
    assert model.folder is not None
    what = f"parameters that differ, {label} in {format_}"
    if format_ == "flax" and not model.family.has_decoder:
        return Comparison(what, None, 0, f"not compared: {weight_files.FILES[format_]} of encoders is not read")
    outputs: ModuleType = t5_outputs if model.family.has_decoder else encoder_outputs
    try:
        other = any_format.open_model(model.path, hints, format_)
        row = outputs.compare_parameters(model, other)
    except (OSError, ValueError) as error:
        return Comparison(what, 1, 0, f"they cannot be read: {error}")
    return dataclasses.replace(row, what=what)
