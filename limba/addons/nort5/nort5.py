"""NorT5's network: layer norms without parameters before blocks, attention with distances, a norm within feed-forward.

Its parameters have the names of T5X's where both have them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from limba.addons.nort5.relative_attention import Places, RelativeAttention, standardized
from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0, SHARE
from limba.network import config_checks, layers, own_layers, stacks, t5

Array = jax.Array
_OWNER = "NorT5Config"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NorT5Config(t5.T5Config):
    """The shape of a NorT5: fields of `T5Config`, whose options for T5's layers it does not have.

    Attributes:
      num_buckets: of distances to one side (`position_bucket_size`).
      norm_epsilon: of all norms.
      attention_dropout_rate: of attention's weights, of what it adds, and of the vectors of distances.
      cls_token_id, sep_token_id: with which HPLT's class finds the first and the last token of labels, for exports.

    Raises:
      ValueError: as `T5Config`; for another value than the usual one of a field that NorT5 does not have.
    """

    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    dropout_rate: float = 0.0
    decoder_start_token_id: int = 5
    num_buckets: int = 32
    norm_epsilon: float = 1e-7
    attention_dropout_rate: float = 0.0
    cls_token_id: int = 2
    sep_token_id: int = 3

    layer_kind: ClassVar[str] = "nort5"
    rates: ClassVar[tuple[str, ...]] = ("dropout_rate", "attention_dropout_rate")
    is_beyond_kernels: ClassVar[bool] = True
    # New kernels of a layer are the smaller the deeper it is.
    can_scan: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        config_checks.whole_number(_OWNER, "num_buckets", self.num_buckets, 4)
        number_ranges.check(f"{_OWNER}.norm_epsilon", self.norm_epsilon, ABOVE_0._replace(below=1))
        number_ranges.check(f"{_OWNER}.attention_dropout_rate", self.attention_dropout_rate, SHARE)
        for name in ("cls_token_id", "sep_token_id"):
            config_checks.whole_number(_OWNER, name, getattr(self, name), 0)
        only = {
            "mlp_activations": ("gelu", "linear"),
            **dict.fromkeys(("logits_via_embedding", "scale_attn_logits", "relative_bias_per_layer"), False),
            **dict.fromkeys((*own_layers.FIELDS, "gemma_layers")),
            "scan_layers": False,
            "joined_attention_kernels": True,
        }
        for name, value in only.items():
            given = getattr(self, name)
            if (tuple(given) if name == "mlp_activations" else given) != value:
                raise ValueError(f"{_OWNER}.{name} is {given!r}, and every NorT5 has {value!r}; leave it out.")
        if self.kernels in ("fused", "cudnn"):
            raise ValueError(
                f"{_OWNER}.kernels is {self.kernels!r}, and no fused kernel has NorT5's attention; set kernels = "
                "'auto', which computes it by XLA."
            )
        if self.num_heads * self.head_dim != self.emb_dim:
            raise ValueError(
                f"{_OWNER}.num_heads is {self.num_heads} and head_dim {self.head_dim}; their product is emb_dim, "
                f"{self.emb_dim}, in every NorT5."
            )

    def network(self) -> "Transformer":
        """The encoder-decoder of this shape."""
        return Transformer(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "NorT5Config":
        """See `T5Config.from_json`."""
        return cls(**fields)


def _init(config: NorT5Config, scale: float = 1.0) -> layers.Initializer:
    """NorT5's, for kernels of every shape."""
    return nn.initializers.truncated_normal(scale * (2.0 / (5.0 * config.emb_dim)) ** 0.5)


def _attention(config: NorT5Config, name: str) -> RelativeAttention:
    return RelativeAttention(
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        dtype=config.dtype,
        dropout_rate=config.attention_dropout_rate,
        kernel_init=_init(config),
        float32_logits=config.float32_attention_logits,
        by_rows=config.kernels != "xla",
        num_buckets=config.num_buckets,
        vectors_dropout_rate=config.attention_dropout_rate,
        name=name,
    )


def _norm(config: NorT5Config, name: str) -> layers.CenteredLayerNorm:
    return layers.CenteredLayerNorm(config.norm_epsilon, config.dtype, name=name)


def _plain_norm(config: NorT5Config, x: Array) -> Array:
    return standardized(x, config.norm_epsilon, config.dtype)


def _residual(x: Array, update: Array) -> Array:
    return layers.with_sharding_constraint(x + update, ("batch", "length", "embed"))


def _attended(
    config: NorT5Config, name: str, x: Array, seen: Array | None, *args: Any, **modes: Any
) -> tuple[Array, Array | None]:
    """What attention from `x` to `seen`, or to itself, adds; see `RelativeAttention`."""
    normed = _plain_norm(config, x)
    norm = {"encoder_decoder_attention": "post_cross_attention"}.get(name, f"post_{name}")
    to = normed if seen is None else _plain_norm(config, seen)
    update, index = _attention(config, name)(normed, to, *args, **modes)
    update = _norm(config, f"{norm}_layer_norm")(update)
    return nn.Dropout(config.attention_dropout_rate)(update, deterministic=modes["deterministic"]), index


class FeedForward(nn.Module):
    """GELU of one product times another, between layer norms without parameters; no biases.

    Attributes:
      scale: of new kernels.
    """

    config: NorT5Config
    scale: float = 1.0

    @nn.compact
    def __call__(self, x: Array, deterministic: bool) -> Array:
        """`[batch, length, embed] -> [batch, length, embed]`, what the block adds."""
        cfg, init = self.config, _init(self.config, self.scale)
        x = _plain_norm(cfg, x)
        gate, hidden = (
            layers.DenseGeneral(cfg.mlp_dim, -1, cfg.dtype, init, ("embed", "mlp"), name=f"wi_{i}")(x) for i in (0, 1)
        )
        hidden = _plain_norm(cfg, nn.gelu(gate, approximate=True) * hidden)
        hidden = layers.with_sharding_constraint(hidden, ("batch", "length", "mlp"))
        update = layers.DenseGeneral(cfg.emb_dim, -1, cfg.dtype, init, ("mlp", "embed"), name="wo")(hidden)
        return nn.Dropout(cfg.dropout_rate)(update, deterministic=deterministic)


def _feed_forward(config: NorT5Config, layer: str | None) -> FeedForward:
    """Of a layer called `layers_3`, whose new kernels are smaller than those of `layers_2`."""
    depth = int((layer or "_0").rpartition("_")[2])
    return FeedForward(config, (2.0 * (1 + depth)) ** -0.5, name="mlp")


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward. Returns `(x, None)`, as `stacks.apply` wants it."""

    config: NorT5Config

    @nn.compact
    def __call__(
        self, x: Array, mask: Array, vectors: Array, places: Places, deterministic: bool
    ) -> tuple[Array, None]:
        cfg = self.config
        update, _ = _attended(cfg, "attention", x, None, vectors, mask, places, deterministic=deterministic)
        x = _residual(x, update)
        return _residual(x, _feed_forward(cfg, self.name)(x, deterministic)), None


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder, feed-forward. Returns `(x, None)`."""

    config: NorT5Config

    @nn.compact
    def __call__(
        self,
        x: Array,
        encoded: Array,
        mask: Array | None,
        cross_mask: Array,
        vectors: Array,
        cross_vectors: Array,
        cross_places: Places,
        deterministic: bool,
        decode: bool,
        keep_encoded_keys: bool,
    ) -> tuple[Array, None]:
        cfg = self.config
        modes: dict[str, Any] = {"deterministic": deterministic}
        update, index = _attended(cfg, "self_attention", x, None, vectors, mask, None, decode=decode, **modes)
        x = _residual(x, update)
        cross = (encoded, cross_vectors, cross_mask, cross_places if index is None else index)
        update, _ = _attended(cfg, "encoder_decoder_attention", x, *cross, keep_keys=keep_encoded_keys, **modes)
        x = _residual(x, update)
        return _residual(x, _feed_forward(cfg, self.name)(x, deterministic)), None


class DistanceVectors(nn.Module):
    """A vector of each bucket of distances, normalized: `[2 * num_buckets - 1, embed]`.

    Row `num_buckets - 1 + b` is for a query `b` buckets behind the key.
    """

    config: NorT5Config

    @nn.compact
    def __call__(self) -> Array:
        cfg, rows = self.config, 2 * self.config.num_buckets - 1
        table = layers.Embed(
            rows, cfg.emb_dim, embedding_init=_init(cfg), axes=("relpos_buckets", "embed"), name="vectors"
        )
        return _norm(cfg, "layer_norm")(table(jnp.arange(rows)[None])[0])


def _embedded(config: NorT5Config, embedding: nn.Module, tokens: Array, deterministic: bool) -> Array:
    normed = _plain_norm(config, embedding(tokens.astype(jnp.int32)))
    return nn.Dropout(config.dropout_rate)(normed, deterministic=deterministic)


class Encoder(nn.Module):
    """Embedding and layers over the inputs; there is no norm behind them."""

    config: NorT5Config
    shared_embedding: nn.Module

    @nn.compact
    def __call__(self, encoder_input_tokens: Array, encoder_mask: Array, deterministic: bool) -> Array:
        """`[batch, length] -> [batch, length, embed]`. Within a row distances are the same, packed or not."""
        cfg = self.config
        x = _embedded(cfg, self.shared_embedding, encoder_input_tokens, deterministic)
        vectors = DistanceVectors(cfg, name="distances")()
        each: list[dict[str, Any]] = [{} for _ in range(cfg.num_encoder_layers)]
        return stacks.apply(self, EncoderLayer, each, "encoder", x, encoder_mask, vectors, None, deterministic)


class Decoder(nn.Module):
    """Embedding, layers, a norm and logits over the targets; arguments are those of `t5.Decoder`.

    `input_begins` says of packed inputs where texts begin, bool `[batch, inputs_length]`.
    """

    config: NorT5Config
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
        input_begins: Array | None = None,
    ) -> Array:
        """`[batch, length] -> float32 logits [batch, length, vocab]`."""
        del linear_logits  # A loss may do with logits.
        cfg = self.config
        y = _embedded(cfg, self.shared_embedding, t5.begun(cfg, decoder_input_tokens, begins), deterministic)
        vectors = [DistanceVectors(cfg, name=name)() for name in ("self_distances", "cross_distances")]
        places = None
        if input_begins is not None and begins is not None:
            places = tuple(t5.places_in_texts(x.shape[1], x) for x in (begins, input_begins))
        each: list[dict[str, Any]] = [{} for _ in range(cfg.num_decoder_layers)]
        args = (encoded, decoder_mask, encoder_decoder_mask, *vectors, places)
        y = stacks.apply(self, DecoderLayer, each, "decoder", y, *args, deterministic, decode, keep_encoded_keys)
        y = nn.Dropout(cfg.dropout_rate)(_plain_norm(cfg, y), deterministic=deterministic)
        init, axes = _init(cfg), ("embed", "vocab")
        # Float32 for a stable softmax.
        dense = layers.DenseGeneral(cfg.vocab_size, -1, jnp.float32, init, axes, use_bias=True, name="logits_dense")
        return dense(y)


class Transformer(t5.Transformer):
    """The encoder-decoder; calls, masks and decoding are those of `t5.Transformer`."""

    config: NorT5Config

    def setup(self) -> None:
        cfg = self.config
        self.token_embedder = layers.Embed(
            cfg.vocab_size, cfg.emb_dim, dtype=cfg.dtype, embedding_init=_init(cfg), one_hot=cfg.one_hot_embedding
        )
        self.encoder: Any = Encoder(cfg, self.token_embedder)
        self.decoder: Any = Decoder(cfg, self.token_embedder)

    def _of_packed_inputs(self, segment_ids: Array | None) -> dict[str, Any]:
        if segment_ids is None:
            return {}
        return {"input_begins": jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)))}
