"""A T5 1.1 that begins as a factored bigram, and also reads the piece behind a blank.

With u before a piece w, and v the first piece behind the blank that w is in, it predicts

    log p(w | u, v) = left[u] @ right[w] + bias[w] + weight * behind.left[v] @ behind.right[w]

up to a constant. How far v is from w the decoder does not know: `behind` is fitted to pairs at several distances.

- The residual has a constant dim, a filler, dims of both factors, a flag of rows that are no text, their codes, and
  dims for a copy of a code.
- In the encoder's first layer the last head looks to the right, the others to the left. A sentinel then has `left` of
  the piece before the blank, and `behind.left` of the piece behind it.
- In the decoder's first layer a head takes from each token its own `behind.left`: the token is not behind a blank. The
  last head finds the latest sentinel and copies its code.
- Cross-attention of the first layer finds that sentinel in the encoder by the copy, with its last head, and brings
  `behind.left`. Its other heads find it by the code itself, which only sentinels have, and bring `left`.
- Sentinels are predicted by the copy of the one before them, as often as spans end; not where a span has just begun.
- Everything else is random and small.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import traverse_util

from limba.network import t5
from limba.training.from_counts import span_ends, t5_wiring
from limba.training.from_counts.factored_bigram import BigramCounts, FactoredBigram
from limba.training.from_counts.span_ends import SpanEnds
from limba.training.from_counts.t5_wiring import CONSTANT, FILLER, PyTree

_FIRST = 2  # of the dims of factors
_PAD = 0  # what decoders begin with
_MOST_CODES = 24
_LEAST_RANK = 8
# The parts of a row's squared length, which is the width; the filler takes the rest.
_CONSTANT_SHARE, _LEFT_SHARE, _BEHIND_SHARE = 1 / 8, 0.5, 0.15
_FLAG_SHARE, _CODE_SHARE = 0.1, 0.6
_SPAN = 3.0
# The two pieces do not say independent things.
_WEIGHT = 0.75
# What random kernels add to the dims that the logits read is smaller by this factor.
_RANDOM_IN_FACTORS = 0.1
# Of the random queries and keys in layers whose heads look at given places.
_RANDOM_QUERIES = 0.2
# The bias of the last head of the decoder falls by 1 with each place up to this many; a sentinel's flag is worth more.
_REACH, _FLAG_LOGIT = 9, 18.0
# A code's logit with itself in cross-attention.
_FINDS = 30.0
# What a sentinel's logit gains by the code of the one before it; loses where a span has just begun; and the first one
# gains where nothing stands before it. Of text that the corpus does not have, all together.
_NEXT, _BEGUN, _FIRST_OF_ALL, _UNSEEN_TEXT = 12.0, 12.0, 32.0, 1e-3
# How much of the copy is that code: the rest is the sentinel before, as near as spans of three on average have it.
_OF_LATEST = 0.946


def pairs(unigrams: np.ndarray, before: Sequence[Any]) -> BigramCounts:
    """How often each piece w stands before a piece v, in pairs (v, w).

    Args:
      before: counts of `v * vocab + w` for each distance from 1 on. They weigh as much as spans of a mean length of
        `_SPAN` have their pieces at these distances from the piece behind them.
    """
    keys, inverse = np.unique(np.concatenate([x.keys for x in before]), return_inverse=True)
    weighted = [x.counts * (1 - 1 / _SPAN) ** i for i, x in enumerate(before)]
    return BigramCounts(unigrams, keys, np.bincount(inverse, np.concatenate(weighted)))


def room(config: t5.T5Config) -> int:
    """How many factors of the piece behind a blank a network has room for; 0 where there are no blanks."""
    if not t5_wiring.has_encoder(config) or config.num_heads < 3 or config.head_dim < _num_codes(config):
        return 0
    return min(config.head_dim, most_rank(config) - 1) if config.num_encoder_layers else 0


def usual_rank(config: t5.T5Config) -> int:
    """Of the piece behind a blank, unless the user wants another; 0 for a network that is too narrow."""
    rank = min(room(config), most_rank(config) // 4)
    return rank if rank >= _LEAST_RANK else 0


def most_rank(config: t5.T5Config) -> int:
    """How many factors a row has room for, of both pieces together."""
    return config.emb_dim - _FIRST - 1 - 2 * _num_codes(config)


def longest(config: t5.T5Config) -> tuple[float, float]:
    """Of vectors of factors: of the piece before, and of the piece behind."""
    left, behind = (float(np.sqrt(share * config.emb_dim)) for share in (_LEFT_SHARE, _BEHIND_SHARE))
    return left, behind


def _num_codes(config: t5.T5Config) -> int:
    return min(_MOST_CODES, config.emb_dim // 10)


@dataclasses.dataclass(frozen=True)
class _Dims:
    """Of the residual."""

    left: slice
    behind: slice
    flag: int
    codes: slice
    copies: slice

    @classmethod
    def of(cls, rank: int, behind_rank: int, codes: int) -> "_Dims":
        ends = np.cumsum([_FIRST, rank, behind_rank, 1, codes, codes]).tolist()
        return cls(slice(*ends[:2]), slice(*ends[1:3]), ends[2], slice(*ends[3:5]), slice(*ends[4:6]))


@dataclasses.dataclass(frozen=True)
class _Lengths:
    """Squared lengths of the decoder's residual, on average over text, and what norms make of it.

    Attributes:
      left, behind: of the two factors.
      copy: of a copied code.
    """

    width: int
    left: float
    behind: float
    copy: float

    @property
    def encoded(self) -> float:
        """What the encoder's norm leaves of the length of a sentinel's code."""
        return self.shrunk(self.width + self.left + self.behind)

    @property
    def of_text(self) -> float:
        """What the decoder's last norm leaves of a token of text: it lost its own `behind`, and has another."""
        return self.shrunk(self.width + self.copy)

    @property
    def left_scale(self) -> float:
        """With which cross-attention brings `left`, so that the last norm leaves as much as of a token of text."""
        scale = 1.0
        for _ in range(50):  # to the fixed point: what it brings makes the residual longer
            brought = (scale * self.encoded) ** 2 * (self.left + self.behind)
            scale = self.of_text / self.shrunk(self.width + self.copy + brought) / self.encoded
        return scale

    def shrunk(self, squared_length: float) -> float:
        return float(np.sqrt(self.width / squared_length))


@dataclasses.dataclass(frozen=True)
class Wiring(t5_wiring.Wiring):
    """Makes the parameters of a T5 1.1 predict by the piece before and by the one behind a blank."""

    def apply_both(
        self,
        params: PyTree,
        bigram: FactoredBigram,
        behind: FactoredBigram,
        ends: SpanEnds | None = None,
        pairs: BigramCounts | None = None,
    ) -> PyTree:
        """The parameters with NumPy arrays, changed; what was given stays as it is.

        Args:
          behind: what stands shortly before each piece.
          ends: None leaves sentinels and EOS, all alike, a share of each prediction.
          pairs: what `behind` was fitted to, needed with `ends`.
        """
        width, num_codes = self.config.emb_dim, _num_codes(self.config)
        dims = _Dims.of(bigram.rank, behind.rank, num_codes)
        flat = {name: np.array(x) for name, x in traverse_util.flatten_dict(params, sep="/").items()}
        for name, x in flat.items():
            if name.startswith(("encoder/", "decoder/")) and name.endswith(("/out/kernel", "/wo/kernel")):
                x *= self.output_scale
                x[..., dims.left.start : dims.behind.stop] *= _RANDOM_IN_FACTORS
        rng = np.random.default_rng(self.seed)
        _embed(flat["token_embedder/embedding"], bigram, behind, dims, rng)
        shares = np.where(bigram.seen, np.exp(bigram.bias), 0)
        squared = [float(shares / shares.sum() @ np.square(x.left).sum(axis=1)) for x in (bigram, behind)]
        lengths = _Lengths(width, left=squared[0], behind=squared[1], copy=_CODE_SHARE * width)
        self._look_beside(flat, dims)
        self._prepare_decoder(flat, dims)
        self._find_sentinels_of_both(flat, dims, lengths, rng)
        kernel = flat["decoder/logits_dense/kernel"]
        t5_wiring.predict(kernel, bigram, t5_wiring.UNSEEN_SHARE)
        kernel[dims.behind, : len(behind.seen)][:, behind.seen] = _WEIGHT * behind.right[behind.seen].T
        if ends is not None:
            assert pairs is not None, "ends are estimated by pairs"
            self._predict_ends(flat, bigram, behind, dims, ends, pairs)
        kernel /= lengths.of_text
        return traverse_util.unflatten_dict(flat, sep="/")

    def _look_beside(self, flat: dict[str, np.ndarray], dims: _Dims) -> None:
        last = self.config.num_heads - 1
        self._bias(flat, "encoder", slice(0, last), -1, self.pointer_bias)
        self._bias(flat, "encoder", slice(last, None), 1, self.pointer_bias)
        query, key, value, out = self._first_layer(flat, "encoder", "attention")
        for kernel in (query, key):
            kernel *= _RANDOM_QUERIES
        self._carry(value, out, range(last), dims.left, dims.left, 1.0)
        self._carry(value, out, range(last, last + 1), dims.behind, dims.behind, 1.0)

    def _prepare_decoder(self, flat: dict[str, np.ndarray], dims: _Dims) -> None:
        """Self-attention: the last head but one takes away a token's own `behind`, the last one copies codes."""
        cfg, last = self.config, self.config.num_heads - 1
        self._bias(flat, "decoder", slice(0, 1), -1, self._weaker)
        self._bias(flat, "decoder", slice(last - 1, last), 0, self.pointer_bias)
        for distance in range(_REACH):
            self._bias(flat, "decoder", slice(last, None), -distance, _REACH - distance)
        query, key, value, out = self._first_layer(flat, "decoder", "self_attention")
        for kernel in (query, key):
            by_head = kernel.reshape(cfg.emb_dim, cfg.num_heads, cfg.head_dim)
            by_head[:, last - 1] *= _RANDOM_QUERIES
            by_head[:, last] = 0
            dim, share = (CONSTANT, _CONSTANT_SHARE) if kernel is query else (dims.flag, _FLAG_SHARE)
            by_head[dim, last, 0] = np.sqrt(self._product(_FLAG_LOGIT) / (share * cfg.emb_dim))
            kernel[...] = by_head.reshape(kernel.shape)
        self._carry(value, out, range(last - 1, last), dims.behind, dims.behind, -1.0)
        self._carry(value, out, range(last, last + 1), dims.codes, dims.copies, 1.0)

    def _find_sentinels_of_both(
        self, flat: dict[str, np.ndarray], dims: _Dims, lengths: _Lengths, rng: np.random.Generator
    ) -> None:
        cfg, last = self.config, self.config.num_heads - 1
        query, key, value, out = self._first_layer(flat, "decoder", "encoder_decoder_attention")
        asking, asked = (np.zeros((cfg.emb_dim, cfg.num_heads, cfg.head_dim)) for _ in range(2))
        size = np.sqrt(self._product(_FINDS) / lengths.copy)
        for head in range(cfg.num_heads):
            codes = dims.copies if head == last else dims.codes
            turned = np.linalg.qr(rng.standard_normal((cfg.head_dim, _num_codes(cfg))))[0].T
            asking[codes, head] = turned * size / lengths.shrunk(cfg.emb_dim + lengths.copy)
            asked[dims.codes, head] = turned * size / lengths.encoded
        query[...], key[...] = asking.reshape(query.shape), asked.reshape(key.shape)
        self._carry(value, out, range(last), dims.left, dims.left, lengths.left_scale)
        self._carry(value, out, range(last, last + 1), dims.behind, dims.behind, 1 / lengths.encoded)

    def _predict_ends(
        self,
        flat: dict[str, np.ndarray],
        bigram: FactoredBigram,
        behind: FactoredBigram,
        dims: _Dims,
        ends: SpanEnds,
        pairs: BigramCounts,
    ) -> None:
        """Logits of sentinels and EOS. Padding, which begins the targets, has no code and the opposite flag."""
        embedding, kernel = flat["token_embedder/embedding"], flat["decoder/logits_dense/kernel"]
        width = self.config.emb_dim
        constant, flag = np.sqrt(_CONSTANT_SHARE * width), np.sqrt(_FLAG_SHARE * width)
        embedding[_PAD, dims.codes], embedding[_PAD, dims.flag] = 0, -flag
        embedding[_PAD, FILLER] = np.sqrt(width * (1 - _CONSTANT_SHARE - _FLAG_SHARE))
        of_left, of_behind, level = span_ends.sums_of_text(
            bigram,
            behind,
            _WEIGHT,
            kernel[CONSTANT, : len(bigram.seen)] * constant,
            pairs,
            np.random.default_rng(self.seed),
        )
        unseen = np.setdiff1d(np.arange(kernel.shape[1]), np.flatnonzero(bigram.seen))
        kernel[CONSTANT, unseen] = (level + np.log(_UNSEEN_TEXT / len(unseen))) / constant
        of_ends = np.array(ends.sentinels if ends.eos_id is None else [*ends.sentinels, ends.eos_id])
        kernel[dims.left, of_ends], kernel[dims.behind, of_ends] = of_left[:, None], of_behind[:, None]
        kernel[CONSTANT, of_ends] = (level + np.log(ends.odds)) / constant
        kernel[dims.flag, of_ends] = -_BEGUN / flag
        first, *later = ends.sentinels
        kernel[dims.flag, first] = -_FIRST_OF_ALL / flag
        kernel[CONSTANT, list(ends.sentinels)] += (np.log(max(1 - ends.eos, 1e-3)) - _OF_LATEST * _NEXT) / constant
        if ends.eos_id is not None:
            kernel[CONSTANT, ends.eos_id] += np.log(max(ends.eos, 1e-3)) / constant
        codes = embedding[list(ends.sentinels[: len(later)])][:, dims.codes]
        kernel[dims.copies, later] = codes.T * (_NEXT / (_CODE_SHARE * width))

    def _product(self, logit: float) -> float:
        """Of a query and a key of this logit."""
        return logit * np.sqrt(self.config.head_dim) if self.config.scale_attn_logits else logit

    def _first_layer(self, flat: dict[str, np.ndarray], stack: str, name: str) -> list[np.ndarray]:
        """Views of the kernels of query, key, value and out."""
        return [self._layers(flat, stack, f"{name}/{of}/kernel")[0] for of in ("query", "key", "value", "out")]


def _embed(
    embedding: np.ndarray, bigram: FactoredBigram, behind: FactoredBigram, dims: _Dims, rng: np.random.Generator
) -> None:
    """Rows of a root mean square of 1. Those that are no text have codes, and consecutive ones different codes."""
    width = embedding.shape[1]
    seen = np.flatnonzero(bigram.seen)
    # From the end, where sentinels are: as many as there are codes are orthogonal.
    unseen = np.setdiff1d(np.arange(len(embedding)), seen)[::-1]
    embedding[...] = 0
    embedding[:, CONSTANT] = np.sqrt(_CONSTANT_SHARE * width)
    embedding[seen, dims.left], embedding[seen, dims.behind] = bigram.left[seen], behind.left[seen]
    embedding[unseen, dims.flag] = np.sqrt(_FLAG_SHARE * width)
    size = dims.codes.stop - dims.codes.start
    blocks = [np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(-(-len(unseen) // size))]
    if blocks:
        embedding[unseen, dims.codes] = np.concatenate(blocks)[: len(unseen)] * np.sqrt(_CODE_SHARE * width)
    rest = width - np.square(embedding).sum(axis=1)
    embedding[:, FILLER] = np.sqrt(np.maximum(rest, 0))
