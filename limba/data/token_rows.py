"""A text, or a pair of texts, as the row of tokens that a model reads: special tokens included, cut to its length."""

from collections.abc import Sequence
from typing import Any, NamedTuple

Texts = str | Sequence[str]


class Row(NamedTuple):
    """What a model reads of a text or of a pair.

    Attributes:
      ids: tokens with the special ones, at most as many as were asked for.
      types: of each token; 1 is usual for the second text of a pair.
      length: the tokens that there would be if none were cut.
    """

    ids: list[int]
    types: list[int]
    length: int


class Frame(NamedTuple):
    """The special tokens before and behind a text that stands alone; the types of these, and of the text's tokens."""

    before: list[int]
    behind: list[int]
    types: tuple[int, int, int] = (0, 0, 0)


class WordRow(NamedTuple):
    """What a model reads of a text whose words are known.

    Attributes:
      ids, types, length: see `Row`.
      places: in the row, of the first piece of each word; -1 of a word that has none, or none that is left.
      end: where the text ends in the row.
    """

    ids: list[int]
    types: list[int]
    length: int
    places: list[int]
    end: int


def of_vocabulary(vocabulary: Any, texts: Sequence[Texts], most: int | None = None) -> list[Row]:
    """The rows of texts as a vocabulary makes them: one of `tasks.vocabularies`, of SeqIO's, or of a user's class.

    Args:
      texts: a text each, or several that belong to one row.
      most: tokens of a row; None cuts nothing.

    Raises:
      ValueError: if the special tokens alone are more than `most`; for several texts, where the vocabulary has no
        pairs.
    """
    if hasattr(vocabulary, "rows"):
        return vocabulary.rows(texts, most)
    frame = usual_frame(vocabulary)
    return [framed(frame, list(vocabulary.encode(alone(vocabulary, text))), most) for text in texts]


def has_pairs(vocabulary: Any) -> bool:
    """Whether rows of a vocabulary, also of SeqIO's or a user's, may have two texts, with token types of their own."""
    return getattr(vocabulary, "has_pairs", False)


def usual_frame(vocabulary: Any) -> Frame:
    """[CLS] and [SEP], if the vocabulary has them, or EOS, if it has one."""
    if getattr(vocabulary, "cls_id", None) is not None:
        return Frame([vocabulary.cls_id], [vocabulary.sep_id])
    return Frame([], [] if vocabulary.eos_id is None else [vocabulary.eos_id])


def framed(frame: Frame, ids: list[int], most: int | None) -> Row:
    """A row of tokens; one that is too long is cut on the right, before the special tokens."""
    num_special = len(frame.before) + len(frame.behind)
    kept = ids if most is None else ids[: max(most - num_special, 0)]
    row = [*frame.before, *kept, *frame.behind]
    return Row(row, [0] * len(row), len(ids) + num_special)


def alone(vocabulary: Any, texts: Texts) -> str:
    """The text of a row that has one. Raises ValueError for several."""
    if isinstance(texts, str):
        return texts
    if len(texts) != 1:
        raise ValueError(f"{vocabulary!r} has no pairs of texts, and a row has {len(texts)}: give one.")
    return texts[0]


def of_words(vocabulary: Any, texts: Sequence[Sequence[str]], most: int | None = None) -> list[WordRow]:
    """The rows of texts by their words, of a vocabulary that has `encode_words`; see `of_vocabulary`."""
    before, behind, types = vocabulary.frame
    found = []
    for ids, places in vocabulary.encode_words(texts):
        length = len(before) + len(ids) + len(behind)
        begin, end = 0, len(ids)
        if most is not None and length > most:
            room = max(most - len(before) - len(behind), 0)
            begin, end = (end - room, end) if vocabulary.cuts_left else (0, room)
        row = [*before, *ids[begin:end], *behind]
        of_row = [*(types[:1] * len(before)), *(types[1:2] * (end - begin)), *(types[2:] * len(behind))]
        shift = len(before) - begin
        kept = [x + shift if begin <= x < end else -1 for x in _of_left_pieces(places, begin)]
        found.append(WordRow(row, of_row, length, kept, end + shift))
    return found


def _of_left_pieces(places: Sequence[int], begin: int) -> list[int]:
    """The places of words, where all pieces before `begin` are cut: the first one left is that of a word's rest."""
    starts = [x for x in places if x >= 0]
    after = dict(zip(starts, [*starts[1:], begin + 1], strict=True))
    return [begin if 0 <= x < begin < after[x] else x for x in places]
