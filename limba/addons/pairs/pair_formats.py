"""What a model of each kind reads of two sentences, and what is scored."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol

from limba.addons.pairs.differing_words import Blanks, split
from limba.addons.pairs.token_spans import TokenSpans
from limba.tasks import objectives
from limba.tasks.objectives import VocabularyIds


class Sentences(NamedTuple):
    """A right sentence and a wrong one, with their tokens."""

    right: str
    wrong: str
    tokens: tuple[TokenSpans, TokenSpans]

    def blanks(self) -> Blanks:
        return split(self.right, self.wrong, self.tokens)


# Tokens of a sentence by feature.
Features = Mapping[str, list[int]]


class PairFormat(Protocol):
    """Makes the features of two sentences, whose targets are scored.

    Attributes:
      features: their names.
      special_tokens: as of an objective.
      needs_sentinels: whether the vocabulary must have some.
    """

    features: ClassVar[tuple[str, ...]]
    special_tokens: ClassVar[tuple[str, ...]]
    needs_sentinels: ClassVar[bool]

    def __call__(self, pair: Sentences, ids: VocabularyIds, mode: list[int]) -> tuple[Features, Features]:
        """The features of the right sentence and of the wrong one; `mode` are tokens in front of the inputs.

        Raises:
          ValueError: as `differing_words.split`; for more blanks than there are sentinels.
        """
        ...


@dataclasses.dataclass(frozen=True)
class FilledBlanks:
    """For encoder-decoders: the differing words are blanks of the inputs, and the targets fill them.

    The targets have the form of span corruption, `<extra_id_0> words <extra_id_1>`. What ends the last filling is the
    next sentinel, or EOS where the sentence ends with the blank. It belongs to the score, because it says that the word
    ends. EOS behind the closing sentinel is left out: in span corruption no example has it there.
    """

    features: ClassVar[tuple[str, ...]] = ("inputs", "targets")
    special_tokens: ClassVar[tuple[str, ...]] = ()
    needs_sentinels: ClassVar[bool] = True

    def __call__(self, pair: Sentences, ids: VocabularyIds, mode: list[int]) -> tuple[Features, Features]:
        found = pair.blanks()
        if len(found.kept) > ids.num_sentinels:
            raise ValueError(
                f"the sentences differ in {len(found.kept) - 1} places, which takes {len(found.kept)} sentinels, and "
                f"the vocabulary has {ids.num_sentinels}"
            )
        sentinels = [[int(sentinel)] for sentinel in ids.sentinels(len(found.kept))]
        inputs = [*mode, *_alternate(found.kept, sentinels[:-1]), ids.eos_id]
        end = sentinels[-1] if found.kept[-1] else [ids.eos_id]
        right, wrong = ([*_alternate(sentinels[:-1], filled), *end] for filled in found.fillings)
        return {"inputs": inputs, "targets": right}, {"inputs": inputs, "targets": wrong}


@dataclasses.dataclass(frozen=True)
class WholeSentences:
    """For language models: the targets are the sentence and EOS."""

    features: ClassVar[tuple[str, ...]] = ("targets",)
    special_tokens: ClassVar[tuple[str, ...]] = ()
    needs_sentinels: ClassVar[bool] = False

    def __call__(self, pair: Sentences, ids: VocabularyIds, mode: list[int]) -> tuple[Features, Features]:
        del mode
        right, wrong = ([*of_sentence.ids, ids.eos_id] for of_sentence in pair.tokens)
        return {"targets": right}, {"targets": wrong}


@dataclasses.dataclass(frozen=True)
class MaskedWords:
    """For masked language models: all pieces of the differing words are masked at once, and are the targets.

    Each sentence has as many masks as its own words have pieces.
    """

    features: ClassVar[tuple[str, ...]] = ("inputs", "targets", "target_positions")
    special_tokens: ClassVar[tuple[str, ...]] = ("mask",)
    needs_sentinels: ClassVar[bool] = False

    def __call__(self, pair: Sentences, ids: VocabularyIds, mode: list[int]) -> tuple[Features, Features]:
        del mode
        assert ids.mask_id is not None
        before, behind = ids.frame
        found = pair.blanks()
        made = []
        for filled in found.fillings:
            masks = [[ids.mask_id] * len(tokens) for tokens in filled]
            inputs = [*before, *_alternate(found.kept, masks), *behind]
            lengths = [len(tokens) for tokens in filled]
            begins = [len(before) + sum(map(len, found.kept[: i + 1])) + sum(lengths[:i]) for i in range(len(filled))]
            places = [begin + i for begin, length in zip(begins, lengths, strict=True) for i in range(length)]
            made.append({"inputs": inputs, "targets": _alternate(filled, []), "target_positions": places})
        return made[0], made[1]


def _alternate(first: list[list[int]], second: list[list[int]]) -> list[int]:
    """The tokens of lists in turn, the first of `first` in front; what one has more stands at the end."""
    joined: list[int] = []
    for i in range(max(len(first), len(second))):
        joined += [*(first[i] if i < len(first) else []), *(second[i] if i < len(second) else [])]
    return joined


def of_objective(objective: objectives.Objective | None) -> PairFormat:
    """The format for a model that was trained with an objective; None is span corruption.

    Raises:
      ValueError: for an objective that teaches to fill no blanks, and is no language model either.
    """
    if objective is None or isinstance(objective, objectives.SpanCorruption | objectives.IidDenoising):
        return FilledBlanks()
    if "mask" in getattr(objective, "special_tokens", ()):
        return MaskedWords()
    if objective.main_feature == "targets":
        return WholeSentences()
    raise ValueError(
        f"A model that learned {objective!r} fills no blanks, so that pairs cannot be scored in its format. Give "
        "objectives.SpanCorruption() for an encoder-decoder with sentinels, FullLM() for a decoder, or MaskedLM()."
    )
