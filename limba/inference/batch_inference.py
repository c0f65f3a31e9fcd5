"""A model's predictions and scores of many examples, on the mesh: T5X's `utils.get_infer_fn`."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from limba.data.contract import Batch
from limba.models import BaseTransformerModel
from limba.network.finite_numbers import outputs as finite_outputs
from limba.partitioning.meshes import PjitPartitioner

PyTree = Any

# `(params, batches of (index [rows], features), rng, name_row) -> arrays [examples, …]` in the order of the indices.
InferFn = Callable[..., PyTree]

# T5X's modes, and the model's method of each.
MODES: Mapping[str, str] = {
    "predict": "predict_batch",
    "predict_with_aux": "predict_batch_with_aux",
    "score": "score_batch",
}

# The examples' indices are one more feature; -1 marks padding.
_INDEX = "example_index"


def make_mode_fn(model: Any, mode: str, batch_size: int, partitioner: PjitPartitioner) -> InferFn:
    """`make_infer_fn` of one of `MODES`. Predictions come with their scores, which show whether they are finite."""
    method = getattr(model, MODES[mode])
    if getattr(method, "__func__", None) is not BaseTransformerModel.predict_batch:
        return make_infer_fn(method, batch_size, partitioner)

    def with_scores(params: PyTree, batch: Batch, rng: Any = None) -> tuple[Any, dict[str, Any]]:
        tokens, aux = model.predict_batch_with_aux(params, batch, rng=rng)
        return tokens, {"scores": aux["scores"]}

    infer = make_infer_fn(with_scores, batch_size, partitioner)
    return lambda *args, **kwargs: infer(*args, **kwargs)[0]


def make_infer_fn(infer_step: Callable, batch_size: int, partitioner: PjitPartitioner) -> InferFn:
    """Makes a function that runs a step over examples and gives every host all results, in order.

    The result takes `(params, batches, rng=None, name_row=…)`. Every host gives the same batches of at most
    `batch_size` rows, each with the indices of its examples; shorter ones are padded, and the padding is removed from
    the results. `rng` is split for each batch as T5X splits it. Results and scores that are not finite raise
    `NotFiniteError` with what `name_row` calls the example of an index.

    Args:
      infer_step: `(params, batch)` or `(params, batch, rng)` to arrays `[rows, …]`, such as `model.predict_batch`.
      batch_size: rows of the global batch.
    """
    partitioner.check_batch_size(batch_size, "DatasetConfig.batch_size")
    takes_rng = "rng" in inspect.signature(infer_step).parameters

    def step(params: PyTree, batch: Batch, rng: Any) -> tuple[Any, PyTree]:
        # The indices come back beside the results: the mesh decides the order of the hosts.
        index = batch[_INDEX]
        features = {name: x for name, x in batch.items() if name != _INDEX}
        outputs = infer_step(params, features, rng=rng) if takes_rng else infer_step(params, features)
        return index, outputs

    run = partitioner.jit(step, out_shardings=partitioner.replicated)
    own_rows = partitioner.get_data_layout(batch_size).rows

    def fetch(running: Any, name_row: Callable[[int], str], *arguments: Any) -> Any:
        index, outputs = jax.device_get(running)
        results, aux = split_aux(outputs)
        # A new function: JAX remembers the trace of the other.
        once_more = lambda: partitioner.jit(functools.partial(step))(*arguments)  # noqa: E731
        finite_outputs.check(index, (results, aux.get("scores")), arguments[0], name_row, once_more)
        return index, outputs

    def infer(
        params: PyTree,
        batches: Iterable[tuple[np.ndarray, Batch]],
        rng: Any = None,
        name_row: Callable[[int], str] = "example {}".format,
    ) -> PyTree:
        results: list[Any] = []
        pending: tuple[Any, ...] | None = None
        for index, batch in batches:
            step_rng = None
            if takes_rng and rng is not None:
                step_rng, rng = jax.random.split(rng)
            whole = _filled(np.asarray(index, np.int32), batch, batch_size)
            own = {name: x[own_rows] for name, x in whole.items()}
            arguments = (params, partitioner.shard_batch(own), step_rng)
            running = run(*arguments)
            if pending is not None:  # The device works on the next batch while this one is fetched.
                results.append(fetch(*pending))
            pending = (running, name_row, *arguments)
        if pending is None:
            raise ValueError("There are no examples to predict or score.")
        results.append(fetch(*pending))
        index, outputs = jax.tree.map(lambda *parts: np.concatenate(parts), *results)
        order = np.argsort(index, kind="stable")[np.count_nonzero(index < 0) :]
        return jax.tree.map(lambda x: x[order], outputs)

    return infer


def _filled(index: np.ndarray, batch: Batch, batch_size: int) -> dict[str, np.ndarray]:
    """The batch with its indices and `batch_size` rows: the first row is repeated under index -1."""
    missing = batch_size - len(index)
    rows = {name: np.asarray(x) for name, x in batch.items()} | {_INDEX: index}
    if missing:
        rows = {name: np.concatenate([x, np.repeat(x[:1], missing, axis=0)]) for name, x in rows.items()}
        rows[_INDEX] = np.concatenate([index, np.full(missing, -1, np.int32)])
    return rows


def split_aux(outputs: PyTree) -> tuple[Any, Mapping[str, Any]]:
    """A step's outputs as `(predictions or scores, auxiliary values)`; the second may be empty."""
    if isinstance(outputs, tuple) and len(outputs) == 2 and isinstance(outputs[1], Mapping):
        return outputs
    return outputs, {}
