"""Encoders in Flax Linen: BERT and its relatives, from MPNet to ModernBERT, by fields of one configuration.

Parameters have names in T5X's style. With `scan_layers` the layers, or periods of global and local layers, are stacked
under `encoder/encoder`; those that fit no period come first, unrolled.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from limba.network import attention, layers, stacks
from limba.network.encoders import disentangled, rotary
from limba.network.encoders.attention import (
    AttentionInputs,
    SelfAttention,
    dense_mask,
    visible,
    visible_blocks,
)
from limba.network.encoders.config import EncoderConfig
from limba.network.t5 import T5Config

__all__ = [
    "Encoder",
    "EncoderConfig",
    "MaskedLanguageModel",
    "MaskedLanguageModelHead",
    "at_places",
    "dropout",
    "make_embedding",
    "norm",
]

Array = jax.Array


def norm(config: EncoderConfig, name: str) -> nn.Module:
    """The norm of this encoder."""
    if config.norm == "rms_norm":
        return layers.LayerNorm(config.norm_epsilon, config.dtype, name=name)
    return layers.CenteredLayerNorm(config.norm_epsilon, config.dtype, config.norm == "layer_norm", name=name)


def make_embedding(config: EncoderConfig, rows: int, axis: str, name: str | None = None) -> layers.Embed:
    """A table of `rows` vectors, whose products with hidden states are float32."""
    return layers.Embed(
        rows,
        config.token_dim,
        dtype=config.dtype,
        attend_dtype=jnp.float32,  # logits are float32 for a stable softmax
        embedding_init=nn.initializers.normal(config.initializer_range),
        axes=(axis, "embed"),
        name=name,
    )


def dropout(config: EncoderConfig | T5Config, x: Array, deterministic: bool) -> Array:
    """Drops some features of `[batch, length, embed]`, in all positions of a row the same."""
    return nn.Dropout(config.dropout_rate, broadcast_dims=(-2,))(x, deterministic=deterministic)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its norm. Returns `(x, None)`, as a scan wants it.

    Attributes:
      number: of the layer; those that `global_attention_every` divides look at the whole row.
    """

    config: EncoderConfig
    number: int = 0

    @nn.compact
    def __call__(
        self, x: Array, whole_row: AttentionInputs, window: AttentionInputs | None, deterministic: bool
    ) -> tuple[Array, None]:
        cfg = self.config
        inputs = whole_row if self.number % cfg.global_attention_every == 0 else window
        assert inputs is not None
        is_pre = cfg.norm_position == "pre"
        has_first_norm = is_pre and (cfg.first_attention_norm or self.number > 0)
        y = norm(cfg, "pre_attention_layer_norm")(x) if has_first_norm else x
        x = self._residual(SelfAttention(cfg, name="attention")(y, inputs, deterministic), x, deterministic)
        x = x if is_pre else norm(cfg, "post_attention_layer_norm")(x)
        y = norm(cfg, "pre_mlp_layer_norm")(x) if is_pre else x
        mlp = layers.MlpBlock(
            intermediate_dim=cfg.mlp_dim,
            activations=tuple(cfg.mlp_activations),
            kernel_init=nn.initializers.normal(cfg.initializer_range),
            intermediate_dropout_rate=0.0,
            dtype=cfg.dtype,
            kernels=cfg.kernels,
            use_bias=cfg.mlp_bias,
            name="mlp",
        )
        x = self._residual(mlp(y, deterministic=deterministic), x, deterministic)
        return (x if is_pre else norm(cfg, "post_mlp_layer_norm")(x)), None

    def _residual(self, update: Array, x: Array, deterministic: bool) -> Array:
        x = dropout(self.config, update, deterministic) + x
        return layers.with_sharding_constraint(x, ("batch", "length", "embed"))


class EncoderPeriod(nn.Module):
    """`global_attention_every` layers, one of them global: what a scan repeats."""

    config: EncoderConfig
    number: int  # of its first layer

    @nn.compact
    def __call__(self, x: Array, *args: Any) -> tuple[Array, None]:
        fields = [{"number": self.number + i} for i in range(self.config.global_attention_every)]
        return stacks.unrolled(self.config, EncoderLayer, fields, x, *args, in_scan=True), None


def num_unscanned_layers(config: EncoderConfig) -> int:
    """How many layers come before the scanned ones: those that fill no period, and one without its first norm."""
    if not config.scan_layers:
        return config.num_layers
    period = config.global_attention_every
    first = config.num_layers % period
    return period if first == 0 and not config.first_attention_norm else first


def _layers(config: EncoderConfig, x: Array, *args: Any) -> Array:
    period, first = config.global_attention_every, num_unscanned_layers(config)
    x = stacks.unrolled(config, EncoderLayer, [{"number": i} for i in range(first)], x, *args)
    if first == config.num_layers:
        return x
    layer = EncoderPeriod if period > 1 else stacks.recomputed(config, EncoderLayer, x, *args, in_scan=True)
    return stacks.scanned(config, layer, {"number": first}, (config.num_layers - first) // period, "encoder", x, *args)


class Encoder(nn.Module):
    """Tokens to hidden states: embeddings, layers, and the last norm where norms come before their blocks."""

    config: EncoderConfig
    shared_embedding: nn.Module | None = None  # None makes one, under `token_embedder`

    @nn.compact
    def __call__(
        self,
        tokens: Array,
        token_types: Array | None = None,
        segment_ids: Array | None = None,
        positions: Array | None = None,
        enable_dropout: bool = True,
    ) -> Array:
        """`[batch, length] -> [batch, length, embed]`; all features are int32 `[batch, length]`.

        Args:
          tokens: positions with `pad_id` are not looked at; their own hidden states mean nothing.
          token_types: below `num_token_types`; 0 everywhere when None.
          segment_ids: of packed rows; segments do not see each other, and each is contiguous.
          positions: of packed rows, from 0 in each segment; counted from the left when None. Buckets, relative_key and
            windows count distances within the row, which in a segment are the same.

        Raises:
          ValueError: for rows longer than a table of positions, packed rows without positions, and token types where
            the network has none.
        """
        cfg = self.config
        self._check(tokens, token_types, segment_ids, positions)
        embedding = self.shared_embedding or make_embedding(cfg, cfg.vocab_size, "vocab", "token_embedder")
        x = embedding(tokens.astype(jnp.int32))
        if cfg.has_absolute_positions:
            table = make_embedding(cfg, cfg.max_positions, "abspos_buckets", "position_embedder")
            in_order = table.embedding[: tokens.shape[-1]].astype(cfg.dtype)
            x += in_order if positions is None else table(positions)
        if cfg.num_token_types:
            table = make_embedding(cfg, cfg.num_token_types, "token_types", "token_type_embedder")
            x += table.embedding[0].astype(cfg.dtype) if token_types is None else table(token_types.astype(jnp.int32))
        x = norm(cfg, "embedding_layer_norm")(x) if cfg.embedding_norm else x
        x = dropout(cfg, x, not enable_dropout)
        if cfg.token_dim != cfg.emb_dim:
            init = nn.initializers.normal(cfg.initializer_range)
            # Two names, because a mesh axis shards one dim of an array.
            axes = ("mlp", "embed")
            x = layers.DenseGeneral(cfg.emb_dim, -1, cfg.dtype, init, axes, True, name="embedding_projection")(x)
        x = _layers(cfg, x, *self._attention_inputs(tokens, segment_ids, positions), not enable_dropout)
        return norm(cfg, "encoder_norm")(x) if cfg.norm_position == "pre" else x

    def _check(
        self, tokens: Array, token_types: Array | None, segment_ids: Array | None, positions: Array | None
    ) -> None:
        cfg, length = self.config, tokens.shape[-1]
        if cfg.longest_row is not None and length > cfg.longest_row:
            raise ValueError(
                f"The rows have {length} tokens, and EncoderConfig.max_positions is {cfg.max_positions}; shorten them, "
                "or train with a larger max_positions."
            )
        if cfg.has_absolute_positions and segment_ids is not None and positions is None:
            raise ValueError(
                "Packed rows came without positions, which EncoderConfig.position_embedding_type = "
                f"{cfg.position_embedding_type!r} needs: give `positions`, from 0 in each segment."
            )
        if token_types is not None and not cfg.num_token_types:
            raise ValueError(
                "Token types came, and EncoderConfig.num_token_types is 0; set it to 2, or leave them out."
            )

    def _attention_inputs(
        self, tokens: Array, segment_ids: Array | None, positions: Array | None
    ) -> tuple[AttentionInputs, AttentionInputs | None]:
        """For the layers that look at the whole row, and for those that look at a window."""
        cfg, length = self.config, tokens.shape[-1]
        mask = dense_mask(cfg, tokens, segment_ids)
        for_kernels = visible_blocks(cfg, tokens, segment_ids) or visible(cfg, tokens, segment_ids)
        bias = table = None
        if cfg.has_buckets:
            table = attention.RelativePositionBiases(
                cfg.num_buckets,
                cfg.max_distance,
                cfg.num_heads,
                cfg.dtype,
                nn.initializers.normal(cfg.initializer_range),
                name="relpos_bias",
            )
            bias = table(length, length, by_distance=for_kernels is not None)
        places = jnp.arange(length)[None] if positions is None else positions
        rotation = functools.partial(rotary.rotation, places, cfg.rotary_dim or cfg.head_dim, pairs=cfg.rotary_pairs)
        is_rotary = cfg.position_embedding_type == "rotary"
        relative = (
            disentangled.BucketEmbedder(cfg, name="relative_embedder")() if cfg.has_disentangled_attention else None
        )
        whole_row = AttentionInputs(
            mask if for_kernels is None else for_kernels,
            bias,
            rotation(base=cfg.rotary_base) if is_rotary else None,
            relative,
        )
        if cfg.global_attention_every == 1:
            return whole_row, None
        reach = cfg.local_attention_window // 2
        window = AttentionInputs(
            mask & attention.local_mask(length, reach, reach),
            None if table is None else table(length, length),
            rotation(base=cfg.local_rotary_base or cfg.rotary_base) if is_rotary else None,
            relative,
        )
        return whole_row, window


class MaskedLanguageModelHead(nn.Module):
    """Transform, then logits against the embedding, or with a kernel of their own."""

    config: EncoderConfig
    shared_embedding: layers.Embed

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[batch, length, embed] -> float32 logits [batch, length, vocab]`."""
        cfg = self.config
        if cfg.head_activation is not None:
            x = layers.DenseGeneral(
                cfg.token_dim,
                -1,
                cfg.dtype,
                nn.initializers.normal(cfg.initializer_range),
                ("embed", "mlp"),  # two names, because a mesh axis shards one dim of an array
                cfg.head_bias,
                name="dense",
            )(x)
            x = norm(cfg, "layer_norm")(layers.activation_function(cfg.head_activation)(x))
        if cfg.logits_via_embedding:
            logits = self.shared_embedding.attend(x)
        else:
            init = nn.initializers.normal(cfg.initializer_range)
            axes = ("embed", "vocab")
            logits = layers.DenseGeneral(cfg.vocab_size, -1, jnp.float32, init, axes, False, name="logits")(x)
        if cfg.logits_bias:
            zeros = nn.initializers.zeros
            logits += layers.param_with_axes("bias", zeros, (cfg.vocab_size,), jnp.float32, axes=("vocab",))
        return logits


class MaskedLanguageModel(nn.Module):
    """An encoder and the head that says which token stands at a position."""

    config: EncoderConfig

    def setup(self) -> None:
        self.token_embedder = make_embedding(self.config, self.config.vocab_size, "vocab")
        self.encoder = Encoder(self.config, self.token_embedder)
        self.mlm_head = MaskedLanguageModelHead(self.config, self.token_embedder)

    def __call__(
        self,
        tokens: Array,
        token_types: Array | None = None,
        segment_ids: Array | None = None,
        positions: Array | None = None,
        enable_dropout: bool = True,
        *,
        masked_lm_positions: Array | None = None,
    ) -> Array:
        """Float32 logits `[batch, length, vocab]`.

        Args:
          tokens, token_types, segment_ids, positions: see `Encoder`.
          masked_lm_positions: int32 `[batch, n]`: logits `[batch, n, vocab]` of these places of each row alone. A loss
            on 15 % of the tokens needs no product of the others with the vocabulary.
        """
        x = self.encoder(tokens, token_types, segment_ids, positions, enable_dropout)
        return self.mlm_head(x if masked_lm_positions is None else at_places(x, masked_lm_positions))


def at_places(x: Array, places: Array) -> Array:
    """Hidden states of some places of each row: `[batch, n, embed]` of `[batch, length, embed]` and `[batch, n]`."""
    return jnp.take_along_axis(x, places[..., None], axis=1)
