"""What a training step changes: step, parameters, optimizer state."""

from typing import Any

import flax.struct
import jax
from flax import serialization

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
        """Nested dicts in the layout of T5X's checkpoints: `target`, `state/step`, `state/param_states`."""
        return {
            "target": serialization.to_state_dict(self.params),
            "state": {"step": self.step, "param_states": serialization.to_state_dict(self.opt_state)},
        }

    def restore_state(self, state_dict: dict[str, PyTree]) -> "TrainState":
        """A state of this structure with the values of `state_dict`."""
        return TrainState(
            step=state_dict["state"]["step"],
            params=serialization.from_state_dict(self.params, state_dict["target"]),
            opt_state=serialization.from_state_dict(self.opt_state, state_dict["state"]["param_states"]),
        )
