"""BART's network: learned positions, attention with biases, a layer norm behind each block, or before it in mBART.

Its parameters have the names of T5X's where both have them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from limba.files import number_ranges
from limba.files.number_ranges import SHARE
from limba.network import attention, config_checks, layers, own_layers, stacks, t5

Array = jax.Array
_OWNER = "BartConfig"
_EPSILON = 1e-5
# The first row of positions that is used; BART's first code began behind padding, and files have its two rows.
FIRST_POSITION = 2
_INIT = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BartConfig(t5.T5Config):
    """The shape of a BART or mBART: fields of `T5Config`, whose options for T5's layers it does not have.

    Attributes:
      max_positions: the longest row of inputs or targets.
      norms_before: mBART's norms, before each block and behind each stack; BART's are behind each block.
      scale_embedding: multiply embedded tokens by sqrt(emb_dim).
      attention_dropout_rate: of attention's weights.
      activation_dropout_rate: within feed-forward.

    Raises:
      ValueError: as `T5Config`; for another value than the usual one of a field that BART does not have.
    """

    mlp_activations: tuple[str, ...] = ("gelu_erf",)
    logits_via_embedding: bool = True
    decoder_start_token_id: int = 2
    max_positions: int = 1024
    norms_before: bool = False
    scale_embedding: bool = False
    attention_dropout_rate: float = 0.0
    activation_dropout_rate: float = 0.0

    layer_kind: ClassVar[str] = "bart"
    rates: ClassVar[tuple[str, ...]] = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
    is_beyond_kernels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        config_checks.whole_number(_OWNER, "max_positions", self.max_positions, 1)
        for name in ("attention_dropout_rate", "activation_dropout_rate"):
            number_ranges.check(f"{_OWNER}.{name}", getattr(self, name), SHARE)
        if len(self.mlp_activations) != 1:
            raise ValueError(
                f"{_OWNER}.mlp_activations is {tuple(self.mlp_activations)!r}; BART's feed-forward has one product and "
                "no gate: give one name, such as ('gelu_erf',)."
            )
        only = {
            "logits_via_embedding": True,
            **dict.fromkeys(("scale_attn_logits", "relative_bias_per_layer"), False),
            **dict.fromkeys((*own_layers.FIELDS, "gemma_layers")),
            "joined_attention_kernels": True,
        }
        for name, value in only.items():
            if (given := getattr(self, name)) != value:
                raise ValueError(f"{_OWNER}.{name} is {given!r}, and every BART has {value!r}; leave it out.")
        if self.kernels in ("fused", "cudnn"):
            raise ValueError(
                f"{_OWNER}.kernels is {self.kernels!r}, and the fused kernels are T5's; set kernels = 'auto', which "
                "computes BART by XLA."
            )
        if self.num_heads * self.head_dim != self.emb_dim:
            raise ValueError(
                f"{_OWNER}.num_heads is {self.num_heads} and head_dim {self.head_dim}; their product is emb_dim, "
                f"{self.emb_dim}, in every BART."
            )

    def network(self) -> "Transformer":
        """The encoder-decoder of this shape."""
        return Transformer(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "BartConfig":
        """See `T5Config.from_json`."""
        return cls(**fields)


class Attention(attention.MultiHeadDotProductAttention):
    """The core's attention with biases of its four products."""

    def _project(self, name: str, inputs: Array) -> Array:
        features, axes = (self.num_heads, self.head_dim), ("embed", "joined_kv")
        dense = layers.DenseGeneral(features, -1, self.dtype, self.kernel_init, axes, use_bias=True, name=name)
        projected = dense(inputs)
        if name == "query":
            projected *= jnp.asarray(self.head_dim**-0.5, self.dtype)
        return layers.with_sharding_constraint(projected, ("batch", "length", "heads", "kv"))

    def _out(self, attended: Array, width: int) -> Array:
        axes = ("joined_kv", "embed")
        dense = layers.DenseGeneral(width, (-2, -1), self.dtype, self.kernel_init, axes, use_bias=True, name="out")
        return dense(attended)


class FeedForward(nn.Module):
    """Two products with biases, and the activation between them."""

    config: BartConfig

    @nn.compact
    def __call__(self, x: Array, deterministic: bool) -> Array:
        """`[batch, length, embed] -> [batch, length, embed]`, what the block adds."""
        cfg = self.config
        hidden = layers.DenseGeneral(cfg.mlp_dim, -1, cfg.dtype, _INIT, ("embed", "mlp"), use_bias=True, name="wi")(x)
        hidden = layers.activation_function(cfg.mlp_activations[0])(hidden)
        hidden = nn.Dropout(cfg.activation_dropout_rate)(hidden, deterministic=deterministic)
        hidden = layers.with_sharding_constraint(hidden, ("batch", "length", "mlp"))
        return layers.DenseGeneral(cfg.emb_dim, -1, cfg.dtype, _INIT, ("mlp", "embed"), use_bias=True, name="wo")(
            hidden
        )


def _norm(config: BartConfig, name: str) -> layers.CenteredLayerNorm:
    return layers.CenteredLayerNorm(_EPSILON, config.dtype, name=name)


class _Layer(nn.Module):
    """What layers of both stacks have in common."""

    config: BartConfig

    def _attended(self, name: str, x: Array, seen: Array | None, mask: Array | None, **modes: Any) -> Array:
        """`x` behind attention to `seen`, or to itself."""
        cfg = self.config
        block = Attention(
            num_heads=cfg.num_heads,
            head_dim=cfg.head_dim,
            dtype=cfg.dtype,
            dropout_rate=cfg.attention_dropout_rate,
            kernel_init=_INIT,
            float32_logits=cfg.float32_attention_logits,
            by_rows=cfg.kernels != "xla",
            name=name,
        )
        norm = {"encoder_decoder_attention": "cross_attention"}.get(name, name)
        return self._around(norm, x, lambda y: block(y, y if seen is None else seen, mask, **modes), modes)

    def _fed_forward(self, x: Array, deterministic: bool) -> Array:
        block = FeedForward(self.config, name="mlp")
        return self._around("mlp", x, lambda y: block(y, deterministic), {"deterministic": deterministic})

    def _around(self, name: str, x: Array, block: Any, modes: Mapping[str, Any]) -> Array:
        """A block with its residual, dropout and norm, which stands before it or behind."""
        cfg = self.config
        norm = _norm(cfg, f"{name}_layer_norm")
        update = block(norm(x) if cfg.norms_before else x)
        x += nn.Dropout(cfg.dropout_rate)(update, deterministic=modes["deterministic"])
        x = x if cfg.norms_before else norm(x)
        return layers.with_sharding_constraint(x, ("batch", "length", "embed"))


class EncoderLayer(_Layer):
    """Self-attention and feed-forward. Returns `(x, None)`, as `stacks.apply` wants it."""

    @nn.compact
    def __call__(self, x: Array, mask: Array, deterministic: bool) -> tuple[Array, None]:
        x = self._attended("attention", x, None, mask, deterministic=deterministic)
        return self._fed_forward(x, deterministic), None


class DecoderLayer(_Layer):
    """Causal self-attention, attention to the encoder, feed-forward. Returns `(x, None)`."""

    @nn.compact
    def __call__(
        self,
        x: Array,
        encoded: Array,
        mask: Array | None,
        cross_mask: Array,
        deterministic: bool,
        decode: bool,
        keep_encoded_keys: bool,
    ) -> tuple[Array, None]:
        modes: dict[str, Any] = {"deterministic": deterministic}
        x = self._attended("self_attention", x, None, mask, decode=decode, **modes)
        cross = {"keep_keys": keep_encoded_keys, **modes}
        x = self._attended("encoder_decoder_attention", x, encoded, cross_mask, **cross)
        return self._fed_forward(x, deterministic), None


def _embedded(stack: "Encoder | Decoder", tokens: Array, places: Array, deterministic: bool) -> Array:
    """Tokens and their places `[batch or 1, length]`, normalized: `[batch, length, embed]`."""
    cfg = stack.config
    x = stack.shared_embedding(tokens)
    if cfg.scale_embedding:
        x *= jnp.asarray(cfg.emb_dim**0.5, cfg.dtype)
    positions = layers.Embed(
        FIRST_POSITION + cfg.max_positions,
        cfg.emb_dim,
        dtype=cfg.dtype,
        embedding_init=_INIT,
        axes=("abspos_buckets", "embed"),
        name="positions",
    )
    x = _norm(cfg, "embedding_layer_norm")(x + positions(FIRST_POSITION + places))
    return nn.Dropout(cfg.dropout_rate)(x, deterministic=deterministic)


def _check_length(config: BartConfig, length: int) -> None:
    if length > config.max_positions:
        raise ValueError(
            f"The rows have {length} tokens, and {_OWNER}.max_positions is {config.max_positions}; shorten them, or "
            "pre-train with a larger max_positions."
        )


class Encoder(nn.Module):
    """Embedding and layers over the inputs."""

    config: BartConfig
    shared_embedding: nn.Module

    @nn.compact
    def __call__(self, tokens: Array, mask: Array, places: Array, deterministic: bool) -> Array:
        """`[batch, length] -> [batch, length, embed]`."""
        cfg = self.config
        x = _embedded(self, tokens.astype(jnp.int32), places, deterministic)
        each: list[dict[str, Any]] = [{} for _ in range(cfg.num_encoder_layers)]
        x = stacks.apply(self, EncoderLayer, each, "encoder", x, mask, deterministic)
        return _norm(cfg, "encoder_norm")(x) if cfg.norms_before else x


class Decoder(nn.Module):
    """Embedding, layers and logits over the targets; arguments are those of `t5.Decoder`."""

    config: BartConfig
    shared_embedding: nn.Module

    @nn.compact
    def __call__(
        self,
        encoded: Array,
        decoder_input_tokens: Array,
        decoder_mask: Array | None,
        encoder_decoder_mask: Array,
        deterministic: bool,
        decode: bool = False,
        keep_encoded_keys: bool = False,
        linear_logits: bool = False,
        begins: Array | None = None,
    ) -> Array:
        """`[batch, length] -> float32 logits [batch, length, vocab]`."""
        del linear_logits  # A loss may do with logits.
        cfg = self.config
        tokens = t5.begun(cfg, decoder_input_tokens, begins)
        y = _embedded(self, tokens, self._places(tokens, decode, begins), deterministic)
        each: list[dict[str, Any]] = [{} for _ in range(cfg.num_decoder_layers)]
        args = (encoded, decoder_mask, encoder_decoder_mask, deterministic, decode, keep_encoded_keys)
        y = stacks.apply(self, DecoderLayer, each, "decoder", y, *args)
        y = _norm(cfg, "decoder_norm")(y) if cfg.norms_before else y
        # Float32 for a stable softmax.
        return self.shared_embedding.attend(y.astype(jnp.float32))  # type: ignore[attr-defined]

    def _places(self, tokens: Array, decode: bool, begins: Array | None) -> Array:
        """Where tokens stand in their own texts; a step of decoding counts in the cache."""
        _check_length(self.config, tokens.shape[1])
        if decode and self.has_variable("cache", "position_embedder_index"):
            index: Array = self.get_variable("cache", "position_embedder_index")
            self.put_variable("cache", "position_embedder_index", index + 1)
            return index[None, None]
        if decode:
            self.put_variable("cache", "position_embedder_index", jnp.zeros((), jnp.int32))
        return t5.places_in_texts(tokens.shape[1], None if decode else begins)


class Transformer(t5.Transformer):
    """The encoder-decoder; calls, masks and decoding are those of `t5.Transformer`."""

    config: BartConfig

    def setup(self) -> None:
        cfg = self.config
        self.token_embedder = layers.Embed(
            cfg.vocab_size,
            cfg.emb_dim,
            dtype=cfg.dtype,
            attend_dtype=jnp.float32,
            embedding_init=_INIT,
            one_hot=cfg.one_hot_embedding,
        )
        self.encoder: Any = Encoder(cfg, self.token_embedder)
        self.decoder: Any = Decoder(cfg, self.token_embedder)

    def encode(
        self, encoder_input_tokens: Array, encoder_segment_ids: Array | None = None, enable_dropout: bool = True
    ) -> Array:
        """See `t5.Transformer.encode`.

        Raises:
          ValueError: for rows that are longer than `max_positions`.
        """
        _check_length(self.config, encoder_input_tokens.shape[1])
        begins = None
        if encoder_segment_ids is not None:
            changes = encoder_segment_ids[:, 1:] != encoder_segment_ids[:, :-1]
            begins = jnp.pad(changes, ((0, 0), (1, 0)))
        places = t5.places_in_texts(encoder_input_tokens.shape[1], begins)
        mask = t5.encoder_mask(self.config, encoder_input_tokens, encoder_segment_ids)
        return self.encoder(encoder_input_tokens, mask, places, not enable_dropout)
