"""The words in which two sentences differ, as tokens: what both have, and what each has in each blank."""

import dataclasses
import difflib
import functools
import unicodedata
from collections.abc import Sequence

from limba.addons.pairs.token_spans import TokenSpans
from limba.tasks.vocabularies import alphabets

# Scripts that have no blanks between words: each character is compared by itself.
_WITHOUT_BLANKS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
# Inside a word, between two letters.
_JOINERS = "'’-‐"

# Of words or characters, `[begin, end)`.
Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Blanks:
    """Two sentences as the tokens that both have, with blanks between them, and the tokens of each in the blanks.

    Attributes:
      kept: one more than there are blanks: before the first, between them, and after the last; may be empty.
      fillings: of the right sentence and of the wrong one, a list of tokens for each blank; none is empty.
    """

    kept: list[list[int]]
    fillings: tuple[list[list[int]], list[list[int]]]


def words_of(text: str) -> list[Span]:
    """The characters of each word; a punctuation mark or symbol is a word.

    An apostrophe or hyphen between two letters belongs to their word. In scripts without blanks between words each
    character is one.
    """
    found: list[Span] = []
    kinds = [kind_of(character) for character in text]
    for i, kind in enumerate(kinds):
        if kind == "mark" and text[i] in _JOINERS and kinds[i - 1 : i] == ["letter"] == kinds[i + 1 : i + 2]:
            kinds[i] = kind = "letter"
        if kind == "letter" and i and kinds[i - 1] == "letter":
            found[-1] = (found[-1][0], i + 1)
        elif kind != "blank":
            found.append((i, i + 1))
    return found


def blank_between(before: str, after: str) -> str:
    """What stands between two texts: "" where one of them has a blank there, is empty, or has a script without."""
    ends = (kind_of(before[-1]), kind_of(after[0])) if before and after else ("blank",)
    return "" if {"blank", "alone"} & set(ends) else " "


@functools.lru_cache(10_000)  # A third of the time of making rows, otherwise.
def kind_of(character: str) -> str:
    """What a character is: "letter", "mark", "blank", or "alone", a word of a script without blanks between words."""
    if character.isspace():
        return "blank"
    if unicodedata.category(character)[0] in "PS":
        return "mark"
    return "alone" if alphabets.script_of(character) in _WITHOUT_BLANKS else "letter"


@functools.lru_cache(8)  # The checks, the features and the rows of a pair ask for the same, one after the other.
def differences(right: str, wrong: str) -> tuple[tuple[Span, Span], ...]:
    """The characters of each sentence that differ from the other's, as whole words; none of them is empty.

    Where one sentence has a word more, the next word of both, or the one before it, is taken for different too.
    """
    spans = words_of(right), words_of(wrong)
    words = [[text[a:b] for a, b in of_text] for text, of_text in zip((right, wrong), spans, strict=True)]
    matched = difflib.SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes()
    merged: list[list[int]] = []
    for kind, *places in matched:
        if kind == "equal":
            continue
        a1, a2, b1, b2 = places
        if a1 == a2 or b1 == b2:  # One has a word more.
            if a2 < len(words[0]) and b2 < len(words[1]):
                a2, b2 = a2 + 1, b2 + 1
            else:
                a1, b1 = max(a1 - 1, 0), max(b1 - 1, 0)
        if merged and a1 <= merged[-1][1]:
            merged[-1][1::2] = a2, b2
        else:
            merged.append([a1, a2, b1, b2])
    return tuple(
        ((spans[0][a1][0], spans[0][a2 - 1][1]), (spans[1][b1][0], spans[1][b2 - 1][1])) for a1, a2, b1, b2 in merged
    )


def split(right: str, wrong: str, tokens: tuple[TokenSpans, TokenSpans]) -> Blanks:
    """The tokens of two sentences that differ, apart from those that both have.

    The differing words, each as a whole, are in the blanks. So are tokens beside them that only one sentence has:
    what is kept is the same for both.

    Args:
      tokens: of the right sentence and of the wrong one.

    Raises:
      ValueError: if the vocabulary has no token for what differs.
    """
    differing = differences(right, wrong)
    assert differing, "sentences with the same words"
    regions = _without_shared_tokens(differing, tokens)
    sides = [_parts(of_side, [region[i] for region in regions]) for i, of_side in enumerate(tokens)]
    kept: list[list[int]] = []
    fillings: tuple[list[list[int]], list[list[int]]] = ([], [])
    last = len(regions)
    for number in range(last + 1):
        before, after = (side[2 * number] for side in sides)
        if number == 0:
            begin = _common(before, after)
            kept.append(before[:begin])
            extra = before[begin:], after[begin:]
        elif number == last:
            count = _common(before[::-1], after[::-1])
            kept.append(before[len(before) - count :])
            fillings[0][-1] += before[: len(before) - count]
            fillings[1][-1] += after[: len(after) - count]
            break
        elif before == after:
            kept.append(before)
            extra = [], []
        else:  # Tokens between two blanks differ: the blanks become one.
            extra = fillings[0].pop() + before, fillings[1].pop() + after
        for side, filled, more in zip(sides, fillings, extra, strict=True):
            filled.append(more + side[2 * number + 1])
    if not all(map(all, fillings)):
        raise ValueError(f"the vocabulary has no token for a word in which {right!r} and {wrong!r} differ")
    return Blanks(kept, fillings)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    equal = [a == b for a, b in zip(first, second, strict=False)]
    return equal.index(False) if False in equal else len(equal)


def _without_shared_tokens(
    regions: Sequence[tuple[Span, Span]], tokens: tuple[TokenSpans, TokenSpans]
) -> list[tuple[Span, Span]]:
    """The regions, with those as one between which a token is shared."""
    merged = list(regions[:1])
    for region in regions[1:]:
        shares = any(begin < merged[-1][i][1] and end > region[i][0] for i in (0, 1) for begin, end in tokens[i].spans)
        if shares:
            first = merged.pop()
            region = ((first[0][0], region[0][1]), (first[1][0], region[1][1]))
        merged.append(region)
    return merged


def _parts(tokens: TokenSpans, regions: Sequence[Span]) -> list[list[int]]:
    """The tokens before the first region, those of it, those between it and the next, and so on."""
    parts: list[list[int]] = [[] for _ in range(2 * len(regions) + 1)]
    for id_, (begin, end) in zip(tokens.ids, tokens.spans, strict=True):
        inside = next((i for i, (a, b) in enumerate(regions) if begin < b and end > a), None)
        before = sum(a < begin for a, _ in regions)
        parts[2 * before if inside is None else 2 * inside + 1].append(id_)
    return parts
