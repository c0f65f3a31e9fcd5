"""T5X's `contrib.moe.partitioning`: a mesh with an axis for experts."""

import logging
from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1
from limba.partitioning import meshes
from limba.partitioning.host_groups import HostGroups
from limba.partitioning.meshes import LogicalAxisRules, PjitPartitioner

logger = logging.getLogger(__name__)

# Batches are split over both.
_DATA_AXES = ("data", "expert")


def standard_logical_axis_rules(
    activation_partitioning_dims: int = 2,
    parameter_partitioning_dims: int = 1,
    additional_rules: LogicalAxisRules | None = None,
) -> LogicalAxisRules:
    """T5X's rules for experts: rows over `data` and `expert`, experts over `expert`, each expert over `model`.

    The arguments are those of `meshes.standard_logical_axis_rules`.
    """
    dims = (activation_partitioning_dims, parameter_partitioning_dims)
    standard = [rule for rule in meshes.standard_logical_axis_rules(*dims) if rule[0] not in ("batch", "expert")]
    own: list[tuple[str, Any]] = [("batch", _DATA_AXES), ("expert", "expert"), ("expert_mlp", "model")]
    own += [("expert_replicas", "data"), ("unmodeled", None)]
    return [*own, *standard, *(additional_rules or ())]


class MoePjitPartitioner(PjitPartitioner):
    """A mesh with axes `data`, `expert` and `model`: experts are split over `expert`, rows over `data` and `expert`.

    Attributes:
      num_expert_partitions: the largest size of `expert`; it is the largest number up to this one that divides the
        devices of `data`, and must divide the number of experts.
      num_partitions, model_parallel_submesh, params_on_devices, backend: as `PjitPartitioner` has them.
      logical_axis_rules: defaults to `standard_logical_axis_rules()` of this module.
      state_filter_fn: T5X's, for Adafactor's statistics; they are small, and whole on each device here.

    Raises:
      ValueError: as `PjitPartitioner`, and for a number of partitions below 1.
    """

    def __init__(
        self,
        num_expert_partitions: int,
        num_partitions: int | None = None,
        model_parallel_submesh: Sequence[int] | None = None,
        params_on_devices: bool = True,
        backend: str | None = None,
        logical_axis_rules: LogicalAxisRules | None = None,
        state_filter_fn: Any = None,
        devices: Sequence[Any] | None = None,
    ):
        del state_filter_fn
        number_ranges.check("MoePjitPartitioner.num_expert_partitions", num_expert_partitions, AT_LEAST_1)
        super().__init__(num_partitions, model_parallel_submesh, params_on_devices, backend, devices=devices)
        data, model = self.mesh.shape["data"], self.mesh.shape["model"]
        size = next(n for n in range(min(num_expert_partitions, data), 0, -1) if data % n == 0)
        if size < num_expert_partitions:
            logger.info("The mesh's axis `expert` is %d, of at most %d partitions.", size, num_expert_partitions)
        self.mesh = Mesh(self.mesh.devices.reshape(-1, size, model), (*_DATA_AXES, "model"))
        self.data_axes = _DATA_AXES
        self.logical_axis_rules = tuple(logical_axis_rules or standard_logical_axis_rules())
        self._host_groups = HostGroups(self.mesh, self.data_axes)
