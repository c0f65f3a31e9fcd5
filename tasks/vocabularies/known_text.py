"""How much of a text a vocabulary knows."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.sources import corpora
from tasks.vocabularies import alphabets, normalization
from tasks.vocabularies.vocabulary import encode_batch

_BATCH = 512
# Characters in a sentence about the inputs of a model.
_MOST_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Measure:
    """Of the tokens and characters of some texts.

    Attributes:
      texts, tokens, unknown_tokens: how many there are.
      characters: of the texts.
      unknown: the characters that the vocabulary does not know.
      unknown_others: of white space, control characters and those of private use, such as U+0080 of broken UTF-8.
      changed: characters that the vocabulary reads as others, and these.
    """

    texts: int
    tokens: int
    unknown_tokens: int
    characters: alphabets.Characters
    unknown: tuple[str, ...]
    unknown_others: tuple[str, ...]
    changed: Mapping[str, str]

    @property
    def unknown_counts(self) -> dict[str, int]:
        """How often the texts have each character that the vocabulary does not know."""
        counts, others = self.characters.counts, self.characters.other_counts
        return {c: counts[c] for c in self.unknown} | {c: others[c] for c in self.unknown_others}

    @property
    def unknown_characters(self) -> int:
        """How often the texts have one that the vocabulary does not know."""
        return sum(self.unknown_counts.values())

    def describe(self) -> Iterator[str]:
        """Lines with the unknown tokens, of which one may stand for many characters, and with these characters."""
        share = f"{self.unknown_tokens / max(self.tokens, 1):.3%}"
        count = self.unknown_characters
        characters = f"{count:,} unknown character{'s' * (count != 1)}" if count else "no unknown characters"
        tokens = f"{self.tokens:,} tokens, {self.unknown_tokens:,} of them unknown ({share})"
        yield f"{self.texts:,} texts have {characters}, and {tokens}"
        if normalized := normalization.describe(self.changed, self.characters.counts):
            yield f"normalized: {normalized}"
        if self.unknown:
            yield f"unknown: {alphabets.describe(self.unknown, self.characters)}"
        if self.unknown_others:
            yield f"other unknown characters: {alphabets.describe_others(self.unknown_others, self.characters)}"
        if self.unknown_tokens and not count:
            yield "unknown: words as wholes, of known characters"


def measure(vocabulary: Any, texts: Iterable[tuple[str, str]]) -> Measure:
    """Tokenizes texts, each with the place where it is."""
    characters, unk_id = alphabets.Characters(), vocabulary.unk_id
    num_texts = num_tokens = num_unknown = 0
    stream = iter(texts)
    while batch := list(itertools.islice(stream, _BATCH)):
        ids, _ = encode_batch(vocabulary, [text.encode("utf-8", "replace") for text, _ in batch])
        num_texts, num_tokens = num_texts + len(batch), num_tokens + len(ids)
        num_unknown += 0 if unk_id is None else int(np.count_nonzero(ids == unk_id))
        for text, place in batch:
            characters.add(text, place)
    encode = lambda texts: [vocabulary.encode(text) for text in texts]  # noqa: E731
    found, others = (
        tuple(alphabets.unknown(encode, unk_id, counts)) if num_unknown else ()
        for counts in (characters.counts, characters.other_counts)
    )
    changed = normalization.changed(functools.partial(normalization.normalized, vocabulary), characters.counts)
    return Measure(num_texts, num_tokens, num_unknown, characters, found, others, changed)


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
    counts = found.unknown_counts
    ordered = sorted(counts, key=lambda c: (-counts[c], c))
    shown = ", ".join(f"{c!r} {counts[c]:,} time{'s' * (counts[c] != 1)}" for c in ordered[:_MOST_SHOWN])
    more = " …" if len(ordered) > _MOST_SHOWN else ""
    what = (
        f"characters that the vocabulary does not know ({shown}{more})"
        if ordered
        else "words that are unknown as wholes"
    )
    return f"{len(concerned):,} of {len(texts):,} inputs have {what}; the model reads each as unknown."


def texts_of_files(files: list[str], text_column: str, most: int) -> Iterator[tuple[str, str]]:
    """The texts of a column, each with its file and row.

    Raises:
      FileNotFoundError, ValueError, OSError: if they cannot be read, or hold something else.
    """
    source = corpora.HuggingFaceSource({"train": files}, [text_column])
    for file, row, document in itertools.islice(source.numbered_documents("train"), most):
        if isinstance(text := document[text_column], str):
            yield text, f"{file}, row {row}"
        elif text is not None:
            raise ValueError(f"Column {text_column!r} of {file} has {text!r} in row {row}, which is not text.")
