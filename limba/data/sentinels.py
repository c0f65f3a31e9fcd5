"""T5's sentinels in a vocabulary that has them among its own pieces, as mT5's has."""

from collections.abc import Iterable


def count_sentinels(pieces_from_the_end: Iterable[str]) -> int:
    """How many of the last pieces are sentinels: `<extra_id_0>` is the last, `<extra_id_1>` the one before it.

    SentencePiece begins a sentinel that is a piece with "▁".
    """
    count = 0
    for piece in pieces_from_the_end:
        if piece not in (f"<extra_id_{count}>", f"▁<extra_id_{count}>"):
            break
        count += 1
    return count
