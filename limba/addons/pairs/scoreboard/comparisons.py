"""Means over seeds, and differences between models, with intervals by the bootstrap over items and over seeds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from limba.addons.pairs.scoreboard.evaluation_sets import EvaluationSet
from limba.addons.pairs.scoreboard.measures import Figure, Figures, Measured

RESAMPLES = 2000
# Numbers of one array of counts.
_MOST_COUNTS = 4_000_000


class Side(NamedTuple):
    """A model, or the seeds of one, as measured on a set; `title` is that of its row."""

    title: str
    measured: Sequence[Measured]


class Difference(NamedTuple):
    """How much a model differs from another one in a figure of a set.

    Attributes:
      low, high: of the 95 % interval.
      p_value: two-sided: twice the share of resamples on the other side of zero.
    """

    of: str
    figure: str
    title: str
    base: str
    value: float
    low: float
    high: float
    p_value: float

    def sentence(self) -> str:
        """The difference in words."""
        digits = 3 if self.figure == "nats/character" else 1
        low, high = (f"{x:+.{digits}f}" for x in (self.low, self.high))
        p_value = f"p = {self.p_value:.3f}" if self.p_value >= 2 / RESAMPLES else f"p < {2 / RESAMPLES:.3f}"
        return f"{self.of} {self.figure}: {self.title} has {self.value:+.{digits}f} ({low} to {high}; {p_value})"


def mean_figures(of: EvaluationSet, measured: Sequence[Measured], chosen: np.ndarray | None = None) -> Figures:
    """The means over seeds with their spread; the interval is of other items and other seeds.

    Args:
      chosen: bool `[items]`, as of `Measured.figures`; None takes all items.
    """
    chosen = np.ones(len(of.items), bool) if chosen is None else chosen
    figures = [one.figures(chosen) for one in measured]
    sampled = _Resamples(len(of.items), chosen).ratios([Side("", measured)])[0]
    made = {}
    for name, first in figures[0].items():
        values = np.array([of_seed[name].value for of_seed in figures if name in of_seed])
        if len(values) < len(measured):
            continue
        low, high = np.quantile(sampled[name], (0.025, 0.975)).tolist() if name in sampled else (None, None)
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        made[name] = Figure(float(values.mean()), low, high, first.count, first.unit, spread)
    return made


def differences(of: EvaluationSet, sides: Sequence[Side]) -> Iterator[Difference]:
    """The differences of all models from the first one.

    Items are drawn with replacement, the same ones for all models (the paired bootstrap of Koehn, 2004), and of models
    with several seeds also the seeds, of each model on its own.
    """
    if len(sides) < 2:
        return
    resamples = _Resamples(len(of.items), np.ones(len(of.items), bool))
    base, *others = resamples.ratios(sides)
    whole = [_means(side) for side in sides]
    for side, sampled, found in zip(sides[1:], others, whole[1:], strict=True):
        for name in sampled:
            if name not in base:
                continue
            difference = sampled[name] - base[name]
            low, high = np.quantile(difference, (0.025, 0.975)).tolist()
            least = min(np.count_nonzero(difference <= 0), np.count_nonzero(difference >= 0))
            p_value = min(2 * least / RESAMPLES, 1.0)
            value = found[name] - whole[0][name]
            yield Difference(of.name, name, side.title, sides[0].title, value, low, high, p_value)


def _means(side: Side) -> dict[str, float]:
    terms = [one.terms() for one in side.measured]
    return {name: float(np.mean([_ratio(*(x.sum() for x in of_seed[name])) for of_seed in terms])) for name in terms[0]}


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The ratio; 0 where nothing is below, as where no entity is wanted or given."""
    return np.divide(above, below, out=np.zeros_like(above, np.float64), where=below != 0)


class _Resamples:
    """Items drawn with replacement, the same ones for all models; the draws are the same in each run.

    Args:
      chosen: bool `[items]`: those that are drawn from.
    """

    def __init__(self, num_items: int, chosen: np.ndarray):
        self._num_items, self._chosen = num_items, np.flatnonzero(chosen)

    def ratios(self, sides: Sequence[Side]) -> list[Mapping[str, np.ndarray]]:
        """Of each model and each figure its value in each resample, float64 `[RESAMPLES]`."""
        terms = [[one.terms() for one in side.measured] for side in sides]
        flat = [of_seed[name] for of_side in terms for of_seed in of_side for name in of_seed]
        sums = self._sums(np.stack([x for both in flat for x in both], axis=1).astype(np.float64))
        ratios = iter(_ratio(sums[:, 0::2], sums[:, 1::2]).T)
        rng = np.random.default_rng(1)
        made = list[Mapping[str, np.ndarray]]()
        for of_side in terms:
            of_seeds = [{name: next(ratios) for name in of_seed} for of_seed in of_side]
            drawn = rng.integers(len(of_side), size=(len(of_side), RESAMPLES))
            made.append({name: self._mean([x[name] for x in of_seeds], drawn) for name in of_seeds[0]})
        return made

    @staticmethod
    def _mean(values: Sequence[np.ndarray], drawn: np.ndarray) -> np.ndarray:
        return np.take_along_axis(np.stack(values), drawn, axis=0).mean(axis=0)

    def _sums(self, terms: np.ndarray) -> np.ndarray:
        """Of terms `[items, terms]` the sums over the items of each resample, `[RESAMPLES, terms]`."""
        rng, size = np.random.default_rng(0), len(self._chosen)
        at_once = max(1, min(RESAMPLES, _MOST_COUNTS // self._num_items))
        sums = []
        for begin in range(0, RESAMPLES, at_once):
            rows = min(at_once, RESAMPLES - begin)
            drawn = self._chosen[rng.integers(size, size=(rows, size))] + self._num_items * np.arange(rows)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=rows * self._num_items)
            sums.append(counts.reshape(rows, self._num_items).astype(np.float64) @ terms)
        return np.concatenate(sums)
