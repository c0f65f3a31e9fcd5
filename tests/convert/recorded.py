"""What conversions wrote when it was recorded: names, shapes and bytes of tensors, settings, gin, rows of the check.

A change of the converter's insides leaves all of it as it is. Where a change is meant to show, record it again with
`LIMBA_RECORD=1 python -m pytest tests/convert -k as_recorded`, and read what git says of `recorded.json`.
"""

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convert.tensors import weight_files
from limba.checkpoint_files import saved_tensors
from limba.checkpoint_files.saved_tensors import SavedTensor

_FILE = Path(__file__).with_name("recorded.json")


def compare(name: str, folder: Path, report: Mapping[str, Any], checkpoint: Path) -> None:
    """Compares an export, its report, and the checkpoint that `from-hf` made of it, with the record of that name."""
    is_recorded = not os.environ.get("LIMBA_RECORD")
    records = json.loads(_FILE.read_text("utf-8")) if _FILE.is_file() else {}
    found = json.loads(json.dumps(_content(folder, report, checkpoint)))
    if is_recorded:
        different = [key for key in found.keys() | records[name] if found.get(key) != records[name].get(key)]
        assert not different, (name, {key: (found.get(key), records[name].get(key)) for key in different})
        return
    _FILE.write_text(_lines(records | {name: found}), "utf-8")


def _lines(records: Mapping[str, Any]) -> str:
    """A line for each fact, so that git shows which one changed."""
    texts = []
    for name, record in sorted(records.items()):
        facts = [f" {json.dumps(key)}: {_line(fact)}" for key, fact in record.items()]
        texts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(facts) + "\n}")
    return "{\n" + ",\n".join(texts) + "\n}\n"


def _line(fact: Any) -> str:
    return json.dumps(fact, sort_keys=True, ensure_ascii=False)


def _content(folder: Path, report: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    settings = [folder / name for name in ("config.json", "generation_config.json") if (folder / name).is_file()]
    run = json.loads((checkpoint / "run/run.json").read_text("utf-8"))
    for key in ("limba_version", "converted_from"):
        del run[key]
    return {
        "files": report["files"],
        "settings": {file.name: json.loads(file.read_text("utf-8")) for file in settings},
        "tensors": {format_: _tensors(weight_files.open_tensors(folder, format_)) for format_ in report["formats"]},
        "rows": {
            format_: [[row["what"], row["holds"]] for row in rows] for format_, rows in report["comparisons"].items()
        },
        "checkpoint": _tensors(saved_tensors.open_tensors(checkpoint)),
        "run": _without_paths(json.dumps(run, sort_keys=True)),
        "gin": _without_paths((checkpoint.parent / "model.gin").read_text("utf-8")),
    }


def _tensors(tensors: Mapping[str, SavedTensor]) -> str:
    """One number for names in their order, shapes, dtypes and bytes, behind how many there are."""
    digest = 0
    for name, tensor in sorted(tensors.items()):
        values = np.ascontiguousarray(np.asarray(tensor))
        digest = zlib.crc32(f"{name} {values.shape} {values.dtype} {zlib.crc32(values.tobytes())}".encode(), digest)
    return f"{len(tensors)} tensors, {digest:08x}"


def _without_paths(text: str) -> str:
    return re.sub(r"/[^\s'\"]*/", "/…/", text)
