"""Accuracy over minimal pairs: how often the right sentence has the higher score, with intervals, by phenomenon."""

import dataclasses
import math
from collections.abc import Sequence

from limba.tasks.metrics.text_metrics import Metrics, are_finite, check_lengths

# Of the normal distribution: 95 % lie within this number of standard deviations.
Z_95 = 1.959963984540054


@dataclasses.dataclass(frozen=True)
class ScoredSentence:
    """A sentence of a pair, as the metric gets it.

    Attributes:
      pair: the number of the pair.
      is_right: whether it is the right one of its pair.
      phenomenon: "" for none.
      num_tokens: how many tokens are scored.
      sentence: its text.
    """

    pair: int
    is_right: bool
    phenomenon: str
    num_tokens: int
    sentence: str


@dataclasses.dataclass(frozen=True)
class ScoredPair:
    """The two sentences of a pair with their scores, log probabilities."""

    right: ScoredSentence
    wrong: ScoredSentence
    right_score: float
    wrong_score: float

    @property
    def is_won(self) -> bool:
        """Whether the right sentence has the higher score; equal scores are lost."""
        return self.right_score > self.wrong_score

    @property
    def is_tie(self) -> bool:
        return self.right_score == self.wrong_score

    @property
    def is_won_by_mean(self) -> bool:
        """`is_won` by the mean of the scored tokens."""
        return self.right_score / self.right.num_tokens > self.wrong_score / self.wrong.num_tokens


def pairs(targets: Sequence[ScoredSentence], scores: Sequence[float]) -> list[ScoredPair]:
    """The pairs in the order of their numbers.

    Raises:
      ValueError: if a pair lacks a sentence, as where a split is cut after an odd number of examples.
    """
    check_lengths(targets, scores)
    found: dict[int, dict[bool, tuple[ScoredSentence, float]]] = {}
    for sentence, score in zip(targets, scores, strict=True):
        found.setdefault(sentence.pair, {})[bool(sentence.is_right)] = sentence, float(score)
    if lacking := [number for number, of_pair in found.items() if len(of_pair) != 2]:
        raise ValueError(
            f"Pair {lacking[0]} has one sentence: each pair is two examples. Give task_metrics.Evaluator.num_examples "
            "an even number, or None."
        )
    ordered = (found[number] for number in sorted(found))
    return [ScoredPair(x[True][0], x[False][0], x[True][1], x[False][1]) for x in ordered]


def wilson_interval(num_right: int, num_all: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share, from 0 to 1.

    Wilson's score interval without continuity correction: E. B. Wilson, Probable inference, the law of succession, and
    statistical inference, JASA 22 (1927), 209-212; method 3 of R. G. Newcombe, Statistics in Medicine 17 (1998),
    857-872.
    """
    if num_all < 1:
        return 0.0, 1.0
    share, z2 = num_right / num_all, Z_95 * Z_95
    middle = share + z2 / (2 * num_all)
    half = Z_95 * math.sqrt(share * (1 - share) / num_all + z2 / (4 * num_all * num_all))
    low, high = ((middle + sign * half) / (1 + z2 / num_all) for sign in (-1, 1))
    return max(low, 0.0) if num_right else 0.0, min(high, 1.0) if num_right < num_all else 1.0


def pair_accuracy(targets: Sequence[ScoredSentence], scores: Sequence[float]) -> Metrics:
    """Over all pairs, and with `/PHENOMENON` behind the name over those of each phenomenon:

    - `accuracy`: the percentage of pairs whose right sentence has the higher score; equal scores count as wrong;
    - `accuracy_low`, `accuracy_high`: its 95 % confidence interval (`wilson_interval`), in percent;
    - `pairs`, `ties`: how many pairs there are, and how many of them have equal scores;
    - `accuracy_per_token`: the accuracy if scores are divided by the number of scored tokens. Over all pairs only.

    Args:
      targets: two of each pair.
      scores: log probabilities.
    """
    if not are_finite("The accuracy over pairs", scores=scores):
        return {}
    found = pairs(targets, scores)
    result = _measures(found)
    result["accuracy_per_token"] = 100 * sum(pair.is_won_by_mean for pair in found) / len(found)
    for phenomenon in sorted({pair.right.phenomenon for pair in found} - {""}):
        of_phenomenon = _measures([pair for pair in found if pair.right.phenomenon == phenomenon])
        result |= {f"{name}/{phenomenon}": value for name, value in of_phenomenon.items()}
    return result


def pooled(results: Sequence[Metrics]) -> Metrics:
    """The metrics over the pairs of several results of `pair_accuracy` together: each pair counts once."""
    endings = {name.removeprefix("accuracy"): None for one in results for name in one if _is_accuracy(name)}
    made: Metrics = {}
    for ending in ["", *sorted(endings.keys() - {""})]:
        found = [one for one in results if f"pairs{ending}" in one]
        if not found:
            return {}
        won = [round(one[f"accuracy{ending}"] * one[f"pairs{ending}"] / 100) for one in found]
        counts = (sum(int(one[f"{name}{ending}"]) for one in found) for name in ("pairs", "ties"))
        of_all = _of_counts(sum(won), *counts)
        if not ending and all("accuracy_per_token" in one for one in found):
            weighted = sum(one["accuracy_per_token"] * one["pairs"] for one in found)
            of_all["accuracy_per_token"] = weighted / of_all["pairs"]
        made |= {f"{name}{ending}": value for name, value in of_all.items()}
    return made


def _is_accuracy(name: str) -> bool:
    return name.partition("/")[0] == "accuracy"


def _measures(found: Sequence[ScoredPair]) -> Metrics:
    return _of_counts(sum(pair.is_won for pair in found), len(found), sum(pair.is_tie for pair in found))


def _of_counts(won: int, num_pairs: int, ties: int) -> Metrics:
    low, high = wilson_interval(won, num_pairs)
    return {
        "accuracy": 100 * won / num_pairs,
        "accuracy_low": 100 * low,
        "accuracy_high": 100 * high,
        "pairs": num_pairs,
        "ties": ties,
    }
