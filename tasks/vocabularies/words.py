"""Which tokens of a text are the first of its words."""

from collections.abc import Sequence
from typing import NamedTuple


class Words(NamedTuple):
    """The tokens of a text, and the place among them of the first piece of each word; -1 of a word without one."""

    ids: list[int]
    places: list[int]


def joined(words: Sequence[list[int]], blank: list[int]) -> Words:
    """The ids of words one after the other, with those of a blank between them."""
    ids: list[int] = []
    places: list[int] = []
    for word in words:
        ids += blank if places else []
        places.append(len(ids) if word else -1)
        ids += word
    return Words(ids, places)


def first_by_number(count: int, word_ids: Sequence[int | None]) -> list[int]:
    """The places of words by the number of the word that each piece is of."""
    return [word_ids.index(number) if number in word_ids else -1 for number in range(count)]


def first_by_offset(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """The places of words by the characters that each piece stands for; a piece of two words is that of the first.

    A piece that is the blank before a word alone is the word's, as in transformers' `word_ids`.
    """
    places, place, begin = [], 0, 0
    if offsets and offsets[0] in ((0, 0), (1, 1)):
        # Trimmed by a blank that the tokenizer put before the text.
        offsets = [(0, 1), *offsets[1:]]
    for word in words:
        end = begin + len(word)
        while place < len(offsets) and offsets[place][1] < max(begin, 1):
            place += 1
        has_piece = place < len(offsets) and offsets[place][0] < end
        places.append(place if has_piece else -1)
        place += has_piece
        begin = end + 1
    return places
