"""The tensors of a class of Hugging Face, made from Limba's and read as Limba's: one table for both ways.

Each is a selection of rows of Limba's tensors, kernels transposed: whole (most), joined (ModernBERT's query, key and
value), in another order (pairs of rotary positions, ids), or with rows before them (RoBERTa's positions). Limba's names
are those of unrolled layers with joined kernels, `encoder/layers_0/attention/query/kernel`; other layouts of the layers
become these while they are read.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from limba.checkpoint_files import layer_layouts
from limba.checkpoint_files.saved_tensors import SavedTensor, from_array
from limba.convert.tensors.tensor_parts import chosen, transposed
from limba.files import number_ranges
from limba.files.untrusted_files import cut, some

Shape = tuple[int, ...]

# By the last part of Limba's name, in PyTorch: the last part of the name, and whether the tensor is transposed.
_LEAVES = {
    "kernel": ("weight", True),
    "scale": ("weight", False),
    "embedding": ("weight", False),
    "rel_embedding": ("weight", True),
    "bias": ("bias", False),
}
# Flax's last parts of names. Kernels alone are transposed against PyTorch.
_FLAX_LEAVES = {
    "kernel": "kernel",
    "scale": "weight",
    "embedding": "embedding",
    "rel_embedding": "embedding",
    "bias": "bias",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A module of Limba's and the one of Hugging Face that holds its parameters; `{i}` is the number of the layer.

    Several of Limba's with one of Hugging Face's lie in it one after the other, in the order of the rows. With
    `{e}` in the second, Limba's tensors are stacks, and Hugging Face has a module for each member.
    """

    limba: str
    theirs: str


@dataclasses.dataclass(frozen=True)
class Part:
    """One of Limba's tensors in one of Hugging Face's.

    Attributes:
      limba: its name.
      shape: of Limba's.
      is_transposed: whether its rows are Limba's columns.
      rows: which of its rows, once it is transposed, each row of the part is; -1 is a row of zeros. None is all.
      member: which one of a stack it is; None is the whole tensor.
    """

    limba: str
    shape: Shape
    is_transposed: bool
    rows: np.ndarray | None = None
    member: int | None = None

    @property
    def stored_shape(self) -> Shape:
        shape = self.shape if self.member is None else self.shape[1:]
        whole = shape[::-1] if self.is_transposed else shape
        return whole if self.rows is None else (len(self.rows), *whole[1:])

    def stored(self, tensor: SavedTensor) -> SavedTensor:
        """The part, of Limba's tensor."""
        tensor = tensor if self.member is None else layer_layouts.sliced(tensor, 0, self.member)
        whole = transposed(tensor) if self.is_transposed else tensor
        return whole if self.rows is None else chosen(whole, self.rows)

    def limbas(self, part: SavedTensor) -> SavedTensor:
        """Limba's tensor, or this member of it, of the part."""
        if self.rows is not None:
            kept = np.flatnonzero(self.rows >= 0)
            part = chosen(part, kept[np.argsort(self.rows[kept])])
        return transposed(part) if self.is_transposed else part


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of Hugging Face's.

    Attributes:
      name: in PyTorch, or in Flax; see `as_flax`.
      parts: one after the other; none for one that Limba's network has no parameter for.
      constant: the value of such a one.
    """

    name: str
    shape: Shape
    parts: tuple[Part, ...] = ()
    constant: np.ndarray | None = None

    def stored(self, tensors: Mapping[str, SavedTensor]) -> SavedTensor:
        """It, of a network's tensors by Limba's names."""
        if self.constant is not None:
            return from_array(self.constant)
        parts = [part.stored(tensors[part.limba]) for part in self.parts]
        if len(parts) == 1:
            return parts[0]
        return _read_whole(self.shape, parts[0].dtype, lambda: np.concatenate([np.asarray(part) for part in parts]))

    def limbas(self, stored: SavedTensor) -> dict[str, SavedTensor]:
        """Limba's tensors that are in it, by name; of stacks, members. See `limbas`."""
        if len(self.parts) == 1:
            return {self.parts[0].limba: self.parts[0].limbas(stored)}
        found, start = {}, 0
        for part in self.parts:
            rows = slice(start, start + part.stored_shape[0])
            start = rows.stop
            found[part.limba] = part.limbas(rows_of(stored, rows))
        return found

    def as_flax(self) -> "Tensor":
        """The same in a Flax class of Hugging Face: `shared/embedding` for `shared.weight`.

        No part may be joined or chosen: the families with Flax classes, T5s, have none.
        """
        (part,) = self.parts
        leaf = part.limba.rpartition("/")[2]
        name = f"{self.name.rpartition('.')[0].replace('.', '/')}/{_FLAX_LEAVES[leaf]}"
        if leaf != "kernel":
            return dataclasses.replace(self, name=name)
        return Tensor(name, self.shape[::-1], (dataclasses.replace(part, is_transposed=False),))


def limbas(tensors: Iterable[Tensor], stored: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
    """Limba's tensors, by name, of those of a class."""
    found: dict[str, dict[int | None, SavedTensor]] = {}
    for row in tensors:
        members = {part.limba: part.member for part in row.parts}
        for name, tensor in row.limbas(stored[row.name]).items():
            found.setdefault(name, {})[members[name]] = tensor
    return {
        name: of[None] if None in of else layer_layouts.stacked([of[i] for i in range(len(of))], 0)
        for name, of in found.items()
    }


def rows_of(tensor: SavedTensor, rows: slice) -> SavedTensor:
    """Some rows of a tensor."""

    def whole() -> np.ndarray:
        return tensor.read((rows, *(slice(None),) * (tensor.ndim - 1)))

    return _read_whole((rows.stop - rows.start, *tensor.shape[1:]), tensor.dtype, whole)


def _read_whole(shape: Shape, dtype: np.dtype, whole: Callable[[], np.ndarray]) -> SavedTensor:
    """A tensor of which no part can be read alone."""
    return SavedTensor(shape, dtype, lambda index: whole()[index])


def table(
    shapes: Mapping[str, Shape],
    rows: Sequence[Row],
    *,
    chosen_rows: Callable[[str, Shape], np.ndarray | None] = lambda name, shape: None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> list[Tensor]:
    """Every tensor of a class that holds a network.

    Args:
      shapes: of the network's parameters, by Limba's names.
      rows: of modules; the first that names a module of Limba's counts, others may name modules that are not there.
      chosen_rows: gives `Part.rows`.
      constants: tensors of the class that the network has no parameter for.
    """
    parts: dict[str, list[tuple[int, Part]]] = {}
    for name, shape in shapes.items():
        place, theirs, is_transposed = _theirs(name, rows)
        for member in range(shape[0]) if "{e}" in theirs else (None,):
            part = Part(name, shape, is_transposed, chosen_rows(name, shape), member)
            parts.setdefault(theirs.replace("{e}", str(member)), []).append((place, part))
    found = []
    for name, placed in parts.items():
        of_tensor = tuple(part for _, part in sorted(placed, key=lambda pair: pair[0]))
        num_rows = sum(part.stored_shape[0] for part in of_tensor)
        found.append(Tensor(name, (num_rows, *of_tensor[0].stored_shape[1:]), of_tensor))
    found += [Tensor(name, x.shape, constant=x) for name, x in (constants or {}).items()]
    return sorted(found, key=lambda tensor: _in_order(tensor.name))


def num_members(shapes: Mapping[str, Shape], rows: Sequence[Row]) -> int:
    """How many tensors of a class are members of stacks, as experts are; arguments as `table`."""
    stacks = {row.limba for row in rows if "{e}" in row.theirs}
    return sum(shape[0] for name, shape in shapes.items() if _module(name) in stacks)


def _module(name: str) -> str:
    """The module of a tensor of Limba's, as rows have it."""
    return re.sub(r"/layers_\d+/", "/layers_{i}/", name.rpartition("/")[0])


def _theirs(name: str, rows: Sequence[Row]) -> tuple[int, str, bool]:
    """The row that names a tensor of Limba's, Hugging Face's name of it, and whether it is transposed there."""
    place, theirs = _by_module(tuple(rows)).get(_module(name), (-1, ""))
    assert theirs, f"no row has a place for {name}, which the family's `problems` should say"
    layer = re.search(r"/layers_(\d+)/", name)
    ending, is_transposed = _LEAVES[name.rpartition("/")[2]]
    return place, f"{theirs.replace('{i}', layer[1]) if layer else theirs}.{ending}", is_transposed


@functools.lru_cache(maxsize=32)
def _by_module(rows: tuple[Row, ...]) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for place, row in enumerate(rows):
        found.setdefault(row.limba, (place, row.theirs))
    return found


def _in_order(name: str) -> list[tuple[int, str]]:
    """Layer 2 before layer 10."""
    parts = ((number_ranges.of_digits(part), part) for part in name.split("."))
    return [(-1, part) if number is None else (number, "") for number, part in parts]


def exchanged(size: int, a: int, b: int) -> np.ndarray:
    """The numbers below `size`, with `a` and `b` in each other's place."""
    ids = np.arange(size)
    ids[[a, b]] = b, a
    return ids


class MisfitError(ValueError):
    """Tensors are not those of a network."""


def verify(what: str, found: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> None:
    """Checks that `what` has exactly the wanted tensors.

    Raises:
      MisfitError: naming the tensors that are missing, extra or of another shape.
    """
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{cut(name)} has no place in the network" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {found[name]} instead of {shape}"
        for name, shape in wanted.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    if problems:
        raise MisfitError(f"{what} does not fit its network configuration: {some(problems, 8)}.")
