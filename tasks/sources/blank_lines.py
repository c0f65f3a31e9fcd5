"""Whether a text has blank lines between its documents, as most texts have; the readers of a split must share them."""

import itertools
from collections.abc import Sequence

from limba.tasks.sources import arrow_tables, chunks, splits

# Lines that are looked at: most texts have a blank one among the first hundred.
_MOST_LINES = 20_000


def are_in(tables: arrow_tables.Tables, rows: Sequence[splits.ShardRows]) -> bool:
    """Whether one of the first lines of a split is blank; of files that are far away, of the first lines of the first.

    Raises:
      BrokenFileError: if they cannot be read.
    """
    if tables.builder != "text":
        return False
    looked_at = 0
    for row in rows:
        try:
            found = tables.open(row.shard, 1024, row.start)[1]
            for table in itertools.islice(found, 1) if tables.shards[row.shard].is_remote else found:
                if not all(text and text.strip() for text in table.column("text").to_pylist()):
                    return True
                looked_at += table.num_rows
                if looked_at >= _MOST_LINES:
                    return False
        except chunks.UNREADABLE as error:
            raise chunks.broken(tables.shards[row.shard], row.start, error, ["text"]) from error
        if tables.shards[row.shard].is_remote:
            return False
    return False
