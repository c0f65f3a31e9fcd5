"""data_files with addresses: buckets through fsspec, and hf://."""

import importlib

import fsspec
import pytest
from fsspec.implementations import memory

from limba.files import storage
from tasks.sources import corpora
from tasks.sources.remote_files import http_retries
from tests.loopback_hub import LoopbackHub


def _texts(files, **options):
    source = corpora.HuggingFaceSource({"train": files}, **options)
    source.check("train")
    return [document["text"] for documents in source.documents("train") for document in documents]


@pytest.fixture
def bucket(monkeypatch):
    monkeypatch.setattr(memory.MemoryFileSystem, "store", {})
    monkeypatch.setattr(memory.MemoryFileSystem, "pseudo_dirs", [""])
    monkeypatch.setattr(http_retries, "FIRST_WAIT_SECONDS", 0.001)
    return fsspec.filesystem("memory")


def test_a_bucket_is_read_as_the_local_files_whatever_fails(bucket, data_files, monkeypatch):
    local = data_files["train"]
    expected = _texts(local)
    pattern = local if isinstance(local, str) else local[0]
    folder, _, name = str(pattern).rpartition("/")
    bucket.put(f"{folder}/", "/bucket/corpus/", recursive=True)
    opened, failures = memory.MemoryFileSystem._open, iter([True, False, True, True] + [False] * 1000)

    def fails(self, *args, **options):
        if next(failures):
            raise RuntimeError("503")  # a library's own
        return opened(self, *args, **options)

    monkeypatch.setattr(memory.MemoryFileSystem, "_open", fails)
    assert _texts(f"memory://bucket/corpus/{name}") == expected
    assert not next(failures), "the failures came"


def test_what_cannot_be_read_is_named_with_the_way_round(bucket, tmp_path, monkeypatch):
    missing = {"class": "no_such_package.FileSystem", "err": "Please install no_such_package"}
    registry = importlib.import_module("fsspec.registry")
    monkeypatch.setitem(registry.known_implementations, "gs", missing)
    monkeypatch.delitem(registry._registry, "gs", raising=False)
    with pytest.raises(
        ValueError, match=r"'gs://b/a\.jsonl', and nothing here reads gs:// \(Please install no_such_pack"
    ):
        _texts("gs://b/a.jsonl")
    with pytest.raises(ValueError, match="nothing here reads sg://"):
        _texts("sg://b/a.jsonl")
    with pytest.raises(FileNotFoundError, match=r"There is no file 'memory://b/\*\.jsonl'"):
        _texts("memory://b/*.jsonl")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_text("one\n")
    monkeypatch.setattr(storage, "_mounts", [tmp_path])
    assert _texts("gs://b/*.txt") == ["one"]


def test_files_on_the_hub(tmp_path, monkeypatch):
    hub = LoopbackHub()
    hub.use(monkeypatch, tmp_path / "home")
    folder = tmp_path / "corpus" / "ro"
    folder.mkdir(parents=True)
    for i in range(3):
        (folder / f"part-{i}.txt").write_text(f"text {i}\n")
    hub.add("org/corpus", tmp_path / "corpus", private=True)
    try:
        assert _texts("hf://datasets/org/corpus/ro/part-*.txt") == ["text 0", "text 1", "text 2"]
        commit = hub.repos["org/corpus"].sha()
        assert _texts(f"hf://datasets/org/corpus@{commit}/ro/part-1.txt") == ["text 1"]
        with pytest.raises(FileNotFoundError, match=r"has no file 'ro/x' at revision 'main'; it has ro/part-0\.txt"):
            _texts("hf://datasets/org/corpus/ro/x")
        with pytest.raises(
            ValueError, match=r"'hf://org/corpus/a' is no file of a data set: hf://datasets/ORG/NAME/FILE"
        ):
            _texts("hf://org/corpus/a", builder="text")
    finally:
        hub.close()
