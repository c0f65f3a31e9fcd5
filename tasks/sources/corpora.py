"""The data sources of tasks: local files and URLs, and data sets on the Hugging Face hub."""

import concurrent.futures
import glob
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from limba.files import redaction, storage
from limba.tasks.sources import arrow_tables, dataset_layout, hub_datasets
from limba.tasks.sources import splits as splits_lib
from limba.tasks.sources.remote_files import bucket_files, http_files
from limba.tasks.sources.sharded import ShardedSource, Splits

logger = logging.getLogger(__name__)

# Sizes of files behind URLs, of which a list may have thousands.
_SIZE_THREADS = 16
# Of a data set that has no split but "train", and where the validation documents are looked for.
_HELD_OUT, _HELD_OUT_AMONG = 0.01, 100_000

_Path = str | os.PathLike
DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def files_by_split(data_files: Mapping[str, DataFiles]) -> dict[str, list[str]]:
    """Lists of paths, patterns and URLs.

    Raises:
      ValueError: if a split has no files.
    """
    if not isinstance(data_files, Mapping) or not data_files:
        raise ValueError(
            f"data_files is {data_files!r}; give {{'train': 'train.csv', 'validation': 'validation.csv'}}."
        )
    lists: dict[str, list[str]] = {}
    for split, files in data_files.items():
        several = [files] if isinstance(files, _Path) else files
        if not isinstance(several, list | tuple) or not several or not all(isinstance(file, _Path) for file in several):
            raise ValueError(f"data_files has {files!r} as split {split!r}; give a file, a pattern or a list of them.")
        lists[split] = [redaction.reveal(os.fspath(file)) for file in several]
    return lists


def is_source(data_files: Any) -> bool:
    """Whether it is a source, ours or one of SeqIO's, and not the names of files."""
    return hasattr(data_files, "get_dataset")


def open_source(data_files: Any, text_column: str) -> Any:
    """The source of the texts in files by split; a source is itself. Nothing is read yet."""
    return data_files if is_source(data_files) else HuggingFaceSource(data_files, [text_column])


class HuggingFaceSource(ShardedSource):
    """Files here, in buckets and behind URLs, in any format that Hugging Face's `datasets` streams and texts come in.

    Args:
      data_files: per split a file, a pattern, a URL, or a list of them. Files are shards. URLs are `https://…`;
        `hf://datasets/ORG/NAME[@REVISION]/FILE` and buckets (see `bucket_files`), both also with patterns.
        Credentials in a URL are used and not stored; a signature that was renewed is the same file.
      columns: the columns to read: strings, integers or floats. The first has the text.
      builder: the loader, "json", "parquet", "text", "csv" or "arrow"; or, for any other format, a
        function that takes an open file, decompressed, and yields its documents, each as `{column: value}`. None takes
        the loader from the first file's name.
      splits, chunk_documents, on_broken_shard, hint: see `ShardedSource`.
      load_args: further arguments of `datasets.load_dataset`, such as `{"delimiter": ";"}`.
      nested_columns: columns with lists or records, which are read as well, as JSON text.
      fill: the values of columns that csv files may lack in splits which are neither "train" nor "validation".
    """

    def __init__(
        self,
        data_files: Mapping[str, DataFiles],
        columns: Sequence[str] = ("text",),
        *,
        builder: arrow_tables.Builder | None = None,
        splits: Splits | None = None,
        chunk_documents: int = 1024,
        on_broken_shard: str = "stop",
        hint: str = "",
        load_args: Mapping[str, Any] | None = None,
        nested_columns: Sequence[str] = (),
        fill: Mapping[str, str] | None = None,
    ):
        self._data_files = files_by_split(data_files)
        self._fill = dict(fill or {})
        super().__init__(tuple(data_files), columns, splits, chunk_documents, on_broken_shard, hint, nested_columns)
        self._builder = builder
        self._load_args = dict(load_args or {})
        self._opened: dict[str, arrow_tables.Tables] = {}
        self._remote: dict[str, list[arrow_tables.Shard]] = {}
        self._repositories: dict[tuple[str, str], hub_datasets.Repository] = {}  # whose commits stay

    def __repr__(self) -> str:
        text = f"HuggingFaceSource({self._data_files}, columns={self._columns}, load_args={self._load_args})"
        return redaction.redact(text)

    @property
    def needs_network(self) -> bool:
        return any("://" in file for files in self._data_files.values() for file in files)

    def _tables(self, split: str) -> arrow_tables.Tables:
        if split not in self._data_files:
            raise ValueError(f"There is no split {split!r}; this source has {', '.join(map(repr, self._data_files))}.")
        new = [file for file in self._data_files[split] if file not in self._remote]
        urls = [url for url in new if url.startswith(("http://", "https://"))]
        with concurrent.futures.ThreadPoolExecutor(_SIZE_THREADS) as threads:
            self._remote.update(
                (url, [shard]) for url, shard in zip(urls, threads.map(_remote_shard, urls), strict=True)
            )
        for url in new:
            if url.startswith("hf://"):
                self._remote[url] = self._on_hub(url)
            elif url not in urls and storage.is_remote(storage.mounted(url)):
                self._remote[url] = [arrow_tables.Shard(x.url, x.size, x) for x in bucket_files.find(url)]
        files = tuple(shard for pattern in self._data_files[split] for shard in self._find(pattern, split))
        # Local files may have changed meanwhile.
        if split not in self._opened or self._opened[split].shards != files:
            fill = {} if split in ("train", "validation") else self._fill
            self._opened[split] = arrow_tables.Tables(files, self._builder, self._load_args, self._columns, fill)
        return self._opened[split]

    def _find(self, pattern: str, split: str) -> list[arrow_tables.Shard]:
        if pattern in self._remote:
            return self._remote[pattern]
        pattern = storage.mounted(pattern)
        path = pathlib.Path(pattern).expanduser()
        # A file may be called `a [1].jsonl`.
        found = [str(path)] if path.is_file() else sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207, also absolute
        if not found:
            problem = "No file matches the pattern" if glob.has_magic(pattern) else "There is no file"
            where = f"split {split!r}, working directory {str(pathlib.Path.cwd())!r}"
            brackets = " [1] is a pattern, for the character 1: write [[]1] for the name [1]." if "[" in pattern else ""
            raise FileNotFoundError(f"{problem} {pattern!r} ({where}).{brackets} {self._hint}".rstrip())
        files = [pathlib.Path(file).absolute() for file in found if not pathlib.Path(file).is_dir()]
        if not files:
            example = f"{found[0].rstrip(os.sep)}/*.jsonl"
            raise FileNotFoundError(f"{pattern!r} is a folder (split {split!r}); name its files, such as {example!r}.")
        return [arrow_tables.local_shard(file) for file in files]

    def _on_hub(self, url: str) -> list[arrow_tables.Shard]:
        name, revision, pattern = hub_datasets.parse_url(url)
        if (name, revision) not in self._repositories:
            self._repositories[name, revision] = hub_datasets.Repository.at(name, revision)
        repository = self._repositories[name, revision]
        paths = repository.matching(pattern)
        return [arrow_tables.Shard(f"{name}/{path}", repository.sizes[path], repository.file(path)) for path in paths]


class HubSource(ShardedSource):
    """A data set on the Hugging Face hub, streamed: nothing is stored, and the hub is asked at the first use.

    Args:
      name: of the data set, such as "org/corpus".
      config: its configuration, where it has several, such as "ro".
      columns: the columns to read: strings, integers or floats. The first has the text.
      revision: a branch, a tag or a commit. A name is resolved to its commit once, and the run keeps the
        commit, also when it is resumed after the branch has moved. On several hosts name a commit or a tag.
      data_files: patterns in the repository, or patterns per split, in place of the data set's own splits.
      splits: see `ShardedSource`; None leaves the data set's own, and holds 1 % of "train" out where there is no other.
      chunk_documents, on_broken_shard: see `ShardedSource`.
      token: for private data sets; None takes HF_TOKEN, or the token that `hf auth login` stored.
      load_args, nested_columns: as `HuggingFaceSource`.
    """

    def __init__(
        self,
        name: str,
        config: str | None = None,
        columns: Sequence[str] = ("text",),
        *,
        revision: str = "main",
        data_files: DataFiles | Mapping[str, DataFiles] | None = None,
        splits: Splits | None = None,
        chunk_documents: int = 1024,
        on_broken_shard: str = "stop",
        token: str | None = None,
        load_args: Mapping[str, Any] | None = None,
        nested_columns: Sequence[str] = (),
    ):
        super().__init__((), columns, splits, chunk_documents, on_broken_shard, nested_columns=nested_columns)
        self._name = name
        self._config = config
        self._revision = revision
        self._data_files = data_files
        self._token = token
        self._load_args = dict(load_args or {})
        self._repository: hub_datasets.Repository | None = None
        self._split_files: dataset_layout.SplitFiles | None = None
        self._opened: dict[str, arrow_tables.Tables] = {}

    def __repr__(self) -> str:
        return (
            f"HubSource({self._name!r}, {self._config!r}, {self._columns}, revision={self._revision!r}, "
            f"data_files={self._data_files})"
        )

    @property
    def name(self) -> str:
        """Of the data set on the hub."""
        return self._name

    @property
    def own_splits(self) -> Sequence[str]:
        """Those of the data set itself."""
        return tuple(self._resolve()[1].files)

    @property
    def splits(self) -> Sequence[str]:
        """Those that tasks see: of a data set with nothing but "train", a part of it is "validation"."""
        if not self._splits:
            self._splits = tuple(self.own_splits)
            if self._splits == ("train",) and self._data_files is None:
                self._parts = splits_lib.held_out(_HELD_OUT, among=_HELD_OUT_AMONG)
                self._splits = tuple(self._parts)
                logger.info(
                    "%s has no split but 'train': %g %% of it, by the hash of the text, is held out; 'validation' is "
                    "what is among the first %d documents. HubSource.splits chooses other parts.",
                    self._name,
                    100 * _HELD_OUT,
                    _HELD_OUT_AMONG,
                )
        return self._splits

    @property
    def needs_network(self) -> bool:
        return True

    def _resolve(self) -> tuple[hub_datasets.Repository, dataset_layout.SplitFiles]:
        if self._repository is None:
            self._repository = hub_datasets.Repository.at(self._name, self._revision, self._token)
        if self._split_files is None:
            self._split_files = self._repository.split_files(self._config, self._data_files)
        return self._repository, self._split_files

    def _tables(self, split: str) -> arrow_tables.Tables:
        repository, found = self._resolve()
        if split not in found.files:
            splits = ", ".join(map(repr, found.files))
            raise ValueError(f"There is no split {split!r} in {self._name!r}, only {splits}.")
        if split not in self._opened:
            sizes, paths = repository.sizes, found.files[split]
            files = [arrow_tables.Shard(path, sizes[path], repository.file(path)) for path in paths]
            load_args = {**found.load_args, **self._load_args}
            self._opened[split] = arrow_tables.Tables(files, found.builder, load_args, self._columns)
        return self._opened[split]

    def class_names(self, split: str, column: str) -> tuple[str, ...]:
        """As of a source of files; the card of the data set says it too."""
        return super().class_names(split, column) or self._resolve()[1].class_names.get(column, ())

    def fingerprint(self, split: str) -> dict[str, Any]:
        fingerprint = super().fingerprint(split)
        commit = self._resolve()[0].commit
        return {**fingerprint, "hub": self._name, "config": self._config, "revision": self._revision, "commit": commit}

    def keep_revision(self, fingerprint: Mapping[str, Any]) -> None:
        commit, revision, current = fingerprint.get("commit"), fingerprint.get("revision"), self._resolve()[0].commit
        if not isinstance(commit, str) or not isinstance(revision, str) or fingerprint.get("hub") != self._name:
            return
        if commit != current and revision == self._revision:
            logger.warning(
                "%s: revision %s has moved to commit %s; the run keeps %s, where it began.",
                self._name, self._revision, current, commit,
            )  # fmt: skip
            self._repository = hub_datasets.Repository.at(self._name, commit, self._token)
            self._split_files = None
            for cache in (self._opened, self._rows, self._schemas):
                cache.clear()
        elif commit == current:
            # The same commit under another name.
            self._revision = revision


def _remote_shard(url: str) -> arrow_tables.Shard:
    redaction.require_whole(url, "URL", "Give the whole URL again, as the binding or the key that names these files.")
    name = redaction.without_credentials(url)
    headers = hub_datasets.headers if hub_datasets.is_on_hub(url) else dict
    size = http_files.size_of(url, headers)
    return arrow_tables.Shard(name, size, http_files.RemoteFile(name, url, size, headers))
