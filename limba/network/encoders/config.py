"""The configuration of an encoder such as BERT, RoBERTa, MPNet, RoFormer, ModernBERT or EuroBERT."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from limba.addons import table
from limba.devices import target
from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0
from limba.network import config_checks, layers
from limba.network.encoders import rotary

POSITION_EMBEDDING_TYPES = (
    *("absolute", "t5_buckets", "absolute_and_t5_buckets", "relative_key", "relative_key_query", "disentangled"),
    *("rotary", "none"),
)
NORMS = ("layer_norm", "layer_norm_without_bias", "rms_norm")
NORM_POSITIONS = ("post", "pre")
_SIZES = (
    *("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_layers", "max_positions"),
    *("num_buckets", "max_distance", "global_attention_every", "local_attention_window"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The shape of an encoder. The defaults are BERT base, except that token types are off.

    Attributes:
      vocab_size: rows of the embedding; at least the vocabulary, a multiple of 128 runs fastest.
      pad_id: the token of padding, which is not looked at.
      dtype: of activations; parameters are always float32.
      emb_dim, num_heads, head_dim, mlp_dim, num_layers: sizes. `num_heads * head_dim` need not equal `emb_dim`.
      num_kv_heads: heads of keys and values, of which each serves several heads of queries (arXiv:2305.13245); a
        divisor of `num_heads`, and None is `num_heads`.
      embedding_size: width of the tables of tokens, positions and types, which a product makes `emb_dim` (ELECTRA,
        RoFormer); None is `emb_dim`.
      mlp_activations: one is a plain MLP, two are a gated one: ("gelu_erf", "linear") is ModernBERT's.
      attention_bias, mlp_bias: whether these products have biases.
      norm: "layer_norm", "layer_norm_without_bias" or "rms_norm"; all norms are of this kind.
      norm_position: "post" is after each residual sum (BERT); "pre" is before each block, and once after the last.
      norm_epsilon: added to the variance; 1e-12 in BERT, 1e-5 in ModernBERT.
      embedding_norm: a norm after the embedding.
      first_attention_norm: False leaves out the norm before the first attention, where the embedding's is (ModernBERT).
      position_embedding_type: "absolute" is learned and added to the tokens; "t5_buckets" is T5's bias by distance, one
        table for all layers; "absolute_and_t5_buckets" is MPNet's; "relative_key" and "relative_key_query" are products
        of queries, or of queries and keys, with a table of distances in each layer (arXiv:1803.02155,
        arXiv:2009.13658); "disentangled" is DeBERTa-v3's (arXiv:2111.09543); "rotary"; "none".
      max_positions: the longest row, where positions or distances have a table (absolute, relative_key) or attention is
        sparse.
      num_buckets, max_distance: of T5's bias; of disentangled attention to each side.
      rotary_dim: how many numbers of each head rotary positions turn; None turns all of them.
      rotary_pairs: "halves" (ModernBERT, GENA-LM) or "interleaved" (RoFormer).
      rotary_base, local_rotary_base: of global and local layers; None is the same for both.
      global_attention_every: layers 0, n, 2n … look at the whole row, the others at a window; 1 has no windows.
      local_attention_window: its width; 128 sees 64 positions to each side.
      sparse_attention: each layer looks at some blocks of the row in place of the whole row; a
        configuration of an add-on's (`sparse_part`), block_layout.BigBirdSparsityConfig.
      num_token_types: rows of the table of token types (segments A and B of BERT); 0 has none.
      head_activation: of the masked language model's transform (dense, activation, norm); None has no transform.
      head_bias, logits_bias: biases of the transform's product and of the logits.
      logits_via_embedding: the kernel of the logits is the embedding; False gives them one of their own (EuroBERT).
      dropout_rate: of embeddings and of what each block adds.
      attention_dropout_rate: of attention weights; all queries of a row drop the same.
      initializer_range: standard deviation of the initial kernels and tables.
      float32_attention_logits: the products of attention's logits, and its weights, in float32 when `dtype` is not.
      scan_layers: compile one layer, or one period of global and local layers, instead of all.
      remat_policy: "none", "minimal" or "full": what is recomputed in the backward pass to save memory.
      param_scan_axis: where the layers stand in the parameters of a scanned stack.
      kernels: "auto" is the fastest that the device has, the others are as in T5Config; attention to a window or
        with relative_key is XLA's in any case.
      family: of `convert.families`, which says what class of Hugging Face an export becomes where several hold the
        network: 'mt5', 'roberta'. None takes the first that does. Nothing is computed with it.

    Raises:
      ValueError: for a value outside of what its field can be, or two fields that exclude each other.
    """

    vocab_size: int
    pad_id: int = 0
    dtype: Any = jnp.float32
    emb_dim: int = 768
    num_heads: int = 12
    head_dim: int = 64
    num_kv_heads: int | None = None
    mlp_dim: int = 3072
    num_layers: int = 12
    embedding_size: int | None = None
    mlp_activations: Sequence[str] = ("gelu_erf",)
    attention_bias: bool = True
    mlp_bias: bool = True
    norm: str = "layer_norm"
    norm_position: str = "post"
    norm_epsilon: float = 1e-12
    embedding_norm: bool = True
    first_attention_norm: bool = True
    position_embedding_type: str = "absolute"
    max_positions: int = 512
    num_buckets: int = 32
    max_distance: int = 128
    rotary_dim: int | None = None
    rotary_pairs: str = "halves"
    rotary_base: float = 10_000.0
    local_rotary_base: float | None = None
    global_attention_every: int = 1
    local_attention_window: int = 128
    sparse_attention: Any = None
    num_token_types: int = 0
    head_activation: str | None = "gelu_erf"
    head_bias: bool = True
    logits_bias: bool = True
    logits_via_embedding: bool = True
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    initializer_range: float = 0.02
    float32_attention_logits: bool = False
    scan_layers: bool = False
    remat_policy: str | None = "none"
    param_scan_axis: int = 1
    kernels: str = "auto"
    family: str | None = None

    def __post_init__(self) -> None:
        owner = "EncoderConfig"
        for field in _SIZES:
            config_checks.whole_number(owner, field, getattr(self, field), 1)
        for field in ("pad_id", "num_token_types"):
            config_checks.whole_number(owner, field, getattr(self, field), 0)
        if self.embedding_size is not None:
            config_checks.whole_number(owner, "embedding_size", self.embedding_size, 1)
        config_checks.depth(owner, "num_layers", self.num_layers)
        config_checks.dtype(owner, self.dtype, "its small gradients become 0 without a scaled loss.")
        config_checks.remat_policy(owner, self.remat_policy)
        for field, choices in (
            ("norm", NORMS),
            ("norm_position", NORM_POSITIONS),
            ("position_embedding_type", POSITION_EMBEDDING_TYPES),
            ("rotary_pairs", rotary.PAIRS),
            ("kernels", target.CHOICES),
        ):
            config_checks.choice(owner, field, getattr(self, field), choices)
        config_checks.flags(owner, self)
        config_checks.activations(owner, self.mlp_activations)
        if self.head_activation is not None:
            layers.activation_function(self.head_activation)
        for field in ("dropout_rate", "attention_dropout_rate"):
            config_checks.dropout_rate(owner, field, getattr(self, field))
        for field in ("norm_epsilon", "initializer_range", "rotary_base", "local_rotary_base"):
            allowed = ABOVE_0._replace(or_none=field == "local_rotary_base")
            number_ranges.check(f"{owner}.{field}", getattr(self, field), allowed)
        self._check_fields_together()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "EncoderConfig":
        """Of the fields that `dataclasses.asdict` gave, as `run/run.json` has them; TypeError for an unknown one."""
        sparse = fields.get("sparse_attention")
        return cls(**(dict(fields) | {"sparse_attention": sparse and sparse_part().of_json(sparse)}))

    @property
    def token_dim(self) -> int:
        """The width of the tables."""
        return self.embedding_size or self.emb_dim

    @property
    def has_absolute_positions(self) -> bool:
        return self.position_embedding_type in ("absolute", "absolute_and_t5_buckets")

    @property
    def has_buckets(self) -> bool:
        return self.position_embedding_type in ("t5_buckets", "absolute_and_t5_buckets")

    @property
    def has_relative_keys(self) -> bool:
        return self.position_embedding_type in ("relative_key", "relative_key_query")

    @property
    def has_disentangled_attention(self) -> bool:
        return self.position_embedding_type == "disentangled"

    @property
    def longest_row(self) -> int | None:
        """In tokens; None where nothing bounds it."""
        is_bounded = self.has_absolute_positions or self.has_relative_keys or self.sparse_attention is not None
        return self.max_positions if is_bounded else None

    @property
    def attention_weights_dtype(self) -> Any:
        return jnp.float32 if self.float32_attention_logits else self.dtype

    def _check_fields_together(self) -> None:
        if self.token_dim != self.emb_dim and self.head_activation is None:
            raise ValueError(
                f"EncoderConfig.embedding_size is {self.embedding_size} and emb_dim {self.emb_dim}, and without "
                "head_activation the head has no product that brings one to the other; set head_activation."
            )
        if self.pad_id >= self.vocab_size:
            raise ValueError(
                f"EncoderConfig.pad_id is {self.pad_id}, and the embedding has {self.vocab_size} rows; give the "
                "vocabulary's own id, below vocab_size."
            )
        if self.num_kv_heads is not None:
            config_checks.whole_number("EncoderConfig", "num_kv_heads", self.num_kv_heads, 1)
            if self.num_heads % self.num_kv_heads:
                raise ValueError(
                    f"EncoderConfig.num_kv_heads is {self.num_kv_heads}, and each serves as many of the num_heads, "
                    f"{self.num_heads}; use a divisor of {self.num_heads}."
                )
        if self.norm_position == "post" and not self.first_attention_norm:
            raise ValueError(
                "EncoderConfig.first_attention_norm is False with norm_position = 'post', which has no norm before "
                "attention; set norm_position = 'pre', or leave first_attention_norm True."
            )
        if self.position_embedding_type == "rotary":
            turned = self.head_dim if self.rotary_dim is None else self.rotary_dim
            field = "head_dim" if self.rotary_dim is None else "rotary_dim"
            config_checks.whole_number("EncoderConfig", field, turned, 2)
            if turned % 2 or turned > self.head_dim:
                raise ValueError(
                    f"EncoderConfig.{field} is {turned}; rotary positions turn pairs, so it is an even number of at "
                    f"most head_dim, {self.head_dim}."
                )
        if self.has_buckets and (
            self.num_buckets < 4 or self.num_buckets % 2 or self.max_distance <= self.num_buckets // 4
        ):
            raise ValueError(
                f"EncoderConfig.num_buckets is {self.num_buckets} and max_distance {self.max_distance}; num_buckets is "
                "an even number of at least 4, and max_distance more than a quarter of it."
            )
        if self.has_disentangled_attention and (
            self.num_buckets < 4 or self.num_buckets % 2 or self.max_distance - 1 <= self.num_buckets // 2
        ):
            raise ValueError(
                f"EncoderConfig.num_buckets is {self.num_buckets} and max_distance {self.max_distance}; with "
                "disentangled attention num_buckets is an even number of at least 4, and max_distance more than half "
                "of it plus 1."
            )
        if self.has_disentangled_attention and self.num_kv_heads not in (None, self.num_heads):
            raise ValueError(
                f"EncoderConfig.num_kv_heads is {self.num_kv_heads} with position_embedding_type = 'disentangled', "
                "whose distances have as many heads of keys as of queries; set num_kv_heads = None."
            )
        if self.global_attention_every > 1 and self.local_attention_window % 2:
            raise ValueError(
                f"EncoderConfig.local_attention_window is {self.local_attention_window}; it is an even number of at "
                "least 2, half to each side."
            )
        if self.sparse_attention is not None:
            self._check_sparse_attention()

    def _check_sparse_attention(self) -> None:
        if self.has_disentangled_attention:
            raise ValueError(
                "EncoderConfig.position_embedding_type is 'disentangled', whose products are of all pairs of tokens; "
                "set sparse_attention = None, or other positions."
            )
        if self.global_attention_every > 1:
            raise ValueError(
                f"EncoderConfig.global_attention_every is {self.global_attention_every}, and sparse_attention has a "
                "window of its own; set global_attention_every = 1, or sparse_attention = None."
            )
        sparse_part().check(self.sparse_attention, self.num_heads, self.max_positions)


def sparse_part() -> Any:
    """The add-on's module that computes `EncoderConfig.sparse_attention`; its functions are in `table.PARTS`.

    Raises:
      ValueError: if there is none.
    """
    for part in table.parts("sparse_attention"):
        return part
    raise ValueError(
        "EncoderConfig.sparse_attention is given, and this Limba has no add-on that computes it; set "
        "sparse_attention = None."
    )
