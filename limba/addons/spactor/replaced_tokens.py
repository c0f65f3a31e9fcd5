"""What replaced-token detection (ELECTRA, arXiv:2003.10555) needs beside a T5: a generator, a head on the encoder."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from limba.network import layers, t5

Array = jax.Array


def generator_config(config: t5.T5Config, layers_share: float, width_share: float) -> t5.T5Config:
    """The configuration of a generator beside a T5 of `config`.

    Args:
      layers_share: its layers as a share of the encoder's, rounded, at least 1.
      width_share: its width, heads and MLP as a share of the encoder's; widths are multiples of 8, heads at least 1.
    """
    width = lambda size: max(8, 8 * round(width_share * size / 8))  # noqa: E731
    return dataclasses.replace(
        config,
        emb_dim=width(config.emb_dim),
        mlp_dim=width(config.mlp_dim),
        num_heads=max(1, round(width_share * config.num_heads)),
        num_encoder_layers=max(1, round(layers_share * config.num_encoder_layers)),
        # Its few layers keep their names when the T5's layers are scanned.
        scan_layers=False,
        encoder_self_attention_layer=None,
    )


class ReplacedTokenDetection(nn.Module):
    """A generator, which guesses masked tokens, and a head on a T5's encoder, which finds the guesses.

    The generator is a small T5 encoder with a table of tokens of its own, which is its output, too.

    Attributes:
      config: of the T5.
      generator_config: see `generator_config`.
    """

    config: t5.T5Config
    generator_config: t5.T5Config

    def setup(self) -> None:
        self.token_embedder = t5.make_embedding(self.generator_config)
        self.generator = t5.Encoder(self.generator_config, self.token_embedder)
        self.transform = layers.DenseGeneral(self.config.emb_dim, kernel_axes=("embed", "mlp"), dtype=self.config.dtype)
        self.output = layers.DenseGeneral(1, kernel_axes=("embed", None), dtype=jnp.float32, use_bias=True)

    def guess(
        self,
        tokens: Array,
        is_masked: Array,
        positions: Array,
        segment_ids: Array | None = None,
        enable_dropout: bool = True,
    ) -> Array:
        """Float32 logits `[batch, masked, vocab]` of the tokens at some positions.

        Args:
          tokens: int32 `[batch, length]`.
          is_masked: bool `[batch, length]`, which tokens the generator does not see. The row of padding in its table,
            which nothing looks at otherwise, stands for them.
          positions: int32 `[batch, masked]`.
          segment_ids: of packed batches, `[batch, length]`.
        """
        mask = t5.encoder_mask(self.generator_config, tokens, segment_ids)
        encoded = self.generator(jnp.where(is_masked, 0, tokens), mask, not enable_dropout)
        chosen = jnp.take_along_axis(encoded, positions[..., None], axis=1)
        return self.token_embedder.attend(chosen) / jnp.sqrt(jnp.float32(self.generator_config.emb_dim))

    def detect(self, encoded: Array) -> Array:
        """Float32 logits `[batch, length]` that a token was replaced, from the encoder's outputs `[…, embed]`."""
        hidden = nn.gelu(self.transform(encoded))
        return self.output(hidden.astype(jnp.float32))[..., 0]

    def __call__(self, tokens: Array, encoded: Array) -> tuple[Array, Array]:
        """Both, with the first token masked; for the initial parameters."""
        first = jnp.zeros((tokens.shape[0], 1), jnp.int32)
        is_masked = jnp.arange(tokens.shape[1])[None] == first
        return self.guess(tokens, is_masked, first, enable_dropout=False), self.detect(encoded)
