"""Rows of a student's tokens as those of a teacher with another vocabulary, and where both have written the same text.

At such a place both are asked the same question: what comes next? The teacher's answer there is one of its tokens, and
stands for the student's token with which that token's text begins.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from limba.data import sentinels
from limba.tasks.vocabularies import piece_characters
from limba.tasks.vocabularies.vocabulary import without_tensorflow

# Segments between sentinels come again and again.
_KEPT_SEGMENTS = 100_000


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the teacher's tokens.

    Attributes:
      ids: without padding.
      at: of each of the student's tokens the place of the teacher's whose prediction is about the same text behind the
        same text; -1 where there is none.
    """

    ids: list[int]
    at: list[int]


def piece_texts(vocabulary: Any) -> list[bytes | None]:
    """The text of each token, in UTF-8; None for special tokens, sentinels and unknown pieces.

    Raises:
      ValueError: for a kind of vocabulary whose pieces are not known.
    """
    if (texts := piece_characters.texts_of(vocabulary)) is None:
        raise ValueError(
            f"The texts of the tokens of a {type(vocabulary).__name__} are not known, so a teacher and a student with "
            "different vocabularies cannot be compared by it. Give both a SentencePiece model or a tokenizer.json."
        )
    return [text or None for text in texts]


class _Tokens:
    """The tokens of a vocabulary by their texts.

    Attributes:
      ids: the first token of each text.
    """

    def __init__(self, texts: Sequence[bytes | None]):
        self.ids = {text: id_ for id_, text in reversed([*enumerate(texts)]) if text}
        # Trying every beginning of a text would take the square of its length, and a piece may have megabytes.
        self._lengths = sorted({*map(len, self.ids)}, reverse=True)

    def longest(self, text: bytes) -> tuple[int | None, bytes]:
        """The longest token with which a text begins, and its text; None if there is none."""
        starts = (text[:length] for length in self._lengths if length <= len(text))
        found = next((start for start in starts if start in self.ids), b"")
        return self.ids.get(found), found


class Translation:
    """From a student's vocabulary to its teacher's.

    Attributes:
      table: int32 `[teacher's tokens]`: the student's token with which a token's text begins, as the student reads it;
        the student's number of tokens where there is none.
    """

    def __init__(self, student: Any, teacher: Any):
        """Raises ValueError for vocabularies whose pieces are not known, or without an EOS."""
        self._student, self._teacher = without_tensorflow(student), without_tensorflow(teacher)
        self.num_tokens = self._student.vocab_size
        self._student_texts, self._teacher_texts = piece_texts(student), piece_texts(teacher)
        if self._student.eos_id is None or self._teacher.eos_id is None:
            raise ValueError("A teacher with another vocabulary than the student needs an EOS in both.")
        pairs = zip(sentinels.of_vocabulary(self._student), sentinels.of_vocabulary(self._teacher), strict=False)
        self._sentinels = frozenset(sentinels.of_vocabulary(self._student))
        self._special = dict(pairs) | {self._student.eos_id: self._teacher.eos_id}
        self._tokens = _Tokens(self._teacher_texts)
        self._encoded = functools.lru_cache(_KEPT_SEGMENTS)(self._encode)

    @functools.cached_property
    def table(self) -> np.ndarray:
        tokens = _Tokens(self._student_texts)
        table = np.full(len(self._teacher_texts), self.num_tokens, np.int32)
        for id_, text in enumerate(self._teacher_texts):
            if text:
                table[id_] = self._first_token(text, tokens)
        for id_, of_teacher in self._special.items():
            table[of_teacher] = id_
        return table

    def _first_token(self, text: bytes, tokens: _Tokens) -> int:
        if text in tokens.ids:
            return tokens.ids[text]
        if text.startswith(b" "):
            first = [*self._student.encode(text.decode(errors="replace"))][:1]
            if first and text.startswith(self._student_texts[first[0]] or b"\0"):
                return first[0]
        # To a text without a space, SentencePiece adds one: so the longest of its tokens.
        token, _ = tokens.longest(text)
        return self.num_tokens if token is None else token

    def inputs(self, ids: Sequence[int]) -> list[int]:
        """A row of the encoder, with the special tokens that the teacher's rows begin and end with."""
        before, behind = self._teacher.frame[:2]
        row = self.targets(ids).ids
        if row and row[-1] == self._teacher.eos_id:
            row = [*row[:-1], *behind]
        return [*before, *row]

    def targets(self, ids: Sequence[int]) -> Row:
        """A row of the decoder. A sentinel that the teacher does not have ends it."""
        row = Row([], [-1] * len(ids))
        is_whole, start = True, 0
        for is_text, group in itertools.groupby(enumerate(ids), lambda x: self._student_texts[x[1]] is not None):
            places, tokens = zip(*group, strict=True)
            start = places[0]
            if is_text:
                is_whole = self._add_text(row, start, tokens)
                continue
            for place, token in zip(places, tokens, strict=True):
                of_teacher = self._special.get(token)
                if of_teacher is None:
                    if token in self._sentinels or self._teacher.unk_id is None:
                        return row
                    row.ids.append(self._teacher.unk_id)
                    is_whole = False
                    continue
                if is_whole:
                    row.at[place] = len(row.ids)
                row.ids.append(of_teacher)
                is_whole = True
        return row

    def _add_text(self, row: Row, start: int, tokens: Sequence[int]) -> bool:
        """Adds a text between special tokens; returns whether both have written the same at its end."""
        texts: list[bytes] = [self._student_texts[token] or b"" for token in tokens]
        text = b"".join(texts)
        # What SentencePiece sets before the first word of a row is no part of the text.
        found = self._encoded(text if row.ids else text.removeprefix(b" "), bool(row.ids) and not text.startswith(b" "))
        others = [self._teacher_texts[token] or b"" for token in found]
        ends, of_teacher = _ends(texts), _ends(others)
        pairs = zip(text.lstrip(b" "), b"".join(others).lstrip(b" "), strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda x: x[0] == x[1], pairs))
        at: dict[int, int] = {}
        for place, end in enumerate(of_teacher[:-1]):
            at.setdefault(end, place)
        seen = set()
        for place, end in enumerate(ends[:-1]):
            if end <= same and end in at and end not in seen:
                row.at[start + place] = len(row.ids) + at[end]
                seen.add(end)
        row.ids.extend(found)
        return ends[-1] == of_teacher[-1] == same

    def _encode(self, text: bytes, continues: bool) -> tuple[int, ...]:
        """The teacher's tokens of a text; of one that continues a word without the space that its tokenizer adds."""
        ids = [*self._teacher.encode(text.decode(errors="replace"))]
        first = self._teacher_texts[ids[0]] if ids and continues else None
        if first is None or not first.startswith(b" "):
            return tuple(ids)
        pieces: list[int] = []
        rest = first[1:]
        while rest:
            token, text = self._tokens.longest(rest)
            if token is None:
                return tuple(ids)
            pieces, rest = [*pieces, token], rest[len(text) :]
        return (*pieces, *ids[1:])


def _ends(texts: Sequence[bytes]) -> list[int]:
    """Where each text begins, and the last one ends, in bytes behind the spaces at the beginning of all."""
    whole = b"".join(texts)
    spaces = len(whole) - len(whole.lstrip(b" "))
    return [max(0, end - spaces) for end in itertools.accumulate(map(len, texts), initial=0)]
