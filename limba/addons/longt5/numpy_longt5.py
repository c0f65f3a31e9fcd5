"""The encoder of Hugging Face's LongT5 in NumPy: what an export means, computed without the code that wrote it.

It follows LongT5's definition (arXiv:2112.07916) with all pairs of queries and keys, from Hugging Face's tensors, and
shares nothing with Limba's network or table of names. For checks, not for speed; see `numpy_t5`.
"""

import functools

import numpy as np

from limba.convert.compare import numpy_t5
from limba.convert.compare.numpy_t5 import Array


class _Network(numpy_t5.Network):
    def stack(self, stack: str, x: Array, visible: Array, encoded: tuple[Array, Array] | None) -> Array:
        if encoded is not None:
            return super().stack(stack, x, visible, encoded)
        config, length = self.config, x.shape[1]
        name = "LocalSelfAttention" if config["encoder_attention_type"] == "local" else "TransientGlobalSelfAttention"
        first = f"{stack}.block.0.layer.0.{name}"
        distances = np.arange(length) - np.arange(length)[:, None]
        bias = self.position_bias(f"{first}.relative_attention_bias", distances)
        # Padding sees itself, as it must see something.
        seen = np.logical_and(visible, np.abs(distances) <= config["local_radius"]) | np.equal(distances, 0)
        members = np.zeros((len(x), 0, length))
        if config["encoder_attention_type"] != "local":
            members = _members(np.asarray(visible)[:, 0, 0], config["global_block_size"])
            own = np.einsum("bkt,k->bt", members, np.arange(count := members.shape[1])).astype(int)
            table = f"{first}.global_relative_attention_bias"
            of_blocks = [self.position_bias(table, np.arange(count) - row[:, None]) for row in own]
            bias = np.concatenate([np.repeat(bias, len(x), 0), np.concatenate(of_blocks)], -1)
            seen = np.concatenate([seen, np.repeat(members.max(-1)[:, None, None] > 0, length, axis=2)], -1)
        for i in range(config["num_layers"]):
            block = f"{stack}.block.{i}.layer"
            y = self.norm(f"{block}.0.layer_norm", x)
            keyed = y
            if members.shape[1]:
                sums = self.norm(f"{block}.0.{name}.global_input_layer_norm", self.rounding(members @ y))
                keyed = np.concatenate([y, sums], 1)
            x = self.rounding(x + self.attention(f"{block}.0.{name}", y, keyed, seen, bias))
            y = self.norm(f"{block}.1.layer_norm", x)
            x = self.rounding(x + self.feed_forward(f"{block}.1.DenseReluDense", y))
        return self.norm(f"{stack}.final_layer_norm", x)


def _members(real: Array, size: int) -> Array:
    """Which tokens each block sums, `[batch, blocks, length]`; the last whole one has all that follow it."""
    members = np.zeros((len(real), real.shape[1] // size, real.shape[1]))
    for row, length in zip(members, real.sum(1), strict=True):
        for block in range(count := length // size):
            row[block, block * size : length if block == count - 1 else (block + 1) * size] = 1
    return members


logits = functools.partial(numpy_t5.logits, network_class=_Network)
