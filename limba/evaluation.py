"""Teacher-forced evaluation over batches that end."""

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from limba import metrics as metrics_lib
from limba.data import Batch
from limba.models import EncoderDecoderModel
from limba.partitioning import PjitPartitioner

PyTree = Any
EvalStep = Callable[[PyTree, Batch], metrics_lib.Metrics]


def make_eval_step(model: EncoderDecoderModel, partitioner: PjitPartitioner, param_shardings: PyTree) -> EvalStep:
    """A jitted `(params, this host's rows of a batch) -> metrics`."""
    step = partitioner.jit(
        lambda params, batch: model.eval_fn(params, batch)[1],
        in_shardings=(param_shardings, partitioner.data_sharding),
        out_shardings=partitioner.replicated,
    )
    return lambda params, batch: step(params, partitioner.shard_batch(batch))


def evaluate(
    eval_step: EvalStep, params: PyTree, batches: Iterable[Batch], max_batches: int | None
) -> dict[str, float]:
    """The model's metrics over the batches, and some about them.

    `unigram_nats_per_target_token` is what the best constant predictor reaches on the same targets: the entropy of
    their empirical distribution. A model whose `nats_per_target_token` is above it has learned nothing from context.

    Args:
      eval_step: from `make_eval_step`.
      params: parameters.
      batches: this host's rows.
      max_batches: stop after so many; None takes all.

    Raises:
      ValueError: if there is not a single batch.
    """
    total: metrics_lib.Metrics | None = None
    began = time.monotonic()
    token_counts = np.zeros(0, np.int64)
    for batch in itertools.islice(batches, max_batches):
        metrics = jax.device_get(eval_step(params, batch))
        token_counts = _add_counts(token_counts, batch)
        total = metrics if total is None else metrics_lib.add(total, metrics)
    if total is None:
        raise ValueError("The evaluation split is empty: choose another split, or leave the evaluation out.")
    scalars = metrics_lib.compute(total)
    scalars["num_target_tokens"] = float(total["nats_per_target_token"].count)
    scalars["unigram_nats_per_target_token"] = _entropy(token_counts)
    scalars["timing/evaluate_seconds"] = time.monotonic() - began
    return scalars


def _add_counts(counts: np.ndarray, batch: Batch) -> np.ndarray:
    """How often each token was a target so far: `[vocab]`."""
    targets = np.asarray(batch["decoder_target_tokens"])[np.asarray(batch["decoder_loss_weights"]) > 0]
    new = np.bincount(targets, minlength=len(counts))
    new[: len(counts)] += counts
    return new


def _entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-np.sum(shares * np.log(shares)))
