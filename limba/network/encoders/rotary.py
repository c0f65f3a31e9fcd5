"""Rotary positions: queries and keys are turned by angles that grow with their positions (arXiv:2104.09864)."""

import flax.struct
import jax
import jax.numpy as jnp

Array = jax.Array

# Which two numbers of a head are turned together: the first of both halves, or neighbours.
PAIRS = ("halves", "interleaved")


@flax.struct.dataclass
class Rotation:
    """The angles of all positions.

    Attributes:
      cos, sin: float32 `[batch or 1, length, 1, pairs]`.
      pairs: one of `PAIRS`.
    """

    cos: Array
    sin: Array
    pairs: str = flax.struct.field(pytree_node=False)

    def __call__(self, x: Array) -> Array:
        """Turns the first `2 * pairs` numbers of each head of `[batch, length, heads, kv]`; the others stay."""
        count = self.cos.shape[-1]
        turned, others = x[..., : 2 * count], x[..., 2 * count :]
        shape, axis = ((2, count), -2) if self.pairs == "halves" else ((count, 2), -1)
        first, second = jnp.unstack(turned.astype(jnp.float32).reshape(*x.shape[:-1], *shape), axis=axis)
        both = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        turned = jnp.stack(both, axis=axis).reshape(turned.shape).astype(x.dtype)
        return jnp.concatenate([turned, others], axis=-1)


def rotation(positions: Array, dim: int, base: float, pairs: str) -> Rotation:
    """The angles `position / base ** (2 i / dim)` of the pairs i.

    Args:
      positions: `[batch or 1, length]`.
      dim: how many numbers of a head are turned; even.
    """
    frequencies = base ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    cos, sin = (function(angles)[:, :, None, :] for function in (jnp.cos, jnp.sin))
    return Rotation(cos, sin, pairs)
