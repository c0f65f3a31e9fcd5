"""Converts the layouts of a network's layers into each other while a checkpoint is read.

                 T5X's t5                                        T5X's scalable_t5
    layers       unrolled  encoder/layers_3/mlp/wo/kernel        scanned  encoder/encoder/mlp/wo/kernel, at axis 1
    attention    [embed, heads * kv]                             [embed, heads, kv]
    position     encoder/relpos_bias                             encoder/encoder/relpos_bias, one table a layer

Each row is independent of the others. The optimizer's statistics are named after their parameter and converted with it.
Adafactor's vectors differ between the layouts: for a matrix, `v_row` keeps the smaller dim; for scanned layers and
kernels of more dims, which are factored by rules, it keeps the embedding. Unused statistics have the shape `(1,)`.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from limba.checkpoint_files.saved_tensors import Index, SavedTensor, from_array

Shape = tuple[int, ...]
Shapes = Mapping[str, SavedTensor | jax.ShapeDtypeStruct]

_UNROLLED = re.compile(r"(.*?)((?:encoder|decoder))/layers_(\d+)/(.*)")
_SCANNED = re.compile(r"(.*?)((?:encoder|decoder))/\2/(.*)")
_SHARED_BIAS = re.compile(r"(.*?)((?:encoder|decoder))/(relpos_bias/.*)")
# Kernels whose output is the embedding: it is their last dim. For all other kernels it is the first.
_BACK_TO_EMBEDDING = re.compile(r".*/(out|wo)/kernel")
_DUMMY = (1,)
_VECTORS = ("v_row", "v_col")
_STATISTICS = "state/param_states/"


@dataclasses.dataclass(frozen=True)
class _LayerName:
    """The name of a tensor of a layer: `target/`, `encoder`, layer 3 (None for scanned layers), `mlp/wo/kernel`."""

    before: str
    stack: str
    layer: int | None
    rest: str

    @property
    def full(self) -> str:
        middle = self.stack if self.layer is None else f"layers_{self.layer}"
        return f"{self.before}{self.stack}/{middle}/{self.rest}"


def _layer_name(name: str) -> _LayerName | None:
    if match := _UNROLLED.fullmatch(name):
        return _LayerName(match[1], match[2], int(match[3]), match[4])
    if match := _SCANNED.fullmatch(name):
        return _LayerName(match[1], match[2], None, match[3])
    return None


def convert(
    saved: Mapping[str, SavedTensor], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> tuple[dict[str, SavedTensor], str | None]:
    """The tensors in the wanted layout, and a message if any were converted.

    Tensors that cannot be converted stay missing or of another shape; the caller reports them.
    """
    layers = _Layers(saved, _num_layers(saved, wanted))
    converted: dict[str, SavedTensor] = {}
    for name, want in wanted.items():
        if name in saved and saved[name].shape == tuple(want.shape):
            continue
        if (parsed := _layer_name(name)) is not None:
            tensor = layers.make(parsed, tuple(want.shape), wanted)
        elif match := _SHARED_BIAS.fullmatch(name):
            tensor = layers.shared_bias(match[1], match[2], match[3])
        else:
            continue
        if tensor is not None:
            converted[name] = tensor
    if not converted:
        return dict(saved), None
    others = {name: tensor for name, tensor in saved.items() if name in wanted or name not in layers.used}
    # If a size differs, the caller reports an error instead.
    fits = all(tensor.shape == tuple(wanted[name].shape) for name, tensor in converted.items())
    message = f"{len(converted)} tensors were converted from another layout of the layers" if fits else None
    return others | converted, message


def _num_layers(*layouts: Shapes) -> dict[str, int]:
    """Number of layers of each stack: from unrolled names, else the size of T5X's scan axis in the parameters."""
    scanned: dict[str, int] = {}
    unrolled: dict[str, int] = {}
    for layout in layouts:
        for name, tensor in layout.items():
            parsed = _layer_name(name)
            if parsed is not None and parsed.layer is not None:
                unrolled[parsed.stack] = max(unrolled.get(parsed.stack, 0), parsed.layer + 1)
            elif parsed is not None and parsed.before == "target/" and len(tensor.shape) > 1:
                scanned.setdefault(parsed.stack, tensor.shape[1])
    return scanned | unrolled


class _Layers:
    """Tensors of single layers in the canonical form: joined heads, the embedding in `v_row`, the rest in `v_col`."""

    def __init__(self, saved: Mapping[str, SavedTensor], counts: Mapping[str, int]):
        self.saved = saved
        self.used: set[str] = set()
        self.counts = counts

    def make(self, name: _LayerName, shape: Shape, wanted: Shapes) -> SavedTensor | None:
        """The tensor of this name in the wanted layout; None if no saved tensor contains it."""
        parameter = _parameter_shape(name.full, wanted)
        if name.layer is not None:
            tensor = self.layer(dataclasses.replace(name, rest=_slot_of(name.rest, parameter)))
            return tensor and _reshaped(tensor, shape)
        count = self.counts[name.stack]
        axis = _scan_axis(parameter or shape, count)
        parts = [self.layer(dataclasses.replace(name, layer=i)) for i in range(count)]
        found = [part for part in parts if part is not None]
        if len(found) < count:
            return None
        if shape == _DUMMY:
            return found[0]
        position = _position(name.rest, parameter, axis, len(shape))
        inner = shape[:position] + shape[position + 1 :]
        return stacked([_reshaped(part, inner) for part in found], position)

    def shared_bias(self, before: str, stack: str, rest: str) -> SavedTensor | None:
        """The table that all layers share; None if their tables differ."""
        layers = [self.layer(_LayerName(before, stack, i, rest)) for i in range(self.counts.get(stack, 0))]
        tables = [np.asarray(layer) for layer in layers if layer is not None]
        same = tables and all(np.array_equal(tables[0], table) for table in tables)
        return from_array(tables[0]) if same else None

    def layer(self, name: _LayerName) -> SavedTensor | None:
        """One layer's tensor in the canonical form; `name.rest` has the canonical slot."""
        scanned = dataclasses.replace(name, layer=None)
        parameter = _parameter_shape(name.full, self.saved)
        source = dataclasses.replace(name, rest=_slot_of(name.rest, parameter))
        if source.full in self.saved:
            self.used.add(source.full)
            return _joined(self.saved[source.full], name.rest)
        if scanned.full in self.saved:
            self.used.add(scanned.full)
            tensor = self.saved[scanned.full]
            if tensor.shape == _DUMMY:
                return tensor
            parameter = _parameter_shape(scanned.full, self.saved)
            count = self.counts[name.stack]
            axis = _scan_axis(parameter or tensor.shape, count)
            position = _position(scanned.rest, parameter, axis, tensor.ndim)
            assert name.layer is not None
            return _joined(sliced(tensor, position, name.layer), name.rest)
        shared = f"{name.before}{name.stack}/{name.rest}"
        if name.rest.startswith("relpos_bias/") and shared in self.saved:
            self.used.add(shared)
            return self.saved[shared]
        return None


def shapes_for(saved: Mapping[str, SavedTensor], network: str) -> dict[str, jax.ShapeDtypeStruct]:
    """The names and shapes that a network has for the saved tensors: "t5" or "scalable_t5" of T5X, or "unrolled".

    "unrolled" is t5 that keeps each layer's own table of relative positions.

    Raises:
      ValueError: for another network, or for one of T5X's if there is no relative position bias.
    """
    if network not in ("t5", "scalable_t5", "unrolled"):
        raise ValueError(f"The network is {network!r}; use 't5', 'scalable_t5' or 'unrolled'.")
    layers = _Layers(saved, _num_layers(saved))
    biases = [t.shape for name, t in saved.items() if name.endswith("relpos_bias/rel_embedding")]
    if not biases and network != "unrolled":
        raise ValueError("There is no relpos_bias/rel_embedding, which gives the number of heads.")
    result = {}
    for name, tensor in saved.items():
        parsed = _layer_name(name)
        if parsed is None and network != "unrolled" and (match := _SHARED_BIAS.fullmatch(name)):
            parsed = _LayerName(match[1], match[2], None, match[3])
        if parsed is None:
            result[name] = jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
            continue
        count = layers.counts[parsed.stack]
        number = parsed.layer or 0
        first = layers.layer(dataclasses.replace(parsed, layer=number))
        assert first is not None
        owner, _, slot = parsed.rest.rpartition("/")
        parameter = None
        if slot in _VECTORS and first.shape != _DUMMY:
            of = layers.layer(_LayerName("target/", parsed.stack, number, owner))
            parameter = None if of is None else of.shape
        if network == "scalable_t5":
            shape = _stacked_shape(parsed.rest, first.shape, parameter, biases[0][0], count)
            result[dataclasses.replace(parsed, layer=None).full] = jax.ShapeDtypeStruct(shape, tensor.dtype)
        elif parsed.rest.startswith("relpos_bias/") and network == "t5":
            result[f"{parsed.before}{parsed.stack}/{parsed.rest}"] = jax.ShapeDtypeStruct(first.shape, tensor.dtype)
        else:
            rest = _slot_of(parsed.rest, parameter)
            # Unrolled layers need not have the same tensors.
            for i in range(count) if parsed.layer is None else (number,):
                layer = dataclasses.replace(parsed, layer=i, rest=rest).full
                result[layer] = jax.ShapeDtypeStruct(first.shape, tensor.dtype)
    return result


def _stacked_shape(rest: str, layer: Shape, parameter: Shape | None, num_heads: int, count: int) -> Shape:
    """Shape in scalable_t5 of a tensor with this canonical shape in each layer."""
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
    """Shape of the parameter of one of Adafactor's vectors; None for any other tensor."""
    owner, _, slot = name.rpartition("/")
    if slot not in _VECTORS:
        return None
    parameter = tensors.get(owner.replace(_STATISTICS, "target/", 1))
    return None if parameter is None else tuple(parameter.shape)


def _slot_of(rest: str, parameter: Shape | None) -> str:
    """Converts between canonical slots, by embedding, and slots of an unrolled matrix, by size, in both directions."""
    owner, _, slot = rest.rpartition("/")
    if parameter is None or len(parameter) != 2:
        return rest
    smaller = 0 if parameter[0] <= parameter[1] else 1
    if smaller == _embedding_dim(owner, 2):
        return rest
    return f"{owner}/{_VECTORS[1 - _VECTORS.index(slot)]}"


def _embedding_dim(parameter: str, ndim: int) -> int:
    return ndim - 1 if _BACK_TO_EMBEDDING.fullmatch(f"/{parameter}") else 0


def _scan_axis(shape: Shape, count: int) -> int:
    """The axis of the layers in a scanned parameter: 1 in T5X, unless it has another size."""
    return 1 if len(shape) > 1 and shape[1] == count else 0


def _position(rest: str, parameter: Shape | None, axis: int, ndim: int) -> int:
    """The axis of the layers in a scanned tensor of `ndim` dims; a vector lacks some dims of its parameter."""
    if parameter is None:
        return min(axis, ndim - 1)
    owner, _, slot = rest.rpartition("/")
    num_dims = len(parameter) - 1
    embedding = _embedding_dim(owner, num_dims)
    kept = [dim for dim in range(num_dims) if (dim == embedding) == (slot == "v_row")]
    return sum(dim < axis for dim in kept)


# ------------------------------------------------------ tensors ------------------------------------------------------


def _joined(tensor: SavedTensor, rest: str) -> SavedTensor:
    """Joins heads and kv into one dim."""
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
    """The tensor in a shape; it is then read whole. One of another size stays as it is: the caller checks shapes."""
    if tensor.shape == shape or math.prod(tensor.shape) != math.prod(shape):
        return tensor
    return SavedTensor(shape, tensor.dtype, lambda index: np.asarray(tensor).reshape(shape)[index])


def sliced(tensor: SavedTensor, axis: int, number: int) -> SavedTensor:
    """One of the tensors that lie in a tensor along an axis."""

    def read(index: Index) -> np.ndarray:
        whole = (*index[:axis], slice(number, number + 1), *index[axis:])
        return np.squeeze(tensor.read(whole), axis=axis)

    return SavedTensor(tensor.shape[:axis] + tensor.shape[axis + 1 :], tensor.dtype, read)


def stacked(parts: Sequence[SavedTensor], axis: int) -> SavedTensor:
    """Tensors of one shape as one, along a new axis."""

    def read(index: Index) -> np.ndarray:
        inner = index[:axis] + index[axis + 1 :]
        return np.stack([part.read(inner) for part in parts[index[axis]]], axis=axis)

    shape = parts[0].shape
    return SavedTensor((*shape[:axis], len(parts), *shape[axis:]), parts[0].dtype, read)
