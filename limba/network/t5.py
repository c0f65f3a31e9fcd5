"""T5 in Flax Linen: T5 1.0 and 1.1, mT5, ByT5, umT5, T5Gemma (1, 2), a modern T5, by fields of a configuration.

Sizes live in gin files (`gin/models/`). Parameter names and shapes are T5X's. With `scan_layers` a stack holds one
layer whose parameters have the layers at axis 1, under `encoder/encoder` and `decoder/decoder`, as T5X's scalable_t5.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from limba.devices import target
from limba.files.untrusted_files import shown
from limba.network import attention, config_checks, layers, own_layers, products, stacks
from limba.network.gemma_layers import GemmaLayers
from limba.network.kernels import attention as fused
from limba.network.kernels import linear_cross_entropy
from limba.network.merged_attention import MergedAttention

Array = jax.Array

_LAYER_COUNTS = ("num_encoder_layers", "num_decoder_layers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Config:
    """The shape of a T5, under T5X's field names.

    Attributes:
      vocab_size: rows of the embedding; at least the vocabulary, a multiple of 128 runs fastest.
      dtype: of activations; parameters are always float32.
      emb_dim, num_heads, head_dim, mlp_dim, num_encoder_layers, num_decoder_layers: widths and depths.
      mlp_activations: ("relu",) is T5 1.0, ("gelu", "linear") is T5 1.1.
      dropout_rate: everywhere; 0 for pre-training of 1.1.
      logits_via_embedding: tie the output to the embedding (T5 1.0).
      float32_attention_logits: the products of attention's logits, and its weights, in float32 when `dtype` is not.
      scale_attn_logits: divide queries by sqrt(head_dim), for AdamW (a field of NVIDIA's networks).
      one_hot_embedding: embed by a matmul; for vocabularies sharded over the model axis of a TPU.
      scan_layers: compile one layer instead of all; much shorter compilation of deep stacks.
      remat_policy: "none", "minimal" or "full": what is recomputed in the backward pass to save memory.
      param_scan_axis: where the layers stand in the parameters of a scanned stack.
      family: of `convert.families`, for exports: 'mt5'. None is the first that fits.
      relative_bias_per_layer: a table of relative positions in every layer (scalable_t5, umT5) instead of one a stack.
      joined_attention_kernels: `[embed, heads * kv]` (T5X's t5); False is `[embed, heads, kv]` (its scalable_t5).
      decoder_start_token_id: what the decoder begins with, in place of the 0 that batches have there.
      kernels: "auto" is the fastest that the device has, "cudnn" the same with cuDNN's attention on GPUs; "xla" writes
        attention's logits (queries x keys) and the output's (tokens x vocabulary) to memory, "fused" never does, and is
        very slow on CPUs.
      encoder_self_attention_layer, decoder_self_attention_layer, decoder_cross_attention_layer: a class of your own in
        place of T5's attention, 'my_layers:MyAttention'; with `kernels` "xla", whose masks and biases are arrays.
      gemma_layers: rotary positions, norms after blocks, fewer keys, windows and more, as T5Gemma, T5Gemma 2 and
        `t5_modern` have them; None is T5.

    Raises:
      ValueError: for fp16, an unknown remat policy or activation, sizes that are not whole numbers of at least 1; for
        a layer of one's own without `kernels` "xla".
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
    scale_attn_logits: bool = False
    one_hot_embedding: bool = False
    scan_layers: bool = False
    remat_policy: str | None = "none"
    param_scan_axis: int = 1
    relative_bias_per_layer: bool = False
    joined_attention_kernels: bool = True
    decoder_start_token_id: int = 0
    kernels: str = "auto"
    encoder_self_attention_layer: str | None = None
    decoder_self_attention_layer: str | None = None
    decoder_cross_attention_layer: str | None = None
    gemma_layers: GemmaLayers | None = None
    family: str | None = None

    # Fields that make layers draw random numbers in training, where one is above 0.
    rates: ClassVar[tuple[str, ...]] = ("dropout_rate",)
    # Fields of a class derived from this one that belong to a run and not to the network, and a value for comparisons.
    of_runs: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        for field in ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", *_LAYER_COUNTS):
            least = 0 if field in _LAYER_COUNTS else 1
            config_checks.whole_number("T5Config", field, getattr(self, field), least)
        config_checks.whole_number("T5Config", "decoder_start_token_id", self.decoder_start_token_id, 0)
        if self.decoder_start_token_id >= self.vocab_size:
            raise ValueError(
                f"T5Config.decoder_start_token_id is {self.decoder_start_token_id}; it is an id below vocab_size, "
                f"{self.vocab_size}."
            )
        for field in _LAYER_COUNTS:
            config_checks.depth("T5Config", field, getattr(self, field))
        overflow = "T5's feed-forward output (`wo`) overflows its range of 65,504 and the loss becomes NaN."
        config_checks.dtype("T5Config", self.dtype, overflow)
        config_checks.remat_policy("T5Config", self.remat_policy)
        config_checks.choice("T5Config", "kernels", self.kernels, target.CHOICES)
        config_checks.flags("T5Config", self)
        config_checks.activations("T5Config", self.mlp_activations)
        config_checks.dropout_rate("T5Config", "dropout_rate", self.dropout_rate)
        for field in own_layers.FIELDS:
            own_layers.check_name("T5Config", field, name := getattr(self, field))
            if name is not None and self.kernels != "xla":
                raise ValueError(
                    f"T5Config.{field} is {name!r} and kernels {self.kernels!r}: the fused kernels have T5's attention "
                    "only; set kernels = 'xla'."
                )
        if self.gemma_layers is not None:
            if not isinstance(self.gemma_layers, GemmaLayers):
                raise ValueError(
                    f"T5Config.gemma_layers is {shown(self.gemma_layers)}; give a gemma_layers.GemmaLayers, or None."
                )
            self.gemma_layers.check_network(self)

    @property
    def layer_kind(self) -> str:
        """Whose layers it has: "t5" or "gemma"; a class that is derived from this one names its own."""
        return "t5" if self.gemma_layers is None else "gemma"

    @property
    def is_in_t5x(self) -> bool:
        """Whether T5X, with flaxformer, has such layers."""
        return self.layer_kind == "t5"

    @property
    def encoder_attention(self) -> "EncoderAttention | None":
        """What the encoder's layers have in place of T5's attention; None is T5's."""
        return None

    @property
    def is_beyond_kernels(self) -> bool:
        """Whether its attention has what no fused kernel has."""
        return self.gemma_layers is not None and self.gemma_layers.is_beyond_kernels

    @property
    def can_scan(self) -> bool:
        """Whether its layers are alike, so that one may be scanned."""
        return self.gemma_layers is None or self.gemma_layers.sliding_window is None

    def layer_fields(self, num_layers: int, is_decoder: bool) -> list[dict[str, Any]]:
        """The fields in which the layers of a stack differ, one dict a layer."""
        gemma = self.gemma_layers
        return [{"is_local": True} if gemma is not None and gemma.is_local(i) else {} for i in range(num_layers)]

    def plain_fields(self) -> dict[str, Any]:
        """Values of fields in a form that two networks share if and only if they compute the same."""
        return {} if self.gemma_layers is None else {"gemma_layers": self.gemma_layers.explicit(self)}

    def network(self) -> "Transformer":
        """The encoder-decoder of this shape."""
        return Transformer(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "T5Config":
        """Of the fields that `dataclasses.asdict` gave, as `run/run.json` has them; TypeError for an unknown one."""
        gemma = fields.get("gemma_layers")
        return cls(**(dict(fields) | {"gemma_layers": gemma and GemmaLayers(**gemma)}))


class EncoderAttention(Protocol):
    """An attention of the encoder's layers that is not T5's. XLA computes it; no layer keeps its weights."""

    @property
    def window(self) -> int:
        """Tokens that a token sees in one layer; a check's row is longer."""

    def seen_keys(self, length: int) -> float:
        """Keys that a query of a row of `length` is multiplied by."""

    def visible(self, tokens: Array, segments: Array | None) -> Any:
        """What tokens of the inputs see, as its modules take it, of `[batch, length]`; 0 is padding."""

    def bias(self, length: int, biases: Callable[..., attention.RelativePositionBiases]) -> Any:
        """What its modules add to logits in rows of `length`; `biases(name=…)` makes T5's tables of positions."""

    def module(self, **fields: Any) -> nn.Module:
        """The attention of a layer, with the fields of `attention.MultiHeadDotProductAttention`."""


def _attention(
    config: T5Config, name: str, own: str | None, is_local: bool = False, is_merged: bool = False
) -> attention.MultiHeadDotProductAttention:
    gemma, is_self = config.gemma_layers, name != "encoder_decoder_attention"
    more = {} if gemma is None else gemma.of_attention(config.head_dim, is_self, is_local, name == "attention")
    attention_class: Any = MergedAttention if is_merged else own_layers.attention_class(own)
    if config.encoder_attention is not None and name == "attention":
        attention_class = config.encoder_attention.module
    return attention_class(
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        dtype=config.dtype,
        dropout_rate=config.dropout_rate,
        float32_logits=config.float32_attention_logits,
        joined_kernels=config.joined_attention_kernels,
        scale_logits=config.scale_attn_logits,
        by_rows=config.kernels != "xla",
        name=name,
        **more,
    )


def _mlp(config: T5Config) -> layers.MlpBlock:
    return layers.MlpBlock(
        intermediate_dim=config.mlp_dim,
        activations=tuple(config.mlp_activations),
        intermediate_dropout_rate=config.dropout_rate,
        dtype=config.dtype,
        kernels=config.kernels,
        name="mlp",
    )


# Of relative positions, in every T5.
NUM_BUCKETS = 32
MAX_DISTANCE = 128


# Or what an `EncoderAttention` makes for its own modules.
Mask = Array | fused.Visible | None
Bias = Array | fused.DistanceBias | None


def _relative_bias(config: T5Config, mask: Mask, length: int, bidirectional: bool, decode: bool = False) -> Bias:
    """The biases of `length` queries and keys; by distance for kernels, whose masks are no arrays either."""
    biases = functools.partial(
        attention.RelativePositionBiases,
        num_buckets=NUM_BUCKETS,
        max_distance=MAX_DISTANCE,
        num_heads=config.num_heads,
        dtype=config.dtype,
        embedding_init=nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
    )
    if bidirectional and config.encoder_attention is not None:
        own: Bias = config.encoder_attention.bias(length, biases)
        return own
    kind = {"bidirectional": bidirectional, "decode": decode, "by_distance": isinstance(mask, fused.Visible)}
    return biases(name="relpos_bias")(length, length, **kind)


def make_embedding(config: T5Config, name: str | None = None) -> layers.Embed:
    """The table of tokens."""
    return layers.Embed(
        num_embeddings=config.vocab_size,
        features=config.emb_dim,
        dtype=config.dtype,
        attend_dtype=jnp.float32,  # logits are float32 for a stable softmax
        # Gemma's is multiplied by sqrt(emb_dim) on its way in.
        embedding_init=nn.initializers.normal(stddev=1.0 if config.gemma_layers is None else config.emb_dim**-0.5),
        one_hot=config.one_hot_embedding,
        name=name,
    )


def _embedded(config: T5Config, embedding: nn.Module, tokens: Array) -> Array:
    x: Array = embedding(tokens)
    return x if config.gemma_layers is None else x * jnp.asarray(config.emb_dim**0.5, x.dtype)


def _add_and_norm(config: T5Config, name: str) -> layers.ResidualLayerNorm:
    gemma = config.gemma_layers
    more: dict[str, Any] = {} if gemma is None else {"epsilon": gemma.norm_epsilon, "zero_centered": True}
    return layers.ResidualLayerNorm(dtype=config.dtype, kernels=config.kernels, name=name, **more)


def _after(config: T5Config, name: str, update: Array) -> Array:
    """What a block adds: Gemma's have a norm behind them, too."""
    return update if config.gemma_layers is None else _add_and_norm(config, name)(update)[1]


def _dropped(config: T5Config, update: Array, deterministic: bool) -> Array:
    return nn.Dropout(config.dropout_rate, broadcast_dims=(-2,))(update, deterministic=deterministic)


def _residual(config: T5Config, update: Array, x: Array, deterministic: bool, block: Any = None) -> Array:
    x = layers.with_sharding_constraint(_dropped(config, update, deterministic) + x, ("batch", "length", "embed"))
    return x if block is None else block(config, x, deterministic)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each behind its own norm. Returns `(x, None)`, as a scan wants it.

    Attributes:
      is_local: whether self-attention has the window of `gemma_layers`.
      make_mlp: a function that makes another feed-forward block of the configuration.
      make_block: a function `(config, x, deterministic) -> x`, a further block, whose modules become the layer's.
    """

    config: T5Config
    is_local: bool = False
    make_mlp: Callable[[Any], nn.Module] | None = None
    make_block: Callable[[Any, Array, bool], Array] | None = None

    @nn.compact
    def __call__(self, x: Array, mask: Mask, bias: Bias, deterministic: bool) -> tuple[Array, None]:
        cfg = self.config
        if bias is None and cfg.gemma_layers is None:
            bias = _relative_bias(cfg, mask, x.shape[-2], bidirectional=True)
        x, y = _add_and_norm(cfg, "pre_attention_layer_norm")(x)
        attend: Any = _attention(cfg, "attention", cfg.encoder_self_attention_layer, self.is_local)
        y = attend(y, y, mask, bias, deterministic=deterministic)
        y = _after(cfg, "post_attention_layer_norm", y)
        x, y = _add_and_norm(cfg, "pre_mlp_layer_norm")(x, _dropped(cfg, y, deterministic))
        y = _after(cfg, "post_mlp_layer_norm", (self.make_mlp or _mlp)(cfg)(y, deterministic=deterministic))
        return _residual(cfg, y, x, deterministic, self.make_block), None


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder if there is one, feed-forward. Returns `(x, None)`."""

    config: T5Config
    is_local: bool = False  # as in the encoder
    make_mlp: Callable[[Any], nn.Module] | None = None
    make_block: Callable[[Any, Array, bool], Array] | None = None

    @nn.compact
    def __call__(
        self,
        x: Array,
        encoded: Array | None,
        mask: Mask,
        cross_mask: Mask,
        bias: Bias,
        deterministic: bool,
        decode: bool,
        keep_encoded_keys: bool,
        prefill: bool,
        prefill_lengths: Array | None,
        places: Array | None,
    ) -> tuple[Array, None]:
        cfg = self.config
        if bias is None and cfg.gemma_layers is None:
            bias = _relative_bias(cfg, mask, x.shape[-2], bidirectional=False, decode=decode)
        x, y = _add_and_norm(cfg, "pre_self_attention_layer_norm")(x)
        modes = {"deterministic": deterministic, "decode": decode}
        is_merged = encoded is not None and cfg.gemma_layers is not None and cfg.gemma_layers.merged_attention
        attend: Any = _attention(cfg, "self_attention", cfg.decoder_self_attention_layer, self.is_local, is_merged)
        if is_merged:
            y = attend(y, encoded, mask, cross_mask, places, keep_keys=keep_encoded_keys, **modes)
        else:
            y = attend(y, y, mask, bias, prefill=prefill, prefill_lengths=prefill_lengths, **modes)
        y = _dropped(cfg, _after(cfg, "post_self_attention_layer_norm", y), deterministic)
        if encoded is not None and not is_merged:
            x, y = _add_and_norm(cfg, "pre_cross_attention_layer_norm")(x, y)
            attend = _attention(cfg, "encoder_decoder_attention", cfg.decoder_cross_attention_layer)
            y = attend(y, encoded, cross_mask, deterministic=deterministic, keep_keys=keep_encoded_keys)
            y = _dropped(cfg, _after(cfg, "post_cross_attention_layer_norm", y), deterministic)
        x, y = _add_and_norm(cfg, "pre_mlp_layer_norm")(x, y)
        y = _after(cfg, "post_mlp_layer_norm", (self.make_mlp or _mlp)(cfg)(y, deterministic=deterministic))
        return _residual(cfg, y, x, deterministic, self.make_block), None


def _visible(config: T5Config, *tokens: Array | None, is_self: bool, **kind: Any) -> fused.Visible | None:
    """What the kernels take in place of a mask; None where they are not used. See `fused.visible`."""
    if config.is_beyond_kernels:
        return None
    has_bias = is_self and config.gemma_layers is None
    return fused.visible(config, *tokens, has_bias=has_bias, **kind)  # type: ignore[arg-type]


def encoder_mask(config: T5Config, tokens: Array, segments: Array | None) -> Mask:
    """What tokens of the inputs see, of `[batch, length]`: those of their segment that are no padding, which is 0."""
    if config.encoder_attention is not None:
        own: Mask = config.encoder_attention.visible(tokens, segments)
        return own
    mask: Mask = _visible(config, tokens, tokens, segments, segments, is_self=True)
    if mask is None:
        real = tokens > 0
        mask = attention.combine_masks(
            attention.make_attention_mask(real, real, jnp.logical_and, dtype=bool),
            attention.segment_mask(segments, segments),
            dtype=bool,
        )
    return mask


def decoder_mask(config: T5Config, tokens: Array, segments: Array | None, prefix: Array | None = None) -> Mask:
    """What tokens of the targets see, of `[batch, length]`; see `attention.make_decoder_mask`."""
    mask = _visible(config, tokens, tokens, segments, segments, prefix=prefix, causal=True, is_self=True)
    return attention.make_decoder_mask(tokens, bool, prefix, segments) if mask is None else mask


def _places(config: T5Config, length: int, begins: Array | None) -> Array | None:
    """The places of targets in their own texts, `[batch or 1, length]`; None without merged attention.

    It turns queries and not the encoder's keys, so a query must have its place in its text, not in a packed row.
    """
    gemma = config.gemma_layers
    if gemma is None or not gemma.merged_attention:
        return None
    return places_in_texts(length, begins)


def places_in_texts(length: int, begins: Array | None) -> Array:
    """`[batch, length]`, or `[1, length]` without `begins`, which says where texts begin: bool `[batch, length]`."""
    places = jnp.arange(length)[None]
    return places if begins is None else places - jax.lax.cummax(jnp.where(begins, places, 0), axis=1)


def begun(config: T5Config, tokens: Array, begins: Array | None) -> Array:
    """Tokens of a decoder `[batch, length]`, int32, that begin with `decoder_start_token_id` in place of 0."""
    tokens = tokens.astype(jnp.int32)
    if not config.decoder_start_token_id:
        return tokens
    is_start = tokens == 0 if begins is None else (tokens == 0) & begins
    return jnp.where(is_start, config.decoder_start_token_id, tokens)


class Encoder(nn.Module):
    """Embedding, layers and final norm over the inputs."""

    config: T5Config
    shared_embedding: nn.Module

    @nn.compact
    def __call__(self, encoder_input_tokens: Array, encoder_mask: Mask, deterministic: bool) -> Array:
        """`[batch, length] -> [batch, length, embed]`."""
        cfg = self.config
        length = encoder_input_tokens.shape[-1]
        bias = None
        if not cfg.relative_bias_per_layer and cfg.gemma_layers is None:
            bias = _relative_bias(cfg, encoder_mask, length, bidirectional=True)
        x = _embedded(cfg, self.shared_embedding, encoder_input_tokens.astype(jnp.int32))
        x = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(x, deterministic=deterministic)
        each = cfg.layer_fields(cfg.num_encoder_layers, is_decoder=False)
        x = stacks.apply(self, EncoderLayer, each, "encoder", x, encoder_mask, bias, deterministic)
        _, x = _add_and_norm(cfg, "encoder_norm")(x)
        return nn.Dropout(cfg.dropout_rate)(x, deterministic=deterministic)


class Decoder(nn.Module):
    """Embedding, layers, final norm and logits over the targets."""

    config: T5Config
    shared_embedding: nn.Module | None = None  # None makes one, under `token_embedder`

    @nn.compact
    def __call__(
        self,
        encoded: Array | None,
        decoder_input_tokens: Array,
        decoder_mask: Mask,
        encoder_decoder_mask: Mask,
        deterministic: bool,
        decode: bool = False,
        keep_encoded_keys: bool = False,
        prefill: bool = False,
        prefill_lengths: Array | None = None,
        linear_logits: bool = False,
        begins: Array | None = None,
    ) -> Array | linear_cross_entropy.LinearLogits:
        """`[batch, length] -> float32 logits [batch, length, vocab]`; without `encoded`, a decoder on its own.

        With `linear_logits` it may return what the logits are made of, for a loss that does without them. A 0 where
        `begins` is true, which None is everywhere, is `decoder_start_token_id`.
        """
        cfg = self.config
        length = decoder_input_tokens.shape[-1]
        bias = None
        if not cfg.relative_bias_per_layer and cfg.gemma_layers is None:
            bias = _relative_bias(cfg, decoder_mask, length, bidirectional=False, decode=decode)
        embedding = self.shared_embedding or make_embedding(cfg, "token_embedder")
        y = _embedded(cfg, embedding, begun(cfg, decoder_input_tokens, begins))
        y = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(y, deterministic=deterministic)
        masks = (decoder_mask, encoder_decoder_mask, bias)
        modes = (deterministic, decode, keep_encoded_keys, prefill, prefill_lengths)
        each = cfg.layer_fields(cfg.num_decoder_layers, is_decoder=True)
        places = _places(cfg, length, None if decode else begins)
        y = stacks.apply(self, DecoderLayer, each, "decoder", y, encoded, *masks, *modes, places)
        _, y = _add_and_norm(cfg, "decoder_norm")(y)
        y = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(y, deterministic=deterministic)
        return self._logits(y, embedding, linear_logits)

    def _logits(self, y: Array, embedding: nn.Module, linear_logits: bool) -> Array | linear_cross_entropy.LinearLogits:
        cfg, gemma = self.config, self.config.gemma_layers
        softcap = None if gemma is None else gemma.final_logit_softcapping
        # Logits are float32 for a stable softmax. For a loss their product is of the states as they are, in the chunked
        # loss and on a CPU, where it takes a third of the time in bf16.
        in_parts = linear_logits and softcap is None
        in_parts = in_parts and target.wants_kernels(cfg.kernels) and linear_cross_entropy.is_chunked()
        product = functools.partial(products.einsum, dtype=cfg.dtype, of_result=jnp.float32)
        as_they_are = linear_logits and products.is_on_one_cpu()
        if cfg.logits_via_embedding:
            if in_parts:
                scale = cfg.emb_dim**-0.5 if gemma is None else 1.0
                return linear_cross_entropy.LinearLogits(y, embedding.embedding, vocab_axis=0, scale=scale)
            logits = product("ble,ve->blv", y, embedding.embedding) if as_they_are else embedding.attend(y)
            if gemma is None:
                return logits / jnp.sqrt(jnp.float32(cfg.emb_dim))
            return logits if softcap is None else layers.soft_capped(logits, softcap)
        dense = layers.DenseGeneral(cfg.vocab_size, kernel_axes=("embed", "vocab"), name="logits_dense")
        if in_parts:
            return linear_cross_entropy.LinearLogits(y, dense(y, only_kernel=True))
        logits = dense(y, multiply=functools.partial(product, "ble,ev->blv")) if as_they_are else dense(y)
        return logits if softcap is None else layers.soft_capped(logits, softcap)


class Transformer(nn.Module):
    """The encoder-decoder, with T5X's protocol.

    Decoding: a call of `decode` (or of the whole) with `decode=True`, the `cache` collection mutable and tokens of the
    full length makes the cache; then each call of `decode` with one token a row returns the logits that follow it.
    """

    config: T5Config

    @property
    def scan_layers(self) -> bool:
        """Whether the arrays of the cache have the layers before the batch."""
        return self.config.scan_layers

    def setup(self) -> None:
        self.token_embedder = make_embedding(self.config)
        self.encoder = Encoder(self.config, self.token_embedder)
        gemma = self.config.gemma_layers
        # T5Gemma's has an embedding of its own.
        is_shared = gemma is None or gemma.shared_embedding
        self.decoder = Decoder(self.config, self.token_embedder if is_shared else None)

    def encode(
        self, encoder_input_tokens: Array, encoder_segment_ids: Array | None = None, enable_dropout: bool = True
    ) -> Array:
        """`[batch, inputs_length] -> [batch, inputs_length, embed]`. Token 0 is padding."""
        mask = encoder_mask(self.config, encoder_input_tokens, encoder_segment_ids)
        return self.encoder(encoder_input_tokens, mask, not enable_dropout)

    def decode(
        self,
        encoded: Array,
        encoder_input_tokens: Array,
        decoder_input_tokens: Array,
        decoder_target_tokens: Array,
        encoder_segment_ids: Array | None = None,
        decoder_segment_ids: Array | None = None,
        decoder_positions: Array | None = None,
        enable_dropout: bool = True,
        decode: bool = False,
        max_decode_length: int | None = None,
        keep_encoded_keys: bool = False,
        linear_logits: bool = False,
        begins: Array | None = None,
    ) -> Array | linear_cross_entropy.LinearLogits:
        """Float32 logits `[batch, targets_length, vocab]`, or with `linear_logits` perhaps what they are made of.

        Args:
          encoder_input_tokens: `[batch, inputs_length]`, for the padding.
          decoder_input_tokens, decoder_target_tokens: `[batch, targets_length]`.
          encoder_segment_ids, decoder_segment_ids: of packed batches; not with `decode`.
          decoder_positions: of packed batches, where sequences begin at 0; relative positions do not need them.
          decode: one position at a time, with a cache (see the class).
          max_decode_length: T5X's; the length of the cache is that of the call that made it.
          keep_encoded_keys: when making the cache, compute the keys and values of the encoded inputs once and keep
            them there. `encoded` and its tokens must then be the real ones already.
          begins: with `decode`, whether a row is at its beginning, bool `[batch, 1]`: its 0 is then
            `decoder_start_token_id`, and another 0 is a token that was decoded. None takes each 0 for the beginning.

        Raises:
          ValueError: for packed batches with `decode`.
        """
        del max_decode_length
        targets, segments = decoder_target_tokens, decoder_segment_ids
        if not decode:
            positions = jnp.arange(targets.shape[1]) if decoder_positions is None else decoder_positions
            begins = jnp.broadcast_to(positions == 0, targets.shape)
        mask: Mask = None
        cross_mask: Mask = None
        if not decode:
            mask = decoder_mask(self.config, targets, segments)
            inputs = encoder_input_tokens, segments, encoder_segment_ids
            cross_mask = _visible(self.config, targets, *inputs, is_self=False)
        elif encoder_segment_ids is not None or segments is not None:
            raise ValueError("Packed batches cannot be decoded: leave out the segment ids, and pack = False.")
        if cross_mask is None:
            real = jnp.ones(targets.shape, bool) if decode else targets > 0
            cross_mask = attention.combine_masks(
                attention.make_attention_mask(real, encoder_input_tokens > 0, jnp.logical_and, dtype=bool),
                attention.segment_mask(segments, encoder_segment_ids),
                dtype=bool,
            )
        return self.decoder(
            encoded,
            decoder_input_tokens,
            mask,
            cross_mask,
            not enable_dropout,
            decode,
            keep_encoded_keys,
            linear_logits=linear_logits,
            begins=begins,
            **self._of_packed_inputs(encoder_segment_ids),
        )

    def _of_packed_inputs(self, segment_ids: Array | None) -> dict[str, Any]:
        """Arguments of the decoder for packed inputs; T5's attention to the encoder knows no places in them."""
        del segment_ids
        return {}

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
        decode: bool = False,
        linear_logits: bool = False,
    ) -> Array | linear_cross_entropy.LinearLogits:
        """Float32 logits `[batch, targets_length, vocab]`, see `decode`; every feature is int32 `[batch, length]`.

        Positions are part of packed batches; T5's relative positions do not need them.
        """
        del encoder_positions
        # By name, for networks that are derived from this one and take only some of them.
        encoded = self.encode(
            encoder_input_tokens, encoder_segment_ids=encoder_segment_ids, enable_dropout=enable_dropout
        )
        return self.decode(
            encoded,
            encoder_input_tokens,
            decoder_input_tokens,
            decoder_target_tokens,
            encoder_segment_ids=encoder_segment_ids,
            decoder_segment_ids=decoder_segment_ids,
            decoder_positions=decoder_positions,
            enable_dropout=enable_dropout,
            decode=decode,
            **dict[str, Any](linear_logits=True) if linear_logits else {},
        )
