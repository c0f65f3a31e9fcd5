"""What every kind of vocabulary is trained with: sampled lines of a corpus, a checked size, and a file to write."""

import dataclasses
import itertools
import logging
import math
import os
import pathlib
import sys
from collections.abc import Iterator

import numpy as np
from tqdm import tqdm

from limba.files import local_paths, written_files
from limba.tasks.sources import blank_texts, corpora
from limba.tasks.vocabularies import alphabets

logger = logging.getLogger(__name__)

# Embedding tables are cut into tiles of 128 rows on a TPU.
MULTIPLE = 128
# SentencePiece skips sentences of more bytes than this.
MAX_SENTENCE_BYTES = 4192
# SentencePiece's ids are int32; no vocabulary of words or pieces comes near it.
_MOST_IDS = 2**24


@dataclasses.dataclass(frozen=True)
class TrainingText:
    """A random sample of the lines of a corpus; it depends on the corpus and these fields only.

    Attributes:
      source, split, text_column: where the text is.
      num_sentences: size of the sample, which is kept in memory.
      max_documents: documents to read, from all shards in turn; None reads the whole split.
      sample_seed: of the sample.

    Raises:
      ValueError: for a number that makes no sense.
    """

    source: corpora.ShardedSource
    split: str = "train"
    text_column: str = "text"
    num_sentences: int = 1_000_000
    max_documents: int | None = None
    sample_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_sentences", "max_documents"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name} is {number}; it is at least 1.")

    def lines(self, *characters: alphabets.Characters) -> list[str]:
        """The sample, in the order of the corpus; `characters` counts those of all documents that are read.

        Raises:
          ValueError: if there is no text, or the column holds something else.
          OSError: if the corpus cannot be read.
        """
        self.source.check(self.split)
        counted = _Documents()
        lines = sample(sentences(self, counted, *characters), self.num_sentences, self.sample_seed)
        if not lines:
            raise ValueError(
                f"Split {self.split!r} has documents, and no text in the column {self.text_column!r}: all lines are "
                "blank."
            )
        if counted.blank:
            first = blank_texts.first(self.source, self.split, self.text_column)
            is_all = counted.count != self.max_documents
            found = blank_texts.BlankTexts(counted.blank, counted.count, is_all, *first)
            logger.warning("%s", found.describe(self.split, self.text_column))
        return lines


@dataclasses.dataclass
class _Documents:
    """Counts documents, and those without a text."""

    count: int = 0
    blank: int = 0

    def add(self, text: str) -> None:
        self.count += 1
        self.blank += not text.strip()


def sentences(text: TrainingText, *characters: alphabets.Characters | _Documents) -> Iterator[str]:
    """Lines of the corpus, from all shards in turn, long ones cut between words; counts their characters on the way."""
    most, count = text.max_documents, 0  # a hidden bar does not count
    with tqdm(desc="reading", unit=" documents", unit_scale=True, total=most, disable=None) as progress:
        for documents in text.source.documents(text.split):
            for document in documents[: None if most is None else most - count]:
                content = document[text.text_column] or ""
                if not isinstance(content, str):
                    raise ValueError(
                        f"Column {text.text_column!r} of split {text.split!r} has {content!r}, which is not text; "
                        "--text_column names the column with the text."
                    )
                for counted in characters:
                    counted.add(content)
                for line in content.splitlines():
                    yield from _cut(line.strip())
                progress.update()
                count += 1
            if count == most:
                return


def sample(lines: Iterator[str], size: int, seed: int) -> list[str]:
    """Up to `size` lines, each as likely as any other, in their order: Li's algorithm L (1994), which draws seldom."""
    rng = np.random.default_rng(seed)
    kept = list(enumerate(itertools.islice(lines, size)))
    weight = 1.0
    number = len(kept) - 1
    while True:
        weight *= rng.random() ** (1 / size)
        # 1 - random() is never 0; a weight below float64's resolution skips more lines than there are.
        skipped = math.log(1 - rng.random()) / math.log1p(-weight) if 0 < weight < 1 else math.inf
        if skipped >= sys.maxsize:
            return [line for _, line in sorted(kept)]
        number += int(skipped) + 1
        line = next(itertools.islice(lines, int(skipped), None), None)
        if line is None:
            return [line for _, line in sorted(kept)]
        kept[rng.integers(size)] = (number, line)


def _cut(line: str) -> Iterator[str]:
    # A character is at most 4 bytes.
    size = MAX_SENTENCE_BYTES // 4
    while len(line) > size:
        end = line.rfind(" ", 1, size)
        end = end if end > 0 else size
        yield line[:end]
        line = line[end:].lstrip()
    if line:
        yield line


def round_up(size: int) -> int:
    return -(-size // MULTIPLE) * MULTIPLE


def check_size(vocab_size: int, included: str) -> None:
    """Raises ValueError for a size that is not a multiple of 128, or too large. `included` are the special ids."""
    if vocab_size % MULTIPLE or vocab_size <= MULTIPLE:
        raise ValueError(
            f"vocab_size is {vocab_size}; it must be a multiple of {MULTIPLE}, {included} included: "
            f"{max(round_up(vocab_size), 2 * MULTIPLE)}."
        )
    if vocab_size > _MOST_IDS:
        raise ValueError(f"vocab_size is {vocab_size}; it is at most {_MOST_IDS:,}. T5 has 32,128, mT5 250,112.")


def check_coverage(character_coverage: float | None) -> None:
    """Raises ValueError for what is no share of the characters."""
    if character_coverage is not None and not 0 < character_coverage <= 1:
        raise ValueError(f"character_coverage is {character_coverage}; it is a share, such as 0.9995 or 1.0.")


def choose_file(out: str | os.PathLike[str], name: str, overwrite: bool) -> pathlib.Path:
    """The absolute path of the file to write; its folder is made.

    Args:
      name: an example of a file's name, for the message.

    Raises:
      FileExistsError: if it is there, without `overwrite`.
      ValueError: if it is a folder.
    """
    path = local_paths.local_path(out)
    if path.is_dir():
        raise ValueError(f"{path} is a directory; name the file to write, such as {path / name}.")
    if path.exists() and not overwrite and not written_files.is_stream(path):
        raise FileExistsError(
            f"{path} exists, and runs that were trained with it cannot resume without it. Choose another --out, or "
            "give --overwrite."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def too_small(split: str, vocab_size: int, possible: int) -> ValueError:
    """The error for a corpus that gives only `possible` ids."""
    largest = possible // MULTIPLE * MULTIPLE
    remedy = f"the largest possible vocab_size is {largest}"
    if largest <= MULTIPLE:
        remedy = f"it makes {possible} ids, and the smallest vocab_size is {2 * MULTIPLE}: give it more text"
    return ValueError(f"The corpus (split {split!r}) is too small for a vocabulary of {vocab_size}; {remedy}.")


def no_room(split: str, vocab_size: int, needed: int) -> ValueError:
    """The error for a vocabulary of fewer ids than the `needed` ones of special tokens and characters."""
    return ValueError(
        f"A vocabulary of {vocab_size} has no room for the characters of split {split!r}; set vocab_size to "
        f"{round_up(needed)} or more, or leave rare characters out with --character_coverage 0.9995 or less."
    )
