"""An attention layer as a user writes one: a gate on what T5's attention gives."""

import flax.linen as nn

from limba.network import attention, layers


class GatedAttention(attention.MultiHeadDotProductAttention):
    """T5's attention times the sigmoid of a product of its inputs."""

    @nn.compact
    def __call__(self, inputs_q, inputs_kv, mask=None, bias=None, **modes):
        gate = layers.DenseGeneral(inputs_q.shape[-1], dtype=self.dtype, kernel_axes=("embed", None), name="gate")
        return super().__call__(inputs_q, inputs_kv, mask, bias, **modes) * nn.sigmoid(gate(inputs_q))


class Other(nn.Module):
    """Not derived from T5's."""
