"""What a model reads to score a text, and which tokens of it count: a formula for each kind of score and of model.

A score is a sum of log probabilities, of the targets that count in all rows of a text. A text x has tokens t_1 … t_n,
each of one word (`word_groups`). `x / w` is the text in which a blank, <0>, or a mask for each token stands for w. The
end of a blank, "end", is the next sentinel, or EOS where the text ends.

words: of d, the words in which two sentences differ.
  encoder-decoder: log p(<0> d_1 <1> d_2 … end, given x / d)
  encoder: the sum over tokens of d of log p(t_i, given x / d)
  decoder: the sum over tokens of d of log p(t_i, given t_<i)
whole: of the text.
  encoder-decoder: the sum over words w of log p(w end, given x / w and <0>)
  encoder: the sum over all tokens of log p(t_i, given x / t_i and the later tokens of its word)
  decoder: the sum over all tokens of log p(t_i, given t_<i), and log p(EOS, given t)
pieces: of the text, each token alone; encoders only: the sum over all tokens of log p(t_i, given x / t_i)
continuation: of u, what follows a context c.
  encoder-decoder: log p(u EOS, given c <0> and <0>)
  encoder: the sum over tokens of u of log p(t_i, given c, the tokens of u before i, and masks for the others)
  decoder: the sum over tokens of u of log p(t_i, given t_<i), and log p(EOS, given t)

"pieces" is the pseudo-log-likelihood of arXiv:1910.14659; "whole" of encoders is its within-word left-to-right form of
arXiv:2305.10588, in which the pieces of a long word do not give each other away.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from limba.addons.pairs import differing_words
from limba.addons.pairs.pair_formats import Features
from limba.addons.pairs.token_spans import TokenSpans
from limba.tasks.objectives import VocabularyIds

KINDS = ("words", "whole", "pieces", "continuation")


class ScoredRow(NamedTuple):
    """A row of a model.

    Attributes:
      inputs: of the encoder; [] of a decoder.
      targets: tokens, of which some are scored.
      positions: of an encoder's targets in the inputs; [] of other models.
      weights: 1 for targets whose log probability counts, 0 for others.
    """

    inputs: list[int]
    targets: list[int]
    positions: list[int]
    weights: list[int]


def word_groups(text: str, tokens: TokenSpans) -> list[tuple[int, int]]:
    """The tokens `[begin, end)` of each word, in order; each token is in one group.

    Blanks belong to the word behind them, or at the end to the last one. Words that share a token are one group.
    """
    words = differing_words.words_of(text)
    groups: list[list[int]] = []  # the first token, the end, and the last word
    waiting = word = 0
    for i, (begin, end) in enumerate(tokens.spans):
        while word < len(words) and words[word][1] <= begin:
            word += 1
        if begin == end or word == len(words) or words[word][0] >= end:
            waiting += 1
            continue
        last = word
        while last + 1 < len(words) and words[last + 1][0] < end:
            last += 1
        if groups and word <= groups[-1][2]:
            groups[-1][1:] = i + 1, max(last, groups[-1][2])
        else:
            groups.append([i - waiting, i + 1, last])
        waiting = 0
    if waiting and groups:
        groups[-1][1] += waiting
    elif waiting:
        groups.append([0, waiting, 0])
    return [(begin, end) for begin, end, _ in groups]


class RowMaker(Protocol):
    """Makes the rows of texts for one kind of model."""

    def words(self, features: Features, tokens: TokenSpans, regions: Sequence[differing_words.Span]) -> list[ScoredRow]:
        """Of a sentence of a pair: `features` as `pair_formats` make them, `regions` the characters that differ."""
        ...

    def by_word(self, text: str, tokens: TokenSpans) -> Iterator[list[ScoredRow]]:
        """Of a whole text: the rows of each word; a decoder, which reads it once, has one row for all of them."""
        ...

    def continuation(self, tokens: TokenSpans, begin: int, ends: bool) -> Iterator[ScoredRow]:
        """Of the tokens from number `begin` on, and of the end of the text where `ends`."""
        ...


@dataclasses.dataclass(frozen=True)
class BlankRows:
    """Of encoder-decoders with sentinels; `mode` are tokens in front of the inputs."""

    ids: VocabularyIds
    mode: Sequence[int] = ()

    def words(self, features: Features, tokens: TokenSpans, regions: Sequence[differing_words.Span]) -> list[ScoredRow]:
        del tokens, regions
        return [ScoredRow(features["inputs"], features["targets"], [], [1] * len(features["targets"]))]

    def by_word(self, text: str, tokens: TokenSpans) -> Iterator[list[ScoredRow]]:
        for begin, end in word_groups(text, tokens):
            yield [self._blank(tokens.ids, begin, end, closes=True)]

    def continuation(self, tokens: TokenSpans, begin: int, ends: bool) -> Iterator[ScoredRow]:
        yield self._blank(tokens.ids, begin, len(tokens.ids), closes=ends)

    def _blank(self, ids: list[int], begin: int, end: int, closes: bool) -> ScoredRow:
        first, second = map(int, self.ids.sentinels(2))
        inputs = [*self.mode, *ids[:begin], first, *ids[end:], self.ids.eos_id]
        closing = [second if end < len(ids) else self.ids.eos_id] if closes else []
        targets = [first, *ids[begin:end], *closing]
        return ScoredRow(inputs, targets, [], [0] + [1] * (len(targets) - 1))


@dataclasses.dataclass(frozen=True)
class MaskRows:
    """Of encoders with a masked-LM head."""

    ids: VocabularyIds

    def words(self, features: Features, tokens: TokenSpans, regions: Sequence[differing_words.Span]) -> list[ScoredRow]:
        del tokens, regions
        targets = features["targets"]
        return [ScoredRow(features["inputs"], targets, features["target_positions"], [1] * len(targets))]

    def by_word(self, text: str, tokens: TokenSpans) -> Iterator[list[ScoredRow]]:
        for begin, end in word_groups(text, tokens):
            yield [self._masked(tokens.ids, i, end) for i in range(begin, end)]

    def pieces(self, tokens: TokenSpans) -> Iterator[ScoredRow]:
        for i in range(len(tokens.ids)):
            yield self._masked(tokens.ids, i, i + 1)

    def continuation(self, tokens: TokenSpans, begin: int, ends: bool) -> Iterator[ScoredRow]:
        del ends  # The special tokens around a text are always there.
        for i in range(begin, len(tokens.ids)):
            yield self._masked(tokens.ids, i, len(tokens.ids))

    def _masked(self, ids: list[int], place: int, end: int) -> ScoredRow:
        """The token at a place, where all tokens up to `end` are masked."""
        assert self.ids.mask_id is not None
        before, behind = self.ids.frame
        inputs = [*before, *ids[:place], *[self.ids.mask_id] * (end - place), *ids[end:], *behind]
        return ScoredRow(inputs, [ids[place]], [len(before) + place], [1])


@dataclasses.dataclass(frozen=True)
class LeftToRightRows:
    """Of decoders."""

    ids: VocabularyIds

    def words(self, features: Features, tokens: TokenSpans, regions: Sequence[differing_words.Span]) -> list[ScoredRow]:
        inside = [int(any(a < end and begin < b for begin, end in regions)) for a, b in tokens.spans]
        return [ScoredRow([], features["targets"], [], [*inside, 0])]

    def by_word(self, text: str, tokens: TokenSpans) -> Iterator[list[ScoredRow]]:
        del text
        yield [*self.continuation(tokens, 0, True)]

    def continuation(self, tokens: TokenSpans, begin: int, ends: bool) -> Iterator[ScoredRow]:
        end = [self.ids.eos_id] if ends else []
        weights = [int(i >= begin) for i in range(len(tokens.ids))] + [1] * len(end)
        yield ScoredRow([], [*tokens.ids, *end], [], weights)


def row_maker(form: str, ids: VocabularyIds, mode: Sequence[int] = ()) -> RowMaker:
    """That of a model with a format, a class of `pair_formats`; `mode` is for encoder-decoders."""
    if form == "FilledBlanks":
        return BlankRows(ids, mode)
    return MaskRows(ids) if form == "MaskedWords" else LeftToRightRows(ids)


def usual_kind(form: str) -> str:
    """The kind by which pairs are scored unless another is asked for; of a format, a class of `pair_formats`."""
    return "whole" if form == "WholeSentences" else "words"


def check_kind(kind: str, form: str) -> None:
    """Checks that a kind of score fits a format, a class of `pair_formats`.

    Raises:
      ValueError: for another name; for "pieces" of a model that is no encoder.
    """
    if kind not in KINDS:
        raise ValueError(f"--score is {kind!r}; it is one of {', '.join(KINDS)}.")
    if kind == "pieces" and form != "MaskedWords":
        raise ValueError(
            "--score pieces is for encoders with a masked-LM head: a T5's blank may have any number of pieces, and a "
            "decoder sees nothing behind a piece. Take --score whole."
        )


def of_text(maker: RowMaker, kind: str, text: str, tokens: TokenSpans) -> Iterator[ScoredRow]:
    """The rows of a text that stands alone, for the kinds "whole" and "pieces"."""
    if kind == "pieces":
        assert isinstance(maker, MaskRows), "checked by check_kind"
        return maker.pieces(tokens)
    return itertools.chain.from_iterable(maker.by_word(text, tokens))


def context_length(tokens: TokenSpans, begin: int) -> int:
    """How many tokens lie wholly before a character; blanks before it are of the context."""
    if not begin:  # A vocabulary may put a token for a blank in front of the text: no context is none of that, too.
        return 0
    return next((i for i, (_, end) in enumerate(tokens.spans) if end > begin), len(tokens.ids))
