"""Heads of an encoder's first layer that look at the place beside their own.

A table of positions holds codes, pairs of cosines and sines that a product turns by one position. Rotary positions turn
queries and keys themselves (arXiv:2104.09864), so that a constant one of each is enough.
"""

import dataclasses

import numpy as np

from limba.network.encoders.config import EncoderConfig

# Of attention, to the neighbour.
_WEIGHT = 0.95
# The longest row where nothing bounds it, and the most distances that codes are chosen by.
_ROW, _MOST_DISTANCES = 512, 4096
_MOST_CODES = 32
_TRIED_CODES = 200


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """How places are told apart: by the sum over i of `shares[i] * cos(frequencies[i] * distance)`, 1 at no distance.

    Attributes:
      frequencies: float64 `[pairs]`, in radians a position.
      shares: float64 `[pairs]`, of sum 1.
      gain: the logit of the place that is looked at; attention has `_WEIGHT` there, however long the row.
    """

    frequencies: np.ndarray
    shares: np.ndarray
    gain: float

    def codes(self, places: int, squared_length: float) -> np.ndarray:
        """Float64 `[places, 2 * pairs]`: pairs of cosine and sine, rows of one length."""
        angles = np.outer(np.arange(places), self.frequencies)
        pairs = np.stack([np.cos(angles), np.sin(angles)], axis=-1) * np.sqrt(squared_length * self.shares)[:, None]
        return pairs.reshape(places, -1)

    def of_codes(self, offset: int, squared_length: float, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
        """Kernels `[2 * pairs, head_dim]` of a query and a key of `codes`; the query looks `offset` to the right."""
        scale = np.sqrt(self.gain * np.sqrt(head_dim) / squared_length)
        key = np.eye(2 * len(self.frequencies), head_dim) * scale
        query = np.zeros_like(key)
        cos, sin = np.cos(self.frequencies * offset), np.sin(self.frequencies * offset)
        first = np.arange(0, 2 * len(self.frequencies), 2)
        query[first, first] = query[first + 1, first + 1] = cos * scale
        query[first, first + 1], query[first + 1, first] = sin * scale, -sin * scale
        return query, key

    def of_constant(self, offset: int, constant: float, config: EncoderConfig) -> tuple[np.ndarray, np.ndarray]:
        """Kernels `[head_dim]` of a dim that is `constant` everywhere, for rotary positions."""
        pairs = np.arange(len(self.frequencies))
        first, second = (pairs, pairs + len(pairs)) if config.rotary_pairs == "halves" else (2 * pairs, 2 * pairs + 1)
        lengths = np.sqrt(self.gain * self.shares * np.sqrt(config.head_dim)) / constant
        query, key = np.zeros(config.head_dim), np.zeros(config.head_dim)
        key[first] = lengths
        query[first], query[second] = (
            lengths * np.cos(self.frequencies * offset),
            lengths * np.sin(self.frequencies * offset),
        )
        return query, key


def num_codes(config: EncoderConfig) -> int:
    """Dims of the codes of learned positions; 0 for rotary ones."""
    return 2 * (min(_MOST_CODES, config.emb_dim // 5, config.head_dim) // 2) if config.has_absolute_positions else 0


def neighbours(config: EncoderConfig, rng: np.random.Generator) -> Neighbours:
    """Of an encoder with learned or rotary positions."""
    if config.has_absolute_positions:
        frequencies = _distinct(num_codes(config) // 2, min(config.max_positions, _MOST_DISTANCES), rng)
        shares = np.full(len(frequencies), 1 / len(frequencies))
    else:
        dim = config.rotary_dim or config.head_dim
        frequencies = config.rotary_base ** (-np.arange(0, dim, 2) / dim)
        shares = frequencies / frequencies.sum()  # slow ones hardly tell neighbours apart
    return Neighbours(frequencies, shares, _gain(frequencies, shares, config.longest_row or _ROW))


def _distinct(count: int, places: int, rng: np.random.Generator) -> np.ndarray:
    """Frequencies whose codes of different places have small products, the best of some that are drawn."""
    distances = np.arange(1, max(places, 2))
    tried = rng.uniform(0.05, np.pi, (_TRIED_CODES, count))
    return min(tried, key=lambda drawn: np.cos(np.outer(distances, drawn)).mean(axis=1).max())


def _gain(frequencies: np.ndarray, shares: np.ndarray, length: int) -> float:
    distances = np.arange(1 - length, length)
    products = np.cos(np.outer(distances, frequencies)) @ shares
    low, high = 0.0, 1000.0
    for _ in range(60):  # halving
        middle = (low + high) / 2
        low, high = (middle, high) if np.exp(middle * (products - 1)).sum() > 1 / _WEIGHT else (low, middle)
    return high
