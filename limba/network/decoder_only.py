"""T5's decoder on its own: a language model, or a prefix LM (arXiv:1910.10683, section 3.2.1).

The names are those of `t5x.examples.decoder_only`; layers and decoder are those of `limba.network.t5`.
"""

import dataclasses

import flax.linen as nn
import jax

from limba.network import t5
from limba.network.kernels.linear_cross_entropy import LinearLogits

Array = jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(t5.T5Config):
    """`network.T5Config` with one depth, `num_layers`."""

    num_layers: int = 6
    num_encoder_layers: int = dataclasses.field(default=0, init=False)
    num_decoder_layers: int = dataclasses.field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_decoder_layers", self.num_layers)
        super().__post_init__()


class DecoderWrapper(nn.Module):
    """The network under the name `decoder`, with T5X's protocol.

    Decoding: a call with `decode=True`, the `cache` collection mutable and tokens of the full length makes the cache. A
    call with `prefill=True` may write prompts into it. Then each call with `decode=True` and one token a row returns
    the logits that follow it.
    """

    config: TransformerConfig

    @property
    def scan_layers(self) -> bool:
        """Whether the arrays of the cache have the layers before the batch."""
        return self.config.scan_layers

    def setup(self) -> None:
        self.decoder = t5.Decoder(self.config)

    def __call__(
        self,
        decoder_input_tokens: Array,
        decoder_target_tokens: Array,
        decoder_segment_ids: Array | None = None,
        decoder_positions: Array | None = None,
        decoder_causal_attention: Array | None = None,
        *,
        enable_dropout: bool = True,
        decode: bool = False,
        max_decode_length: int | None = None,
        prefill: bool = False,
        prefill_lengths: Array | None = None,
        linear_logits: bool = False,
    ) -> Array | LinearLogits:
        """Float32 logits `[batch, length, vocab]`, or with `linear_logits` perhaps what they are made of.

        Args:
          decoder_input_tokens, decoder_target_tokens: int32 `[batch, length]`, as the other features; 0 is padding.
          decoder_segment_ids, decoder_positions: of packed batches; relative positions do not need the latter.
          decoder_causal_attention: 1 in the prefix whose positions all see each other; causal when None.
          decode: one position at a time; the call that finds no cache makes one as long as its tokens are.
          max_decode_length: T5X's; the length of the cache is that of the call that made it.
          prefill: write the first `prefill_lengths` positions `[batch]` of each row into the cache at once.
        """
        del decoder_positions, max_decode_length
        tokens, segments, prefix = decoder_target_tokens, decoder_segment_ids, decoder_causal_attention
        mask = None if decode else t5.decoder_mask(self.config, tokens, segments, prefix)
        modes = (not enable_dropout, decode)
        return self.decoder(
            None,
            decoder_input_tokens,
            mask,
            None,
            *modes,
            prefill=prefill,
            prefill_lengths=prefill_lengths,
            linear_logits=linear_logits,
        )
