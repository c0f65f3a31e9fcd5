"""The T5 encoder-decoder in Flax Linen: T5 1.0 and 1.1 by fields of one configuration.

Sizes live in gin files (`gin/models/`). Parameter names and shapes are T5X's. With `scan_layers` a stack holds one
layer whose parameters have the layers at axis 1, under `encoder/encoder` and `decoder/decoder`, as T5X's scalable_t5.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen import partitioning as nn_partitioning

from limba import attention, layers

Array = jax.Array

_REMAT_POLICIES = {
    "none": None,
    # Keeps the products of weights and activations, recomputes attention and elementwise work.
    "minimal": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
    "full": jax.checkpoint_policies.nothing_saveable,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Config:
    """The shape of a T5, under T5X's field names.

    Attributes:
      vocab_size: rows of the embedding; at least the vocabulary, a multiple of 128 runs fastest.
      dtype: of activations; parameters are always float32.
      emb_dim, num_heads, head_dim, mlp_dim: widths. `num_heads * head_dim` need not equal `emb_dim`.
      num_encoder_layers, num_decoder_layers: depths.
      mlp_activations: ("relu",) is T5 1.0, ("gelu", "linear") is T5 1.1.
      dropout_rate: everywhere; 0 for pre-training of 1.1.
      logits_via_embedding: tie the output to the embedding (T5 1.0).
      float32_attention_logits: softmax in float32 when `dtype` is not.
      one_hot_embedding: embed by a matmul; for vocabularies sharded over the model axis of a TPU.
      scan_layers: compile one layer instead of all; much shorter compilation of deep stacks.
      remat_policy: "none", "minimal" or "full": what is recomputed in the backward pass to save memory.
      param_scan_axis: where the layers stand in the parameters of a scanned stack.

    Raises:
      ValueError: for fp16, an unknown remat policy, an unknown activation or sizes below 1.
    """

    vocab_size: int
    dtype: Any = jnp.float32
    emb_dim: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    head_dim: int = 64
    mlp_dim: int = 2048
    mlp_activations: Sequence[str] = ("relu",)
    dropout_rate: float = 0.1
    logits_via_embedding: bool = False
    float32_attention_logits: bool = False
    one_hot_embedding: bool = False
    scan_layers: bool = False
    remat_policy: str = "none"
    param_scan_axis: int = 1

    def __post_init__(self):
        try:
            is_float16 = self.dtype == "fp16" or jnp.dtype(self.dtype) == jnp.float16
        except TypeError:
            raise ValueError(f"T5Config.dtype is {self.dtype!r}; use 'bfloat16' or 'float32'.") from None
        if is_float16:
            raise ValueError(
                f"T5Config.dtype is {self.dtype!r}: T5's feed-forward output (`wo`) overflows its range of 65,504 and "
                "the loss becomes NaN. Use 'bfloat16', which has float32's range, or 'float32'."
            )
        if self.remat_policy not in _REMAT_POLICIES:
            raise ValueError(f"T5Config.remat_policy is {self.remat_policy!r}; choose one of {list(_REMAT_POLICIES)}.")
        for name in self.mlp_activations:
            layers.activation_function(name)
        for field in ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim"):
            if getattr(self, field) < 1:
                raise ValueError(f"T5Config.{field} is {getattr(self, field)}; it must be at least 1.")


def _attention(config: T5Config, name: str) -> attention.MultiHeadDotProductAttention:
    return attention.MultiHeadDotProductAttention(
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        dropout_rate=config.dropout_rate,
        dtype=config.dtype,
        float32_logits=config.float32_attention_logits,
        name=name,
    )


def _mlp(config: T5Config) -> layers.MlpBlock:
    return layers.MlpBlock(config.mlp_dim, tuple(config.mlp_activations), config.dropout_rate, config.dtype, name="mlp")


def _relative_bias(config: T5Config) -> attention.RelativePositionBiases:
    return attention.RelativePositionBiases(config.num_heads, dtype=config.dtype, name="relpos_bias")


def _residual(config: T5Config, update: Array, x: Array, deterministic: bool) -> Array:
    update = nn.Dropout(config.dropout_rate, broadcast_dims=(-2,))(update, deterministic=deterministic)
    return layers.with_sharding_constraint(update + x, ("batch", "length", "embed"))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each behind its own norm. Returns `(x, None)`, as a scan wants it."""

    config: T5Config

    @nn.compact
    def __call__(self, x: Array, mask: Array, bias: Array, deterministic: bool) -> tuple[Array, None]:
        cfg = self.config
        y = layers.LayerNorm(cfg.dtype, name="pre_attention_layer_norm")(x)
        x = _residual(cfg, _attention(cfg, "attention")(y, y, mask, bias, deterministic), x, deterministic)
        y = layers.LayerNorm(cfg.dtype, name="pre_mlp_layer_norm")(x)
        return _residual(cfg, _mlp(cfg)(y, deterministic), x, deterministic), None


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder, feed-forward. Returns `(x, None)`."""

    config: T5Config

    @nn.compact
    def __call__(
        self,
        x: Array,
        encoded: Array,
        mask: Array | None,
        cross_mask: Array,
        bias: Array,
        cache_index: Array | None,
        deterministic: bool,
        max_decode_length: int | None,
    ) -> tuple[Array, None]:
        cfg = self.config
        y = layers.LayerNorm(cfg.dtype, name="pre_self_attention_layer_norm")(x)
        y = _attention(cfg, "self_attention")(y, y, mask, bias, deterministic, cache_index, max_decode_length)
        x = _residual(cfg, y, x, deterministic)
        y = layers.LayerNorm(cfg.dtype, name="pre_cross_attention_layer_norm")(x)
        y = _attention(cfg, "encoder_decoder_attention")(y, encoded, cross_mask, None, deterministic, cache_index)
        x = _residual(cfg, y, x, deterministic)
        y = layers.LayerNorm(cfg.dtype, name="pre_mlp_layer_norm")(x)
        return _residual(cfg, _mlp(cfg)(y, deterministic), x, deterministic), None


def _apply_stack(config: T5Config, layer_cls: type[nn.Module], num_layers: int, name: str, x: Array, *args):
    """Runs `num_layers` layers over `x`: unrolled, or as one scanned layer called `name`.

    The trailing arguments that are plain Python values (`deterministic`, lengths) are static under remat.
    """
    policy = _REMAT_POLICIES[config.remat_policy]
    if config.remat_policy != "none":
        static = tuple(i + 2 for i, arg in enumerate(args) if isinstance(arg, bool | int))
        layer_cls = nn_partitioning.remat(
            layer_cls, prevent_cse=not config.scan_layers, policy=policy, static_argnums=static
        )
    if not config.scan_layers:
        for i in range(num_layers):
            x, _ = layer_cls(config, name=f"layers_{i}")(x, *args)
        return x
    scanned = nn_partitioning.scan_with_axes(
        layer_cls,
        variable_axes={"params": config.param_scan_axis, "cache": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast,) * len(args),
        length=num_layers,
        axis_name="layers",
    )
    x, _ = scanned(config, name=name)(x, *args)
    return x


class Encoder(nn.Module):
    """Embedding, layers and final norm over the inputs."""

    config: T5Config
    shared_embedding: nn.Module

    @nn.compact
    def __call__(self, tokens: Array, mask: Array | None, deterministic: bool) -> Array:
        """`[batch, length] -> [batch, length, embed]`."""
        cfg = self.config
        length = tokens.shape[-1]
        bias = _relative_bias(cfg)(jnp.arange(length), length, bidirectional=True)
        x = self.shared_embedding(tokens)
        x = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(x, deterministic=deterministic)
        x = _apply_stack(cfg, EncoderLayer, cfg.num_encoder_layers, "encoder", x, mask, bias, deterministic)
        x = layers.LayerNorm(cfg.dtype, name="encoder_norm")(x)
        return nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(x, deterministic=deterministic)


class Decoder(nn.Module):
    """Embedding, layers, final norm and logits over the targets."""

    config: T5Config
    shared_embedding: nn.Module

    @nn.compact
    def __call__(
        self,
        encoded: Array,
        tokens: Array,
        mask: Array | None,
        cross_mask: Array | None,
        deterministic: bool,
        max_decode_length: int | None = None,
    ) -> Array:
        """`[batch, length] -> float32 logits [batch, length, vocab]`.

        With `max_decode_length` the call decodes one position (length 1) against the `cache` collection; the call
        that finds no cache makes one and stays at position 0.
        """
        cfg = self.config
        cache_index = None
        if max_decode_length is None:
            length = tokens.shape[-1]
            bias = _relative_bias(cfg)(jnp.arange(length), length, bidirectional=False)
        else:
            has_cache = self.has_variable("cache", "cache_index")
            cache_index = self.get_variable("cache", "cache_index") if has_cache else jnp.zeros((), jnp.int32)
            bias = _relative_bias(cfg)(cache_index[None], max_decode_length, bidirectional=False)
            self.put_variable("cache", "cache_index", cache_index + 1 if has_cache else cache_index)

        y = self.shared_embedding(tokens)
        y = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(y, deterministic=deterministic)
        layer_args = (encoded, mask, cross_mask, bias, cache_index, deterministic, max_decode_length)
        y = _apply_stack(cfg, DecoderLayer, cfg.num_decoder_layers, "decoder", y, *layer_args)
        y = layers.LayerNorm(cfg.dtype, name="decoder_norm")(y)
        y = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(y, deterministic=deterministic)

        # Logits are float32 for a stable softmax.
        if cfg.logits_via_embedding:
            return self.shared_embedding.attend(y) / jnp.sqrt(jnp.float32(cfg.emb_dim))
        return layers.Dense(cfg.vocab_size, ("embed", "vocab"), jnp.float32, name="logits_dense")(y)


class Transformer(nn.Module):
    """The encoder-decoder."""

    config: T5Config

    def setup(self):
        cfg = self.config
        self.token_embedder = layers.Embed(cfg.vocab_size, cfg.emb_dim, cfg.dtype, cfg.one_hot_embedding)
        self.encoder = Encoder(cfg, self.token_embedder)
        self.decoder = Decoder(cfg, self.token_embedder)

    def encode(
        self, encoder_input_tokens: Array, encoder_segment_ids: Array | None = None, enable_dropout: bool = True
    ) -> Array:
        """`[batch, inputs_length] -> [batch, inputs_length, embed]`. Token 0 is padding."""
        real = encoder_input_tokens > 0
        mask = attention.combine_masks(
            attention.padding_mask(real, real), attention.segment_mask(encoder_segment_ids, encoder_segment_ids)
        )
        return self.encoder(encoder_input_tokens, mask, not enable_dropout)

    def decode(
        self,
        encoded: Array,
        encoder_input_tokens: Array,
        decoder_input_tokens: Array,
        decoder_target_tokens: Array,
        encoder_segment_ids: Array | None = None,
        decoder_segment_ids: Array | None = None,
        enable_dropout: bool = True,
    ) -> Array:
        """Teacher-forced float32 logits `[batch, targets_length, vocab]`."""
        real_inputs, real_targets = encoder_input_tokens > 0, decoder_target_tokens > 0
        mask = attention.combine_masks(
            attention.causal_mask(decoder_input_tokens.shape[-1]),
            attention.padding_mask(real_targets, real_targets),
            attention.segment_mask(decoder_segment_ids, decoder_segment_ids),
        )
        cross_mask = attention.combine_masks(
            attention.padding_mask(real_targets, real_inputs),
            attention.segment_mask(decoder_segment_ids, encoder_segment_ids),
        )
        return self.decoder(encoded, decoder_input_tokens, mask, cross_mask, not enable_dropout)

    def decode_step(self, encoded: Array, encoder_input_tokens: Array, token: Array, max_decode_length: int) -> Array:
        """Logits `[batch, 1, vocab]` after `token` `[batch, 1]`, with the `cache` collection mutable."""
        cross_mask = attention.padding_mask(jnp.ones_like(token, bool), encoder_input_tokens > 0)
        return self.decoder(encoded, token, None, cross_mask, True, max_decode_length)

    def __call__(
        self,
        encoder_input_tokens: Array,
        decoder_input_tokens: Array,
        decoder_target_tokens: Array,
        encoder_segment_ids: Array | None = None,
        decoder_segment_ids: Array | None = None,
        encoder_positions: Array | None = None,
        decoder_positions: Array | None = None,
        *,
        enable_dropout: bool = True,
    ) -> Array:
        """Float32 logits `[batch, targets_length, vocab]`; every feature is int32 `[batch, length]`.

        Positions are part of packed batches; T5's relative positions do not need them.
        """
        del encoder_positions, decoder_positions
        encoded = self.encode(encoder_input_tokens, encoder_segment_ids, enable_dropout)
        return self.decode(
            encoded,
            encoder_input_tokens,
            decoder_input_tokens,
            decoder_target_tokens,
            encoder_segment_ids,
            decoder_segment_ids,
            enable_dropout,
        )
