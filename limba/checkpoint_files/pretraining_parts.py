"""Tensors of a checkpoint that only its pre-training needs: the network is the same without them.

They lie under one name, in the parameters and in the optimizer's statistics.
"""

import logging
from collections.abc import Mapping
from typing import TypeVar

from limba.files.storage import AnyPath

logger = logging.getLogger(__name__)
Tensor = TypeVar("Tensor")

# Of a T5 the generator and the head of replaced-token detection, of an ELECTRA what the generator has alone.
NAME = "replaced_token_detection"
# What an ELECTRA's generator has together with the network: the tables and their norm.
SHARED = (
    "token_embedder",
    *(f"encoder/{name}" for name in ("position_embedder", "token_type_embedder", "embedding_layer_norm")),
)


def is_part(name: str) -> bool:
    """Whether a tensor's name, such as `target/encoder/encoder_norm/scale`, is of such a part."""
    return NAME in name.split("/")


def without(tensors: Mapping[str, Tensor], path: str | AnyPath) -> dict[str, Tensor]:
    """The tensors without such parts; the log says of which checkpoint they are left out."""
    kept = {name: tensor for name, tensor in tensors.items() if not is_part(name)}
    if parameters := sum(name.startswith("target/") for name in tensors) - sum(x.startswith("target/") for x in kept):
        logger.warning(
            "%s: what only replaced-token detection needs (%d tensors) is left out; it is no part of the network.",
            path,
            parameters,
        )
    return kept


def of_generator(tensors: Mapping[str, Tensor], path: str | AnyPath) -> dict[str, Tensor]:
    """The train state of an ELECTRA's generator, without an optimizer's statistics, of that of a pre-training.

    Raises:
      ValueError: if the checkpoint has none.
    """
    own = {name.replace(f"/{NAME}/", "/"): x for name, x in tensors.items() if name.startswith(f"target/{NAME}/")}
    if not any(name.startswith("target/mlm_head/") for name in own):
        raise ValueError(f"{path} has no generator: it is not of a pre-training with models.ElectraModel.")
    shared = tuple(f"target/{name}/" for name in SHARED)
    rest = {name: x for name, x in tensors.items() if name.startswith(shared) or name == "state/step"}
    return rest | own
