"""What an objective is, and randomness that is a function of a seed."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from limba.tasks.objectives.hashing import mix


def check_noise_density(value: float) -> None:
    """Raises ValueError unless `value` can be the share of tokens that is masked."""
    if not isinstance(value, int | float | np.floating) or not 0 < value < 1:
        raise ValueError(f"noise_density is {value!r}; it lies between 0 and 1 (T5 and BERT use 0.15).")


@dataclasses.dataclass(frozen=True)
class VocabularyIds:
    """The facts about a vocabulary that objectives need.

    Attributes:
      vocab_size: with its sentinels.
      num_sentinels: how many there are.
      eos_id: the id at the end of features.
      cls_id, sep_id, mask_id: BERT's, where the vocabulary has them.
      special_ids: ids that are no text.
      continues_word: bool `[vocab_size]`, whether a piece continues the word before it; None if that is not known.
      sentinel_ids: those of `<extra_id_0>`, `<extra_id_1>` …; None for the last ids, which count down.
      before, behind: the special tokens around a text that stands alone; None for `cls_id` and for `sep_id`.
    """

    vocab_size: int
    num_sentinels: int
    eos_id: int
    cls_id: int | None = None
    sep_id: int | None = None
    mask_id: int | None = None
    special_ids: tuple[int, ...] = (0,)
    continues_word: np.ndarray | None = dataclasses.field(default=None, compare=False)
    sentinel_ids: Sequence[int] | None = None
    before: tuple[int, ...] | None = None
    behind: tuple[int, ...] | None = None

    @property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens before a text that stands alone, and those behind it."""
        before, behind = (() if x is None else (x,) for x in (self.cls_id, self.sep_id))
        return before if self.before is None else self.before, behind if self.behind is None else self.behind

    @property
    def first_sentinel(self) -> int:
        return self.vocab_size - 1 if self.sentinel_ids is None else self.sentinel_ids[0]

    def sentinels(self, count: int) -> np.ndarray:
        """The ids of the first sentinels, `<extra_id_0>` first, int32 `[count]`."""
        if self.sentinel_ids is None:
            return self.vocab_size - 1 - np.arange(count, dtype=np.int32)
        return np.asarray(self.sentinel_ids[:count], np.int32)


class CorruptedBatch(NamedTuple):
    """Examples int32 `[batch, length]`, padded with 0 after their end, and their lengths int64 `[batch]`.

    Inputs have width 0 for an objective without inputs. `others` are further features by name.
    """

    inputs: np.ndarray
    inputs_lengths: np.ndarray
    targets: np.ndarray
    targets_lengths: np.ndarray
    others: Mapping[str, tuple[np.ndarray, np.ndarray]] = {}


class Objective(Protocol):
    """How windows of text become examples. A class of your own with these names is one.

    `limba cache` writes an objective as its class and fields: make it a frozen dataclass at the top of a module.

    Attributes:
      main_feature: the feature whose length decides the others: `inputs`, or `targets` where there are no inputs.
      eos_after_documents: whether EOS stands at the end of every document, instead of at the end of every example.

    One that has `special_tokens`, a tuple of "cls", "sep" and "mask", asks the vocabulary for these, not for sentinels;
    its `check_ids(ids)` raises ValueError for a vocabulary that lacks something else.
    """

    main_feature: ClassVar[str]
    eos_after_documents: ClassVar[bool]

    @property
    def name(self) -> str:
        """Short, for the names of tasks and metrics."""
        ...

    def lengths(self, length: int) -> dict[str, int]:
        """Tokens per feature of a full example with `length` tokens in the main feature, EOS included."""
        ...

    def raw_length(self, length: int) -> int:
        """Tokens of text that fill an example of `length` tokens in the main feature."""
        ...

    def check_sentinels(self, length: int, num_sentinels: int) -> None:
        """Raises ValueError if a full example needs more sentinels than the vocabulary has."""
        ...

    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: VocabularyIds) -> CorruptedBatch:
        """Makes examples of windows of text.

        A row depends on its tokens and on `seeds[i]` alone; one of a pair of sentences also on the other rows. A call
        has all windows of a group of documents, so the rows of a resumed stream are the same.

        Args:
          tokens: int32 `[batch, raw_length]`.
          lengths: `[batch]`, the tokens of each row, at least 2.
          seeds: uint64 `[batch]`, see `example_seeds`.
          ids: of the vocabulary that the tokens are of.
        """
        ...


def missing_names(kind: type) -> list[str]:
    """The names of the protocol `Objective` that a class lacks."""
    names = (*Objective.__annotations__, *(name for name in vars(Objective) if not name.startswith("_")))
    return [name for name in names if not hasattr(kind, name) and name not in getattr(kind, "__annotations__", ())]


# ----------------------------------------------------- randomness -----------------------------------------------------


def example_seeds(seed: int, first_index: int, count: int) -> np.ndarray:
    """One seed per example, uint64 `[count]`: a function of `seed` and the example's index, not of the batch."""
    index = np.arange(first_index, first_index + count, dtype=np.uint64)
    return mix(mix(np.uint64(seed % 2**64)) + index)


def random_keys(seeds: np.ndarray, count: int, draw: int) -> np.ndarray:
    """Random uint64 `[batch, count]` from one seed per row. Draws of one seed are independent."""
    position = np.arange(count, dtype=np.uint64) + (np.uint64(draw) << np.uint64(32))
    return mix(mix(seeds.astype(np.uint64))[:, None] + position[None, :])


def random_uniform(seeds: np.ndarray, count: int, draw: int) -> np.ndarray:
    """Random float64 `[batch, count]` in `[0, 1)`."""
    return (random_keys(seeds, count, draw) >> np.uint64(11)) * 2.0**-53


# ------------------------------------------------------- rows --------------------------------------------------------


def is_text(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Which positions of `tokens` `[batch, length]` are tokens and not padding."""
    return np.arange(tokens.shape[1]) < lengths[:, None]


def keep_tokens(tokens: np.ndarray, keep: np.ndarray, width: int, eos_id: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens `[batch, length]` of each row where `keep` is true, then EOS, then padding.

    Returns:
      int32 `[batch, width]`, at least the kept tokens of any row plus 1; and int64 `[batch]`, the tokens of each row.
    """
    kept = np.zeros((len(tokens), width), np.int32)
    rows, columns = np.nonzero(keep)
    counts = keep.sum(axis=1)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    kept[rows, np.arange(len(rows)) - first] = tokens[rows, columns]
    kept[np.arange(len(tokens)), counts] = eos_id
    return kept, counts.astype(np.int64) + 1
