"""A bigram in factors: vectors of pieces whose products say which piece follows which. NumPy and SciPy only."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

# Pieces whose followers a step of the fit predicts, on average.
_PIECES_A_STEP = 512
# Products of a whole fit; they take half a minute on two CPU cores.
_MOST_PRODUCTS = 6e11
# Weights of the singular value decomposition are those of pieces at least this frequent.
_LEAST_SHARE = 1e-5
# Of it, for up to so many pieces and for more. There it takes seconds, and the few steps of the fit end no worse.
_POWER_ITERATIONS, _SMALL, _POWER_ITERATIONS_OF_MANY = 4, 16_384, 2
# Of a fit: the rate of a step relative to the size of the vectors, and how fast Adam's averages forget.
_RATE, _B1, _B2 = 0.3, 0.9, 0.95
# What a thread works out at a time: rows of a step, whose predictions fit into a cache, and pieces of the vocabulary.
_ROWS_A_BLOCK, _PIECES_A_BLOCK = 64, 1024

# As `map`: several threads may do it.
Each = Callable[[Callable[[slice], Any], Iterable[slice]], Iterable[Any]]


@dataclasses.dataclass(frozen=True)
class FactoredBigram:
    """The log probability of w after u is `left[u] @ right[w] + bias[w]`, up to a constant of each u.

    Attributes:
      left, right: float32 `[vocab, rank]`, the most important columns first; 0 for pieces that were never seen.
      bias: float32 `[vocab]`, about the log probability of a piece wherever it stands.
      seen: bool `[vocab]`, whether the corpus has a piece.
    """

    left: np.ndarray
    right: np.ndarray
    bias: np.ndarray
    seen: np.ndarray

    @property
    def rank(self) -> int:
        return self.left.shape[1]

    def arrays(self) -> dict[str, np.ndarray]:
        """By the names of the attributes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def log_probabilities(self, pieces: np.ndarray) -> np.ndarray:
        """Of each seen piece after each of `pieces`, `[pieces, vocab]`; minus infinity for pieces never seen."""
        logits = np.where(self.seen, self.left[pieces] @ self.right.T + self.bias, -np.inf)
        logits -= logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@dataclasses.dataclass(frozen=True)
class BigramCounts:
    """How often pieces were seen, and pairs of them.

    Attributes:
      unigrams: int64 `[vocab]`.
      keys: int64 `[pairs]`, `u * vocab + w`.
      counts: `[pairs]`, how often w followed u; numbers of weighted pairs need not be whole.
    """

    unigrams: np.ndarray
    keys: np.ndarray
    counts: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        """By the names of the attributes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def table(self, values: np.ndarray) -> sparse.csr_array:
        """`[vocab, vocab]`, with a value for each pair."""
        size = len(self.unigrams)
        return sparse.csr_array((values.astype(np.float32), np.divmod(self.keys, size)), shape=(size, size))


def fit(
    counts: BigramCounts,
    rank: int,
    longest: float,
    discount: float,
    steps: int,
    seed: int = 0,
    threads: int = 1,
    advance: Callable[[], Any] = lambda: None,
) -> FactoredBigram:
    """Vectors that predict the counted bigrams, interpolated with single pieces by absolute discounting.

    A singular value decomposition of `log(1 + count / (60 p(w)))` begins; steps of Adam on the cross entropy to the
    discounted bigram (Kneser and Ney, 1995) go on, each with some pieces and all that may follow them. The rank is
    clipped to the number of pieces. The same counts make the same numbers on the same machine.

    Args:
      longest: of a vector in `left`.
      discount: taken off each count, between 0 and 1.
      steps: of the fit, fewer for a large vocabulary (`affordable_steps`).
      seed: of the decomposition, and of the pieces of each step.
      threads: that work out a step; NumPy's own are beside them. Their number changes no number of the result.
      advance: called after each step.
    """
    seen = counts.unigrams > 0
    rank = min(rank, int(seen.sum()) - 1)
    shares = (counts.unigrams + 0.5) / (counts.unigrams + 0.5)[seen].sum()
    left, right = _decomposed(counts, shares, rank, seed)
    norms, frequent = np.linalg.norm(left, axis=1), np.argsort(np.linalg.norm(left, axis=1))
    usual = norms[frequent[np.searchsorted(np.cumsum(np.where(seen, shares, 0)[frequent]), 0.9)]]
    factor = 0.9 * longest / max(usual, 1e-6)
    bias = np.log(shares).astype(np.float32)
    parameters = [left * factor, right / factor, bias]
    steps = affordable_steps(len(seen), rank, steps)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for _ in _Fit(counts, shares, seen, longest, discount).run(parameters, steps, seed, pool.map):
            advance()
    left, right, bias = parameters
    # The mean of a text's vectors, which attention to all of it brings, is then near 0.
    mean = np.where(seen, shares, 0).astype(np.float32) @ left
    left, bias = left - mean, bias + right @ mean
    # The products stay what they are when both sides are turned alike; then the first columns are the important ones.
    _, turn = np.linalg.eigh(right[seen].T @ (right[seen] * shares[seen, None].astype(np.float32)))
    left, right = left @ turn[:, ::-1], right @ turn[:, ::-1]
    bias[~seen] = np.log(shares).min()
    left, right = (np.where(seen[:, None], x, 0).astype(np.float32) for x in (left, right))
    return FactoredBigram(left, right, bias, seen)


def affordable_steps(vocab_size: int, rank: int, steps: int) -> int:
    """As many steps of a fit as take half a minute, at most `steps`."""
    return min(steps, int(_MOST_PRODUCTS // products(vocab_size, rank)))


def products(vocab_size: int, rank: int) -> int:
    """Of numbers, that a step of a fit multiplies."""
    return 3 * vocab_size * rank * min(vocab_size, _PIECES_A_STEP)


def _decomposed(counts: BigramCounts, shares: np.ndarray, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the truncated singular value decomposition, weighted by the root of shares (arXiv:0909.4061)."""
    size = len(shares)
    first, second = np.divmod(counts.keys, size)
    weights = np.sqrt(np.maximum(shares, _LEAST_SHARE))
    ratios = np.log1p(counts.counts / (60.0 * shares[second]))
    table = counts.table(ratios * weights[first] * weights[second])
    more = min(rank + 10, size)
    basis = np.random.default_rng(seed).standard_normal((size, more)).astype(np.float32)
    for _ in range(_POWER_ITERATIONS if size <= _SMALL else _POWER_ITERATIONS_OF_MANY):
        basis = np.linalg.qr(table.T @ np.linalg.qr(table @ basis)[0])[0]
    u, values, vt = np.linalg.svd(table @ basis, full_matrices=False)
    roots = np.sqrt(values[:rank])
    left = u[:, :rank] * roots / weights[:, None]
    right = (basis @ vt[:rank].T) * roots / weights[:, None]
    return left.astype(np.float32), right.astype(np.float32)


class _Fit:
    """Cross entropy of a factored bigram to the discounted one, and its gradient.

    A step is worked out in blocks, by several threads: of rows of `left` first, then of the vocabulary. The blocks are
    the same for any number of threads, and so are the results.
    """

    def __init__(self, counts: BigramCounts, shares: np.ndarray, seen: np.ndarray, longest: float, discount: float):
        size = len(shares)
        first, second = np.divmod(counts.keys, size)
        followed = np.bincount(first, counts.counts, minlength=size)
        total = followed.sum()
        self.longest = np.float32(longest)
        self.masked = np.where(seen, 0, -1e9).astype(np.float32)
        # How often a piece is the first of a pair, and how often a step has it.
        self.weights = (followed / total).astype(np.float32)
        self.drawn = _chances(self.weights)
        self.kept = counts.table(np.maximum(counts.counts - discount, 0) / total)
        # What the discount took from each piece's followers goes to pieces that follow many different ones.
        removed = np.bincount(first, np.minimum(counts.counts, discount), minlength=size) / total
        follows = np.where(seen, np.bincount(second, minlength=size) + 0.1, 0)
        self.removed, self.follows = removed.astype(np.float32), (follows / follows.sum()).astype(np.float32)
        self.per_first, self.per_second = ((1 / np.maximum(x, 1e-6)).astype(np.float32) for x in (self.weights, shares))
        self._room = np.empty((0, size), np.float32)

    def run(self, parameters: list[np.ndarray], steps: int, seed: int, each: Each = map) -> Iterator[int]:
        """Changes `left`, `right` and `bias` in place, and yields the number of each step that was made."""
        left, right, _ = parameters
        rng = np.random.default_rng(seed)
        sizes = [np.sqrt(np.mean(x**2)) for x in parameters[:2]] + [0.2]
        averages = [_Averages(x) for x in parameters]
        self._shorten(left, slice(None))
        for step in range(1, steps + 1):
            rates = [np.float32(_RATE * (1 - (step - 1) / steps) * size) for size in sizes]
            rows = np.flatnonzero(rng.random(len(left)) < self.drawn)
            residual = self._residual(parameters, rows, each)
            of_left = self._of_left(right, rows, residual, each)
            gradients = self._of_followers(left, rows, residual)
            move = functools.partial(_move_followers, gradients, parameters, averages, rates)
            list(each(move, _blocks(len(right), _PIECES_A_BLOCK)))
            averages[0].move(left, rows, of_left, rates[0])
            self._shorten(left, rows)
            yield step

    def _shorten(self, left: np.ndarray, rows: np.ndarray | slice) -> None:
        norms = np.linalg.norm(left[rows], axis=1, keepdims=True)
        left[rows] *= np.minimum(1, self.longest / np.maximum(norms, 1e-9))

    def _residual(self, parameters: Sequence[np.ndarray], rows: np.ndarray, each: Each = map) -> np.ndarray:
        """What is predicted after some pieces, less their counts without what the discount took, `[rows, vocab]`."""
        left, right, bias = parameters
        bias = bias + self.masked
        if len(rows) > len(self._room):
            self._room = np.empty((len(rows), len(right)), np.float32)
        residual = self._room[: len(rows)]

        def fill(block: slice) -> None:
            those, part = rows[block], residual[block]
            np.matmul(left[those], right.T, out=part)
            part += bias
            part -= part.max(axis=1, keepdims=True)
            np.exp(part, out=part)
            part *= (self.weights[those] / part.sum(axis=1))[:, None]
            kept = self.kept[those]
            begins = np.repeat(np.arange(0, part.size, len(bias)), np.diff(kept.indptr))
            part.reshape(-1)[begins + kept.indices] -= kept.data  # one index is faster than two

        list(each(fill, _blocks(len(rows), _ROWS_A_BLOCK)))
        return residual

    def _of_left(self, right: np.ndarray, rows: np.ndarray, residual: np.ndarray, each: Each = map) -> np.ndarray:
        """The gradient of these rows of left, each that of one occurrence of its piece, so that rare ones learn too."""
        parts = each(lambda block: residual[block] @ right, _blocks(len(rows), _ROWS_A_BLOCK))
        of_left = np.concatenate([np.zeros((0, right.shape[1]), np.float32), *parts])
        of_left -= self.removed[rows, None] * (self.follows @ right)
        return of_left * self.per_first[rows, None]

    def _of_followers(
        self, left: np.ndarray, rows: np.ndarray, residual: np.ndarray
    ) -> Callable[[slice], tuple[np.ndarray, np.ndarray]]:
        """Estimates of the gradients of right and bias, as a function of the part of the vocabulary.

        A row counts for as many as were not drawn in its place.
        """
        stands_for = 1 / self.drawn[rows]
        weighted = left[rows] * stands_for[:, None]
        removed = self.removed[rows] @ weighted, self.removed[rows] @ stands_for

        def of(part: slice) -> tuple[np.ndarray, np.ndarray]:
            follows, per_second, of_part = self.follows[part], self.per_second[part], residual[:, part]
            of_right = of_part.T @ weighted - follows[:, None] * removed[0]
            of_bias = stands_for @ of_part - follows * removed[1]
            return of_right * per_second[:, None], of_bias * per_second

        return of


class _Averages:
    """Adam's two averages of a gradient, of rows that come in some steps and not in others."""

    def __init__(self, x: np.ndarray):
        self.mean, self.square = np.zeros_like(x), np.zeros_like(x)
        self.times = np.zeros((len(x), *[1] * (x.ndim - 1)), np.float32)

    def move(self, x: np.ndarray, rows: np.ndarray | slice, gradient: np.ndarray, rate: np.float32) -> None:
        """Moves these rows of `x` by their step."""
        mean, square, times = self.mean[rows], self.square[rows], self.times[rows] + 1
        mean += (1 - _B1) * (gradient - mean)
        square += (1 - _B2) * (gradient**2 - square)
        self.mean[rows], self.square[rows], self.times[rows] = mean, square, times
        x[rows] -= rate * (mean / (1 - _B1**times)) / (np.sqrt(square / (1 - _B2**times)) + 1e-5)


def _move_followers(
    gradients: Callable[[slice], tuple[np.ndarray, np.ndarray]],
    parameters: Sequence[np.ndarray],
    averages: Sequence[_Averages],
    rates: Sequence[np.float32],
    part: slice,
) -> None:
    """A step of right and bias, of a part of the vocabulary."""
    for i, gradient in enumerate(gradients(part), 1):
        averages[i].move(parameters[i], part, gradient, rates[i])


def _blocks(size: int, of: int) -> list[slice]:
    return [slice(begin, begin + of) for begin in range(0, size, of)]


def _chances(weights: np.ndarray) -> np.ndarray:
    """How likely a step has a piece: by the root of its frequency, at most 1, `_PIECES_A_STEP` of them on average."""
    roots = np.sqrt(weights)
    if np.count_nonzero(roots) <= _PIECES_A_STEP:
        return (roots > 0).astype(np.float32)
    low, high = 0.0, 1 / roots[roots > 0].min()
    for _ in range(60):  # halving
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle * roots).sum() < _PIECES_A_STEP else (low, middle)
    return np.minimum(1, low * roots).astype(np.float32)
