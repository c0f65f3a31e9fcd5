"""How much of a text a vocabulary knows."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.tasks.vocabularies import alphabets, normalization
from limba.tasks.vocabularies.vocabulary import encode_batch

_BATCH = 512
# Characters in a sentence about the inputs of a model.
_MOST_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Measure:
    """Of the tokens and characters of some texts.

    Attributes:
      texts, tokens, unknown_tokens: how many there are.
      characters: of the texts.
      unknown: of these the ones that the vocabulary does not know.
      changed: characters that the vocabulary reads as others, and these.
    """

    texts: int
    tokens: int
    unknown_tokens: int
    characters: alphabets.Characters
    unknown: alphabets.Unknown
    changed: Mapping[str, str]

    def describe(self) -> Iterator[str]:
        """Lines with the unknown tokens, of which one may stand for many characters, and with these characters."""
        share = f"{self.unknown_tokens / max(self.tokens, 1):.3%}"
        count = self.unknown.number
        characters = f"{count:,} unknown character{'s' * (count != 1)}" if count else "no unknown characters"
        tokens = f"{self.tokens:,} tokens, {self.unknown_tokens:,} of them unknown ({share})"
        yield f"{self.texts:,} texts have {characters}, and {tokens}"
        if normalized := normalization.describe(self.changed, self.characters.counts):
            yield f"normalized: {normalized}"
        yield from self.unknown.describe("unknown", "other unknown characters")
        if self.unknown_tokens and not count:
            yield "unknown: words as wholes, of known characters"


def measure(vocabulary: Any, texts: Iterable[tuple[str, str]]) -> Measure:
    """Tokenizes texts, each with the place where it is."""
    read, unk_id = functools.partial(normalization.normalized, vocabulary), vocabulary.unk_id
    characters = alphabets.Characters(normalization.composed_as(read))
    num_texts = num_tokens = num_unknown = 0
    stream = iter(texts)
    while batch := list(itertools.islice(stream, _BATCH)):
        ids, _ = encode_batch(vocabulary, [text.encode("utf-8", "replace") for text, _ in batch])
        num_texts, num_tokens = num_texts + len(batch), num_tokens + len(ids)
        num_unknown += 0 if unk_id is None else int(np.count_nonzero(ids == unk_id))
        for text, place in batch:
            characters.add(text, place)
    encode = lambda texts: [vocabulary.encode(text) for text in texts]  # noqa: E731
    unknown = alphabets.unknown_of(encode, unk_id if num_unknown else None, characters)
    changed = normalization.changed(read, characters.counts)
    return Measure(num_texts, num_tokens, num_unknown, characters, unknown, changed)


def describe_inputs(vocabulary: Any, texts: Sequence[str]) -> str:
    """A sentence about inputs of a model with characters that its vocabulary does not know; "" if it knows all."""
    unk_id = getattr(vocabulary, "unk_id", None)
    if unk_id is None or not texts:
        return ""
    ids, lengths = encode_batch(vocabulary, [text.encode("utf-8", "replace") for text in texts])
    pieces = np.split(ids, np.cumsum(lengths)[:-1])
    concerned = [text for text, of_text in zip(texts, pieces, strict=True) if (of_text == unk_id).any()]
    if not concerned:
        return ""
    found = measure(vocabulary, ((text, "") for text in concerned))
    counts = found.unknown.counts
    ordered = sorted(counts, key=lambda c: (-counts[c], c))
    shown = ", ".join(f"{c!r} {counts[c]:,} time{'s' * (counts[c] != 1)}" for c in ordered[:_MOST_SHOWN])
    more = " …" if len(ordered) > _MOST_SHOWN else ""
    what = (
        f"characters that the vocabulary does not know ({shown}{more})"
        if ordered
        else "words that are unknown as wholes"
    )
    which = f"{len(concerned):,} of {len(texts):,} inputs have" if len(texts) > 1 else "The text has"
    return f"{which} {what}; the model reads each as unknown."
