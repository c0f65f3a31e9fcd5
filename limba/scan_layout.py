"""Scanned and unrolled layers of one network, converted into each other while a checkpoint is read.

    unrolled   encoder/layers_3/mlp/wo/kernel      [mlp, embed]
    scanned    encoder/encoder/mlp/wo/kernel       [mlp, layers, embed], the layers at `param_scan_axis`

The optimizer's statistics are named after their parameter and follow it. Those of Adafactor need care: unrolled, its
`v_row` has the smaller dim of a matrix; scanned, that of the embedding. And what a parameter does not use is a dummy of
shape `(1,)` in both.
"""

import re
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from limba.saved_tensors import Index, SavedTensor

Shape = tuple[int, ...]

_UNROLLED = re.compile(r"(.*?)(?:^|(?<=/))(\w+)/layers_(\d+)/(.*)")
_SCANNED = re.compile(r"(.*?)(?:^|(?<=/))(encoder|decoder)/\2/(.*)")
_DUMMY = (1,)
_OTHER_SLOT = {"v_row": "v_col", "v_col": "v_row"}
_LAYERS = -1


def convert(
    saved: Mapping[str, SavedTensor], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> tuple[dict[str, SavedTensor], str | None]:
    """The tensors in the layout of the wanted names, and what was done in words; unchanged where that is the layout.

    Raises:
      ValueError: if a stack of layers has another number of layers than wanted.
    """
    layers = _layer_names(saved)
    stacked = {name: stack for name, stack in layers.items() if name in wanted and name not in saved}
    if stacked:
        result = {name: tensor for name, tensor in saved.items() if not _is_layer_of(name, stacked)}
        for name, stack in stacked.items():
            result[name] = _stack(name, stack, saved, wanted)
        return result, f"layers are scanned: {len(stacked)} stacks were made of unrolled layers"
    wanted_layers = {name: stack for name, stack in _layer_names(wanted).items() if name in saved}
    if wanted_layers:
        result = {name: tensor for name, tensor in saved.items() if name not in wanted_layers}
        for name, stack in wanted_layers.items():
            for i, layer in enumerate(stack):
                result[layer] = _layer(name, i, len(stack), layer, saved, wanted)
        return result, f"layers are unrolled: {len(wanted_layers)} scanned stacks were split"
    return dict(saved), None


def _layer_names(names: Mapping[str, object]) -> dict[str, list[str]]:
    """Names of scanned stacks with the names of their layers, in order."""
    stacks: dict[str, dict[int, str]] = {}
    for name in names:
        if match := _UNROLLED.fullmatch(name):
            before, stack, number, rest = match.groups()
            stacks.setdefault(f"{before}{stack}/{stack}/{rest}", {})[int(number)] = name
    return {name: [layers[i] for i in sorted(layers)] for name, layers in stacks.items()}


def _is_layer_of(name: str, stacks: Mapping[str, Sequence[str]]) -> bool:
    match = _UNROLLED.fullmatch(name)
    return match is not None and f"{match[1]}{match[2]}/{match[2]}/{match[4]}" in stacks


# ------------------------------------------------ unrolled -> scanned ------------------------------------------------


def _stack(
    name: str,
    layers: Sequence[str],
    saved: Mapping[str, SavedTensor],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
) -> SavedTensor:
    shape = tuple(wanted[name].shape)
    matrix, parameter = _parameter_shape(layers[0], saved), _parameter_shape(name, wanted)
    if _changes_slot(name, shape, matrix, parameter, len(layers)):
        layers = [_in_other_slot(layer) for layer in layers]
    parts = [saved[layer] for layer in layers]
    if shape == _DUMMY and parts[0].shape == _DUMMY:
        return parts[0]
    axis = _stacking_axis(name, parts[0].shape, shape, len(layers))

    def read(index: Index) -> np.ndarray:
        inner = index[:axis] + index[axis + 1 :]
        return np.stack([part.read(inner) for part in parts[index[axis]]], axis=axis)

    return SavedTensor(shape, parts[0].dtype, read)


# ------------------------------------------------ scanned -> unrolled ------------------------------------------------


def _layer(
    name: str,
    number: int,
    count: int,
    layer: str,
    saved: Mapping[str, SavedTensor],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
) -> SavedTensor:
    source, shape = name, tuple(wanted[layer].shape)
    matrix, parameter = _parameter_shape(layer, wanted), _parameter_shape(name, saved)
    if _changes_slot(name, saved[name].shape, matrix, parameter, count):
        source = _in_other_slot(name)
    stacked = saved[source]
    if shape == _DUMMY and stacked.shape == _DUMMY:
        return stacked
    axis = _stacking_axis(name, shape, stacked.shape, count)

    def read(index: Index) -> np.ndarray:
        whole = (*index[:axis], slice(number, number + 1), *index[axis:])
        return np.squeeze(stacked.read(whole), axis=axis)

    return SavedTensor(shape, stacked.dtype, read)


# ------------------------------------------------------ shapes -------------------------------------------------------


def _stacking_axis(name: str, layer: Shape, stack: Shape, count: int) -> int:
    """Where the layers are. T5X scans at axis 1, so that is tried first."""
    for axis in (1, 0, *range(2, len(stack))):
        if axis < len(stack) and stack == (*layer[:axis], count, *layer[axis:]):
            return axis
    raise ValueError(
        f"{name}: {count} unrolled layers of shape {layer} are not a scanned stack of shape {stack}. Configure the "
        "number of layers and the sizes of the checkpoint."
    )


def _slot(name: str) -> str:
    return name.rpartition("/")[2]


def _in_other_slot(name: str) -> str:
    before, _, slot = name.rpartition("/")
    return f"{before}/{_OTHER_SLOT[slot]}"


def _parameter_shape(statistic: str, tensors: Mapping[str, SavedTensor | jax.ShapeDtypeStruct]) -> Shape | None:
    """Shape of the parameter that Adafactor's statistic belongs to."""
    name = statistic.rpartition("/")[0].replace("state/param_states/", "target/", 1)
    return tuple(tensors[name].shape) if name in tensors else None


def _changes_slot(name: str, statistic: Shape, matrix: Shape | None, stack: Shape | None, count: int) -> bool:
    """Whether what scanned is `v_row` is unrolled `v_col`, for one of Adafactor's statistics of a stack of matrices."""
    slot = _slot(name)
    if slot not in _OTHER_SLOT or statistic == _DUMMY or matrix is None or stack is None or len(matrix) != 2:
        return False
    return _kept_dim_unrolled(slot, matrix) != _kept_dim_scanned(name, statistic, stack, count)


def _kept_dim_unrolled(slot: str, matrix: Shape) -> int:
    """The dim that `v_row` keeps is the smaller, that of `v_col` the larger; of equal ones the first and the second."""
    smaller = 0 if matrix[0] <= matrix[1] else 1
    return smaller if slot == "v_row" else 1 - smaller


def _kept_dim_scanned(name: str, statistic: Shape, stack: Shape, count: int) -> int:
    """The dim of a layer's matrix that a stacked vector keeps, told by its shape."""
    axis = next((axis for axis in (1, 0, 2) if stack[axis] == count), 1)
    matrix = stack[:axis] + stack[axis + 1 :]
    # Dim 0 and 1 of the matrix with the layers among them; the vector lacks one, and its shape tells which.
    dims = [0, 1]
    dims.insert(axis, _LAYERS)
    size = {0: matrix[0], 1: matrix[1], _LAYERS: count}
    options = [kept for kept in (0, 1) if statistic == tuple(size[dim] for dim in dims if dim in (kept, _LAYERS))]
    if len(options) == 1:
        return options[0]
    return _kept_dim_by_name(name)


def _kept_dim_by_name(name: str) -> int:
    """Scanned, `v_row` keeps the embedding, which is the last dim of a kernel that leads back to it."""
    embedding = 1 if re.search(r"/(out|wo)/kernel/\w+$", name) else 0
    return embedding if _slot(name) == "v_row" else 1 - embedding


# ---------------------------------------------- a layout without a model --------------------------------------------


def scanned_shapes(saved: Mapping[str, SavedTensor], scan_axis: int = 1) -> dict[str, jax.ShapeDtypeStruct]:
    """The names and shapes that T5X's scanned network has for unrolled tensors; the rest stays as it is."""
    stacks = _layer_names(saved)
    shapes = {name: tensor for name, tensor in saved.items() if not _is_layer_of(name, stacks)}
    result = {name: jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for name, tensor in shapes.items()}
    for name, layers in stacks.items():
        layer = saved[layers[0]]
        matrix = _parameter_shape(layers[0], saved)
        if layer.shape == _DUMMY and matrix is not None:
            shape = _DUMMY
        elif _slot(name) in _OTHER_SLOT and matrix is not None and len(matrix) == 2:
            kept = _kept_dim_by_name(name)
            shape = _insert((matrix[kept],), scan_axis if kept == 0 else max(0, scan_axis - 1), len(layers))
        else:
            shape = _insert(layer.shape, scan_axis, len(layers))
        result[name] = jax.ShapeDtypeStruct(shape, layer.dtype)
    return result


def unrolled_shapes(saved: Mapping[str, SavedTensor], scan_axis: int = 1) -> dict[str, jax.ShapeDtypeStruct]:
    """The names and shapes that the unrolled network has for scanned tensors; the rest stays as it is."""
    result = {}
    for name, tensor in saved.items():
        match = _SCANNED.fullmatch(name)
        parameter = _parameter_shape(name, saved) or tensor.shape
        if match is None:
            result[name] = jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
            continue
        axis = min(scan_axis, len(parameter) - 1)
        count, matrix = parameter[axis], parameter[:axis] + parameter[axis + 1 :]
        if tensor.shape == _DUMMY:
            shape: Shape = _DUMMY
        elif _slot(name) in _OTHER_SLOT and len(matrix) == 2:
            shape = (matrix[_kept_dim_unrolled(_slot(name), matrix)],)
        else:
            shape = tensor.shape[:axis] + tensor.shape[axis + 1 :]
        for i in range(count):
            layer = f"{match[1]}{match[2]}/layers_{i}/{match[3]}"
            result[layer] = jax.ShapeDtypeStruct(shape, tensor.dtype)
    return result


def _insert(shape: Shape, axis: int, size: int) -> Shape:
    axis = min(axis, len(shape))
    return (*shape[:axis], size, *shape[axis:])
