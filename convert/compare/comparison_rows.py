"""What a comparison of two models found: a table of differences, each with what it may be."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.tensors import tensor_parts
from limba.convert.tensors.table import verify


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One line of the table.

    Attributes:
      what: was compared.
      value: the largest difference, or a count of what differs.
      allowed: what it may be.
      note: how it was computed, or why not.
    """

    what: str
    value: float | None
    allowed: float
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.value is None or bool(self.value <= self.allowed)


def table(rows: list[Comparison]) -> str:
    """The comparisons as text, one a line."""
    width = max(len(row.what) for row in rows)
    lines = []
    for row in rows:
        verdict = "  –  " if row.value is None else ("ok   " if row.holds else "WRONG")
        value = ""
        if row.value is not None:
            value = str(row.value)
            if isinstance(row.value, float):
                value = f"{row.value:.2e} (allowed {row.allowed:.0e})"
        lines.append(f"{verdict} {row.what:{width}}  {value:24}  {row.note}".rstrip())
    return "\n".join(lines)


def tables(rows_by_format: Mapping[str, list[Comparison]]) -> str:
    """The tables of the files of a model; of the second format on without the lines that the first has too."""
    first: list[Comparison] = []
    parts = []
    for format_, rows in rows_by_format.items():
        others = [row for row in rows if row not in first]
        same = len(rows) - len(others)
        as_first = f" {same} line{'s' * (same != 1)} as of {next(iter(rows_by_format))}" if same else ""
        parts.append(f"{format_}:{as_first}")
        parts += [table(others)] * bool(others)
        first = first or rows
    return "\n".join(parts)


def require(rows: list[Comparison], otherwise: str) -> None:
    """Raises ValueError, beginning with `otherwise`, if a comparison does not hold."""
    wrong = []
    for row in rows:
        if not row.holds:
            what = f" ({row.note})" if isinstance(row.value, int) else ""
            wrong.append(f"{row.what}: {row.value:.3g}, allowed {row.allowed:.0e}{what}")
    if wrong:
        raise ValueError(f"{otherwise}: {'; '.join(wrong)}.")


def as_json(rows: list[Comparison]) -> list[dict[str, Any]]:
    """For `conversion_report.json`."""
    return [dataclasses.asdict(row) | {"holds": row.holds} for row in rows]


def compare_states(a: Mapping[str, SavedTensor], b: Mapping[str, SavedTensor]) -> Comparison:
    """How many tensors of two train states differ, optimizer state and all.

    Raises:
      ValueError: if one has others than the other.
    """
    verify("What was written", {n: t.shape for n, t in b.items()}, {n: t.shape for n, t in a.items()})
    num_bytes = sum(tensor_parts.num_bytes(t) for t in a.values())
    differ = []
    with tqdm(total=num_bytes, desc="reading back", unit="B", unit_scale=True, disable=None) as bar:
        for name, tensor in a.items():
            if tensor.dtype != b[name].dtype or not tensor_parts.equal(tensor, b[name]):
                differ.append(name)
            bar.update(tensor_parts.num_bytes(tensor))
    note = f"of {len(a)}{': ' if differ else ''}{', '.join(differ[:4])}"
    return Comparison("tensors that differ", len(differ), 0, note)


def compare_vocabularies(a: Sequence[int] | None, b: Sequence[int] | None) -> Comparison:
    """Whether a text has the same ids in the vocabularies of two models; None where one has none."""
    what = "texts with other ids"
    if a is None and b is None:
        return Comparison(what, None, 0, "not compared: neither has a vocabulary")
    if a is None or b is None:
        one, other = "AB" if b is None else "BA"
        return Comparison(what, None, 0, f"assumed: {other} has no vocabulary, and that of {one} is taken for it")
    return Comparison(what, int([*a] != [*b]), 0, f"of 1, which has {len(a)} tokens")


def narrower(a: np.dtype, b: np.dtype) -> np.dtype:
    """The one of two dtypes that holds less: fewer bytes, and bfloat16 before float16, whose numbers have more bits."""
    return min((a, b), key=lambda dtype: (dtype.itemsize, jnp.finfo(dtype).nmant))


def compare_tensors(a: Mapping[str, SavedTensor], b: Mapping[str, SavedTensor]) -> Comparison:
    """How many tensors of two models differ, and by how much; both have the same names and shapes.

    Equal are numbers that are the same after rounding both tensors to the narrower of their dtypes.
    """
    differ: list[str] = []
    dtypes: dict[str, None] = {}
    largest = 0.0
    num_bytes = sum(tensor_parts.num_bytes(t) for t in a.values())
    with tqdm(total=num_bytes, desc="comparing parameters", unit="B", unit_scale=True, disable=None) as bar:
        for name, tensor in a.items():
            dtype = narrower(np.dtype(tensor.dtype), np.dtype(b[name].dtype))
            dtypes[dtype.name] = None
            difference = 0.0
            for x, y in tensor_parts.pairs(
                tensor_parts.cast(tensor, dtype, f"A's {name}"), tensor_parts.cast(b[name], dtype, f"B's {name}")
            ):
                if not np.array_equal(x, y):
                    gap = np.abs(x.astype(np.float64) - y.astype(np.float64))
                    difference = max(difference, float(np.max(gap)))
            bar.update(tensor_parts.num_bytes(tensor))
            if difference:
                differ.append(name)
                largest = max(largest, difference)
    note = f"of {len(a)} tensors, in {' and '.join(dtypes)}"
    if differ:
        note += f": {', '.join(differ[:4])}{' …' if len(differ) > 4 else ''}; largest difference {largest:.2e}"
    return Comparison("parameters that differ", len(differ), 0, note)
