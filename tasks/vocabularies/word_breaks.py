"""U+200B, which stands between words of Khmer, Thai, Lao and Burmese: what a vocabulary makes of it is said."""

import itertools
import sys
from collections.abc import Callable, Sequence

from limba.tasks.vocabularies import alphabets, normalization

ZERO_WIDTH_SPACE = "\u200b"
# Lines that are cut into pieces, and the share of these that is worth a line.
_NUM_LINES, _SHARE = 2000, 0.01

Pieces = Callable[[Sequence[str]], Sequence[Sequence[str]]]


def say_kept(pieces: Pieces, lines: Sequence[str], remedy: str) -> None:
    """Prints which share of a vocabulary's tokens has it, if that is more than a trace.

    Args:
      pieces: gives the texts of the tokens of lines.
      lines: of the text that the vocabulary was trained on.
    """
    if not any(ZERO_WIDTH_SPACE in line for line in lines):
        return
    found = pieces(lines[:: -(-len(lines) // _NUM_LINES)])
    tokens = list(itertools.chain.from_iterable(found))
    count = sum(ZERO_WIDTH_SPACE in token for token in tokens)
    if count > _SHARE * len(tokens):
        print(
            f"U+200B, the space without a shape between words, is in {count / len(tokens):.0%} of the tokens of "
            f"{len(found):,} lines, as one of its own or with signs beside it; a blank costs none. {remedy}",
            file=sys.stderr,
        )


def say_dropped(characters: alphabets.Characters, read: Callable[[str], str]) -> None:
    """Prints what follows if a vocabulary drops it, and the text has more than a trace of it."""
    counts = characters.counts
    count = counts.get(ZERO_WIDTH_SPACE, 0)
    if count > normalization.TRACE * sum(counts.values()) and read(f"a{ZERO_WIDTH_SPACE}b") == "ab":
        print(
            f"U+200B stands {count:,} times between words: without it all words up to the next blank are one, and "
            "pieces cross their borders. Put blanks in its place, or take --kind sentencepiece, which reads a blank.",
            file=sys.stderr,
        )
