"""Outputs of a model that are not finite are an error, with the row, the layer and the remedy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.network.finite_numbers import layers as finite_layers
from limba.network.finite_numbers.layers import Cause, NotFiniteError

PyTree = Any


def error(what: str, cause: Cause) -> NotFiniteError:
    """The error for an output, such as "The output for line 3"."""
    remedy = (
        "These parameters give no results: take an earlier checkpoint, or copy or convert this one again."
        if cause.parameter is not None
        else "Take an earlier checkpoint, or compute in float32 if the network does not "
        "(--gin.network.T5Config.dtype=\"'float32'\", of an encoder --gin.encoder.EncoderConfig.dtype)."
    )
    return NotFiniteError(f"{what} is not finite. {cause} {remedy}")


def first_row(outputs: PyTree, params: PyTree) -> int | None:
    """The first row of float arrays `[rows, …]` that is not finite; None if there is none.

    A score of -inf is the log probability of what a way of decoding forbids, unless a parameter is not finite.
    """
    arrays = [np.asarray(x) for x in jax.tree.leaves(outputs) if jnp.issubdtype(x.dtype, jnp.floating)]
    if not arrays or all(np.isfinite(x).all() for x in arrays):
        return None
    bad = _rows(arrays, lambda x: ~np.isfinite(x) & (x != -np.inf))
    if not bad.any() and finite_layers.first_leaf(params) is not None:
        bad = _rows(arrays, lambda x: ~np.isfinite(x))
    return int(np.argmax(bad)) if bad.any() else None


def _rows(arrays: list[np.ndarray], is_bad: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.any([is_bad(x).reshape(len(x), -1).any(axis=1) for x in arrays], axis=0)


def check(
    index: np.ndarray, results: PyTree, params: PyTree, name_row: Callable[[int], str], run: Callable[[], Any]
) -> None:
    """Raises NotFiniteError if results of a batch are not finite.

    Args:
      index: of the examples `[rows]`; -1 marks padding, which is passed over.
      results: arrays `[rows, …]`.
      params: of the network.
      name_row: the name of an example by its index.
      run: makes the results once more, see `layers.first_layer`.
    """
    is_real = index >= 0
    row = first_row(jax.tree.map(lambda x: x[is_real], results), params)
    if row is not None:
        name = name_row(int(index[is_real][row]))
        raise error(f"The output for {name}", finite_layers.find(params, run, len(index)))


def loss_error(model: Any, partitioner: Any, params: PyTree, name: str, number: int, batch: Any) -> NotFiniteError:
    """The error for a batch whose loss is not finite, with the layer where that begins.

    Args:
      model: with `eval_fn`.
      partitioner: `limba.partitioning.meshes.PjitPartitioner`.
      name: what the batches are of.
      number: of the batch, from 0.
      batch: on the devices.
    """
    loss = partitioner.jit(lambda params, batch: model.eval_fn(params, batch)[0])
    rows = next(iter(batch.values())).shape[0]
    cause = finite_layers.find(params, lambda: loss(params, batch), rows)
    return error(f"The loss of batch {number} (counted from 0) of {name}", cause)
