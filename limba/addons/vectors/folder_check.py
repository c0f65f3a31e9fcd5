"""What `limba convert check` asks of a folder of sentence-transformers."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from limba.addons.vectors import sentence_folder
from limba.convert.compare import exported_files, folder_tokens
from limba.convert.compare.comparison import TEXT
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files import any_format
from limba.convert.model_files.model import Model
from limba.files import disk
from limba.files.output_folder import REPORT
from limba.files.untrusted_files import shown
from limba.files.version import VERSION


def kind(report: Mapping[str, Any]) -> str:
    """What the folder is for; "" of others."""
    return "sentence-transformers" if "pooling" in report else ""


def compare(model: Model, folder: Path, report: Mapping[str, Any]) -> Iterator[Comparison]:
    """Compares the folder with a model: writes it again and compares the files, and what they hold.

    Raises:
      ValueError: if the report is damaged.
    """
    pooling, length, dtype = report["pooling"], report.get("max_seq_length"), report.get("dtype")
    if pooling not in sentence_folder.POOLINGS or type(length) is not int or dtype not in sentence_folder.DTYPES:
        raise ValueError(
            f"{folder / REPORT} is damaged: pooling is {shown(pooling)}, max_seq_length {shown(length)}, and dtype "
            f"{shown(dtype)}."
        )
    written = sentence_folder.of_model(model, pooling, report.get("normalize") is True, length)
    with tempfile.TemporaryDirectory(prefix="limba-check-") as name:
        anew = Path(name)
        disk.require(anew, written.num_bytes(dtype), exported_files.REMEDY)
        written.write(anew, dtype)
        others = exported_files.other_versions(report, {"limba_version": VERSION})
        yield (row := exported_files.compare_anew("B", folder, anew, report.get("files") or (), others))
        if row.value == 0:
            yield from folder_tokens.compare("B", any_format.open_model(anew), TEXT)
            yield from written.compare(anew)
