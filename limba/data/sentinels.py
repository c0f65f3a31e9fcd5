"""T5's sentinels in a vocabulary that has them among its own pieces, found by their names."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

# What the first, the second … are called, and the number of the first: T5's, and those of HPLT's WordPiece.
_STYLES = (("<extra_id_{}>", 0), ("[MASK_{}]", 1))
# SentencePiece begins a sentinel that is a piece with "▁".
NAME = re.compile(r"▁?<extra_id_([0-9]+)>")
# No vocabulary has so many sentinels, and Python reads no number of more than 4,300.
_MOST_DIGITS = 9


def number(digits: str) -> int:
    """The number of a sentinel, of the digits in its name. Raises ValueError for more digits than any has."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError(
            f"The sentinel <extra_id_{digits[:_MOST_DIGITS]}…> has a number of {len(digits):,} digits; models have "
            "<extra_id_0>, <extra_id_1> …, a few hundred at most. Write one of these."
        )
    return int(digits)


def find_sentinels(id_of: Callable[[str], int | None], vocab_size: int) -> tuple[int, ...]:
    """The ids of `<extra_id_0>`, `<extra_id_1>` …, up to the first that the vocabulary does not have; where there are
    none, those of `[MASK_1]`, `[MASK_2]` …

    mT5's are its last pieces, `<extra_id_0>` last. Trainers of tokenizers set them behind the special tokens or behind
    the pieces, `<extra_id_0>` first; tokens that were added one by one have any ids.

    Args:
      id_of: the id of a piece; None, or the id of another piece, if there is none.
      vocab_size: ids above it are none.
    """

    def find(name: str) -> int | None:
        found = (id_of(piece) for piece in (name, f"▁{name}"))
        return next((id_ for id_ in found if id_ is not None and 0 <= id_ < vocab_size), None)

    for style, first in _STYLES:
        ids = map(find, map(style.format, itertools.count(first)))
        if found := tuple(itertools.takewhile(lambda id_: id_ is not None, ids)):
            return found  # type: ignore[return-value]
    return ()


def as_masks(text: str) -> str:
    """A text with `[MASK_1]` in the place of `<extra_id_0>`, and so on."""
    return re.sub(r"<extra_id_([0-9]+)>", lambda found: f"[MASK_{number(found[1]) + 1}]", text)


def as_t5s(text: str) -> str:
    """The opposite of `as_masks`."""
    return re.sub(r"\[MASK_([1-9][0-9]{,5})\]", lambda found: f"<extra_id_{number(found[1]) - 1}>", text)


def of_vocabulary(vocabulary: Any) -> tuple[int, ...]:
    """The ids of `<extra_id_0>`, `<extra_id_1>` …: the last `extra_ids`, which count down, or those of its file.

    Args:
      vocabulary: SeqIO's or ours. `tokenizer` of one with a file is SentencePiece's, or the library tokenizers'.
    """
    if extra_ids := getattr(vocabulary, "extra_ids", 0):
        return tuple(vocabulary.vocab_size - 1 - i for i in range(extra_ids))
    tokenizer: Any = getattr(vocabulary, "tokenizer", None)
    if hasattr(tokenizer, "token_to_id"):
        return find_sentinels(tokenizer.token_to_id, vocabulary.vocab_size)
    if not hasattr(tokenizer, "piece_to_id"):
        return ()

    def id_of(piece: str) -> int | None:
        id_ = tokenizer.piece_to_id(piece)
        return id_ if tokenizer.id_to_piece(id_) == piece else None

    return find_sentinels(id_of, vocabulary.vocab_size)


def counts_down(sentinels: Sequence[int], vocab_size: int) -> bool:
    """Whether sentinels are the last ids and `<extra_id_0>` is the last of all, as SeqIO has them; also for none."""
    return list(sentinels) == [vocab_size - 1 - i for i in range(len(sentinels))]
