"""Where numbers stop being finite: the parameter, and the first layer whose output is NaN or infinite."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from limba.network.finite_numbers import interceptors

PyTree = Any


class NotFiniteError(ValueError):
    """An output is NaN or infinite. The message names the row, the layer or parameter, and the remedy."""


class _Call(NamedTuple):
    """What a layer got and gave in one call: whether all of it was finite, and the first row that was not, or -1."""

    inputs_finite: bool
    outputs_finite: bool
    row: int


class _Layers:
    """An interceptor of Flax that looks at the calls of all layers, also of those in loops of a program."""

    def __init__(self, rows: int):
        self._rows = rows
        self._paths: list[tuple[str, ...]] = []
        self._names: list[str] = []
        self._calls: list[list[_Call]] = []

    def __call__(
        self, call: Callable[..., Any], args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext
    ) -> Any:
        outputs = call(*args, **kwargs)
        found = _floats(outputs)
        if context.method_name != "setup" and found:
            # In the order in which calls end: a layer comes before the one that it is a part of.
            place = len(self._calls)
            self._paths.append(context.module.path)
            self._names.append("/".join(context.module.path) or type(context.module).__name__)
            self._calls.append([])
            add = functools.partial(self._add, place)
            jax.debug.callback(add, _are_finite(_floats((args, kwargs))), _are_finite(found), self._first_row(found))
        return outputs

    def _add(self, place: int, *call: Any) -> None:
        self._calls[place].append(_Call(*(x.item() for x in map(np.asarray, call))))

    def _first_row(self, arrays: Sequence[jax.Array]) -> jax.Array:
        row = jnp.int32(-1)
        for x in arrays:
            if x.ndim and x.shape[0] == self._rows:
                bad = jnp.any(~jnp.isfinite(x).reshape(self._rows, -1), axis=1)
                row = jnp.where((row < 0) & jnp.any(bad), jnp.argmax(bad).astype(jnp.int32), row)
        return row

    def first(self) -> tuple[str, int] | None:
        """The first layer that made of finite inputs an output that is not, and the row of the batch, or -1."""
        found = []
        # What a loop calls equally often lies together in its body. The whole network comes last.
        loops = itertools.groupby(range(len(self._calls)), lambda place: len(self._calls[place]))
        for number, (count, places) in enumerate(loops):
            for place in places:
                for time, call in enumerate(self._calls[place]):
                    if call.inputs_finite and not call.outputs_finite:
                        found.append((not self._paths[place], number, time, place, count))
        if not found:
            return None
        _, _, time, place, count = min(found)
        where = f" (pass {time} of {count} of its loop, counted from 0)" if count > 1 else ""
        return self._names[place] + where, self._calls[place][time].row


@dataclasses.dataclass(frozen=True)
class Cause:
    """Where a batch met the first number that is not finite.

    Attributes:
      parameter: the first one that is not finite; None if all are.
      layer: the first one whose output is not finite while its inputs are; None if there is none.
      row: of the batch, the first one in which it is not; -1 if that is not known.
      searched: whether the layers were searched.
    """

    parameter: str | None
    layer: str | None = None
    row: int = -1
    searched: bool = True

    def __str__(self) -> str:
        sentences = [] if self.parameter is None else [f"The parameter {self.parameter} has NaN or infinite values."]
        if self.layer is not None:
            row = "" if self.row < 0 else f", from row {self.row} of the batch on"
            sentences.append(f"The first layer whose output is not finite is {self.layer}{row}.")
        elif self.searched and self.parameter is None:
            sentences.append("The outputs of all layers are finite.")
        elif not self.searched:
            sentences.append("The layer is not searched for where several processes work together.")
        return " ".join(sentences)


def find(params: PyTree, run: Callable[[], Any], rows: int) -> Cause:
    """Runs a batch once more, and finds where its numbers stop being finite.

    Args:
      params: of the network.
      run: see `first_layer`.
      rows: of the batch.
    """
    parameter = first_leaf(params)
    if jax.process_count() > 1:
        return Cause(parameter, searched=False)
    layer, row = first_layer(run, rows) or (None, -1)
    return Cause(parameter, layer, row)


def first_layer(run: Callable[[], Any], rows: int) -> tuple[str, int] | None:
    """The path of the first layer whose output is not finite while its inputs are, and the row of the batch, or -1.

    None if there is no such layer. A layer of a scan or of a decoding loop has the number of the pass behind its path.

    Args:
      run: calls a network, whose calls must be traced in it or be outside of `jax.jit`.
      rows: of the batch.
    """
    layers = _Layers(rows)
    with interceptors.intercept(layers):
        jax.block_until_ready(run())
        jax.effects_barrier()
    return layers.first()


def first_leaf(tree: PyTree) -> str | None:
    """The path of the first array of a tree that is not finite, such as `decoder/layers_0/mlp/wo/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    finite = which_are_finite([leaf for _, leaf in leaves])
    for (path, _), is_finite in zip(leaves, finite, strict=True):
        if not is_finite:
            return jax.tree_util.keystr(path, simple=True, separator="/")
    return None


def which_are_finite(arrays: Sequence[jax.Array | np.ndarray]) -> list[bool]:
    """Of each array, whether all its numbers are finite."""
    if all(isinstance(x, np.ndarray) or _is_in_this_memory(x) for x in arrays):
        # The program for all arrays of a network would take as long to compile as a fifth of its training step.
        return [bool(np.isfinite(x).all()) for x in map(np.asarray, arrays)]
    return [bool(x) for x in jax.device_get(_all_finite(arrays))]


def _is_in_this_memory(x: jax.Array) -> bool:
    return x.is_fully_addressable and all(device.platform == "cpu" for device in x.devices())


@jax.jit
def _all_finite(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    return [jnp.all(jnp.isfinite(x)) for x in arrays]


def _floats(tree: PyTree) -> list[jax.Array]:
    is_float = lambda x: isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)  # noqa: E731
    return [x for x in jax.tree.leaves(tree) if is_float(x)]


def _are_finite(arrays: Sequence[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(x)) for x in arrays], jnp.bool_(True))
