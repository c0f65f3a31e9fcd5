"""The user's functions between a state and its checkpoint: T5X's `state_transformation_fns`, checked in each call.

Such a function may give tensors other names, other values and other shapes. What it gives must still be a state.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from limba.checkpoint_files import assignment_maps
from limba.files.untrusted_files import shown, some

logger = logging.getLogger(__name__)

PyTree = Any
# `fn(state_dict, parameter_infos) -> (state_dict, parameter_infos)`; the infos have the same tree.
SaveStateTransformationFn = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
# `fn(state_dict, target_state_dict, is_resuming=False)`; leaves are `SavedTensor`s in the first, shapes in the second.
RestoreStateTransformationFn = Callable[..., PyTree]
_SAVE, _RESTORE = ("SaveCheckpointConfig.state_transformation_fns", "RestoreCheckpointConfig.state_transformation_fns")


def for_saving(transformations: Sequence[SaveStateTransformationFn], tree: PyTree, infos: PyTree) -> PyTree:
    """The state that is written. A warning names tensors of other shapes, from which a run cannot simply resume.

    Raises:
      ValueError: if a function does not return a state and the descriptions of its tensors.
    """
    before = assignment_maps.flatten_state_dict(tree)
    for transform in transformations:
        found = transform(tree, infos)
        if not (isinstance(found, tuple | list) and len(found) == 2):
            raise ValueError(
                f"{_name(transform)} of {_SAVE} returned {shown(found)}; it returns two things, the state and the "
                "descriptions of its tensors that it was called with: return state_dict, parameter_infos."
            )
        tree, infos = found
        after = _tensors(tree, transform, _SAVE)
    if others := _of_other_shapes(before, after):
        shapes = [f"{name} as {after[name].shape}, which is {before[name].shape} in training" for name in others]
        logger.warning(
            "%s (%s) write %s. A run resumes from such a checkpoint only if %s undo it.",
            _SAVE,
            ", ".join(map(_name, transformations)),
            some(shapes, 3, "; "),
            _RESTORE,
        )
    return tree


def for_restoring(
    transformations: Sequence[RestoreStateTransformationFn], tensors: Mapping[str, Any], template: PyTree
) -> dict[str, Any]:
    """The tensors by name that are restored from those of a checkpoint; what a function made None is left out.

    Raises:
      ValueError: if a function does not return a state, or a tensor of a shape that it had not and the model has not.
    """
    wanted = assignment_maps.flatten_state_dict(template)
    state, before = assignment_maps.unflatten_state_dict(tensors), dict(tensors)
    for transform in transformations:
        state = transform(state, template)
        after = _tensors(state, transform, _RESTORE)
        others = [x for x in _of_other_shapes(before, after) if x in wanted and after[x].shape != wanted[x].shape]
        if others:
            shapes = [f"{x} as {after[x].shape}, read as {before[x].shape}, of {wanted[x].shape} here" for x in others]
            raise ValueError(
                f"{_name(transform)} of {_RESTORE} returned {some(shapes, 3, '; ')}: it returns tensors of the model's "
                "shapes, which its second argument has. Change the function, or the gin files' sizes of the network."
            )
        before = after
    return before


def _tensors(state: PyTree, transform: Callable[..., Any], config: str) -> dict[str, Any]:
    """The tensors of a returned state by name. Raises ValueError if it is none."""
    if not isinstance(state, Mapping):
        raise ValueError(
            f"{_name(transform)} of {config} returned {shown(state)} as the state; it is a dict of dicts with the "
            "arrays, as the function got it."
        )
    leaves = {name: x for name, x in assignment_maps.flatten_state_dict(state).items() if x is not None}
    for name, leaf in leaves.items():
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise ValueError(
                f"{_name(transform)} of {config} returned {name} as {shown(leaf)}; it is an array: np.asarray makes "
                "one of numbers."
            )
    return leaves


def _of_other_shapes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [name for name, x in after.items() if name in before and tuple(x.shape) != tuple(before[name].shape)]


def _name(function: Any) -> str:
    """Of a function, or of one whose arguments are bound."""
    function = getattr(function, "func", function)
    return getattr(function, "__qualname__", None) or type(function).__name__
