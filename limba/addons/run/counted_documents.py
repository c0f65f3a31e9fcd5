"""How many examples a corpus of documents makes, before a training is planned."""

import numpy as np

from limba.files import setting_names
from limba.files.untrusted_files import shown
from limba.tasks.objectives import Objective
from limba.tasks.pretraining import denoising
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.vocabularies import Vocabulary
from limba.tasks.vocabularies.vocabulary import encode_batch

# Documents that are tokenized to estimate the length of all.
_SAMPLE = 20_000


def count_examples(
    source: ShardedSource, split: str, text_column: str, vocabulary: Vocabulary, objective: Objective,
    inputs_length: int,
) -> tuple[int, bool]:  # fmt: skip
    """How many examples one pass over a split makes, and whether that is exact.

    Raises:
      FileNotFoundError, ValueError: as `ShardedSource.check`; also if there is not enough text for one example.
    """
    total, is_exact = count_tokens(source, split, text_column, vocabulary)
    raw_length = objective.raw_length(inputs_length)
    if total < raw_length:
        raise ValueError(
            f"The split {split!r} has {total} tokens, and one example of {inputs_length} inputs takes "
            f"{raw_length}: give more text, or fewer inputs in {setting_names.shown('TASK_FEATURE_LENGTHS', 'inputs')}."
        )
    return total // raw_length, is_exact


def check(source: ShardedSource, split: str, text_column: str) -> None:
    """`ShardedSource.check`, and whether there is a text.

    Raises:
      ValueError: also if the column has numbers, or no document of the split has a text.
    """
    for document in (document for batch in source.documents(split) for document in batch):
        value = document[text_column]
        if not isinstance(value, str | None):
            raise ValueError(
                f"Column {text_column!r} of split {split!r} has {shown(value)}, and documents are texts; the "
                f"columns are {', '.join(map(repr, source.column_names(split)))}: name the one with the texts: "
                f"{setting_names.shown('text_column')}."
            )
        if (value or "").strip():
            return
    raise ValueError(f"No document of split {split!r} has a text: its column {text_column!r} is empty or blank.")


def count_lines(source: ShardedSource, split: str, text_column: str) -> int:
    """The documents of a split that are not blank."""
    return sum(bool((document[text_column] or "").strip()) for batch in source.documents(split) for document in batch)


def documents_of_examples(
    source: ShardedSource, split: str, text_column: str, vocabulary: Vocabulary, raw_length: int, examples: int,
    line_by_line: bool = False,
) -> tuple[int, int]:  # fmt: skip
    """How many of a split's first documents make `examples`, and how many these make: more if the last one is long.

    With `line_by_line` each that is not blank makes one. All documents where they make fewer. Beyond 20,000 documents
    the number follows from the mean length of these.
    """
    num_tokens = num_documents = 0
    for batch in source.documents(split):
        texts = [(document[text_column] or "").encode() for document in batch]
        _, lengths = encode_batch(vocabulary, denoising.without_blanks(texts) if line_by_line else texts)
        if line_by_line:
            lengths, raw_length = np.minimum(lengths, 1), 1
        totals = num_tokens + np.cumsum(lengths)
        last = int(np.searchsorted(totals, examples * raw_length))
        if last < len(batch):
            return num_documents + last + 1, int(totals[last]) // raw_length
        num_documents, num_tokens = num_documents + len(batch), int(totals[-1])
        if num_documents >= _SAMPLE:
            return -(-examples * raw_length * num_documents // max(num_tokens, 1)), examples
    return num_documents, num_tokens // raw_length


def count_tokens(source: ShardedSource, split: str, text_column: str, vocabulary: Vocabulary) -> tuple[int, bool]:
    """The tokens of a split's documents, and whether that is exact.

    Up to 20,000 documents are tokenized; in a larger corpus these give the mean length.
    """
    num_tokens = num_documents = 0
    batches = source.documents(split)
    for batch in batches:
        tokens, _ = encode_batch(vocabulary, [(document[text_column] or "").encode() for document in batch])
        num_tokens += len(tokens)
        num_documents += len(batch)
        if num_documents >= _SAMPLE:
            break
    rest = sum(map(len, batches))
    return num_tokens * (num_documents + rest) // max(num_documents, 1), not rest
