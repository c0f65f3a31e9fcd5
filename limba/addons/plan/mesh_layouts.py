"""Layouts of a training over devices, their gin lines, and the work of a step, which is the same in all of them."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from limba.addons.plan.topologies import Topology
from limba.network.flops import forward_flops, recomputed_flops

REMAT_POLICIES = ("none", "minimal", "full")
_MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclasses.dataclass(frozen=True)
class MeshLayout:
    """Mesh, rules, recomputation and microbatches of a training.

    Attributes:
      data: devices over which a batch is split, within a slice.
      model: devices that share one model.
      fsdp: parameters and optimizer state are spread over `data` too.
      remat: a policy of `network.T5Config.remat_policy`.
      microbatches: parts of a batch.
      slices: of the same mesh, over which a batch is split first.
    """

    data: int
    model: int
    fsdp: bool
    remat: str
    microbatches: int
    slices: int = 1

    def __str__(self) -> str:
        mesh = f"{self.data} x {self.model}" + (f" x {self.slices} slices" if self.slices > 1 else "")
        parts = f"{self.microbatches} microbatch{'es' if self.microbatches > 1 else ''}"
        return f"{mesh}{' FSDP' if self.fsdp else ''}, remat {self.remat}, {parts}"

    def gin_lines(self, config_name: str | None = "network.T5Config", *, scanned: bool = True) -> list[str]:
        """Bindings that give a training this layout; without `config_name`, none for the network.

        Args:
          scanned: whether the layers are.
        """
        rules = "fsdp_logical_axis_rules" if self.fsdp else "standard_logical_axis_rules"
        network = [f"{config_name}.scan_layers = {scanned}", f"{config_name}.remat_policy = '{self.remat}'"]
        return [
            f"partitioning.PjitPartitioner.num_partitions = {self.model}",
            f"partitioning.PjitPartitioner.logical_axis_rules = @partitioning.{rules}()",
            *(network if config_name else []),
            f"trainer.Trainer.num_microbatches = {self.microbatches}",
        ]


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a step, which is the same in every layout.

    Attributes:
      sizes: fields of `network.T5Config`; None for a network that has none.
      batch_size: rows.
      inputs, targets: tokens of a row.
      num_parameters: of the network.
      generator: fields of a second network, which has the logits of the targets; the first has none then (ELECTRA).
      used_parameters: by a token, which has one of several experts; None is all.
    """

    sizes: Mapping[str, Any] | None
    batch_size: int
    inputs: int
    targets: int
    num_parameters: int
    generator: Mapping[str, Any] | None = None
    used_parameters: int | None = None

    @property
    def networks(self) -> list[tuple[Mapping[str, Any], int, int]]:
        """Sizes, and the tokens of inputs and targets, of each network of a step."""
        if self.sizes is None:
            return []
        if self.generator is None:
            return [(self.sizes, self.inputs, self.targets)]
        return [(self.generator, self.inputs, self.targets), (self.sizes, self.inputs, 0)]

    @property
    def model_flops(self) -> float:
        """FLOPs of a step without recomputation: the backward pass has two products for each of the forward pass.

        Without sizes 2 a parameter and token, the usual estimate; tokens of both sides go through half of the network.
        """
        if self.sizes is None:
            tokens = max(self.inputs, self.targets) if not self.inputs else (self.inputs + self.targets) / 2
            return 3 * 2.0 * self.num_parameters * tokens * self.batch_size
        return 3 * self.batch_size * sum(forward_flops(*network) for network in self.networks)

    def hardware_flops(self, remat: str) -> float:
        """FLOPs of a step, recomputation for the backward pass included."""
        if self.sizes is None:
            return self.model_flops
        return self.model_flops + self.batch_size * sum(recomputed_flops(*network, remat) for network in self.networks)


def candidates(work: Work, topology: Topology, remat_policies: Sequence[str] = REMAT_POLICIES) -> Iterator[MeshLayout]:
    """Every layout whose sizes divide: heads by the model axis, the batch by data shards and microbatches.

    The model axis stays in one box or slice, and below 16: all of it takes part in every product.
    """
    devices = topology.num_devices // topology.num_slices
    sizes = work.sizes or {}
    for model in (1, 2, 4, 8):
        both = (sizes, work.generator or {})
        shared = [each.get(name, model) for each in both for name in ("num_heads", "mlp_dim", "vocab_size")]
        if devices % model or model > topology.devices_of_a_box or any(size % model for size in shared):
            continue
        data = devices // model
        for fsdp in (False, True):
            if fsdp and (data == 1 or sizes.get("emb_dim", data) % data):
                continue
            for microbatches in _MICROBATCHES:
                if work.batch_size % (data * topology.num_slices * microbatches):
                    continue
                for remat in remat_policies:
                    yield MeshLayout(data, model, fsdp, remat, microbatches, topology.num_slices)
