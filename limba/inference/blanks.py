"""T5's blanks in texts: <extra_id_0>, <extra_id_1> … in order."""

import itertools
import re
from collections.abc import Callable

import numpy as np

from limba.models import Vocabulary

SENTINEL = re.compile(r"<extra_id_(\d+)>")


def decode_row(vocabulary: Vocabulary, row: np.ndarray) -> str:
    """Text of a row of tokens that ends at EOS or padding; sentinels are kept visible."""
    ends = (0, vocabulary.eos_id)
    return vocabulary.decode(list(itertools.takewhile(lambda token: token not in ends, row.tolist())))


def has_blanks(text: str) -> bool:
    """Whether a text has one of T5's sentinels."""
    return SENTINEL.search(text) is not None


def fill_blanks(text: str, prediction: str, mark: Callable[[str], str] = str) -> str:
    """Puts the spans that follow each sentinel in `prediction`, marked, into the blanks of `text`.

    A blank that the prediction does not mention stays as it is. Without blanks, the prediction itself is returned.
    """
    if not has_blanks(text):
        return prediction
    pieces = SENTINEL.split(prediction)
    spans = {number: mark(span.strip()) for number, span in zip(pieces[1::2], pieces[2::2], strict=True)}
    return SENTINEL.sub(lambda match: spans.get(match[1], match[0]), text)
