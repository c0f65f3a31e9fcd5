"""A bigram in factors: vectors of pieces whose products say which piece follows which. NumPy and SciPy only."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from scipy import sparse

# Rows of a table `[vocab, vocab]` that are in memory at a time.
_ROWS = 512
# Products of a fitting step; a step takes a third of a second at 4,096 pieces and a rank of 102, on two CPU cores.
_MOST_PRODUCTS = 3e11
# Weights of the singular value decomposition are those of pieces at least this frequent.
_LEAST_SHARE = 1e-5
_POWER_ITERATIONS = 4
# Of a fit: the rate of a step relative to the size of the vectors, and how fast Adam's averages forget.
_RATE, _B1, _B2 = 0.2, 0.9, 0.95


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
      keys, counts: int64 `[pairs]`: `u * vocab + w`, and how often w followed u.
    """

    unigrams: np.ndarray
    keys: np.ndarray
    counts: np.ndarray

    def table(self, values: np.ndarray) -> sparse.csr_array:
        """`[vocab, vocab]`, with a value for each pair."""
        size = len(self.unigrams)
        return sparse.csr_array((values.astype(np.float32), np.divmod(self.keys, size)), shape=(size, size))


def fit(counts: BigramCounts, rank: int, longest: float, discount: float, steps: int, seed: int = 0) -> FactoredBigram:
    """Vectors that predict the counted bigrams, interpolated with single pieces by absolute discounting.

    A singular value decomposition of `log(1 + count / (60 p(w)))` begins; full-batch steps of Adam on the cross entropy
    to the discounted bigram (Kneser and Ney, 1995) go on. The rank is clipped to the number of pieces. The same counts
    make the same numbers on the same machine.

    Args:
      longest: of a vector in `left`.
      discount: taken off each count, between 0 and 1.
      steps: of the fit; fewer for a large vocabulary, none if a step would take minutes (`affordable_steps`).
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
    _Fit(counts, shares, seen, longest, discount).run(parameters, affordable_steps(len(seen), rank, steps))
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
    """As many steps of a fit as take seconds, at most `steps`."""
    return min(steps, int(_MOST_PRODUCTS // (3 * vocab_size**2 * rank)))


def _decomposed(counts: BigramCounts, shares: np.ndarray, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the truncated singular value decomposition, weighted by the root of shares (arXiv:0909.4061)."""
    size = len(shares)
    first, second = np.divmod(counts.keys, size)
    weights = np.sqrt(np.maximum(shares, _LEAST_SHARE))
    ratios = np.log1p(counts.counts / (60.0 * shares[second]))
    table = counts.table(ratios * weights[first] * weights[second])
    more = min(rank + 10, size)
    basis = np.random.default_rng(seed).standard_normal((size, more)).astype(np.float32)
    for _ in range(_POWER_ITERATIONS):
        basis = np.linalg.qr(table.T @ np.linalg.qr(table @ basis)[0])[0]
    u, values, vt = np.linalg.svd(table @ basis, full_matrices=False)
    roots = np.sqrt(values[:rank])
    left = u[:, :rank] * roots / weights[:, None]
    right = (basis @ vt[:rank].T) * roots / weights[:, None]
    return left.astype(np.float32), right.astype(np.float32)


class _Fit:
    """Cross entropy of a factored bigram to the discounted one, and its gradient."""

    def __init__(self, counts: BigramCounts, shares: np.ndarray, seen: np.ndarray, longest: float, discount: float):
        size = len(shares)
        first, second = np.divmod(counts.keys, size)
        followed = np.bincount(first, counts.counts, minlength=size)
        total = followed.sum()
        self.seen, self.longest = seen, np.float32(longest)
        # How often a piece is the first of a pair.
        self.weights = (followed / total).astype(np.float32)
        self.kept = counts.table(np.maximum(counts.counts - discount, 0) / total)
        self.kept_after = self.kept.T.tocsr()
        # What the discount took from each piece's followers goes to pieces that follow many different ones.
        removed = np.bincount(first, np.minimum(counts.counts, discount), minlength=size) / total
        follows = np.where(seen, np.bincount(second, minlength=size) + 0.1, 0)
        self.removed, self.follows = removed.astype(np.float32), (follows / follows.sum()).astype(np.float32)
        self.of_single = self.kept.sum(axis=0) + self.removed.sum() * self.follows
        self.per_first, self.per_second = ((1 / np.maximum(x, 1e-6)).astype(np.float32) for x in (self.weights, shares))

    def run(self, parameters: list[np.ndarray], steps: int) -> None:
        """Changes `left`, `right` and `bias` in place."""
        sizes = [np.sqrt(np.mean(x**2)) for x in parameters[:2]] + [0.2]
        means = [np.zeros_like(x) for x in parameters]
        squares = [np.zeros_like(x) for x in parameters]
        self._shorten(parameters[0])
        for step in range(1, steps + 1):
            rate = _RATE * (1 - (step - 1) / steps)
            for x, gradient, mean, square, of_x in zip(
                parameters, self._gradients(*parameters), means, squares, sizes, strict=True
            ):
                mean += (1 - _B1) * (gradient - mean)
                square += (1 - _B2) * (gradient**2 - square)
                change = (mean / (1 - _B1**step)) / (np.sqrt(square / (1 - _B2**step)) + 1e-5)
                x -= np.float32(rate * of_x) * change
            self._shorten(parameters[0])

    def _shorten(self, left: np.ndarray) -> None:
        left *= np.minimum(1, self.longest / np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-9))

    def _gradients(self, left: np.ndarray, right: np.ndarray, bias: np.ndarray) -> Iterator[np.ndarray]:
        """Of left, right and bias, each row for one occurrence of its piece, so that rare pieces learn too."""
        of_left, of_right, of_bias = np.empty_like(left), np.zeros_like(right), -self.of_single
        masked = np.where(self.seen, bias, np.float32(-1e9))
        for start in range(0, len(left), _ROWS):
            rows = slice(start, start + _ROWS)
            predicted = left[rows] @ right.T
            predicted += masked
            predicted -= predicted.max(axis=1, keepdims=True)
            np.exp(predicted, out=predicted)
            predicted *= (self.weights[rows] / predicted.sum(axis=1))[:, None]
            of_left[rows] = predicted @ right
            of_right += predicted.T @ left[rows]
            of_bias = of_bias + predicted.sum(axis=0)
        of_left -= self.kept @ right + self.removed[:, None] * (self.follows @ right)
        of_right -= self.kept_after @ left + self.follows[:, None] * (self.removed @ left)
        yield of_left * self.per_first[:, None]
        yield of_right * self.per_second[:, None]
        yield of_bias * self.per_second
