"""Notices documents of which no example is made: an endless stream of them would wait for ever."""

from collections.abc import Iterable, Iterator

from tasks.registry import rows
from tasks.registry.rows import Columns, Rows


class EmptyEpochs:
    """Compares the documents of an endless stream with the examples that are made of them, group by group.

    Args:
      message: of the error.
    """

    def __init__(self, message: str):
        self._message = message
        # The epochs of the first and the last document since an example was made.
        self._since: tuple[int, int] | None = None

    def groups(self, groups: Iterable[Rows]) -> Iterator[Rows]:
        """The groups of documents, before they are preprocessed.

        Raises:
          ValueError: if no example was made of the documents of a whole epoch.
        """
        for group in groups:
            if self._since is not None and self._since[1] >= self._since[0] + 2:
                raise ValueError(self._message)
            epochs = group.document[:, 0]
            self._since = int(epochs[0]) if self._since is None else self._since[0], int(epochs[-1])
            yield group

    def examples(self, blocks: Iterable[Columns]) -> Iterator[Columns]:
        """The examples, each block made of the last group that was taken."""
        for block in blocks:
            if rows.num_rows(block):
                self._since = None
                yield block
