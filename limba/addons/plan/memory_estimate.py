"""The memory of a step in a layout, by estimate: what `limba plan` ranks layouts by before it compiles any.

Its constants are fitted to the figures of XLA's TPU compiler for T5s from small to XXL with scanned layers;
docs/plan.md has its errors.
"""

import math
from collections.abc import Mapping
from typing import Any

from limba.addons.plan.mesh_layouts import MeshLayout, Work
from limba.addons.plan.topologies import Topology
from limba.devices import target
from limba.network import flops
from limba.network.kernels import attention, linear_cross_entropy

# Bytes for each attention weight without fused attention, and bf16 numbers for each of the feed-forward's and of the
# embedding's, that the backward pass of a layer keeps beside its products.
_PROBABILITIES, _WIDE, _NARROW = 8.0, 4.0, 4.0
_AT_ONCE = 0.6
# Positions of encoders whose attention no fused kernel computes.
_WITHOUT_KERNELS = ("relative_key", "relative_key_query", "disentangled")


def has_fused_kernels(work: Work, topology: Topology) -> bool:
    """Whether attention and the loss keep neither queries x keys nor tokens x words there."""
    sizes = work.sizes or {}
    if sizes.get("position_embedding_type") in _WITHOUT_KERNELS or sizes.get("is_beyond_kernels"):
        return False
    with target.tracing_for_platform(topology.chip.platform):
        return attention.is_fused(sizes.get("kernels", "auto"), sizes.get("head_dim", 64))


def temporary_bytes(work: Work, layout: MeshLayout, parameter_bytes: float, *, fused: bool = True) -> float:
    """Bytes of a device that live only during a step, for scanned layers in bf16: an estimate, rather too high.

    - gradients, in float32, sharded as the parameters; twice where microbatches are added up
    - the input of every layer, and by the policy the products in it ("minimal") and what attention and the feed-forward
      make between them ("none"); under "full" and "minimal" one layer has all of this for a moment
    - float32 logits and their gradient; a chunk of them with `fused`, see `has_fused_kernels`
    - under FSDP the parameters of one layer, and the embedding, gathered

    `work` must have sizes; `parameter_bytes` are those of one device.
    """
    sizes = work.sizes
    assert sizes is not None
    parts = [_activations(work, layout, *network, fused=fused) for network in work.networks]
    kept, now = sum(part[0] for part in parts), max(part[1] for part in parts)
    gradients = parameter_bytes * (2 if layout.microbatches > 1 else 1)
    emb, kv = sizes["emb_dim"], sizes["num_heads"] / layout.model * sizes["head_dim"]
    mlp = (len(sizes["mlp_activations"]) + 1) * emb * sizes["mlp_dim"] / layout.model
    vocab = sizes["vocab_size"] / layout.model
    gathered = 4 * (6 * emb * kv + mlp) + 4 * vocab * emb if layout.fsdp else 0.0
    return gradients + kept + now + gathered


def _activations(
    work: Work, layout: MeshLayout, sizes: Mapping[str, Any], input_length: int, target_length: int, *, fused: bool
) -> tuple[float, float]:
    """Bytes of a network's activations: those that all layers keep, and what is there for a moment beside them."""
    emb, vocab = sizes["emb_dim"], sizes["vocab_size"] / layout.model
    heads = sizes["num_heads"] / layout.model
    kv = heads * sizes["head_dim"]
    mlp, branches = sizes["mlp_dim"] / layout.model, len(sizes["mlp_activations"])
    rows = work.batch_size / (layout.data * layout.slices * layout.microbatches)
    inputs, targets = rows * input_length, rows * target_length
    # bf16: two bytes for each number.
    encoder_input, decoder_input = 2 * inputs * emb, 2 * targets * emb
    encoder_products = 2 * inputs * (3 * kv + emb + branches * mlp)
    decoder_products = 2 * targets * (4 * kv + 2 * emb + branches * mlp) + 2 * inputs * 2 * kv
    squares = (input_length * flops.seen_keys(sizes, input_length), target_length * (target_length + input_length))
    probabilities = 0.0 if fused else _PROBABILITIES * rows * heads
    weights, again = probabilities * squares[0], 0.0
    if sizes.get("keeps_no_weights"):
        # No fused kernel computes it; the backward pass computes it again, so one layer alone has its weights.
        weights, again = 0.0, _PROBABILITIES * rows * heads * squares[0]
    encoder_rest = weights + 2 * inputs * (_WIDE * mlp + _NARROW * emb)
    decoder_rest = probabilities * squares[1] + 2 * targets * (_WIDE * mlp + 1.5 * _NARROW * emb)
    encoder, decoder = encoder_input, decoder_input
    if layout.remat != "full":
        encoder, decoder = encoder + encoder_products, decoder + decoder_products
    if layout.remat == "none":
        encoder, decoder = encoder + encoder_rest, decoder + decoder_rest
    kept = sizes["num_encoder_layers"] * encoder + sizes["num_decoder_layers"] * decoder
    # One layer's, which the compiler does not hold all at once.
    now = encoder_products + _AT_ONCE * encoder_rest + again
    if sizes["num_decoder_layers"]:
        now = max(now, decoder_products + _AT_ONCE * decoder_rest)
    logits = min(4 * targets * vocab, linear_cross_entropy.CHUNK_BYTES / 2 if fused else math.inf)
    return kept, max(now, 2 * logits)
