"""The modules of T5X's `contrib.moe` that this add-on has; see `Addon.t5x_names`."""

from collections.abc import Mapping

_NAMES = ("adafactor_utils", "checkpoints", "models", "partitioning", "trainer")

MODULES: Mapping[str, tuple[str, ...]] = {
    "t5x.contrib.moe": (),
    **{f"t5x.contrib.moe.{name}": (f"limba.addons.experts.moe_{name}",) for name in _NAMES},
}
