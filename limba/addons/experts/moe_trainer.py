"""T5X's `contrib.moe.trainer`: a trainer that multiplies the gradients of experts, as T5X's does."""

import copy
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
from flax import traverse_util

from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1
from limba.models import BaseTransformerModel
from limba.optimizers.schedules import LearningRateFn
from limba.partitioning.meshes import PjitPartitioner
from limba.training.trainer import Trainer, WeightMetricsComputer

PyTree = Any


def match_fn(prefix: str | None) -> Callable[[str], bool]:
    """Whether a regular expression matches the beginning of a name; None matches none."""
    return lambda name: prefix is not None and re.match(prefix, name) is not None


class MoeTrainer(Trainer):
    """`Trainer`, with the gradients of experts multiplied by `num_expert_partitions`.

    T5X's does so for a mean over devices that today's JAX does not take. Adafactor and Adam divide it out again; a
    clipping of gradients does not. `Trainer` gives the gradients themselves.

    Attributes:
      num_expert_partitions: the factor, as `MoePjitPartitioner` has it in the run's file.
      sharded_match_fn: which parameters are experts', by their names (`decoder/layers_1/mlp/expert/wi/kernel`).

    Raises:
      ValueError: for a factor below 1.
    """

    def __init__(
        self,
        model: BaseTransformerModel,
        partitioner: PjitPartitioner,
        learning_rate_fn: LearningRateFn,
        num_expert_partitions: int,
        num_microbatches: int | None = None,
        sharded_match_fn: Callable[[str], bool] | None = match_fn(r".*expert.*"),  # noqa: B008
        weight_metrics_computer: WeightMetricsComputer | None = None,
        measures_gradient: bool = False,
        **of_train: Any,
    ):
        number_ranges.check("MoeTrainer.num_expert_partitions", num_expert_partitions, AT_LEAST_1)
        self.num_expert_partitions, self.sharded_match_fn = num_expert_partitions, sharded_match_fn
        of_train |= {"weight_metrics_computer": weight_metrics_computer, "measures_gradient": measures_gradient}
        super().__init__(self._scaled(model), partitioner, learning_rate_fn, num_microbatches, **of_train)

    def _scaled(self, model: BaseTransformerModel) -> BaseTransformerModel:
        """The model, with the same loss, and gradients of its own."""
        is_expert = self.sharded_match_fn or match_fn(None)

        def loss_fn(params: PyTree, *batch_and_rng: Any) -> Any:
            flat = traverse_util.flatten_dict(params, sep="/")
            flat = {x: _gradient_times(p, self.num_expert_partitions) if is_expert(x) else p for x, p in flat.items()}
            return model.loss_fn(traverse_util.unflatten_dict(flat, sep="/"), *batch_and_rng)

        scaled = copy.copy(model)
        scaled.loss_fn = loss_fn  # type: ignore[method-assign, assignment]
        return scaled


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gradient_times(x: jax.Array, factor: int) -> jax.Array:
    """`x`, whose gradient is multiplied."""
    del factor
    return x


_gradient_times.defvjp(lambda x, factor: (x, None), lambda factor, _, g: (g * factor,))
