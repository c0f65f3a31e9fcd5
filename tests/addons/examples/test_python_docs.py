import hashlib
import json
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest

from limba.addons.examples import python_docs


def test_clean():
    text = """Return the *first* item of :class:`list`, see :func:`~mod.f`.

    >>> first([1])
    1

    ========  =====
    a         b

    Uses ``x`` as the
    default value::
    """
    assert python_docs.clean(text) == "Return the first item of list, see mod.f.\nUses x as the default value"


@pytest.fixture
def part_of_the_library(tmp_path_factory, monkeypatch):
    """Modules without packages, and three of those: a fifth of the bytes."""
    library, part = Path(python_docs.sysconfig.get_path("stdlib")), tmp_path_factory.mktemp("library")
    for folder in (".", "asyncio", "email", "pydoc_data"):
        (part / folder).mkdir(exist_ok=True)
        for file in (library / folder).glob("*.py"):
            shutil.copy(file, part / folder)
    monkeypatch.setattr(python_docs.sysconfig, "get_path", lambda name: str(part))


def test_corpus(tmp_path, part_of_the_library):
    counts = python_docs.write_corpus(tmp_path)
    texts = {}
    for split in ("train", "validation"):
        shards = sorted(tmp_path.glob(f"{split}-*.jsonl"))
        lines = [json.loads(line)["text"] for shard in shards for line in shard.open(encoding="utf-8")]
        tables = [pyarrow.parquet.read_table(shard.with_suffix(".parquet")) for shard in shards]
        assert [text for table in tables for text in table.column("text").to_pylist()] == lines
        assert len(lines) == len(set(lines)) == counts[split]
        texts[split] = set(lines)
    assert not texts["train"] & texts["validation"]
    # 1.3 million of 3.11; the whole library has 3 million, and Debian's 2.2.
    assert sum(len(text) for text in texts["train"]) > 1_000_000
    assert all(int(hashlib.sha256(text.encode()).hexdigest(), 16) % 20 == 0 for text in texts["validation"])
    sizes = [shard.stat().st_size for shard in tmp_path.glob("train-*.jsonl")]
    assert len(sizes) == 8 and max(sizes) < 1.05 * min(sizes)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert python_docs.write_corpus(tmp_path) == counts
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


def test_no_sources_is_said_plainly(tmp_path, monkeypatch):
    monkeypatch.setattr(python_docs.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no sources of its standard library"):
        python_docs.write_corpus(tmp_path / "out")
    assert not (tmp_path / "out").exists()
