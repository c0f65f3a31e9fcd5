"""Which documents a split has: all of another's, a slice of them, or a share of them by the hash of their text."""

import concurrent.futures
import dataclasses
import re
import zlib

import numpy as np
import pyarrow as pa
import tqdm

from limba.tasks.sources import arrow_tables

_SLICE = re.compile(r"([^\[\]]+)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?(?:\[:(\d+)\])?")
_HASHES = 2**32
EVERYTHING = (0.0, 1.0)
# Footers of Parquet files are small, and their servers are far away.
_COUNTING_THREADS = 16


@dataclasses.dataclass(frozen=True)
class Part:
    """Documents of a split.

    Attributes:
      split: of the source.
      start, stop: a slice, in the order of the files: documents, or percent of them such as "10%"; negative ones count
        from the end. None is the beginning, or the end.
      most: documents, the first of the slice; None for all.
      share: the documents whose hash, a number in [0, 1), lies in `[share[0], share[1])`. The hash is that of the text
        (of the first column), so copies of a document are on the same side, and neither files nor readers matter.
    """

    split: str
    start: int | str | None = None
    stop: int | str | None = None
    share: tuple[float, float] = EVERYTHING
    most: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Part":
        """Of "train", "train[:1%]", "train[1000:2000]", as `datasets` and TensorFlow Datasets write them.

        Behind a slice the first of its documents may be named: "train[5%:][:50]".
        """
        match = _SLICE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a slice of a split; write 'train', 'train[:1%]' or 'train[1000:2000]'.")
        start, stop = (bound if bound is None or bound.endswith("%") else int(bound) for bound in match.groups()[1:3])
        return cls(match[1], start, stop, most=None if match[4] is None else int(match[4]))

    def __str__(self) -> str:
        start, stop = ("" if bound is None else bound for bound in (self.start, self.stop))
        text = f"{self.split}[{start}:{stop}]" if (self.start, self.stop) != (None, None) else self.split
        text += "" if self.most is None else f"[:{self.most}]"
        return text if self.share == EVERYTHING else f"{text} with hashes in [{self.share[0]}, {self.share[1]})"

    @property
    def is_whole(self) -> bool:
        return self == Part(self.split)

    def keeps(self, column: pa.ChunkedArray) -> np.ndarray:
        """Whether each document of a column is in the share: bool `[documents]`."""
        values = column.cast(pa.large_binary()).to_pylist()
        hashes = np.fromiter((zlib.crc32(value or b"") for value in values), np.float64, len(values))
        return (hashes >= self.share[0] * _HASHES) & (hashes < self.share[1] * _HASHES)


def held_out(share: float, split: str = "train", among: int | None = None) -> dict[str, Part]:
    """A corpus that has only one split as "train" and "validation", which are disjoint whoever reads them.

    Args:
      share: of the documents that are held out, such as 0.01, chosen by the hash of their text.
      split: the split of the source.
      among: the validation documents come from this many first documents, and an evaluation reads no more. The other
        documents of the share are in neither split.
    """
    if not 0 < share < 1:
        raise ValueError(f"held_out: the share is {share!r}; it lies between 0 and 1, such as 0.01.")
    return {"train": Part(split, share=(share, 1.0)), "validation": Part(split, stop=among, share=(0.0, share))}


@dataclasses.dataclass(frozen=True)
class ShardRows:
    """Rows `[start, stop)` of the shard with a number; to its end if stop is None."""

    shard: int
    start: int = 0
    stop: int | None = None


def rows_of(part: Part, tables: arrow_tables.Tables) -> list[ShardRows]:
    """The shards of a part and their rows. Reads no further than its last bound.

    Raises:
      ValueError: if the slice needs the number of all documents, and counting them would read a remote corpus.
    """
    start, stop = _bounds(part, tables)
    found = []
    first = 0  # row of the split where the shard begins
    for shard in range(len(tables.shards)):
        uncounted = max(start, stop or 0) - first
        if uncounted <= 0:
            if stop is not None:
                break
            found.append(ShardRows(shard))
            continue
        # One more than the last bound needs tells whether the shard ends there.
        rows = tables.count_rows(shard, at_most=uncounted + 1)
        begin, end = max(0, start - first), rows if stop is None else min(rows, stop - first)
        if begin < end:
            is_to_the_end = stop is None or end == rows <= uncounted
            found.append(ShardRows(shard, begin, None if is_to_the_end else end))
        first += rows
    return found


def _bounds(part: Part, tables: arrow_tables.Tables) -> tuple[int, int | None]:
    start, stop = _bounds_of_slice(part, tables)
    if part.most is None:
        return start, stop
    return start, start + part.most if stop is None else min(stop, start + part.most)


def _bounds_of_slice(part: Part, tables: arrow_tables.Tables) -> tuple[int, int | None]:
    bounds = (part.start, part.stop)
    if all(bound is None or (isinstance(bound, int) and bound >= 0) for bound in bounds):
        return part.start or 0, part.stop  # type: ignore[return-value]
    total = _count_all(part, tables)

    def absolute(bound: int | str) -> int:
        if isinstance(bound, str):
            bound = round(total * int(bound[:-1]) / 100)  # to the nearest, as `datasets` does
        return min(total, max(0, bound + total if bound < 0 else bound))

    return (0 if part.start is None else absolute(part.start)), (None if part.stop is None else absolute(part.stop))


def _count_all(part: Part, tables: arrow_tables.Tables) -> int:
    files = tables.shards
    if not tables.knows_rows() and any(shard.is_remote for shard in files):
        raise ValueError(
            f"The split {str(part)!r} needs the number of all documents, which only Parquet tells without reading "
            f"everything, and {files[0].name!r} is not. Give bounds in documents, such as {part.split}[:10000], or use "
            "splits.held_out."
        )
    with concurrent.futures.ThreadPoolExecutor(_COUNTING_THREADS if tables.knows_rows() else 1) as threads:
        counts = threads.map(tables.count_rows, range(len(files)))
        return sum(tqdm.tqdm(counts, f"counting {part.split}", len(files), unit="file", disable=None))
