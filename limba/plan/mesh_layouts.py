"""Ways to lay a training out over devices, what each needs by estimate, and the gin lines that ask for it.

Estimates choose what is worth compiling; they are not what is reported as fitting. Their constants are fitted to what
XLA's TPU compiler said of T5s from small to XXL with scanned layers; docs/plan.md says how close they come.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from limba.flops import forward_flops, recomputed_flops
from limba.topologies import Topology

REMAT_POLICIES = ("none", "minimal", "full")
_MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclasses.dataclass(frozen=True)
class Layout:
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
        return f"{mesh}{' FSDP' if self.fsdp else ''}, remat {self.remat}, {self.microbatches} microbatch" + (
            "es" if self.microbatches > 1 else ""
        )

    def gin_lines(self, config_name: str | None = "network.T5Config") -> list[str]:
        """Bindings that make a training this layout; without a name of the network's configuration, not its fields."""
        rules = "fsdp_logical_axis_rules" if self.fsdp else "standard_logical_axis_rules"
        lines = [
            f"partitioning.PjitPartitioner.num_partitions = {self.model}",
            f"partitioning.PjitPartitioner.logical_axis_rules = @partitioning.{rules}()",
        ]
        if config_name:
            lines += [f"{config_name}.scan_layers = True", f"{config_name}.remat_policy = '{self.remat}'"]
        lines.append(f"trainer.Trainer.num_microbatches = {self.microbatches}")
        return lines


@dataclasses.dataclass(frozen=True)
class Work:
    """What a step has to do, whatever the layout.

    Attributes:
      sizes: fields of `network.T5Config`; None for a network that has none.
      batch_size: rows.
      inputs, targets: tokens of a row.
      num_parameters: of the network.
    """

    sizes: Mapping[str, Any] | None
    batch_size: int
    inputs: int
    targets: int
    num_parameters: int

    @property
    def model_flops(self) -> float:
        """FLOPs of a step without recomputation: the backward pass has two products for each of the forward pass.

        Without sizes 2 a parameter and token, the usual estimate; tokens of both sides go through half of the network.
        """
        if self.sizes is None:
            tokens = max(self.inputs, self.targets) if not self.inputs else (self.inputs + self.targets) / 2
            return 3 * 2.0 * self.num_parameters * tokens * self.batch_size
        return 3 * self.batch_size * forward_flops(self.sizes, self.inputs, self.targets)

    def hardware_flops(self, remat: str) -> float:
        """FLOPs of a step with what is computed again for the backward pass."""
        if self.sizes is None:
            return self.model_flops
        return self.model_flops + self.batch_size * recomputed_flops(self.sizes, self.inputs, self.targets, remat)


def candidates(work: Work, topology: Topology, remat_policies: Sequence[str] = REMAT_POLICIES) -> Iterator[Layout]:
    """Every layout whose sizes divide: heads by the model axis, the batch by data shards and microbatches.

    The model axis stays in one box or slice, and below 16: all of it takes part in every product.
    """
    devices = topology.num_devices // topology.num_slices
    sizes = work.sizes or {}
    for model in (1, 2, 4, 8):
        shared = [sizes.get(name, model) for name in ("num_heads", "mlp_dim", "vocab_size")]
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
                    yield Layout(data, model, fsdp, remat, microbatches, topology.num_slices)


# ------------------------------------------------------- memory ------------------------------------------------------


def temporary_bytes(work: Work, layout: Layout, parameter_bytes: float) -> float:
    """Bytes of a device that live only during a step, for scanned layers in bf16; about, and rather too many.

    - gradients, in float32, sharded as the parameters; twice where microbatches are added up
    - the input of every layer, and by the policy the products in it ("minimal") and what attention and the feed-forward
      make between them ("none"); under "full" and "minimal" one layer has all of this for a moment
    - float32 logits and their gradient
    - under FSDP the parameters of one layer, and the embedding, gathered

    Args:
      work: with sizes.
      layout: whose estimate is wanted.
      parameter_bytes: of one device.
    """
    sizes = work.sizes
    assert sizes is not None
    emb, vocab = sizes["emb_dim"], sizes["vocab_size"] / layout.model
    heads = sizes["num_heads"] / layout.model
    kv = heads * sizes["head_dim"]
    mlp, branches = sizes["mlp_dim"] / layout.model, len(sizes["mlp_activations"])
    rows = work.batch_size / (layout.data * layout.slices * layout.microbatches)
    inputs, targets = rows * work.inputs, rows * work.targets
    # bf16: two bytes for each number.
    encoder_input, decoder_input = 2 * inputs * emb, 2 * targets * emb
    encoder_products = 2 * inputs * (3 * kv + emb + branches * mlp)
    decoder_products = 2 * targets * (4 * kv + 2 * emb + branches * mlp) + 2 * inputs * 2 * kv
    squares = (work.inputs**2, work.targets * (work.targets + work.inputs))
    encoder_rest = _PROBABILITIES * rows * heads * squares[0] + 2 * inputs * (_WIDE * mlp + _NARROW * emb)
    decoder_rest = _PROBABILITIES * rows * heads * squares[1] + 2 * targets * (_WIDE * mlp + 1.5 * _NARROW * emb)
    encoder, decoder = encoder_input, decoder_input
    if layout.remat != "full":
        encoder, decoder = encoder + encoder_products, decoder + decoder_products
    if layout.remat == "none":
        encoder, decoder = encoder + encoder_rest, decoder + decoder_rest
    kept = sizes["num_encoder_layers"] * encoder + sizes["num_decoder_layers"] * decoder
    # One layer's, which the compiler does not hold all at once.
    now = max(encoder_products + _AT_ONCE * encoder_rest, decoder_products + _AT_ONCE * decoder_rest)
    logits = 4 * targets * vocab
    gradients = parameter_bytes * (2 if layout.microbatches > 1 else 1)
    gathered = 0.0
    if layout.fsdp:
        gathered = 4 * (6 * emb * kv + (branches + 1) * emb * mlp) + 4 * vocab * emb
    return gradients + kept + max(now, 2 * logits) + gathered


# Bytes for each attention weight, and bf16 numbers for each of the feed-forward's and of the embedding's, that the
# backward pass of a layer keeps beside its products.
_PROBABILITIES, _WIDE, _NARROW = 8.0, 4.0, 4.0
_AT_ONCE = 0.6


# ------------------------------------------------------- time --------------------------------------------------------


def relative_seconds(work: Work, layout: Layout, topology: Topology, parameter_bytes: float) -> float:
    """Seconds of a step at the full rate of chips and links: for comparing layouts, not for believing.

    The products of a layer wait for those of its model axis. Gradients and parameters travel beside the products, so
    they count where they take longer.
    """
    chip = topology.chip
    compute = work.hardware_flops(layout.remat) / (chip.peak_per_device * topology.num_devices)
    rows = work.batch_size / (layout.data * layout.slices)
    within = chip.link / chip.devices_per_chip
    across = chip.network / chip.devices_per_chip
    waiting = 0.0
    if layout.model > 1 and work.sizes is not None:
        sizes = work.sizes
        # Two sums over the model axis in each encoder layer and three in each decoder layer, forward and backward;
        # a full recomputation makes the forward ones again.
        passes = 3 if layout.remat == "full" else 2
        inputs = 2 * sizes["num_encoder_layers"] * work.inputs + sizes["num_decoder_layers"] * work.inputs / 2
        targets = 3 * sizes["num_decoder_layers"] * work.targets
        sums = passes * rows * (inputs + targets) * 2 * sizes["emb_dim"]
        waiting = _all_reduce(sums, layout.model) / within
    # Data shards that the fast links join, and groups of them: each sends its part of what the group has summed up.
    near = max(1, min(layout.data, topology.devices_of_a_box // layout.model))
    far = layout.data // near
    whole = parameter_bytes * (layout.data if layout.fsdp else 1)
    if layout.fsdp:
        # Parameters are gathered in bf16 for the forward and the backward pass and gradients are spread in float32,
        # for every microbatch; slices have their own copies.
        sent = whole * (near - 1) / near / within + whole / near * (far - 1) / far / across
        travelling = layout.microbatches * 2 * sent + _all_reduce(parameter_bytes, layout.slices) / across
    else:
        travelling = _all_reduce(whole, near) / within + _all_reduce(whole / near, far * layout.slices) / across
    return max(compute, travelling) + waiting + layout.microbatches * _PER_MICROBATCH * compute


# Smaller products keep a chip less busy: of two layouts alike, the one with fewer microbatches.
_PER_MICROBATCH = 0.005


def _all_reduce(num_bytes: float, parts: int) -> float:
    """Bytes that each of `parts` devices sends to sum up arrays of `num_bytes` on a ring."""
    return 2 * num_bytes * (parts - 1) / parts
