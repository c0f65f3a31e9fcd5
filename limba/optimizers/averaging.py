"""A running average of the parameters beside any optimizer: an exponential moving average (EMA)."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.sharding import PartitionSpec

from limba.files import number_ranges
from limba.files.number_ranges import Range
from limba.optimizers.definitions import as_optimizer_def, refuse_inside

Array = jax.Array
PyTree = Any


@flax.struct.dataclass
class AveragedState:
    """The state of an `AveragedOptimizer`.

    Attributes:
      optimizer: the optimizer's own state.
      average: of the trained parameters, a part of their tree, float32.
      updates: int32 scalar, the updates since the average began.
    """

    optimizer: PyTree
    average: PyTree
    updates: Array


class AveragedOptimizer:
    """An optimizer definition that keeps an average of the parameters which it trains.

    After update t = 1, 2 …, counted from where the average began,

        average += (1 - d_t) * (parameters - average)        d_t = min(decay, (1 + t) / (10 + t))

    and it begins as the parameters. The smaller first d_t are what corrects the bias: of the beginning a share below
    `10! / t^9` is left, 7e-7 after 20 updates, where a constant decay of 0.999 leaves 98 %. The weights always sum up
    to 1, so nothing is divided. Source: `num_updates` of TensorFlow's `tf.train.ExponentialMovingAverage`.

    The parameters are trained as without the average. Frozen parameters are their own average and are not kept twice.
    The average is sharded as the parameters, and lies in checkpoints under `state/average/`; all else is the
    optimizer's, under its names.

    Args:
      optimizer: a definition, or a transformation of optax.
      decay: 0.999 averages over about the last thousand updates.

    Raises:
      ValueError: for a decay that is not between 0 and 1, or an optimizer that keeps an average already.
    """

    is_outermost = True  # checkpoints have one place for an average

    def __init__(self, optimizer: Any, decay: float = 0.999):
        example = ", such as 0.999 for an average over about the last 1,000 updates"
        number_ranges.check("AveragedOptimizer.decay", decay, Range(below=1, is_above=True), example)
        self.optimizer: Any = as_optimizer_def(optimizer)
        refuse_inside("AveragedOptimizer", [self.optimizer])
        self.decay = decay

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "optimizer":  # Copying asks before there is an optimizer.
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def init(self, params: PyTree) -> AveragedState:
        # Copies: a step may not be given one array twice, as it takes both over.
        average = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), self._trained(params, params))
        return AveragedState(self.optimizer.init(params), average, jnp.zeros((), jnp.int32))

    def update(
        self, grads: PyTree, state: AveragedState, params: PyTree, *, learning_rate: Array, step: Array
    ) -> tuple[PyTree, AveragedState]:
        updates, own = self.optimizer.update(grads, state.optimizer, params, learning_rate=learning_rate, step=step)
        count = state.updates + 1
        kept = decay_at(self.decay, count)

        def averaged(average: Array, param: Array, update: Array) -> Array:
            new = (param + update).astype(param.dtype)  # as the Trainer computes it
            return average + (1.0 - kept) * (new.astype(jnp.float32) - average)

        trees = (self._trained(params, params), self._trained(updates, params))
        return updates, AveragedState(own, jax.tree.map(averaged, state.average, *trees), count)

    def figures(self, state: AveragedState) -> dict[str, Array]:
        """What each step's metrics have of the optimizer's own state."""
        figures = getattr(self.optimizer, "figures", None)
        return {} if figures is None else figures(state.optimizer)

    def state_axes(self, params: PyTree, param_axes: PyTree) -> AveragedState:
        own: Any = self.optimizer.state_axes(params, param_axes)
        replicated: Any = PartitionSpec()
        return AveragedState(own, self._trained(param_axes, params), replicated)

    def _trained(self, tree: PyTree, params: PyTree) -> PyTree:
        """The part of a tree like the parameters' that is trained."""
        if not hasattr(self.optimizer, "trained_paths"):
            return tree
        flat = traverse_util.flatten_dict(tree)
        return traverse_util.unflatten_dict({path: flat[path] for path in self.optimizer.trained_paths(params)})


def decay_at(decay: float, update: Any) -> Array:
    """`min(decay, (1 + t) / (10 + t))` for the update t, from 1; float32."""
    t = jnp.asarray(update, jnp.float32)
    return jnp.minimum(jnp.float32(decay), (1.0 + t) / (10.0 + t))
