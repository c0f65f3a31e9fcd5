"""T5X's `contrib.moe.adafactor_utils`: how Adafactor factors the logical axes of experts."""

from collections.abc import Mapping

from limba.optimizers.adafactor import FactorDim, standard_logical_factor_rules


def logical_factor_rules() -> Mapping[str, FactorDim]:
    """The standard rules, and those for T5X's names of axes of experts; each expert is factored by itself."""
    own = {"expert_mlp": FactorDim.COLUMN, "mlp_embed": FactorDim.ROW, "unmodeled": FactorDim.NONE}
    return {**standard_logical_factor_rules(), "expert": FactorDim.BATCH, **own}
