"""T5X's `contrib.moe.checkpoints`: experts that begin as the MLPs of a dense checkpoint (arXiv:2212.05055)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from limba.checkpoint_files import assignment_maps

PyTree = Any
_EXPERTS = "/expert/"


def upcycled(state_dict: Mapping[str, Any], target_state_dict: PyTree, is_resuming: bool = False) -> PyTree:
    """The state of a dense checkpoint in which each expert has the MLP of its layer.

    Bound as one of `RestoreCheckpointConfig.state_transformation_fns`, after an assignment map that gives experts the
    names of the dense MLPs; leaves of other shapes stay as they are, and the start then names them.
    """
    if is_resuming:
        return state_dict
    flat = assignment_maps.flatten_state_dict(state_dict)
    for name, wanted in assignment_maps.flatten_state_dict(target_state_dict).items():
        is_dense = name in flat and tuple(flat[name].shape) == tuple(wanted.shape)[1:]
        if is_dense and _EXPERTS in name:
            flat[name] = np.broadcast_to(np.asarray(flat[name]), wanted.shape)
    return assignment_maps.unflatten_state_dict(flat)


class UpcycleCheckpointer:
    """T5X's name for `upcycled`, bound as `RestoreCheckpointConfig.checkpointer_cls`.

    The number of experts is the network's: `num_experts` is T5X's argument, and changes nothing.
    """

    state_transformation_fns = (upcycled,)

    def __init__(self, num_experts: int):
        self.num_experts = num_experts
