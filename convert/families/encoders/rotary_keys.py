"""The keys of config.json that say the base of rotary positions, of either version of transformers."""

from collections.abc import Mapping
from typing import Any

from limba.convert.families.encoders.encoder_family import refuse_unless, value


def base(content: Mapping[str, Any], default: float) -> float:
    """The one base of a class whose layers all have the same.

    Raises:
      ValueError: for rotary positions of another kind than Limba's.
    """
    given = value(content, "rope_parameters", {}, dict)
    refuse_unless(given, {"rope_type": ("default",), "partial_rotary_factor": (1.0,)})
    return float(value(given, "rope_theta", value(content, "rope_theta", default, (int, float)), (int, float)))


def settings(rotary_base: float) -> dict[str, Any]:
    """What version 5 writes, and the key of older programs."""
    return {"rope_theta": rotary_base, "rope_parameters": {"rope_type": "default", "rope_theta": rotary_base}}
