"""A T5 1.1 that begins as a factored bigram, also across cross-attention.

The residual has four parts: a constant dim, which makes the frequencies of pieces; a dim that fills rows up to a root
mean square of 1; dims of factors; and dims of codes, by which cross-attention finds a sentinel.

- Embeddings have the factors of a piece on the left, the logits' kernel those on the right. So a decoder that does
  nothing else predicts what follows its input.
- Heads of the encoder's first layer look one position to the left, and add the factors there. The codes of a sentinel
  in the decoder find the sentinel in the encoder, and bring what was added there: the piece before the blank.
- Everything else is random and small.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from limba.network import attention, decoder_only, own_layers, t5
from limba.training.from_counts.factored_bigram import FactoredBigram

PyTree = Any

CONSTANT, FILLER, _FACTORS = 0, 1, 2  # the first dims
_MOST_CODES = 24
# The parts of a row's squared length, which is the width: of the constant dim; of the factors at most; of a sentinel's
# filler, 4 of 128, and its codes, the rest.
_CONSTANT_SHARE, _FACTORS_SHARE, _SENTINEL_FILLER_SHARE = 1 / 8, 0.7, 1 / 32
# Of all targets, for pieces that the text does not have: sentinels and EOS of an encoder-decoder, EOS of a decoder.
UNSEEN_SHARE, _UNSEEN_SHARE_ALONE = 0.28, 0.01
# A code's logit with itself in each head of cross-attention, and what makes up for the norms on the way.
_FINDS, _CROSS_SCALE = 20.0, 1.2


def problem(config: t5.T5Config) -> str | None:
    """Why a network does not begin from counts; None for one that does."""
    if config.logits_via_embedding:
        return "logits_via_embedding is True, and inputs need other vectors than outputs; set it to False"
    if own := [name for name in own_layers.FIELDS if getattr(config, name)]:
        return f"{own[0]} is {getattr(config, own[0])!r}, and only T5's own attention is known; leave it out"
    if config.layer_kind != "t5":
        return f"its layers are those of {config.layer_kind}, and counts know T5's relative positions only"
    if config.emb_dim < 8:
        return f"emb_dim is {config.emb_dim}; it takes at least 8"
    if not config.num_decoder_layers:
        return "the network has no decoder"
    return None


def most_rank(config: t5.T5Config) -> int:
    """How many factors a row has room for."""
    return config.emb_dim - _num_codes(config) - _FACTORS


def longest(config: t5.T5Config) -> float:
    """Of a vector of factors."""
    return float(np.sqrt(_FACTORS_SHARE * config.emb_dim))


def _num_codes(config: t5.T5Config) -> int:
    """Dims by which cross-attention finds a sentinel; 0 for a decoder on its own."""
    return min(_MOST_CODES, config.emb_dim // 4) if has_encoder(config) else 0


def has_encoder(config: t5.T5Config) -> bool:
    return not isinstance(config, decoder_only.TransformerConfig)


@dataclasses.dataclass(frozen=True)
class Wiring:
    """Makes the parameters of a T5 1.1, or of a decoder of its layers, predict as a bigram does.

    Attributes:
      pointer_bias: of the relative position -1, added in the encoder's heads but the last; and half of it and a little
        for the neighbour on the right in the last head, and on the left in the decoder's first.
      output_scale: of the random kernels whose products are added to the residual.
      seed: of codes.
    """

    config: t5.T5Config
    pointer_bias: float
    output_scale: float
    seed: int

    def apply(self, params: PyTree, bigram: FactoredBigram) -> PyTree:
        """The parameters `{"decoder": …}` with NumPy arrays, changed; what was given stays as it is."""
        flat = {name: np.array(x) for name, x in traverse_util.flatten_dict(params, sep="/").items()}
        for name, x in flat.items():
            if name.startswith(("encoder/", "decoder/")) and name.endswith(("/out/kernel", "/wo/kernel")):
                x *= self.output_scale
        rng = np.random.default_rng(self.seed)
        codes = _num_codes(self.config)
        if has_encoder(self.config):
            _embed(flat["token_embedder/embedding"], bigram, codes, rng)
            if self.config.num_encoder_layers:
                self._point_left(flat, bigram.rank)
            self._find_sentinels(flat, bigram.rank, codes, rng)
        else:
            _embed(flat["decoder/token_embedder/embedding"], bigram, codes, rng)
        unseen = UNSEEN_SHARE if has_encoder(self.config) else _UNSEEN_SHARE_ALONE
        predict(flat["decoder/logits_dense/kernel"], bigram, unseen)
        self._bias(flat, "decoder", heads=slice(0, 1), position=-1, bias=self._weaker)
        return traverse_util.unflatten_dict(flat, sep="/")

    @property
    def _weaker(self) -> float:
        return self.pointer_bias * 4 / 7

    def _layers(self, flat: Mapping[str, np.ndarray], stack: str, name: str) -> list[np.ndarray]:
        """Views of a parameter of each layer of a stack."""
        if not self.config.scan_layers:
            return [flat[f"{stack}/layers_{i}/{name}"] for i in range(getattr(self.config, f"num_{stack}_layers"))]
        return list(np.moveaxis(flat[f"{stack}/{stack}/{name}"], self.config.param_scan_axis, 0))

    def _bias(self, flat: Mapping[str, np.ndarray], stack: str, heads: slice, position: int, bias: float) -> None:
        """Adds to the bias of a relative position, which all layers of a stack share unless each has its own."""
        name = "relpos_bias/rel_embedding"
        per_layer = self.config.relative_bias_per_layer
        tables = self._layers(flat, stack, name) if per_layer else [flat[f"{stack}/{name}"]]
        sizes = (t5.NUM_BUCKETS, t5.MAX_DISTANCE)
        bucket = int(attention.relative_position_bucket(jnp.int32(position), stack == "encoder", *sizes))
        for table in tables:
            table[heads, bucket] += bias

    def _point_left(self, flat: Mapping[str, np.ndarray], rank: int) -> None:
        heads = max(self.config.num_heads - 1, 1)
        self._bias(flat, "encoder", slice(0, heads), -1, self.pointer_bias)
        if heads < self.config.num_heads:
            self._bias(flat, "encoder", slice(heads, None), 1, self._weaker)
        value, out = (self._layers(flat, "encoder", f"attention/{name}/kernel")[0] for name in ("value", "out"))
        factors = slice(_FACTORS, _FACTORS + rank)
        self._carry(value, out, range(heads), factors, factors, 1.0)

    def _find_sentinels(self, flat: Mapping[str, np.ndarray], rank: int, codes: int, rng: np.random.Generator) -> None:
        name = "encoder_decoder_attention"
        query, key, value, out = (
            self._layers(flat, "decoder", f"{name}/{of}/kernel")[0] for of in ("query", "key", "value", "out")
        )
        width, heads, kv = self.config.emb_dim, self.config.num_heads, self.config.head_dim
        projection = np.zeros((width, heads * kv), np.float32)
        projection[width - codes :] = rng.standard_normal((codes, heads * kv)) / np.sqrt(kv)
        squared_length = (1 - _CONSTANT_SHARE - _SENTINEL_FILLER_SHARE) * width
        finds = _FINDS / squared_length
        if self.config.scale_attn_logits:
            finds *= np.sqrt(kv)
        for kernel in (query, key):
            kernel[...] = (projection * np.sqrt(finds)).reshape(kernel.shape)
        factors = slice(_FACTORS, _FACTORS + rank)
        self._carry(value, out, range(heads), factors, factors, _CROSS_SCALE)

    def _carry(
        self, value: np.ndarray, out: np.ndarray, heads: range, source: slice, goal: slice, scale: float
    ) -> None:
        """Heads carry some dims to others: as many as there is room for, the first ones, each in a head."""
        width, kv = self.config.emb_dim, self.config.head_dim
        carried = np.arange(min(source.stop - source.start, len(heads) * kv))
        places = heads.start * kv + carried
        to_heads, from_heads = value.reshape(width, -1), out.reshape(-1, width)
        to_heads[:, places] = 0
        from_heads[places] = 0
        to_heads[source.start + carried, places] = 1
        from_heads[places, goal.start + carried] = scale
        value[...], out[...] = to_heads.reshape(value.shape), from_heads.reshape(out.shape)


def _embed(embedding: np.ndarray, bigram: FactoredBigram, codes: int, rng: np.random.Generator) -> None:
    """Rows of a root mean square of 1; those of pieces that the text does not have keep random values as codes."""
    width = embedding.shape[1]
    seen = np.flatnonzero(bigram.seen)
    unseen = np.setdiff1d(np.arange(len(embedding)), seen)
    embedding[:, FILLER:] = 0
    embedding[:, CONSTANT] = np.sqrt(_CONSTANT_SHARE * width)
    embedding[seen, _FACTORS : _FACTORS + bigram.rank] = bigram.left[seen]
    if codes:
        drawn = rng.standard_normal((len(unseen), codes))
        drawn *= np.sqrt((1 - _CONSTANT_SHARE - _SENTINEL_FILLER_SHARE) * width) / np.linalg.norm(
            drawn, axis=1, keepdims=True
        )
        embedding[unseen, width - codes :] = drawn
    rest = width - np.square(embedding).sum(axis=1)
    embedding[:, FILLER] = np.sqrt(np.maximum(rest, 0))


def predict(kernel: np.ndarray, bigram: FactoredBigram, unseen_share: float) -> None:
    """Columns of the logits: frequencies by the constant dim, and the factors on the right."""
    seen = bigram.seen
    rows = np.full(kernel.shape[1], -np.inf)
    rows[: len(seen)][seen] = bigram.bias[seen]
    rows += np.log1p(-unseen_share) - np.log(np.exp(rows).sum())
    others = np.isinf(rows)
    rows[others] = np.log(unseen_share / max(others.sum(), 1))
    kernel[...] = 0
    kernel[CONSTANT] = (rows - rows.mean()) / np.sqrt(_CONSTANT_SHARE * len(kernel))
    kernel[_FACTORS : _FACTORS + bigram.rank, : len(seen)][:, seen] = bigram.right[seen].T
