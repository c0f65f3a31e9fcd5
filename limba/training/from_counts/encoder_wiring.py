"""An encoder that begins as a factored bigram, read from both sides.

With u to the left of a masked piece w and v to the right of it, it predicts

    log p(w | u) + log p(v | w) = left[u] @ right[w] + left[w] @ right[v] + bias[w] - log z[w]

up to a constant, where z[w] is the sum of `exp(left[w] @ right[v] + bias[v])` over all v.

- The one table of an encoder is its embedding and the kernel of its logits, and has both vectors of each piece.
- Half of the heads of the first layer look one place to the left and bring `left[u]` to where the table has `right`;
  the others look to the right and bring `right[v]` to where it has `left`. The product with the table is the sum above.
  What a piece that is not masked has itself makes it likely too: BERT leaves one target in ten as it is.
- The residual consists of a constant dim, two that fill rows up to one length, the two vectors, and codes of positions.
  It is turned by an orthonormal map whose columns sum to 0, so that no norm takes away a mean.
- Everything else is random and small.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from limba.network import layers
from limba.network.encoders.config import EncoderConfig
from limba.training.from_counts import neighbours
from limba.training.from_counts.factored_bigram import FactoredBigram

PyTree = Any

_CONSTANT, _LEFT_FILLER, _RIGHT_FILLER, _FACTORS = 0, 1, 2, 3  # the first dims
# The parts of a row's squared length, which is the width: of the constant dim, and of codes of positions.
_CONSTANT_SHARE, _CODES_SHARE = 1 / 8, 1 / 8
# Of the squared length of a vector, for a piece that the text does not have: special pieces differ, and say little.
_UNSEEN_SHARE = 0.02
# For pieces that the text does not have, where no neighbour says anything.
_UNSEEN_PROBABILITY = 1e-3
# What heads bring is so many times as long as what a piece has itself.
_CARRIED = 3.0
# What the activation of the head's transform is given: this much, and some quarters around it. It is linear there.
_LIFT, _SPREAD = 4.0, 0.25
# How many times as long as what heads bring the constant is in the head, so that its norm divides all rows alike.
_HEAD_CONSTANT = 3.0
# z is summed over the most frequent pieces, and over some rows at a time.
_MOST_SUMMED, _ROWS_AT_ONCE = 16_384, 1024


def problem(config: EncoderConfig) -> str | None:
    """Why a network does not begin from counts; None for one that does."""
    if config.position_embedding_type not in ("absolute", "absolute_and_t5_buckets", "rotary"):
        return f"position_embedding_type is {config.position_embedding_type!r}; it is for 'absolute' and 'rotary'"
    if config.norm == "rms_norm":
        return "norm is 'rms_norm'; it is for 'layer_norm' and 'layer_norm_without_bias'"
    if not config.logits_via_embedding or config.num_kv_heads not in (None, config.num_heads):
        return "it is for logits_via_embedding = True and num_kv_heads = None"
    if config.head_activation is None or not config.logits_bias:
        return "the head has no transform (head_activation) or no logits_bias"
    if abs(_slope(config.head_activation) - 1) > 0.05:
        return f"head_activation is {config.head_activation!r}, which bends large numbers; it is for 'gelu' and 'relu'"
    if config.token_dim != config.emb_dim:
        return f"embedding_size is {config.embedding_size}; it is for tables as wide as the network"
    if config.emb_dim < 16:
        return f"emb_dim is {config.emb_dim}; it takes at least 16"
    return None


def most_rank(config: EncoderConfig) -> int:
    """How many factors a row has room for on each side."""
    return (config.emb_dim - 1 - neighbours.num_codes(config) - _FACTORS) // 2


def longest(config: EncoderConfig) -> float:
    """Of a vector of factors."""
    return float(np.sqrt(_factors_share(config) * config.emb_dim))


def _factors_share(config: EncoderConfig) -> float:
    """Of a row's squared length, for the vector of one side and its filler."""
    return (1 - _CONSTANT_SHARE - (_CODES_SHARE if config.has_absolute_positions else 0)) / 2


def _slope(activation: str) -> float:
    low, high = np.asarray(layers.activation_function(activation)(jnp.array([_LIFT - 1, _LIFT + 1])))
    return float(high - low) / 2


@dataclasses.dataclass(frozen=True)
class Wiring:
    """Makes the parameters of a masked language model predict as a bigram does, from both sides.

    Attributes:
      output_scale: of the random kernels whose products are added to the residual.
      seed: of the map that turns the residual, of codes, and of the rows of special pieces.
    """

    config: EncoderConfig
    output_scale: float
    seed: int

    def apply(self, params: PyTree, bigram: FactoredBigram) -> PyTree:
        """The parameters with NumPy arrays, changed; what was given stays as it is."""
        cfg, width = self.config, self.config.emb_dim
        flat = {name: np.array(x) for name, x in traverse_util.flatten_dict(params, sep="/").items()}
        for name, x in flat.items():
            if name.startswith("encoder/") and name.endswith(("/out/kernel", "/wo/kernel")):
                x *= self.output_scale
        rng = np.random.default_rng(self.seed)
        turn = _zero_sum_basis(width, rng)
        beside = neighbours.neighbours(cfg, rng)
        sides = _Sides.of(bigram, longest(cfg), both=cfg.num_heads > 1)
        flat["token_embedder/embedding"][...] = self._rows(len(flat["token_embedder/embedding"]), sides, rng) @ turn.T
        if cfg.num_token_types:
            flat["encoder/token_type_embedder/embedding"][...] = 0
        if cfg.has_absolute_positions:
            table = flat["encoder/position_embedder/embedding"]
            codes = beside.codes(len(table), _CODES_SHARE * width)
            table[...] = codes @ turn[:, -codes.shape[1] :].T
        self._look_beside(flat, sides.rank, beside, turn)
        self._predict(flat, sides, turn)
        return traverse_util.unflatten_dict(flat, sep="/")

    def _rows(self, count: int, sides: "_Sides", rng: np.random.Generator) -> np.ndarray:
        """The table before it is turned, `[count, width - 1]`, rows of one length."""
        width = self.config.emb_dim
        most = _factors_share(self.config) * width
        rows = np.zeros((count, width - 1))
        rows[:, _CONSTANT] = np.sqrt(_CONSTANT_SHARE * width)
        unseen = np.setdiff1d(np.arange(count), np.flatnonzero(sides.seen))
        fillers = (_LEFT_FILLER, _RIGHT_FILLER)
        for part, vectors, filler in zip(_parts(sides.rank), (sides.left, sides.right), fillers, strict=True):
            rows[: len(vectors), part] = vectors
            spread = np.sqrt(_UNSEEN_SHARE * most / sides.rank)
            rows[unseen, part] = rng.standard_normal((len(unseen), sides.rank)) * spread
            rows[:, filler] = np.sqrt(np.maximum(most - np.square(rows[:, part]).sum(axis=1), 0))
        return rows

    def _look_beside(self, flat: dict, rank: int, beside: neighbours.Neighbours, turn: np.ndarray) -> None:
        """The first layer's attention: half of the heads to the left, the others to the right."""
        cfg, width = self.config, self.config.emb_dim
        heads, kv = cfg.num_heads, cfg.head_dim
        of_left, of_right = _parts(rank)
        query, key, value, out = (np.zeros((width - 1, heads, kv)) for _ in range(4))
        middle = heads - heads // 2
        ways = ((-1, range(middle), of_left, of_right), (1, range(middle, heads), of_right, of_left))
        for offset, those, source, goal in ways:
            for head in those:
                if cfg.has_absolute_positions:
                    codes = slice(width - 1 - neighbours.num_codes(cfg), None)
                    query[codes, head], key[codes, head] = beside.of_codes(offset, _CODES_SHARE * width, kv)
                else:
                    constant = np.sqrt(_CONSTANT_SHARE * width)
                    query[_CONSTANT, head], key[_CONSTANT, head] = beside.of_constant(offset, constant, cfg)
            # The most important factors if there is no room for all, each in a head.
            carried = np.arange(min(rank, len(those) * kv))
            in_head = (those.start + carried // kv, carried % kv)
            value[source.start + carried, *in_head] = 1
            out[goal.start + carried, *in_head] = _CARRIED
        for name, wired in (("query", query), ("key", key), ("value", value)):
            kernel = self._of_first_layer(flat, f"attention/{name}/kernel")
            kernel *= self.output_scale
            kernel += (turn @ wired.reshape(width - 1, -1)).reshape(kernel.shape)
        kernel = self._of_first_layer(flat, "attention/out/kernel")
        kernel += (turn @ out.reshape(width - 1, -1)).T.reshape(kernel.shape)

    def _of_first_layer(self, flat: dict[str, np.ndarray], name: str) -> np.ndarray:
        """A view of a parameter, whether layers are stacked or not."""
        if f"encoder/layers_0/{name}" in flat:
            return flat[f"encoder/layers_0/{name}"]
        stack = "encoder/encoder/layers_0" if self.config.global_attention_every > 1 else "encoder/encoder"
        return np.moveaxis(flat[f"{stack}/{name}"], self.config.param_scan_axis, 0)[0]

    def _predict(self, flat: dict, sides: "_Sides", turn: np.ndarray) -> None:
        """The head: its transform takes out the two vectors, and its norm's scale makes their products logits."""
        width = self.config.emb_dim
        brought = _CARRIED**2 * sides.squared_length
        # Of a masked piece's residual after the first layer's norm, relative to before it.
        shrunk = np.sqrt(width / (width + brought))
        constant = np.sqrt(_CONSTANT_SHARE * width)
        head_constant = _HEAD_CONSTANT * np.sqrt(brought)
        length = np.sqrt(brought + head_constant**2)
        taken = np.zeros(width - 1)
        for part in _parts(sides.rank):
            taken[part] = 1
        taken[_CONSTANT] = head_constant / constant
        kernel = (turn * taken) @ turn.T * (_SPREAD * np.sqrt(width) / length)
        kernel += np.outer(turn[:, _CONSTANT], np.full(width, _LIFT / constant))
        flat["mlm_head/dense/kernel"][...] = kernel / shrunk
        flat["mlm_head/layer_norm/scale"][...] = length / (np.sqrt(width) * _CARRIED * sides.product_scale)
        rows = flat["mlm_head/bias"]
        rows[...] = np.log(_UNSEEN_PROBABILITY / max(len(rows) - sides.seen.sum(), 1))
        bias = sides.bias[sides.seen]
        rows[: len(sides.seen)][sides.seen] = bias - np.log(np.exp(bias).sum())


@dataclasses.dataclass(frozen=True)
class _Sides:
    """Vectors of a bigram as a table has them.

    Attributes:
      left, right: `[vocab, rank]`, at most `longest` long; 0 for pieces that were never seen.
      product_scale: the products of these vectors are so many times those of the bigram.
      bias: `[vocab]`, of the logits where both neighbours are known.
      seen: bool `[vocab]`.
      squared_length: of `left` and of `right`, together, on average over the text.
    """

    left: np.ndarray
    right: np.ndarray
    product_scale: float
    bias: np.ndarray
    seen: np.ndarray
    squared_length: float

    @property
    def rank(self) -> int:
        return self.left.shape[1]

    @classmethod
    def of(cls, bigram: FactoredBigram, longest: float, both: bool) -> "_Sides":
        """With `both` False the right neighbour is not seen."""
        seen = bigram.seen
        shares = np.where(seen, np.exp(bigram.bias), 0)
        shares /= shares.sum()
        # Of mean 0 as `left` is, so that a neighbour that is not there, or is masked too, says nothing.
        right = np.where(seen[:, None], bigram.right - shares @ bigram.right, 0)
        scales = [longest / max(np.linalg.norm(x, axis=1).max(), 1e-9) for x in (bigram.left, right)]
        bias = bigram.bias.astype(np.float64)
        if both:
            bias -= _log_z(bigram.left, right, bigram.bias, seen)
        left, right = bigram.left * scales[0], right * scales[1]
        squared_length = shares @ (np.square(left) + np.square(right)).sum(axis=1)
        return cls(left, right, scales[0] * scales[1], bias, seen, float(squared_length))


def _log_z(left: np.ndarray, right: np.ndarray, bias: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """`[vocab]`: of each piece, the logarithm of the sum over what may follow it."""
    frequent = np.argsort(np.where(seen, -bias, np.inf))[: min(seen.sum(), _MOST_SUMMED)]
    sums = np.empty(len(left))
    for begin in range(0, len(left), _ROWS_AT_ONCE):
        logits = left[begin : begin + _ROWS_AT_ONCE] @ right[frequent].T + bias[frequent]
        most = logits.max(axis=1, keepdims=True)
        sums[begin : begin + _ROWS_AT_ONCE] = (most + np.log(np.exp(logits - most).sum(axis=1, keepdims=True)))[:, 0]
    return sums


def _parts(rank: int) -> tuple[slice, slice]:
    """Of the residual before it is turned: the vectors on the left, and those on the right."""
    return slice(_FACTORS, _FACTORS + rank), slice(_FACTORS + rank, _FACTORS + 2 * rank)


def _zero_sum_basis(width: int, rng: np.random.Generator) -> np.ndarray:
    """Float64 `[width, width - 1]`: orthonormal columns, each of sum 0."""
    drawn = rng.standard_normal((width, width))
    drawn[:, 0] = 1
    return np.linalg.qr(drawn)[0][:, 1:]
