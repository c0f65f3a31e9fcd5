"""How a task's documents are dealt to readers, such that each reader has some of which an example is made.

Rows are dealt by their numbers, before anything is known of their texts. Where the rows of one reader are all blank, or
dropped by a preprocessor, or where there are fewer than readers, they are dealt in another way, and in a small corpus
also where one reader has more blank rows than another. Each example is still one reader's alone. All hosts find the
same, from the documents alone.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from limba.tasks.registry import philox, rows
from limba.tasks.registry.rows import Columns

# By numbers; by numbers of which each group of rows begins with the next reader; or all readers read everything, and
# each keeps its part of the examples, which takes as many times the work as there are readers.
ROWS, ROTATED_ROWS, EXAMPLES = "rows", "rotated rows", "examples"


def choose(ways: Iterable[str], has_examples: Callable[[str, int], bool], num_readers: int) -> str:
    """The first of some ways in which every reader has examples, or by examples.

    Args:
      has_examples: of a way and a reader.
    """
    full = (way for way in ways if all(has_examples(way, reader) for reader in range(num_readers)))
    return next(full, EXAMPLES)


def part_of(blocks: Iterable[Columns], reader: int, num_readers: int) -> Iterator[Columns]:
    """A reader's examples of all: of a group of documents each `num_readers`-th, from one that follows from the group.

    Args:
      blocks: of a group each, with positions, whose last number becomes that among the reader's.
    """
    for block in blocks:
        position = block["position"]
        first = (reader - philox.hash_numbers(position[0, :-1].tolist())) % num_readers
        if first < len(position):
            part = rows.take(block, slice(first, None, num_readers))
            numbered = np.array(part["position"])
            numbered[:, -1] = np.arange(len(numbered))
            yield {**part, "position": numbered}
