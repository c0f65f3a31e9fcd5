"""Experts on the mesh: each device of `data` keeps some of them, and tokens travel to their expert and back."""

from limba.partitioning.meshes import LogicalAxisRules, standard_logical_axis_rules


def expert_logical_axis_rules(
    activation_partitioning_dims: int = 1, parameter_partitioning_dims: int = 1
) -> LogicalAxisRules:
    """`standard_logical_axis_rules` with the experts split over `data`, which must divide their number.

    With `parameter_partitioning_dims` of 2 all other parameters are split over `data`, too (FSDP).
    """
    rules = standard_logical_axis_rules(activation_partitioning_dims, parameter_partitioning_dims)
    return [("expert", "data"), *rules]
