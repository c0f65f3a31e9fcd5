"""LongT5's configuration. The network is `limba.network.t5.Transformer`, whose encoder asks it for its attention."""

import dataclasses
from typing import Any, ClassVar

from limba.addons.longt5.long_attention import LOCAL, TRANSIENT_GLOBAL, LongEncoderAttention
from limba.network import config_checks, own_layers
from limba.network.t5 import T5Config

_OWNER = "LongT5Config"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongT5Config(T5Config):
    """The shape of a LongT5: `T5Config`, and what its encoder sees. XLA computes this, whatever `kernels` says.

    Attributes:
      encoder_attention_type: "local" or "transient-global"; see `long_attention`.
      local_radius: how many tokens the encoder sees to each side.
      global_block_size: of "transient-global": tokens that one global token sums; a power of 2.

    Raises:
      ValueError: as `T5Config`; for other layers than T5's, and a network without an encoder.
    """

    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    encoder_attention_type: str = LOCAL
    local_radius: int = 127
    global_block_size: int = 16

    layer_kind: ClassVar[str] = "long"
    is_in_t5x: ClassVar[bool] = True  # flaxformer has them.

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = self.encoder_attention_type
        config_checks.choice(_OWNER, "encoder_attention_type", kind, (LOCAL, TRANSIENT_GLOBAL))
        for field in ("local_radius", "global_block_size"):
            config_checks.whole_number(_OWNER, field, getattr(self, field), 1)
        if (size := self.global_block_size) & (size - 1):
            raise ValueError(
                f"{_OWNER}.global_block_size is {size}; use a power of 2. transformers counts blocks by sums of "
                "1 / size, which are exact for these."
            )
        for field in ("relative_bias_per_layer", "gemma_layers", own_layers.FIELDS[0]):
            if given := getattr(self, field):
                raise ValueError(
                    f"{_OWNER}.{field} is {given!r}; LongT5 has one table of positions a stack and an attention of its "
                    "own. Leave it out."
                )
        if self.num_encoder_layers == 0:
            raise ValueError(f"{_OWNER}.num_encoder_layers is 0, and LongT5's attention is the encoder's.")

    @property
    def encoder_attention(self) -> LongEncoderAttention:
        """See `T5Config.encoder_attention`."""
        block_size = self.global_block_size if self.encoder_attention_type == TRANSIENT_GLOBAL else None
        return LongEncoderAttention(self.local_radius, block_size)

    def plain_fields(self) -> dict[str, Any]:
        """See `T5Config.plain_fields`: of a window alone, blocks have no size."""
        has_sums = self.encoder_attention_type == TRANSIENT_GLOBAL
        return {} if has_sums else {"global_block_size": LongT5Config.global_block_size}
