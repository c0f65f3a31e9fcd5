"""The measure of a check: logits in float64, and how far from them the rounding of float32 may take right ones.

How much a network amplifies rounding depends on its depth, its scales and on near ties in its attention, so it is
measured. Beside the rows themselves, copies of them are computed, in which every intermediate result has a random error
16 times that of float32. Twice as far as these copies are from the rows, a right network in float32 may be.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.tensors import tensor_parts

Array = np.ndarray

_COPIES = 3
# Of one operation in float32. Sums of thousands of products, and approximations of exp and tanh, have several of it.
_ROUNDING = 2.0**-24
_TIMES = 16
# A near tie in attention may fall otherwise than in all copies, with more effect.
_MARGIN = 2.0
# Where rounding changes more than this part of the logits' range, nothing follows from other logits.
_VAGUE = 0.05
_BLOCK_BYTES = 32 * 2**20


class Rounding:
    """The errors of the copies, which are all rows after the first ones."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def __call__(self, x: Array) -> Array:
        """The intermediate result `[rows, …]`, rounded in the copies."""
        first = len(x) // (1 + _COPIES)
        errors = 1 + _TIMES * _ROUNDING * self._rng.standard_normal((len(x) - first, *x.shape[1:]))
        return np.concatenate([x[:first], x[first:] * errors])


@dataclasses.dataclass(frozen=True)
class Measure:
    """Logits in float64, and how far from them those in float32 may be.

    Attributes:
      counted: which logits count, bool `[batch, length]`; None for all.
    """

    logits: Array
    allowed: float
    counted: Array | None = None

    def compare(self, what: str, logits: Array, times: float = 1.0, note: str = "") -> Comparison:
        """The row of a table for other logits, which may be `times` as far away."""
        return self.row(what, largest_difference(logits, self.logits, self.counted), times, note)

    def row(self, what: str, value: float, times: float = 1.0, note: str = "") -> Comparison:
        """The row for a difference that follows from the logits'."""
        allowed = times * self.allowed
        span = float(np.ptp(self.logits if self.counted is None else self.logits[self.counted]))
        if value <= 2 * times * span and _VAGUE * span < self.allowed < np.inf:
            note = f"not compared: rounding in float32 changes these logits by {self.allowed:.0e}, of {span:.0e}"
            return Comparison(what, None, allowed, note)
        return Comparison(what, value, allowed, note)


def measure(logits: Callable[..., Array], *ids: Array, counted: Array | None = None) -> Measure:
    """Measures a forward pass.

    Args:
      logits: gives those of ids, with a `Rounding` as its last argument.
      ids: each `[batch, length]`.
      counted: see `Measure`.
    """
    rows = len(ids[0])
    found = logits(*(np.tile(x, (1 + _COPIES, 1)) for x in ids), Rounding())
    exact = found[:rows]
    copies = (found[start : start + rows] for start in range(rows, len(found), rows))
    largest = float(np.max(np.abs(exact if counted is None else exact[counted])))
    spread = max(_TIMES * _ROUNDING * largest, *(largest_difference(copy, exact, counted) for copy in copies))
    return Measure(exact, _MARGIN * spread, counted)


def largest_difference(a: Array, b: Array, counted: Array | None = None) -> float:
    """Between two arrays, where `counted` is true; infinite if there is one that is not finite."""
    difference = np.abs(a - b)
    largest = float(np.max(difference if counted is None else difference[counted]))
    return largest if np.isfinite(largest) else float("inf")


def product(x: Array, kernel: SavedTensor) -> Array:
    """`[…, in] -> […, out]` in float64 with a kernel `[out, in]`, which is read in parts."""
    outputs = np.empty((*x.shape[:-1], kernel.shape[0]))
    step = max(1, _BLOCK_BYTES // 8 // max(1, kernel.shape[1]))
    done = 0
    for block in tensor_parts.blocks(kernel, _BLOCK_BYTES):
        for start in range(0, len(block), step):
            part = block[start : start + step].astype(np.float64)
            outputs[..., done : done + len(part)] = x @ part.T
            done += len(part)
    return outputs


def rows_of(table: SavedTensor, ids: Array) -> Array:
    """`[…] -> […, features]` in float64: the rows of a table, read one by one."""
    unique, places = np.unique(ids, return_inverse=True)
    rows = np.concatenate([table.read((slice(row, row + 1), slice(None))) for row in unique])
    return rows.astype(np.float64)[places.reshape(ids.shape)]
