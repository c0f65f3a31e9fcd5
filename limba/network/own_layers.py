"""Attention layers of a user's own module, which a configuration names: 'my_layers:MyAttention'."""

import re

from limba.gin_config import importing
from limba.network.attention import MultiHeadDotProductAttention

FIELDS = ("encoder_self_attention_layer", "decoder_self_attention_layer", "decoder_cross_attention_layer")

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def check_name(owner: str, field: str, name: object) -> None:
    """Raises ValueError unless it is None or has the form MODULE:CLASS; nothing is imported."""
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(f"{owner}.{field} is {name!r}; write MODULE:CLASS, such as 'my_layers:MyAttention'.")


def of(config: object) -> list[str]:
    """The names in a configuration that has them."""
    return [name for field in FIELDS if (name := getattr(config, field)) is not None]


def attention_class(name: str | None) -> type[MultiHeadDotProductAttention]:
    """T5's attention for None, else the class of that name.

    Raises:
      ValueError: if there is no such class, or it is not derived from T5's.
    """
    if name is None:
        return MultiHeadDotProductAttention
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importing.load(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"The attention layer {name} cannot be imported: {error}. Its module must be on PYTHONPATH, and be written "
            "for Flax (docs/networks.md)."
        ) from error
    if not (isinstance(found, type) and issubclass(found, MultiHeadDotProductAttention)):
        raise ValueError(
            f"The attention layer {name} is {found!r}, and no class for Flax that is derived from "
            "limba.network.attention.MultiHeadDotProductAttention: docs/networks.md shows one."
        )
    return found
