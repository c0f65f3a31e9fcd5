"""What a head needs to know of the encoder that it stands on: an encoder of this room, or that of a T5."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax

from limba.network import layers, t5
from limba.network.encoders import encoder
from limba.network.encoders.config import EncoderConfig
from limba.network.t5 import T5Config

Array = jax.Array


class T5Encoder(t5.Encoder):
    """A T5's encoder with the call of `encoder.Encoder`."""

    def __call__(  # type: ignore[override]  # T5's own call takes a mask.
        self,
        tokens: Array,
        token_types: None = None,
        segment_ids: Array | None = None,
        positions: Array | None = None,
        enable_dropout: bool = True,
    ) -> Array:
        """`[batch, length] -> [batch, length, embed]`; distances need no positions, and there are no token types."""
        del token_types, positions
        return super().__call__(tokens, t5.encoder_mask(self.config, tokens, segment_ids), not enable_dropout)


@dataclasses.dataclass(frozen=True)
class Backbone:
    """An encoder's parts, with the names that they have in its checkpoints.

    Attributes:
      embedding: makes `token_embedder`.
      encoder: makes `encoder`, of that embedding.
      norm: makes a norm of that name.
      initializer_range: standard deviation of a head's kernels.
      pad_id: the token of padding.
    """

    embedding: Callable[[], nn.Module]
    encoder: Callable[[nn.Module], nn.Module]
    norm: Callable[[str], nn.Module]
    initializer_range: float
    pad_id: int


def backbone(config: EncoderConfig | T5Config) -> Backbone:
    """The parts of the encoder that a configuration describes.

    A head on a T5 begins as transformers' `T5ClassificationHead` does: T5 has no range for all kernels.
    """
    if isinstance(config, T5Config):
        if type(config) is not T5Config and config.encoder_attention is None:  # layers that T5Encoder does not have
            raise ValueError(
                f"A head stands on an encoder, or on a T5's, and the layers of this network are {config.layer_kind}'s. "
                "Train the labels as answers (docs/finetune.md)."
            )
        return Backbone(
            lambda: t5.make_embedding(config),
            lambda embedding: T5Encoder(config, embedding),
            lambda name: layers.LayerNorm(dtype=config.dtype, name=name),
            config.emb_dim**-0.5,
            pad_id=0,
        )
    return Backbone(
        lambda: encoder.make_embedding(config, config.vocab_size, "vocab"),
        lambda embedding: encoder.Encoder(config, embedding),
        lambda name: encoder.norm(config, name),
        config.initializer_range,
        config.pad_id,
    )
