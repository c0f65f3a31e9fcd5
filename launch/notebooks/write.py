"""Writes the notebooks of this folder from cells.md: `python launch/notebooks/write.py`.

In cells.md a fence of Python is a cell of code, and the text before it a cell of text. `<!-- kaggle -->` and
`<!-- colab -->` begin what only that notebook has, `<!-- both -->` what both have.
"""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
# The machine that a new copy of the notebook asks for, in each site's own words.
_MACHINES: dict[str, dict[str, Any]] = {
    "kaggle": {"kaggle": {"accelerator": "tpuV5e8", "isInternetEnabled": True, "isGpuEnabled": False}},
    "colab": {"accelerator": "TPU", "colab": {"gpuType": "V5E1", "provenance": []}},
}
_FENCE = re.compile(r"^```python *(\w*)\n(.*?)^```$", re.M | re.S)


def notebook(site: str) -> dict[str, Any]:
    """The notebook for `kaggle` or `colab`, in nbformat 4.5."""
    parts = re.split(r"^<!-- (\w+) -->\n", "<!-- both -->\n" + (FOLDER / "cells.md").read_text("utf-8"), flags=re.M)
    text = "".join(part for of, part in zip(parts[1::2], parts[2::2], strict=True) if of in ("both", site))
    cells: list[dict[str, Any]] = []
    before = 0
    for fence in [*_FENCE.finditer(text), None]:
        end = fence.start() if fence else len(text)
        if words := text[before:end].strip():
            cells.append(_cell("markdown", words, len(cells)))
        if fence:
            cells.append(_cell("code", fence[2].strip(), len(cells), [fence[1]] if fence[1] else []))
            before = fence.end()
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    language = {"language_info": {"name": "python"}}
    return {"cells": cells, "metadata": _MACHINES[site] | kernel | language, "nbformat": 4, "nbformat_minor": 5}


def text_of(site: str) -> str:
    """The file of the notebook."""
    return json.dumps(notebook(site), indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, text: str, number: int, tags: list[str] | None = None) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {"tags": tags} if tags else {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell | {"source": text.splitlines(keepends=True)}


if __name__ == "__main__":
    for each in _MACHINES:
        (FOLDER / f"{each}.ipynb").write_text(text_of(each), "utf-8")
