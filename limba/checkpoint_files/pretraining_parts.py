"""Tensors of a checkpoint that only its pre-training needs: a T5 is the same T5 without them.

They lie under one name, in the parameters and in the optimizer's statistics.
"""

import logging
from collections.abc import Mapping
from typing import TypeVar

from limba.files.storage import AnyPath

logger = logging.getLogger(__name__)
Tensor = TypeVar("Tensor")

# Of `limba.models.spactor`: the generator and the head of replaced-token detection.
NAME = "replaced_token_detection"


def is_part(name: str) -> bool:
    """Whether a tensor's name, such as `target/encoder/encoder_norm/scale`, is of such a part."""
    return NAME in name.split("/")


def without(tensors: Mapping[str, Tensor], path: str | AnyPath) -> dict[str, Tensor]:
    """The tensors without such parts; the log says of which checkpoint they are left out."""
    kept = {name: tensor for name, tensor in tensors.items() if not is_part(name)}
    if parameters := sum(name.startswith("target/") for name in tensors) - sum(x.startswith("target/") for x in kept):
        logger.warning(
            "%s: the generator and the head of replaced-token detection (%d tensors) are left out; they are no part of "
            "the T5.",
            path,
            parameters,
        )
    return kept
