"""T5X's assignment maps, which rename the tensors of a checkpoint.

A state is a nested dict whose leaves have names such as `target/encoder/encoder_norm/scale`. An assignment map gives
the checkpoint's names of the model's tensors.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flax import traverse_util

logger = logging.getLogger(__name__)
PyTree = Any

AssignmentMap = Sequence[tuple[str, str | None]]


def flatten_state_dict(state_dict: PyTree, keep_empty_nodes: bool = False) -> dict[str, Any]:
    """Leaves by name, with the keys joined by `/`."""
    return traverse_util.flatten_dict(dict(state_dict), keep_empty_nodes=keep_empty_nodes, sep="/")


def unflatten_state_dict(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return traverse_util.unflatten_dict(dict(tensors), sep="/")


def intersect_state(state_dict: PyTree, other: PyTree) -> dict[str, Any]:
    """The leaves of `state_dict` that `other` has too."""
    names = flatten_state_dict(other)
    return unflatten_state_dict({k: v for k, v in flatten_state_dict(state_dict).items() if k in names})


def merge_state(state_dict: PyTree, from_scratch_state: PyTree, overwrite: bool = False) -> dict[str, Any]:
    """`state_dict` with the leaves of `from_scratch_state` that it lacks, or with all of them if `overwrite`."""
    ours, fresh = flatten_state_dict(state_dict), flatten_state_dict(from_scratch_state)
    return unflatten_state_dict(ours | fresh if overwrite else fresh | ours)


def apply_assignment_map(
    ckpt_optimizer_state: PyTree,
    optimizer_state: PyTree,
    assignment_map: AssignmentMap,
    require_all_rules_match: bool = True,
    *,
    is_resuming: bool = False,
) -> PyTree:
    """The checkpoint's leaves under the model's names.

    For each name of the model the first pair counts whose pattern matches the whole name. Its replacement is the
    checkpoint's name, in which `\\1` is the pattern's first group; None leaves the tensor out. Other names stay as they
    are. Names of the checkpoint that a pair uses disappear, unless the model has them too.

    Args:
      ckpt_optimizer_state: the checkpoint's state, nested.
      optimizer_state: the model's, nested; only its names matter.
      assignment_map: pairs (pattern of names in the model, name in the checkpoint or None).
      require_all_rules_match: whether a pattern that matches nothing is an error.
      is_resuming: the run resumes from its own checkpoint, which already has the model's names.

    Raises:
      ValueError: if a pair names a tensor that the checkpoint lacks, or matches nothing.
    """
    if is_resuming:
        return ckpt_optimizer_state
    saved, wanted = flatten_state_dict(ckpt_optimizer_state), flatten_state_dict(optimizer_state)
    taken: dict[str, str | None] = {}  # the model's name: the checkpoint's
    unused = {pattern for pattern, _ in assignment_map}
    for name in wanted:
        for pattern, replacement in assignment_map:
            match = re.fullmatch(pattern, name)
            if match is None:
                continue
            unused.discard(pattern)
            taken[name] = None if replacement is None else match.expand(replacement)
            if taken[name] is not None and taken[name] not in saved:
                raise ValueError(
                    f"RestoreCheckpointConfig.assignment_map takes {name} from {taken[name]!r}, but the checkpoint "
                    f"does not have it. It has {', '.join(sorted(saved)[:5])} … ({len(saved)} tensors)."
                )
            logger.info("Assignment map: %s is the checkpoint's %s.", name, taken[name] or "nothing: left out")
            break
    if require_all_rules_match and unused:
        raise ValueError(
            f"RestoreCheckpointConfig.assignment_map: no tensor of the model has a name that matches {sorted(unused)}. "
            f"A pattern must match a whole name, such as {next(iter(wanted), 'target/…')}."
        )
    moved = set(taken.values())
    result = {name: tensor for name, tensor in saved.items() if name not in moved or name in wanted}
    for name, source in taken.items():
        result.pop(name, None)
        if source is not None:
            result[name] = saved[source]
    return unflatten_state_dict(result)
