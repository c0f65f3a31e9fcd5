"""Blanks in texts: `___` on the screen; for the model T5's <extra_id_0>, <extra_id_1> … in order, or [MASK]."""

import itertools
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from limba.data import sentinels

SENTINEL = re.compile(r"<extra_id_([0-9]+)>")
BLANK = "___"
# Of an answer with blanks to a text that has none.
HINT = "This model fills blanks: write ___ where words are missing."


def typed(line: str) -> str:
    """What somebody typed, for the model: each `___` becomes the next sentinel, after those that are there.

    Raises:
      ValueError: for a sentinel that no model has, by the number of its digits.
    """
    numbers = itertools.count(max(map(sentinels.number, SENTINEL.findall(line)), default=-1) + 1)
    return re.sub("_{3,}", lambda _: f"<extra_id_{next(numbers)}>", line)


def shown(text: str) -> str:
    """A text as it stands on the screen, whatever the model's blanks are."""
    return re.sub(rf"{SENTINEL.pattern}|\[MASK\]|<mask>", BLANK, text)


def decode_row(vocabulary: Any, row: np.ndarray) -> str:
    """Text of a row of tokens that ends at EOS or padding; sentinels are kept visible."""
    ends = (0, vocabulary.eos_id)
    return vocabulary.decode(list(itertools.takewhile(lambda token: token not in ends, row.tolist())))


def row_text(vocabulary: Any, row: np.ndarray, padding: Collection[int] = (0,)) -> str:
    """Text of a whole row of tokens, packed or not: sentinels are `___`, and padding is left out.

    EOS is `</s>`, or as an encoder's vocabulary names it.
    """
    tokenizer: Any = getattr(vocabulary, "tokenizer", None)
    is_named = hasattr(tokenizer, "id_to_token") and vocabulary.eos_id is not None  # a tokenizer.json
    end = tokenizer.id_to_token(vocabulary.eos_id) if is_named else "</s>"
    found = {*sentinels.of_vocabulary(vocabulary)}
    parts: list[str] = []
    span: list[int] = []
    for token in [*row.tolist(), None]:
        if token in padding:
            continue
        if token is not None and token not in found and token != vocabulary.eos_id:
            span.append(token)
            continue
        if span:
            text = vocabulary.decode(span)
            parts.append(text if isinstance(text, str) else " ".join(map(str, text)))  # SeqIO's PassThroughVocabulary
            span = []
        if token is not None:
            parts.append(BLANK if token in found else end)
    return " ".join(parts)


def set_apart(line: str) -> str:
    """A text with a space before each sentinel, without which SentencePiece knows none."""
    return re.sub(rf"(?<=\S)(?={SENTINEL.pattern})", " ", line)


def has_blanks(text: str) -> bool:
    """Whether a text has one of T5's sentinels."""
    return SENTINEL.search(text) is not None


def hint(text: str, prediction: str) -> str:
    """`HINT` where a model that fills blanks got none; else ""."""
    return HINT if has_blanks(prediction) and not has_blanks(text) else ""


def fill_blanks(text: str, prediction: str, mark: Callable[[str], str] = str) -> str:
    """Puts the spans that follow each sentinel in `prediction`, marked, into the blanks of `text`.

    A blank that the prediction does not mention stays as it is. Without blanks, or where none is filled, the prediction
    itself is returned: underscores may be no blanks for a task.
    """
    pieces = SENTINEL.split(prediction)
    spans = {number: mark(span.strip()) for number, span in zip(pieces[1::2], pieces[2::2], strict=True)}
    if not spans.keys() & set(SENTINEL.findall(text)):
        return prediction
    return SENTINEL.sub(lambda match: spans.get(match[1], match[0]), text)
