"""Examples in front of a question: as many of them as the model's input has room for."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from limba.tasks.supervised.row_formats import Example


@dataclasses.dataclass(frozen=True)
class FewShots(Example):
    """An example whose input has others in front of the question.

    Attributes:
      shorter: the same input with fewer of them, the longest first.
    """

    shorter: tuple[str, ...] = ()


def fit(
    examples: Sequence[Example], most: int | None, count: Callable[[Sequence[str]], np.ndarray]
) -> Sequence[Example]:
    """The examples, of each `FewShots` the longest input of at most `most` tokens, or the shortest if none fits.

    `count` gives the tokens of texts, EOS included; `most` of None takes the longest.
    """
    fitted = list(examples)
    waiting = [] if most is None else list(range(len(fitted)))
    while waiting := [i for i in waiting if _shorter(fitted[i])]:
        lengths = count([fitted[i].inputs for i in waiting])
        waiting = [i for i, length in zip(waiting, lengths.tolist(), strict=True) if length > (most or 0)]
        for i in waiting:
            fitted[i] = _shortened(fitted[i])
    return fitted


def _shorter(example: Example) -> tuple[str, ...]:
    return example.shorter if isinstance(example, FewShots) else ()


def _shortened(example: Example) -> Example:
    assert isinstance(example, FewShots)
    return dataclasses.replace(example, inputs=example.shorter[0], shorter=example.shorter[1:])
