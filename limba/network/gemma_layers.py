"""What T5Gemma and a modern T5 have in their layers in place of T5's: rotary positions, norms after blocks, windows."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0
from limba.network import config_checks, own_layers

_OWNER = "GemmaLayers"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmaLayers:
    """Layers as in Gemma 2 (arXiv:2408.00118) and T5Gemma (arXiv:2504.06225), under Hugging Face's field names.

    Such a T5 turns queries and keys of self-attention by rotary positions and has no bias. Its norms multiply by
    1 + scale and stand before and after each block. Encoder and decoder have an embedding each, times sqrt(emb_dim);
    logits by the decoder's are not divided. The defaults are a modern T5 without windows and soft caps.

    Attributes:
      num_kv_heads: heads of keys and values, of which each serves several heads of queries (arXiv:2305.13245); a
        divisor of `num_heads`, and None is `num_heads`.
      rotary_base: of rotary positions.
      norm_epsilon: of all norms.
      query_pre_attn_scalar: queries are divided by its square root; None is `head_dim`.
      attn_logit_softcapping: c makes c * tanh(x / c) of a logit x of attention; None leaves it.
      final_logit_softcapping: the same for the logits of tokens.
      sliding_window: how many keys a decoder's query sees in a local layer, itself included; an encoder's sees as many
        to each side. None has no local layers.
      global_attention_every: with a window, every n-th layer sees the whole row: 2 is T5Gemma's.

    Raises:
      ValueError: for a value outside of what its field can be.
    """

    num_kv_heads: int | None = None
    rotary_base: float = 10_000.0
    norm_epsilon: float = 1e-6
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    sliding_window: int | None = None
    global_attention_every: int = 2

    def __post_init__(self) -> None:
        for field in ("num_kv_heads", "sliding_window", "global_attention_every"):
            if (given := getattr(self, field)) is not None:
                config_checks.whole_number(_OWNER, field, given, 1)
        for field in ("rotary_base", "norm_epsilon"):
            number_ranges.check(f"{_OWNER}.{field}", getattr(self, field), ABOVE_0)
        for field in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"):
            number_ranges.check(f"{_OWNER}.{field}", getattr(self, field), ABOVE_0._replace(or_none=True))

    @property
    def changes_logits(self) -> bool:
        """Whether attention has soft caps or windows, which the fused kernels do not have."""
        return self.attn_logit_softcapping is not None or self.sliding_window is not None

    def is_local(self, layer: int) -> bool:
        """Whether a layer of a stack has the window."""
        return self.sliding_window is not None and (layer + 1) % self.global_attention_every != 0

    def of_attention(self, head_dim: int, is_self: bool, is_local: bool) -> Mapping[str, Any]:
        """The fields of `MultiHeadDotProductAttention`; attention to the encoder has no positions."""
        return {
            "num_kv_heads": self.num_kv_heads,
            "query_scale": (self.query_pre_attn_scalar or head_dim) ** -0.5,
            "softcap": self.attn_logit_softcapping,
            "rotary_base": self.rotary_base if is_self else None,
            "sliding_window": self.sliding_window if is_local else None,
        }

    def explicit(self, num_heads: int, head_dim: int) -> "GemmaLayers":
        """The same layers without what None stands for, and with T5Gemma's period where there is no window."""
        return dataclasses.replace(
            self,
            num_kv_heads=self.num_kv_heads or num_heads,
            query_pre_attn_scalar=self.query_pre_attn_scalar or head_dim,
            global_attention_every=2 if self.sliding_window is None else self.global_attention_every,
        )

    def check_network(self, network: Any) -> None:
        """Raises ValueError if the other fields of a `T5Config` exclude them."""
        if own := own_layers.of(network):
            raise ValueError(
                f"T5Config has {', '.join(own)} and gemma_layers, which have an attention of their own; leave out one "
                "of the two."
            )
        if self.num_kv_heads is not None and network.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{_OWNER}.num_kv_heads is {self.num_kv_heads}, and each serves as many of the num_heads, "
                f"{network.num_heads}; use a divisor of {network.num_heads}."
            )
        if network.head_dim % 2:
            raise ValueError(
                f"T5Config.head_dim is {network.head_dim} with gemma_layers, whose rotary positions turn pairs of "
                "numbers; use an even one."
            )
        for field in ("relative_bias_per_layer", "scale_attn_logits"):
            if getattr(network, field):
                raise ValueError(
                    f"T5Config.{field} is True with gemma_layers, which have rotary positions and divide queries by "
                    "sqrt(query_pre_attn_scalar); set it to False."
                )
        if self.sliding_window is not None and network.scan_layers:
            raise ValueError(
                f"{_OWNER}.sliding_window is {self.sliding_window} and T5Config.scan_layers True, where all layers are "
                "one; set scan_layers = False, or sliding_window = None."
            )
        if self.changes_logits and network.kernels in ("fused", "cudnn"):
            raise ValueError(
                f"T5Config.kernels is {network.kernels!r}, and no fused kernel has the soft caps and windows of "
                "gemma_layers; set kernels = 'auto', which computes their attention by XLA."
            )
