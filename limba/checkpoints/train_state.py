"""The state that a training step changes: step, parameters, optimizer state; and its random beginning."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.core
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization, traverse_util
from flax.linen import partitioning as nn_partitioning
from jax.experimental import multihost_utils

from limba.checkpoint_files import saved_average
from limba.checkpoints import initial_values
from limba.optimizers.averaging import AveragedState
from limba.optimizers.definitions import OptimizerDef
from limba.partitioning.meshes import PjitPartitioner

PyTree = Any


@flax.struct.dataclass
class TrainState:
    """The state of a run at a step.

    Attributes:
      step: int32 scalar, the number of updates made.
      params: the network's parameters, float32.
      opt_state: what the optimizer definition keeps.
    """

    step: jax.Array
    params: PyTree
    opt_state: PyTree

    def state_dict(self) -> dict[str, PyTree]:
        """Nested dicts in the layout of T5X's checkpoints: `target`, `state/step`, `state/param_states`.

        Only arrays are in it: optax's many empty states, and parameters without an optimizer, are left out. An average
        of the parameters lies beside the optimizer's state, which has the same names with and without it.
        """
        arrays = {path: x for path, x in _flat_state(_own_state(self.opt_state)).items() if _is_array(x)}
        state = {"step": self.step, **({"param_states": traverse_util.unflatten_dict(arrays)} if arrays else {})}
        if isinstance(self.opt_state, AveragedState):
            average = {"parameters": self.opt_state.average, "updates": self.opt_state.updates}
            state[saved_average.NAME] = serialization.to_state_dict(average)
        return {"target": serialization.to_state_dict(self.params), "state": state}

    def restore_state(self, state_dict: dict[str, PyTree]) -> "TrainState":
        """A state of this structure with the values of `state_dict`."""
        own = _own_state(self.opt_state)
        given = traverse_util.flatten_dict(state_dict["state"].get("param_states", {}))
        complete = {path: given[path] if _is_array(x) else x for path, x in _flat_state(own).items()}
        opt_state = serialization.from_state_dict(own, traverse_util.unflatten_dict(complete))
        if isinstance(self.opt_state, AveragedState):
            average = state_dict["state"][saved_average.NAME]
            opt_state = AveragedState(opt_state, average["parameters"], average["updates"])
        params = serialization.from_state_dict(self.params, state_dict["target"])
        return TrainState(step=state_dict["state"]["step"], params=params, opt_state=opt_state)

    @property
    def keeps_average(self) -> bool:
        """Whether it has an average of the parameters."""
        return isinstance(self.opt_state, AveragedState)

    def with_average(self) -> "TrainState":
        """This state with the average in the place of the parameters, of the same shapes, dtypes and shardings."""
        assert isinstance(self.opt_state, AveragedState)
        average = traverse_util.flatten_dict(self.opt_state.average)
        flat = traverse_util.flatten_dict(self.params)
        params = {path: average[path].astype(x.dtype) if path in average else x for path, x in flat.items()}
        return self.replace(params=traverse_util.unflatten_dict(params))  # type: ignore[attr-defined]


def _own_state(opt_state: PyTree) -> PyTree:
    """What the optimizer itself keeps."""
    return opt_state.optimizer if isinstance(opt_state, AveragedState) else opt_state


def _flat_state(opt_state: PyTree) -> dict[tuple[str, ...], Any]:
    return traverse_util.flatten_dict(serialization.to_state_dict(opt_state), keep_empty_nodes=True)


def _is_array(x: Any) -> bool:
    return x is not None and x is not traverse_util.empty_node


class TrainStateInitializer:
    """Shapes and shardings of a run's state, known before there is a state; and random states.

    Args:
      init_fn: from a random key to `params` and `params_axes`, such as `EncoderDecoderModel.initial_variables`.

    Attributes:
      param_shapes, param_axes: of the parameters alone; axes are logical.
      train_state_shapes: the state with a `jax.ShapeDtypeStruct` for each array.
      train_state_axes: the state with a sharding for each array.

    Raises:
      ValueError: if a dim does not divide by its mesh axis.
    """

    def __init__(
        self,
        optimizer_def: OptimizerDef,
        init_fn: Callable[[jax.Array], Mapping[str, PyTree]],
        partitioner: PjitPartitioner,
    ):
        self._optimizer_def, self._partitioner = optimizer_def, partitioner
        self._init_fn = jax.jit(init_fn)  # remembers its trace, which takes seconds for a deep network
        key = jax.random.key(0)  # Made in the context, it would be of another type than a run's.
        with partitioner.activate():
            variables = jax.eval_shape(self._init_fn, key)
        self.param_shapes = variables["params"]
        self.param_axes = flax.core.unfreeze(nn_partitioning.get_axis_names(variables["params_axes"]))
        optimizer_def.set_param_axes(self.param_axes)
        partitioner.check_shapes(self.param_shapes, self.param_axes)
        self.train_state_shapes = jax.eval_shape(self._with_optimizer, self.param_shapes)
        self.train_state_axes: Any = TrainState(
            step=partitioner.replicated,  # type: ignore[arg-type]
            params=partitioner.shardings(self.param_axes),
            opt_state=partitioner.shardings(optimizer_def.state_axes(self.param_shapes, self.param_axes)),
        )

    def new_state(self, rng: jax.Array) -> TrainState:
        """A new state wherever this is computed; it can be traced."""
        return self._with_optimizer(self._init_fn(rng)["params"])

    def _with_optimizer(self, params: PyTree) -> TrainState:
        return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=self._optimizer_def.init(params))

    def from_scratch(self, init_rng: jax.Array) -> TrainState:
        """A randomly initialized state, created where it is sharded. The same numbers on every mesh."""
        with self._partitioner.activate():
            return initial_values.compute(functools.partial(self.new_state, init_rng), self.train_state_axes)

    def changed(self, state: TrainState, change: Callable[[PyTree], PyTree]) -> TrainState:
        """A state with changed parameters, before its first step. While it is made, devices hold two.

        Args:
          change: called with the parameters as whole NumPy arrays, on every host; returns the same on every host.

        Raises:
          ValueError: if a changed parameter has another shape.
        """
        whole = jax.tree.map(np.asarray, multihost_utils.process_allgather(state.params, tiled=True))
        new = change(whole)

        def placed(old: jax.Array, x: Any, sharding: Any) -> jax.Array:
            if np.shape(x) != old.shape:
                raise ValueError(f"A changed parameter has the shape {np.shape(x)}; the network's has {old.shape}.")
            return jax.make_array_from_callback(old.shape, sharding, lambda part: np.asarray(x, old.dtype)[part])

        params = jax.tree.map(placed, state.params, new, self.train_state_axes.params)
        with self._partitioner.activate():
            return initial_values.compute(functools.partial(self._with_optimizer, params), self.train_state_axes)
