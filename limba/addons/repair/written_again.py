"""What an export has beside its weights, compared with what `limba convert to-hf` writes now for the other model.

Hashes do not show what somebody changed who wrote a report with the hashes of the changed files.
"""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from limba.convert import to_hf
from limba.convert.compare import exported_files, folder_files
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files.hf import hf_tokenizer, stray_weights
from limba.convert.model_files.model import Model
from limba.convert.tensors import weight_files
from limba.files import json_text, untrusted_json
from limba.files.output_folder import REPORT, read_report
from limba.files.untrusted_files import cut, some

# Of two exports: of the same model, in different types.
_DTYPE = ("config.json", "torch_dtype")


def compare(label: str, model: Model, other: Model) -> Iterator[Comparison]:
    """The row of files and keys that differ; none if the model is no export, or the other is no run and no export.

    Args:
      label: of the model in the table.
      model: whose folder is looked at.
      other: whose folder, or the one that is written for it, is right.
    """
    folder = Path(str(model.path))
    if model.folder is None or not folder.is_dir() or not (report := read_report(folder)):
        return
    if other.folder is not None:
        right = Path(str(other.path))
        if not right.is_dir() or not read_report(right):
            return
        differ = _differences_of_folders(right, model)
    else:
        try:
            differ = _differences_from_written(other, model, report)
            if differ and not _differences_from_written(_without_lengths(other), model, report):
                differ = []
        except FileNotFoundError:  # It has no vocabulary; the row of the tokenizer's settings says so.
            return
    what = f"files that to-hf writes otherwise, {label}"
    if differ:
        yield Comparison(what, None, 0, f"{exported_files.NOT_COMPARED}{some(differ)}")
    else:
        yield Comparison(what, 0, 0, f"of {len(_files(folder))}, by their keys")


def _without_lengths(model: Model) -> Model:
    """A model as its copy in T5X's files is, which says nothing of the lengths of its training."""
    return dataclasses.replace(model, info={x: value for x, value in model.info.items() if x != "feature_lengths"})


def _differences_from_written(other: Model, model: Model, report: dict[str, Any]) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="limba-check-") as name:
        _write(Path(name), other, report, str(model.dtype))
        return _differences_of_folders(Path(name), model)


def _differences_of_folders(right: Path, model: Model) -> list[str]:
    folder = Path(str(model.path))
    names, found = _files(right), _files(folder)
    differ = [cut(name) for name in sorted(names ^ found)]
    is_right = model.folder is not None and model.folder.content.get(_DTYPE[1]) == str(model.dtype)
    for name in sorted(names & found):
        differ += _differences(right / name, folder / name, {_DTYPE[1]} if is_right and name == _DTYPE[0] else set())
    return differ


def _write(folder: Path, model: Model, report: dict[str, Any], dtype: str) -> None:
    """What an export of a checkpoint has beside its weights."""
    for name, content in to_hf.export_of(model).write_beside(folder, dtype).items():
        to_hf.write_json(folder / name, content)
    if report.get("mask_token") is True:
        hf_tokenizer.name_mask(folder)


def _files(folder: Path) -> set[str]:
    """The names of all that may say something of the model, without its weights: these are compared as tensors."""
    names = [file.name for file in folder.iterdir() if file.is_file() and not folder_files.NO_PART.search(file.name)]
    indices = {weight_files.index_name(name) for name in weight_files.FILES.values()}
    return {*names} - {*stray_weights.named(names), *indices, REPORT}


def _differences(right: Path, found: Path, known: set[str]) -> Iterator[str]:
    """The keys of a JSON file that are not as they should be, or the name of another file."""
    if exported_files.is_same(right, found):
        return
    name = cut(found.name)
    if found.suffix != ".json":
        yield name
        return
    texts = [
        {key: json_text.dumps(value, sort_keys=True) for key, value in untrusted_json.read_object(file).items()}
        for file in (right, found)
    ]
    keys = {key for key, _ in texts[0].items() ^ texts[1].items()} - known
    yield from (f"{cut(key)} of {name}" for key in sorted(keys))
