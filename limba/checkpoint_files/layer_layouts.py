"""The layouts of one network's layers, converted into each other while a checkpoint is read.

                 T5X's t5                                        T5X's scalable_t5
    layers       unrolled  encoder/layers_3/mlp/wo/kernel        scanned  encoder/encoder/mlp/wo/kernel, at axis 1
    attention    [embed, heads * kv]                             [embed, heads, kv]
    position     encoder/relpos_bias                             encoder/encoder/relpos_bias, one table a layer

Each of the three may be one or the other. The optimizer's statistics are named after their parameter and follow it.
Those of Adafactor need care: for a matrix, `v_row` keeps the smaller dim; for what is factored by rules, which are
stacks and kernels of more dims, it keeps the embedding. What a parameter does not use is a dummy of shape `(1,)`
everywhere.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from limba.saved_tensors import Index, SavedTensor, from_array

Shape = tuple[int, ...]
Shapes = Mapping[str, SavedTensor | jax.ShapeDtypeStruct]

_UNROLLED = re.compile(r"(.*?)((?:encoder|decoder))/layers_(\d+)/(.*)")
_SCANNED = re.compile(r"(.*?)((?:encoder|decoder))/\2/(.*)")
_SHARED_BIAS = re.compile(r"(.*?)((?:encoder|decoder))/(relpos_bias/.*)")
# Kernels that lead back to the embedding; it is their last dim, and the first of all others.
_BACK_TO_EMBEDDING = re.compile(r".*/(out|wo)/kernel")
_DUMMY = (1,)
_VECTORS = ("v_row", "v_col")
_STATISTICS = "state/param_states/"


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a tensor of a layer is: `encoder`, layer 3 (None is all of them, scanned), `mlp/wo/kernel`."""

    before: str
    room: str
    layer: int | None
    rest: str

    @property
    def name(self) -> str:
        middle = self.room if self.layer is None else f"layers_{self.layer}"
        return f"{self.before}{self.room}/{middle}/{self.rest}"


def _place(name: str) -> _Place | None:
    if match := _UNROLLED.fullmatch(name):
        return _Place(match[1], match[2], int(match[3]), match[4])
    if match := _SCANNED.fullmatch(name):
        return _Place(match[1], match[2], None, match[3])
    return None


def convert(
    saved: Mapping[str, SavedTensor], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> tuple[dict[str, SavedTensor], str | None]:
    """The tensors in the layout that is wanted, and what was done in words; unchanged where that is the layout.

    What cannot be made of the saved tensors is left for the caller to find missing or of another shape.
    """
    layers = _Layers(saved, _num_layers(saved, wanted))
    made: dict[str, SavedTensor] = {}
    for name, want in wanted.items():
        if name in saved and saved[name].shape == tuple(want.shape):
            continue
        if (place := _place(name)) is not None:
            tensor = layers.make(place, tuple(want.shape), wanted)
        elif match := _SHARED_BIAS.fullmatch(name):
            tensor = layers.shared_bias(match[1], match[2], match[3])
        else:
            continue
        if tensor is not None:
            made[name] = tensor
    if not made:
        return dict(saved), None
    left = {name: tensor for name, tensor in saved.items() if name in wanted or name not in layers.used}
    # Tensors of another size are no success: the caller says what does not fit.
    fits = all(tensor.shape == tuple(wanted[name].shape) for name, tensor in made.items())
    return left | made, f"{len(made)} tensors were converted from another layout of the layers" if fits else None


def _num_layers(*layouts: Shapes) -> dict[str, int]:
    """Layers of each stack: as unrolled names tell, else the size of T5X's scan axis in the parameters."""
    scanned: dict[str, int] = {}
    unrolled: dict[str, int] = {}
    for layout in layouts:
        for name, tensor in layout.items():
            place = _place(name)
            if place is not None and place.layer is not None:
                unrolled[place.room] = max(unrolled.get(place.room, 0), place.layer + 1)
            elif place is not None and place.before == "target/" and len(tensor.shape) > 1:
                scanned.setdefault(place.room, tensor.shape[1])
    return scanned | unrolled


class _Layers:
    """Tensors of single layers, with joined heads; vectors as `v_row` with the embedding and `v_col` with the rest."""

    def __init__(self, saved: Mapping[str, SavedTensor], counts: Mapping[str, int]):
        self.saved = saved
        self.used: set[str] = set()
        self.counts = counts

    def make(self, place: _Place, shape: Shape, wanted: Shapes) -> SavedTensor | None:
        """The tensor for a place of the wanted layout; None where nothing is saved for it."""
        parameter = _parameter_shape(place.name, wanted)
        if place.layer is not None:
            tensor = self.layer(dataclasses.replace(place, rest=_slot_of(place.rest, parameter)))
            return tensor and _reshaped(tensor, shape)
        count = self.counts[place.room]
        axis = _scan_axis(parameter or shape, count)
        parts = [self.layer(dataclasses.replace(place, layer=i)) for i in range(count)]
        if any(part is None for part in parts):
            return None
        found = [part for part in parts if part is not None]
        if shape == _DUMMY:
            return found[0]
        position = _position(place.rest, parameter, axis, len(shape))
        inner = shape[:position] + shape[position + 1 :]
        return _stacked([_reshaped(part, inner) for part in found], position)

    def shared_bias(self, before: str, room: str, rest: str) -> SavedTensor | None:
        """The one table that all layers have, if they do have the same."""
        layers = [self.layer(_Place(before, room, i, rest)) for i in range(self.counts.get(room, 0))]
        tables = [np.asarray(layer) for layer in layers if layer is not None]
        if not tables or not all(np.array_equal(tables[0], table) for table in tables):
            return None
        return from_array(tables[0])

    def layer(self, place: _Place) -> SavedTensor | None:
        """One layer's tensor in the canonical form; `place.rest` says the canonical slot."""
        stack = dataclasses.replace(place, layer=None)
        parameter = _parameter_shape(place.name, self.saved)
        source = dataclasses.replace(place, rest=_slot_of(place.rest, parameter))
        if source.name in self.saved:
            self.used.add(source.name)
            return _joined(self.saved[source.name], place.rest)
        if stack.name in self.saved:
            self.used.add(stack.name)
            tensor = self.saved[stack.name]
            if tensor.shape == _DUMMY:
                return tensor
            parameter = _parameter_shape(stack.name, self.saved)
            count = self.counts[place.room]
            axis = _scan_axis(parameter or tensor.shape, count)
            position = _position(stack.rest, parameter, axis, tensor.ndim)
            assert place.layer is not None
            return _joined(_sliced(tensor, position, place.layer), place.rest)
        shared = f"{place.before}{place.room}/{place.rest}"
        if place.rest.startswith("relpos_bias/") and shared in self.saved:
            self.used.add(shared)
            return self.saved[shared]
        return None


def shapes_for(saved: Mapping[str, SavedTensor], network: str) -> dict[str, jax.ShapeDtypeStruct]:
    """The names and shapes that a network has for the saved tensors.

    Args:
      saved: the tensors.
      network: "t5" or "scalable_t5" of T5X; "unrolled" is t5, but for tables of relative positions that layers have.

    Raises:
      ValueError: for another network, or if a relative position bias is needed and missing.
    """
    if network not in ("t5", "scalable_t5", "unrolled"):
        raise ValueError(f"The network is {network!r}; use 't5', 'scalable_t5' or 'unrolled'.")
    layers = _Layers(saved, _num_layers(saved))
    biases = [t.shape for name, t in saved.items() if name.endswith("relpos_bias/rel_embedding")]
    if not biases:
        raise ValueError("There is no relpos_bias/rel_embedding, which tells the number of heads.")
    result = {}
    for name, tensor in saved.items():
        place = _place(name)
        if place is None and (match := _SHARED_BIAS.fullmatch(name)):
            place = _Place(match[1], match[2], None, match[3])
            if network == "unrolled":
                result[name] = jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
                continue
        if place is None:
            result[name] = jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
            continue
        count = layers.counts[place.room]
        first = layers.layer(dataclasses.replace(place, layer=0))
        assert first is not None
        owner, _, slot = place.rest.rpartition("/")
        parameter = None
        if slot in _VECTORS and first.shape != _DUMMY:
            of = layers.layer(_Place("target/", place.room, 0, owner))
            parameter = None if of is None else of.shape
        if network == "scalable_t5":
            shape = _stacked_shape(place.rest, first.shape, parameter, biases[0][0], count)
            result[dataclasses.replace(place, layer=None).name] = jax.ShapeDtypeStruct(shape, tensor.dtype)
        elif place.rest.startswith("relpos_bias/") and network == "t5":
            result[f"{place.before}{place.room}/{place.rest}"] = jax.ShapeDtypeStruct(first.shape, tensor.dtype)
        else:
            rest = _slot_of(place.rest, parameter)
            for i in range(count):
                layer = dataclasses.replace(place, layer=i, rest=rest).name
                result[layer] = jax.ShapeDtypeStruct(first.shape, tensor.dtype)
    return result


def _stacked_shape(rest: str, layer: Shape, parameter: Shape | None, num_heads: int, count: int) -> Shape:
    """Shape in scalable_t5 of what has this canonical shape in a layer."""
    if layer == _DUMMY:
        return layer
    split = lambda size: (num_heads, size // num_heads)  # noqa: E731
    kernel = re.search(r"(query|key|value|out)/kernel(?:/(\w+))?$", rest)
    if kernel is not None:
        if kernel[2] == "v_col":
            layer = split(layer[0])
        elif kernel[2] != "v_row":
            layer = (*split(layer[0]), layer[1]) if kernel[1] == "out" else (layer[0], *split(layer[1]))
        if parameter is not None:
            parameter = (*parameter[:1], 1, *parameter[1:])
    stacked = None if parameter is None else (*parameter[:1], count, *parameter[1:])
    position = _position(rest, stacked, 1, len(layer) + 1)
    return (*layer[:position], count, *layer[position:])


# ------------------------------------------------------- names -------------------------------------------------------


def _parameter_shape(name: str, tensors: Shapes) -> Shape | None:
    """Shape of the parameter that a vector of Adafactor's belongs to; None for anything else."""
    owner, _, slot = name.rpartition("/")
    if slot not in _VECTORS:
        return None
    parameter = tensors.get(owner.replace(_STATISTICS, "target/", 1))
    return None if parameter is None else tuple(parameter.shape)


def _slot_of(rest: str, parameter: Shape | None) -> str:
    """Between the canonical slots, by embedding, and those of an unrolled matrix, by size. The same both ways."""
    owner, _, slot = rest.rpartition("/")
    if parameter is None or len(parameter) != 2:
        return rest
    smaller = 0 if parameter[0] <= parameter[1] else 1
    if smaller == _embedding_dim(owner, 2):
        return rest
    return f"{owner}/{_VECTORS[1 - _VECTORS.index(slot)]}"


def _embedding_dim(parameter: str, ndim: int) -> int:
    return ndim - 1 if _BACK_TO_EMBEDDING.fullmatch(f"/{parameter}") else 0


def _scan_axis(stack: Shape, count: int) -> int:
    """Where the layers are in a stacked parameter: at axis 1 in T5X, unless that has another size."""
    return 1 if len(stack) > 1 and stack[1] == count else 0


def _position(rest: str, parameter: Shape | None, axis: int, ndim: int) -> int:
    """Where the layers are in a stacked tensor of `ndim` dims, which for a vector lacks dims of its parameter."""
    if parameter is None:
        return min(axis, ndim - 1)
    owner, _, slot = rest.rpartition("/")
    num_dims = len(parameter) - 1
    embedding = _embedding_dim(owner, num_dims)
    kept = [dim for dim in range(num_dims) if (dim == embedding) == (slot == "v_row")]
    return sum(dim < axis for dim in kept)


# ------------------------------------------------------ tensors ------------------------------------------------------


def _joined(tensor: SavedTensor, rest: str) -> SavedTensor:
    """Heads and their dims as one."""
    kernel = re.search(r"(query|key|value|out)/kernel(?:/(\w+))?$", rest)
    if kernel is None or tensor.shape == _DUMMY:
        return tensor
    if kernel[2] in _VECTORS:
        return _reshaped(tensor, (math.prod(tensor.shape),))
    if tensor.ndim != 3:
        return tensor
    a, b, c = tensor.shape
    return _reshaped(tensor, (a * b, c) if kernel[1] == "out" else (a, b * c))


def _reshaped(tensor: SavedTensor, shape: Shape) -> SavedTensor:
    """Read whole, unless it has the shape already. Of another size, it stays as it is, for the check of the shapes."""
    if tensor.shape == shape or math.prod(tensor.shape) != math.prod(shape):
        return tensor
    return SavedTensor(shape, tensor.dtype, lambda index: np.asarray(tensor).reshape(shape)[index])


def _sliced(tensor: SavedTensor, axis: int, number: int) -> SavedTensor:
    def read(index: Index) -> np.ndarray:
        whole = (*index[:axis], slice(number, number + 1), *index[axis:])
        return np.squeeze(tensor.read(whole), axis=axis)

    return SavedTensor(tensor.shape[:axis] + tensor.shape[axis + 1 :], tensor.dtype, read)


def _stacked(parts: Sequence[SavedTensor], axis: int) -> SavedTensor:
    def read(index: Index) -> np.ndarray:
        inner = index[:axis] + index[axis + 1 :]
        return np.stack([part.read(inner) for part in parts[index[axis]]], axis=axis)

    shape = parts[0].shape
    return SavedTensor((*shape[:axis], len(parts), *shape[axis:]), parts[0].dtype, read)
