"""T5 as T5X's scalable_t5 lays it out: scanned, a relative bias in every layer, kernels `[embed, heads, kv]`.

umT5 is this network. The names are those of `t5x.examples.scalable_t5`; the network itself is `limba.network.t5`.
"""

import dataclasses

from limba.network import attention, t5


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Config(t5.T5Config):
    """`network.T5Config` with scalable_t5's defaults; `scan_layers` may be False, which T5X names `layers_0` …"""

    scan_layers: bool = True
    relative_bias_per_layer: bool = True
    joined_attention_kernels: bool = False


class MultiHeadDotProductAttention(attention.MultiHeadDotProductAttention):
    """`attention.MultiHeadDotProductAttention` with kernels `[embed, heads, kv]`."""

    joined_kernels: bool = False
