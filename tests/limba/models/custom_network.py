"""A network as a user of T5X writes one: T5X's layers, T5X's protocol, nothing of Limba's own."""

import flax.linen as nn
import jax.numpy as jnp

from limba.gin_config import t5x_names

t5x_names.install()

from t5x.examples.t5 import layers  # noqa: E402


class Network(nn.Module):
    """An encoder without attention, and one decoder layer whose positions are a plain relative bias."""

    vocab_size: int = 256
    width: int = 32
    dropout_rate: float = 0.0

    def setup(self):
        self.embedder = layers.Embed(self.vocab_size, self.width, attend_dtype=jnp.float32, one_hot=True)
        self.mix = layers.MlpBlock(intermediate_dim=64, intermediate_dropout_rate=self.dropout_rate)
        self.norm = layers.LayerNorm()
        self.bias = layers.RelativePositionBiases(num_buckets=8, max_distance=16, num_heads=2, dtype=jnp.float32)
        heads = {"num_heads": 2, "head_dim": 16, "dropout_rate": self.dropout_rate}
        self.look_back = layers.MultiHeadDotProductAttention(**heads)
        self.look_over = layers.MultiHeadDotProductAttention(**heads)

    def encode(self, encoder_input_tokens, encoder_segment_ids=None, enable_dropout=True):
        embedded = self.embedder(encoder_input_tokens.astype("int32"))
        return embedded + self.mix(embedded, deterministic=not enable_dropout)

    def decode(
        self,
        encoded,
        encoder_input_tokens,
        decoder_input_tokens,
        decoder_target_tokens,
        encoder_segment_ids=None,
        decoder_segment_ids=None,
        decoder_positions=None,
        enable_dropout=True,
        decode=False,
        max_decode_length=None,
    ):
        length = max_decode_length if decode and max_decode_length else decoder_input_tokens.shape[-1]
        mask = None if decode else layers.make_decoder_mask(decoder_target_tokens, jnp.float32)
        targets = jnp.ones_like(decoder_target_tokens) if decode else decoder_target_tokens > 0
        cross_mask = layers.make_attention_mask(targets, encoder_input_tokens > 0)
        deterministic = not enable_dropout
        y = self.embedder(decoder_input_tokens.astype("int32"))
        bias = self.bias(length, length, False)
        y += self.look_back(y, y, mask, bias, deterministic=deterministic, decode=decode)
        y += self.look_over(y, encoded, cross_mask, deterministic=deterministic)
        self.sow("intermediates", "last", y)
        return self.embedder.attend(self.norm(y)) / jnp.sqrt(self.width)

    def __call__(
        self,
        encoder_input_tokens,
        decoder_input_tokens,
        decoder_target_tokens,
        encoder_segment_ids=None,
        decoder_segment_ids=None,
        encoder_positions=None,
        decoder_positions=None,
        *,
        enable_dropout=True,
        decode=False,
    ):
        encoded = self.encode(encoder_input_tokens, encoder_segment_ids, enable_dropout)
        return self.decode(
            encoded,
            encoder_input_tokens,
            decoder_input_tokens,
            decoder_target_tokens,
            decoder_positions=decoder_positions,
            enable_dropout=enable_dropout,
            decode=decode,
        )
