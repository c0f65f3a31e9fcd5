"""The time of a step in a layout, by estimate: which of the layouts that fit is the fastest."""

from limba.addons.plan.mesh_layouts import MeshLayout, Work
from limba.addons.plan.topologies import Topology

# A step that would be shorter waits for its kernels to be launched: the peak of the chips says nothing about it.
LEAST_SECONDS = 0.005


def relative_seconds(work: Work, layout: MeshLayout, topology: Topology, parameter_bytes: float) -> float:
    """Seconds of a step at the full rate of chips and links: good for comparing layouts, too low for a run.

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
