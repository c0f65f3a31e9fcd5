"""The cross entropy of logits that are never made: products of the last states with the output's kernel, in chunks.

A chunk is a part of the vocabulary. The forward pass keeps the running maximum and sum of each position, the backward
pass makes each chunk's logits again. In memory there is a chunk of tokens x words at most.
"""

import functools
import math

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as nn_partitioning

Array = jax.Array

# Bytes of a chunk's logits on a device.
CHUNK_BYTES = 2**28


@flax.struct.dataclass
class LinearLogits:
    """Logits `scale * states @ kernel` that are still to be computed.

    Attributes:
      states: `[batch, length, embed]`, in the type of the products.
      kernel: float32 `[embed, vocab]`, or `[vocab, embed]` with `vocab_axis` 0.
    """

    states: Array
    kernel: Array
    vocab_axis: int = flax.struct.field(pytree_node=False, default=1)
    scale: float = flax.struct.field(pytree_node=False, default=1.0)

    @property
    def vocab(self) -> int:
        return self.kernel.shape[self.vocab_axis]


def is_chunked() -> bool:
    """Whether each device of the mesh has the whole vocabulary; a split one is a part already."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return True
    axes = nn_partitioning.logical_to_mesh_axes(("vocab",)) or (None,)
    return _devices(axes[0]) == 1


def _devices(axes: str | tuple[str, ...] | None) -> int:
    """Of these axes of the mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    names = (axes,) if isinstance(axes, str) else axes or ()
    return math.prod(mesh.shape[name] for name in names)


def _num_chunks(logits: LinearLogits) -> int:
    """A power of two that divides the vocabulary, so that chunks are alike."""
    rows = (
        1
        if jax.sharding.get_abstract_mesh().empty
        else _devices((nn_partitioning.logical_to_mesh_axes(("batch",)) or (None,))[0])
    )
    size = 4 * math.prod(logits.states.shape[:-1]) // rows * logits.vocab
    wanted = 2 ** max(0, math.ceil(math.log2(size / CHUNK_BYTES)))
    return math.gcd(wanted, logits.vocab)


def cross_entropy(
    logits: LinearLogits, targets: Array, label_smoothing: float, z_loss: float
) -> tuple[Array, Array, Array]:
    """What `losses.cross_entropy_with_logits` returns, and whether the likeliest word is the target, bool `[...]`."""
    settings = (logits.vocab_axis, logits.scale, label_smoothing, z_loss, _num_chunks(logits))
    return _cross_entropy(logits.states, logits.kernel, targets, settings)


def text_scores(logits: LinearLogits, targets: Array, is_text: np.ndarray) -> tuple[Array, ...]:
    """The fields of `losses.TextScores`."""
    settings = (logits.vocab_axis, logits.scale, 0.0, 0.0, _num_chunks(logits))
    states, kernel = logits.states, logits.kernel
    size = logits.vocab // settings[-1]
    text_chunks = jnp.asarray(is_text).reshape(-1, size)

    def find_target(carry, index):
        highest, of_target = carry
        chunk, _ = _chunk_logits(states, kernel, index, settings)
        of_target += jnp.sum(jnp.where(_is_target(targets, index, size), chunk, 0.0), axis=-1)
        return (jnp.maximum(highest, jnp.max(chunk, axis=-1)), of_target), None

    def compare(carry, index):
        sums, sums_of_text, rank, rank_in_text = carry
        chunk, _ = _chunk_logits(states, kernel, index, settings)
        parts = jnp.exp(chunk - highest[..., None])
        words = jax.lax.broadcasted_iota(jnp.int32, chunk.shape, chunk.ndim - 1) + index * size
        likelier = is_likelier(chunk, words, of_target, targets)
        rank += jnp.sum(likelier, axis=-1)
        rank_in_text += jnp.sum(likelier & text_chunks[index], axis=-1)
        sums_of_text += jnp.sum(jnp.where(text_chunks[index], parts, 0.0), axis=-1)
        return (sums + jnp.sum(parts, axis=-1), sums_of_text, rank, rank_in_text), None

    zeros, chunks = jnp.zeros(targets.shape, jnp.float32), jnp.arange(settings[-1])
    (highest, of_target), _ = jax.lax.scan(find_target, (jnp.full(targets.shape, -jnp.inf), zeros), chunks)
    start = (zeros, zeros, *[jnp.zeros(targets.shape, jnp.int32)] * 2)
    (sums, sums_of_text, *ranks), _ = jax.lax.scan(compare, start, chunks)
    return highest + jnp.log(sums), highest + jnp.log(sums_of_text), of_target, *ranks


def is_likelier(logits: Array, words: Array, of_target: Array, targets: Array) -> Array:
    """Which words are likelier than the target, bool like `logits`; of two alike the first one is."""
    of_target, targets = of_target[..., None], targets[..., None]
    # The target is not compared with itself, which may have been rounded otherwise.
    return ((logits > of_target) | ((logits == of_target) & (words < targets))) & (words != targets)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _cross_entropy(states, kernel, targets, settings):
    return _forward(states, kernel, targets, settings)[0]


def _chunk_logits(states: Array, kernel: Array, index: Array, settings) -> tuple[Array, Array]:
    """Float32 logits `[batch, length, chunk]` and the chunk's part of the kernel, in the states' type."""
    vocab_axis, scale, _, _, num_chunks = settings
    size = kernel.shape[vocab_axis] // num_chunks
    part = jax.lax.dynamic_slice_in_dim(kernel, index * size, size, vocab_axis).astype(states.dtype)
    equation = "bld,dv->blv" if vocab_axis == 1 else "bld,vd->blv"
    return scale * jnp.einsum(equation, states, part, preferred_element_type=jnp.float32), part


def _is_target(targets: Array, index: Array, size: int) -> Array:
    words = jax.lax.broadcasted_iota(jnp.int32, (*targets.shape, size), targets.ndim) + index * size
    return words == targets[..., None]


def _forward(states, kernel, targets, settings):
    vocab_axis, _, label_smoothing, z_loss, num_chunks = settings
    vocab = kernel.shape[vocab_axis]
    size = vocab // num_chunks

    def add_chunk(carry, index):
        highest, likeliest, sums, of_target, total = carry
        logits, _ = _chunk_logits(states, kernel, index, settings)
        in_chunk = jnp.max(logits, axis=-1)
        likeliest = jnp.where(in_chunk > highest, jnp.argmax(logits, axis=-1) + index * size, likeliest)
        new_highest = jnp.maximum(highest, in_chunk)
        sums = sums * jnp.exp(highest - new_highest) + jnp.sum(jnp.exp(logits - new_highest[..., None]), axis=-1)
        of_target += jnp.sum(jnp.where(_is_target(targets, index, size), logits, 0.0), axis=-1)
        if label_smoothing != 0.0:
            total += jnp.sum(logits, axis=-1)
        return (new_highest, likeliest, sums, of_target, total), None

    zeros = jnp.zeros(targets.shape, jnp.float32)
    start = (jnp.full(targets.shape, -jnp.inf), jnp.zeros(targets.shape, jnp.int32), zeros, zeros, zeros)
    (highest, likeliest, sums, of_target, total), _ = jax.lax.scan(add_chunk, start, jnp.arange(num_chunks))
    log_z = highest + jnp.log(sums)
    on, off, entropy = target_distribution(vocab, label_smoothing)
    z = z_loss * jnp.square(log_z)
    loss = log_z - (on - off) * of_target - off * total - entropy + z
    return (loss, z, likeliest == targets), (states, kernel, targets, log_z)


def _backward(settings, residuals, cotangents):
    states, kernel, targets, log_z = residuals
    vocab_axis, scale, label_smoothing, z_loss, num_chunks = settings
    size = kernel.shape[vocab_axis] // num_chunks
    g = cotangents[0]
    on, off, _ = target_distribution(kernel.shape[vocab_axis], label_smoothing)
    of_probability = (g * (1.0 + 2.0 * z_loss * log_z))[..., None]

    def add_chunk(carry, index):
        of_states, of_kernel = carry
        logits, part = _chunk_logits(states, kernel, index, settings)
        soft_targets = jnp.where(_is_target(targets, index, size), on, off)
        gradient = jnp.exp(logits - log_z[..., None]) * of_probability - g[..., None] * soft_targets
        gradient = (scale * gradient).astype(states.dtype)
        product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        if vocab_axis == 1:
            of_states += product("blv,dv->bld", gradient, part)
            of_part = product("bld,blv->dv", states, gradient)
        else:
            of_states += product("blv,vd->bld", gradient, part)
            of_part = product("blv,bld->vd", gradient, states)
        of_kernel = jax.lax.dynamic_update_slice_in_dim(of_kernel, of_part, index * size, vocab_axis)
        return (of_states, of_kernel), None

    start = (jnp.zeros(states.shape, jnp.float32), jnp.zeros(kernel.shape, jnp.float32))
    (of_states, of_kernel), _ = jax.lax.scan(add_chunk, start, jnp.arange(num_chunks))
    return of_states.astype(states.dtype), of_kernel, None


_cross_entropy.defvjp(_forward, _backward)


def target_distribution(vocab: int, label_smoothing: float) -> tuple[float, float, Array | float]:
    """Probability of the target, of every other token, and the entropy of the whole."""
    on, off = 1.0 - label_smoothing, label_smoothing / (vocab - 1)
    if label_smoothing == 0.0:
        return on, off, 0.0
    return on, off, -(on * jnp.log(on) + (vocab - 1) * off * jnp.log(off + 1e-20))
