"""The files of a recipe's sources: found, opened once, and read by datatrove's readers."""

import dataclasses
import glob
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.readers.base import BaseDiskReader

from limba.addons.corpus.recipe_file import Recipe, Source
from limba.addons.corpus.row_readers import KEPT, LinesReader, PagesReader, ParquetReader, RowsReader, TableReader
from limba.files import untrusted_files
from limba.files.untrusted_files import cut

_PACKED = (".gz", ".zst")


# By the ends of names. Readers of WARC come first: their pages become text before other readers add theirs.
READERS: dict[str, type[BaseDiskReader]] = {
    ".warc": PagesReader,
    ".jsonl": RowsReader,
    ".ndjson": RowsReader,
    ".json": RowsReader,
    ".parquet": ParquetReader,
    ".csv": TableReader,
    ".txt": LinesReader,
}


@dataclasses.dataclass(frozen=True)
class Files:
    """Files of one kind of one source.

    Attributes:
      ending: a key of `READERS`.
      root: the folder, or the store, that `paths` begin at.
      sizes: of the files, in bytes, with the times of their last changes on this machine; what a restart compares.
    """

    source: Source
    ending: str
    root: str
    paths: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]


def find(sources: Sequence[Source], file: Path) -> list[Files]:
    """The files of all sources, by the order of `READERS`.

    Args:
      file: the recipe, for messages.

    Raises:
      FileNotFoundError: for a pattern without a file.
      ValueError: for a file of no known kind, or with a line break in its name.
    """
    found = []
    for source in sources:
        paths = [path for pattern in source.files for path in _matches(pattern, f"{file}: {source.name}")]
        for path in paths:
            _check_name(path, f"{file}: {source.name}")
        of_kind: dict[tuple[str, str], list[str]] = {}
        for path in dict.fromkeys(paths):
            of_kind.setdefault((_ending(path, f"{file}: {source.name}"), _root(path)), []).append(path)
        for (ending, root), group in of_kind.items():
            relative = tuple(path.removeprefix(root).lstrip("/") for path in group)
            found.append(Files(source, ending, root, relative, tuple(map(_size, group))))
    order = list(READERS)
    return sorted(found, key=lambda files: order.index(files.ending))


def _matches(pattern: str, where: str) -> list[str]:
    if "://" in pattern:
        import fsspec

        protocol = pattern.partition("://")[0]
        paths = [f"{protocol}://{path}" for path in sorted(fsspec.filesystem(protocol).glob(pattern))]
    elif glob.has_magic(pattern) and not Path(pattern).exists():
        found = glob.iglob(pattern, recursive=True)  # noqa: PTH207 - Path.glob has no absolute patterns
        paths = sorted(str(Path(path).resolve()) for path in found if Path(path).is_file())
    else:
        untrusted_files.check_is_file(Path(pattern).expanduser())
        paths = [str(Path(pattern).expanduser().resolve())]
    if not paths:
        raise FileNotFoundError(f"{where}: no file is named {pattern} (working directory {Path.cwd()}).")
    return paths


def _check_name(path: str, where: str) -> None:
    """datatrove reads names from a file, one a line without blanks around it: others would name another file."""
    if path != path.strip() or not path.isprintable():
        raise ValueError(
            f"{where}: the name '{cut(path)}' has a line break or another character that cannot be shown; rename it."
        )


def _ending(path: str, where: str) -> str:
    name = PurePosixPath(path).name
    plain = next((name.removesuffix(end) for end in _PACKED if name.endswith(end)), name)
    ending = PurePosixPath(plain).suffix
    if ending not in READERS:
        raise ValueError(
            f"{where}: {cut(path)} is of no known kind; there are {', '.join(READERS)}, also {', '.join(_PACKED)}."
        )
    return ending


def _root(path: str) -> str:
    protocol, separator, rest = path.partition("://")
    return f"{protocol}://{rest.partition('/')[0]}" if separator else "/"


def _size(path: str) -> tuple[int, int]:
    if "://" in path:
        import fsspec

        return int(fsspec.filesystem(path.partition("://")[0]).size(path) or 0), 0
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns


def _own_columns(reader: BaseDiskReader, data: Any, path: str, number: int | str) -> dict[str, Any]:
    """Of a row, the text and where it comes from.

    A writer takes names of files from what a document has: columns of others must not come so far.
    """
    text = data.get(reader.text_key)
    kept = {key: str(data[key]) for key in KEPT if isinstance(data.get(key), str)}
    return {"text": text if isinstance(text, str) else "", "id": f"{path}/{number}", "metadata": kept}


def reader(files: Files, list_file: Path, limit: int = -1) -> PipelineStep:
    """datatrove's reader of some files.

    Args:
      list_file: to write: the names of the files, which readers deal to the tasks.
      limit: of documents, for each task; -1 reads all.
    """
    list_file.write_text("".join(f"{path}\n" for path in files.paths), encoding="utf-8")
    return READERS[files.ending](
        files.root,
        paths_file=str(list_file),
        limit=limit,
        adapter=_own_columns,
        text_key=files.source.text_column,
        default_metadata={"source": files.source.name},
    )


def beside(recipe: Recipe) -> list[Files]:
    """The files of the trusted sample and of the evaluations, as `find`."""
    named = {"trusted": recipe.trusted, "evaluation_files": recipe.evaluation_files}
    return find([Source(name, files, "text", "", "") for name, files in named.items() if files], recipe.file)


def state(path: Path) -> tuple[int, int]:
    """The size of a file, and the time of its last change. Raises FileNotFoundError, ValueError: if it is no file."""
    untrusted_files.check_is_file(path)
    return _size(str(path))


def check_first(found: Sequence[Files], recipe: Recipe) -> None:
    """Raises ValueError for a source whose first file has no document with text, or cannot be read."""
    for files in found:
        first = dataclasses.replace(files, paths=files.paths[:1], sizes=files.sizes[:1])
        name = os.path.join(files.root, files.paths[0])  # noqa: PTH118 - an address, too
        where = f"{recipe.file}: {cut(name)}, of {files.source.name},"
        try:
            with tempfile.TemporaryDirectory() as folder:
                document = next(iter(reader(first, Path(folder, "first.txt"), limit=1).run()), None)
        except Exception as error:
            raise ValueError(f"{where} cannot be read: {cut(str(error)) or type(error).__name__}.") from error
        if document is None:
            column = "" if files.ending in (".txt", ".warc") else f" in a column {files.source.text_column!r}"
            raise ValueError(f"{where} has no document with text{column}; name the column as text_column.")
