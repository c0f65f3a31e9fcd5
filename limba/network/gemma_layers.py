"""What T5Gemma, T5Gemma 2 and a modern T5 have in their layers: rotary positions, norms after blocks, windows."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0
from limba.network import config_checks, own_layers

_OWNER = "GemmaLayers"
# What a float32 holds.
_NUMBER = ABOVE_0._replace(below=2.0**100)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmaLayers:
    """Layers as in Gemma 2 (arXiv:2408.00118) and T5Gemma (arXiv:2504.06225), under Hugging Face's field names.

    Such a T5 turns queries and keys of self-attention by rotary positions and has no bias. Its norms multiply by
    1 + scale and stand before and after each block. Encoder and decoder have an embedding each, times sqrt(emb_dim);
    logits by the decoder's are not divided. The defaults are a modern T5 without windows and soft caps. The last six
    fields are T5Gemma 2's (transformers' `t5gemma2`), and off in T5Gemma.

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
      global_attention_every: with a window, every n-th layer sees the whole row: 2 is T5Gemma's, 6 T5Gemma 2's.
      merged_attention: a layer of the decoder attends to the encoder and to the decoder in one softmax, with the same
        kernels; the encoder's keys have no positions and no window. There is no attention to the encoder beside it.
      qk_norm: a norm of each head's queries and keys, before they are turned.
      shared_embedding: encoder and decoder have one embedding.
      local_rotary_base: of layers with a window; None is `rotary_base`.
      rotary_factor: positions are divided by it in layers without a window (arXiv:2306.15595).
      halved_encoder_window: an encoder's query sees `sliding_window` keys in all: (sliding_window - 1) // 2 before it,
        itself, and sliding_window // 2 after it.

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
    merged_attention: bool = False
    qk_norm: bool = False
    shared_embedding: bool = False
    local_rotary_base: float | None = None
    rotary_factor: float = 1.0
    halved_encoder_window: bool = False

    def __post_init__(self) -> None:
        config_checks.flags(_OWNER, self)
        for field in ("num_kv_heads", "sliding_window", "global_attention_every"):
            if (given := getattr(self, field)) is not None:
                config_checks.whole_number(_OWNER, field, given, 1)
        for field in ("rotary_base", "norm_epsilon", "rotary_factor"):
            number_ranges.check(f"{_OWNER}.{field}", getattr(self, field), _NUMBER)
        above_0_or_none = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")
        for field in (*above_0_or_none, "local_rotary_base"):
            number_ranges.check(f"{_OWNER}.{field}", getattr(self, field), _NUMBER._replace(or_none=True))

    @property
    def is_beyond_kernels(self) -> bool:
        """Whether attention has soft caps, windows or keys of both stacks, which the fused kernels do not have."""
        capped = self.attn_logit_softcapping is not None
        return capped or self.sliding_window is not None or self.merged_attention

    def is_local(self, layer: int) -> bool:
        """Whether a layer of a stack has the window."""
        return self.sliding_window is not None and (layer + 1) % self.global_attention_every != 0

    def of_attention(self, head_dim: int, is_self: bool, is_local: bool, in_encoder: bool = False) -> Mapping[str, Any]:
        """The fields of `MultiHeadDotProductAttention`; attention to the encoder has no positions."""
        base = self.local_rotary_base if is_local and self.local_rotary_base else self.rotary_base
        window = self.sliding_window or 1
        sides = (window - 1) // 2, window // 2
        if not (in_encoder and self.halved_encoder_window):
            sides = window - 1, window - 1
        return {
            "num_kv_heads": self.num_kv_heads,
            "query_scale": (self.query_pre_attn_scalar or head_dim) ** -0.5,
            "softcap": self.attn_logit_softcapping,
            "rotary_base": base if is_self else None,
            "rotary_factor": 1.0 if is_local else self.rotary_factor,
            "window": sides if is_local else None,
            "qk_norm_epsilon": self.norm_epsilon if self.qk_norm else None,
        }

    def explicit(self, network: Any) -> "GemmaLayers":
        """The same layers of a `T5Config` without what None stands for; what has no effect in it is the default."""
        is_local = self.sliding_window is not None
        # All periods beyond the deeper stack give the same layers.
        period = min(self.global_attention_every, 1 + max(network.num_encoder_layers, network.num_decoder_layers))
        return dataclasses.replace(
            self,
            num_kv_heads=self.num_kv_heads or network.num_heads,
            query_pre_attn_scalar=self.query_pre_attn_scalar or network.head_dim,
            global_attention_every=period if is_local else 2,
            local_rotary_base=(self.local_rotary_base if is_local else None) or self.rotary_base,
            halved_encoder_window=is_local and self.halved_encoder_window,
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
        if self.is_beyond_kernels and network.kernels in ("fused", "cudnn"):
            raise ValueError(
                f"T5Config.kernels is {network.kernels!r}, and no fused kernel has the soft caps, windows and merged "
                "attention of gemma_layers; set kernels = 'auto', which computes their attention by XLA."
            )
