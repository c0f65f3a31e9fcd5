"""What a training step changes: step, parameters, optimizer state."""

from typing import Any

import flax.struct
import jax
from flax import serialization, traverse_util

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

        Only what holds arrays: optax's many empty states, and parameters without an optimizer, are left out.
        """
        arrays = {path: x for path, x in _flat_state(self.opt_state).items() if _is_array(x)}
        param_states = {"param_states": traverse_util.unflatten_dict(arrays)} if arrays else {}
        return {"target": serialization.to_state_dict(self.params), "state": {"step": self.step, **param_states}}

    def restore_state(self, state_dict: dict[str, PyTree]) -> "TrainState":
        """A state of this structure with the values of `state_dict`."""
        given = traverse_util.flatten_dict(state_dict["state"].get("param_states", {}))
        complete = {path: given[path] if _is_array(x) else x for path, x in _flat_state(self.opt_state).items()}
        return TrainState(
            step=state_dict["state"]["step"],
            params=serialization.from_state_dict(self.params, state_dict["target"]),
            opt_state=serialization.from_state_dict(self.opt_state, traverse_util.unflatten_dict(complete)),
        )


def _flat_state(opt_state: PyTree) -> dict[tuple[str, ...], Any]:
    return traverse_util.flatten_dict(serialization.to_state_dict(opt_state), keep_empty_nodes=True)


def _is_array(x: Any) -> bool:
    return x is not None and x is not traverse_util.empty_node
