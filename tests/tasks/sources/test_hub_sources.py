"""Tasks that stream data sets of a hub on the loopback, whole and broken."""

import gzip
import itertools
import json
import multiprocessing
import os
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from limba.addons.cache import write_cache
from limba.data import contract
from limba.inference import tasks_door
from tasks import preview
from tasks.pipeline import task_batches
from tasks.pretraining import pretraining_tasks
from tasks.registry import TaskRegistry
from tasks.sources import corpora, hub_datasets, splits
from tasks.sources.remote_files import http_files, http_retries
from tasks.vocabularies import ByteVocabulary
from tests.loopback_hub import TOKEN, LoopbackHub

CORPUS = "org/corpus"
COLUMNS = "org/columns"
SHARD_ROWS = (40, 3, 25, 60, 17, 31, 24)
CARD = """---
configs:
- config_name: gz
  data_files:
  - split: train
    path: gz/part-*.json.gz
  - split: test
    path: gz/other.json.gz
- config_name: small
  data_files: gz/part-1.json.gz
---
A corpus.
"""


@pytest.fixture
def folder(tmp_path, make_document):
    """Two data sets with the same documents: gzipped JSON-lines with a card, and Parquet without one."""
    folder = tmp_path / "data"
    for name in ("corpus/gz", "columns"):
        (folder / name).mkdir(parents=True)
    (folder / "corpus/README.md").write_text(CARD, "utf-8")
    for shard, rows in enumerate(SHARD_ROWS):
        documents = [make_document(shard, row) for row in range(rows)]
        lines = "".join(json.dumps(document) + "\n" for document in documents)
        (folder / f"corpus/gz/part-{shard}.json.gz").write_bytes(gzip.compress(lines.encode()))
        table = pa.Table.from_pylist([document | {"unused": os.urandom(200)} for document in documents])
        pa.parquet.write_table(table, folder / f"columns/part-{shard}.parquet", row_group_size=11)
    (folder / "corpus/gz/other.json.gz").write_bytes(gzip.compress(b'{"text": "another split"}\n'))
    return folder


def hurry():
    """Failed requests are repeated at once."""
    http_retries.FIRST_WAIT_SECONDS, http_retries.LONGEST_WAIT_SECONDS = 0.001, 0.002


class HurriedSource(corpora.HubSource):
    """Hurries in a reader's process too."""

    def __setstate__(self, state):
        self.__dict__.update(state)
        if multiprocessing.parent_process() is not None:  # Here the fixture does it, and ends it.
            hurry()


@pytest.fixture
def loopback(monkeypatch, tmp_path, folder):
    hub = LoopbackHub()
    hub.use(monkeypatch, tmp_path / "home")
    # Readers' processes have it from here.
    for name, value in hub.environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    hub.add(CORPUS, folder / "corpus", private=True)
    hub.add(COLUMNS, folder / "columns", private=True)
    for name in ("FIRST_WAIT_SECONDS", "LONGEST_WAIT_SECONDS"):
        monkeypatch.setattr(http_retries, name, getattr(http_retries, name))  # which undoes `hurry`
    hurry()
    yield hub
    hub.close()


def register(name, source):
    return pretraining_tasks.register_pretraining_task(
        name, data_files=source, vocabulary=ByteVocabulary(extra_ids=100), shuffle_buffer_size=100
    )


def open_batches(task, lengths, **options):
    options = {"split": "train", "batch_size": 8, "num_readers": 2, "seed": 3, **options}
    options = {"mixture_or_task_name": task.name, "task_feature_lengths": lengths, **options}
    return task_batches.get_train_batches(contract.DatasetConfig(**options))


def take(batches, count):
    return [next(batches) for _ in range(count)]


def assert_equal(first, second):
    for a, b in zip(first, second, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def texts(source, split="train"):
    return [document["text"] for documents in source.documents(split) for document in documents]


def a_quarter(seed, *faults):
    """Every fourth request fails, at random, in one of the ways."""
    rng = random.Random(seed)
    return lambda asked: rng.choice(faults) if rng.random() < 0.25 else None


# ------------------------------------------------- without faults -------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "config", "local", "num_workers"),
    [
        (CORPUS, "gz", "corpus/gz/part-*.json.gz", 0),
        (CORPUS, "gz", "corpus/gz/part-*.json.gz", 2),
        (COLUMNS, None, "columns/part-*.parquet", 0),
    ],
)
def test_batches_equal_those_of_local_files_whatever_a_quarter_of_requests_does(
    loopback, folder, name, config, local, lengths, num_workers
):
    """Over three epochs, and with the position saved and restored on the way."""
    local_task = register("test_local", corpora.HuggingFaceSource({"train": folder / local}, chunk_documents=8))
    expected = take(open_batches(local_task, lengths), 60)
    # Requests are counted from the first on, those of the layout included.
    loopback.fault = a_quarter(1, 429, 500, 502, 503, 504, "drop")
    task = register("test_hub", HurriedSource(name, config, chunk_documents=8, splits={"train": "train"}))
    batches = open_batches(task, lengths, num_workers=num_workers)
    first = take(batches, 20)
    state = batches.save_state()
    assert_equal(first + take(batches, 40), expected)
    batches = open_batches(task, lengths, num_workers=num_workers)
    batches.restore_state(state)
    assert_equal(take(batches, 40), expected[20:])
    assert sum(asked.startswith("GET /datasets/") for asked in loopback.requests) > 50


def test_layout_is_that_of_datasets(loopback, tmp_path):
    """With another card-less repository, whose splits are in the names of its files."""
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("train-00000", "train-00001", "validation", "test"):
        (plain / f"{name}.jsonl").write_text(json.dumps({"text": name}) + "\n", "utf-8")
    loopback.add("org/plain", plain)
    loopback.page_size = 2
    names = [(CORPUS, "gz"), (CORPUS, "small"), (COLUMNS, None), ("org/plain", None)]
    program = (
        "import datasets, json, sys\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    loaded = datasets.load_dataset(*name, streaming=True)\n"
        "    print(json.dumps({split: [row['text'] for row in rows] for split, rows in loaded.items()}))\n"
    )
    environment = os.environ | loopback.environment(tmp_path / "home") | {"HF_DATASETS_OFFLINE": "0"}
    arguments = [sys.executable, "-c", program, json.dumps(names)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for (name, config), line in zip(names, done.stdout.splitlines(), strict=True):
        expected = json.loads(line)
        source = corpora.HubSource(name, config)
        assert set(source.own_splits) == set(expected)
        for split, rows in expected.items():
            whole = corpora.HubSource(name, config, splits={split: split})
            assert sorted(texts(whole, split)) == sorted(rows), (name, split)


def test_a_list_of_files_ends(loopback, monkeypatch):
    loopback.page_size = 1
    monkeypatch.setattr(hub_datasets, "_MOST_PAGES", 2)
    with pytest.raises(ValueError, match=rf"lists the files of '{CORPUS}' on more than 2 pages"):
        _ = corpora.HubSource(CORPUS, "small").own_splits


@pytest.mark.parametrize(
    ("info", "entries", "words"),
    [
        ({"sha": "../x"}, [], r"revision/main has '\.\./x' for sha, which is no commit"),
        ({}, [], "has 'None' for sha, which is no commit"),
        ({"sha": "a" * 40}, {"a": 1}, "lists None with None bytes, which is no file"),
        ({"sha": "a" * 40}, [None], "lists None with None bytes"),
        ({"sha": "a" * 40}, [{"type": "file", "size": 1}], "lists None with 1 bytes"),
        ({"sha": "a" * 40}, [{"type": "file", "path": "a.jsonl", "size": "x"}], "lists 'a.jsonl' with 'x' bytes"),
        ({"sha": "a" * 40}, [{"type": "file", "path": "a.jsonl", "size": -5}], "lists 'a.jsonl' with -5 bytes"),
    ],
)
def test_what_no_hub_answers_is_one_message(info, entries, words, loopback, monkeypatch):
    pages = {"revision": info, "tree": entries}
    content = {name: json.dumps(page).encode() for name, page in pages.items()}
    monkeypatch.setattr(
        http_files, "fetch", lambda url, _: http_files.Document(content["tree" if "/tree/" in url else "revision"], "")
    )
    with pytest.raises(ValueError, match=words):
        hub_datasets.Repository.at(CORPUS, "main")


def test_a_document_that_crawls_is_given_up(loopback, monkeypatch):
    monkeypatch.setattr(http_files, "SLOW_AFTER_SECONDS", -(10**6))
    monkeypatch.setattr(http_retries, "MAX_FAILURES_AT_START", 1)
    with pytest.raises(http_files.BrokenFileError, match=r"a request failed, the last with .*only \d+ bytes"):
        hub_datasets.Repository.at(CORPUS, "main")


def test_data_files_in_place_of_the_layout(loopback):
    source = corpora.HubSource(CORPUS, data_files={"train": "gz/part-[01].*", "validation": "gz/other*"})
    assert source.list_shards("train") == ["gz/part-0.json.gz", "gz/part-1.json.gz"]
    assert texts(source, "validation") == ["another split"]


def test_urls(loopback, make_document, places):
    """With the token, as they are on the hub; and of a server that sends files only whole, which JSON does with."""
    sha = loopback.repos[CORPUS].sha()
    base, columns = (f"{loopback.url}/datasets/{name}/resolve/{sha}" for name in (CORPUS, COLUMNS))
    expected = sorted(make_document(*place)["text"] for place in places)
    for has_ranges in (True, False):
        loopback.has_ranges = has_ranges
        loopback.fault = a_quarter(2, 503, "drop")
        source = corpora.HuggingFaceSource({"train": [f"{base}/gz/part-{i}.json.gz" for i in range(7)]})
        assert sorted(texts(source)) == expected
    with pytest.raises(http_files.BrokenFileError, match=r"does not send parts of files"):
        texts(corpora.HuggingFaceSource({"train": f"{columns}/part-0.parquet"}))
    loopback.fault = lambda asked: None
    with pytest.raises(FileNotFoundError, match=r"gone\.jsonl answers with HTTP status 404"):
        corpora.HuggingFaceSource({"train": f"{base}/gone.jsonl"}).check("train")


def test_parquet_reads_only_its_columns_and_from_its_row_group_on(loopback, folder, monkeypatch):
    monkeypatch.setattr(http_retries, "FIRST_WAIT_SECONDS", 0.0)
    (folder / "big").mkdir()
    rows = [{"text": f"text {row}", "unused": os.urandom(2000)} for row in range(1000)]
    pa.parquet.write_table(pa.Table.from_pylist(rows), folder / "big/big.parquet", row_group_size=100)
    loopback.add("org/big", folder / "big")
    size = (folder / "big/big.parquet").stat().st_size
    source = corpora.HubSource("org/big", data_files={"train": "big.parquet"}, chunk_documents=100)
    tables = source._open("train")[0]
    first, read = tables.open(0, 100, 850)
    assert first == 800
    assert [text for table in read for text in table.column("text").to_pylist()] == [
        f"text {i}" for i in range(800, 1000)
    ]
    assert size > 2_000_000
    assert loopback.served_bytes < 150_000  # the footer, and the texts of two groups


# -------------------------------------------------- with faults ---------------------------------------------------


def breaks(part):
    return lambda asked: 503 if part in asked and asked.startswith("GET /datasets/") else None


def test_a_shard_that_stays_broken_stops_with_its_name(loopback, lengths):
    task = register("test_broken", HurriedSource(CORPUS, "gz", chunk_documents=8))
    batches = open_batches(task, lengths)
    loopback.fault = breaks("part-3")
    message = (
        r"BrokenFileError: Shard gz/part-3\.json\.gz cannot be read from row \d+ on \(.*14 requests.*HTTP status 503"
    )
    with pytest.raises(RuntimeError, match=message):
        take(batches, 60)
    asked = [asked for asked in loopback.requests if "part-3" in asked]
    assert 14 < len(asked) <= 1 + 14 * 2  # It is counted, and each reader opens it for itself.


def test_a_broken_shard_is_skipped_and_counted(loopback, caplog):
    source = corpora.HubSource(CORPUS, "gz", chunk_documents=8, on_broken_shard="skip")
    source.check("train")
    loopback.fault = breaks("part-3")
    read = source.chunks_of("train", shuffle=True, seed=1).documents(num_epochs=2)
    seen = [tuple(document) for chunk in read for document in chunk.document.tolist()]
    assert sorted(seen) == [
        (epoch, shard, row)
        for epoch in (0, 1)
        for shard, rows in enumerate(SHARD_ROWS)
        for row in range(rows)
        if shard != 3
    ]
    skipped = [record.getMessage() for record in caplog.records if "Skipped" in record.getMessage()]
    assert "number 2 in this process: Shard gz/part-3.json.gz cannot be read from row 0 on" in skipped[-1]


def test_a_corpus_that_breaks_in_the_middle_leaves_no_cache(loopback, tmp_path, capsys):
    """Nor a traceback: what TensorFlow wraps is one sentence."""
    loopback.repos[CORPUS].files["gz/part-3.json.gz"] = gzip.compress(b'{"text": "a"}\nnot JSON\n')
    register("test_middle", corpora.HubSource(CORPUS, "gz", chunk_documents=8))
    message = r"^error: Reading 'test_middle' failed after \d+ windows: BrokenFileError: Shard gz/part-3\.json\.gz"
    with pytest.raises(SystemExit, match=message):
        write_cache.main(["test_middle", "--sequence_length", "inputs=64,targets=14", "--out", str(tmp_path / "cache")])
    assert not list((tmp_path / "cache").iterdir())
    with pytest.raises(http_files.BrokenFileError, match=r"Shard gz/part-3\.json\.gz cannot be read"):
        open_batches(TaskRegistry.get("test_middle"), {"inputs": 64, "targets": 14})
    with pytest.raises(SystemExit, match="BrokenFileError: Shard"):
        preview.main(["test_middle", "--inputs_length", "64"])
    assert "limba-shard" not in capsys.readouterr().err


def test_damaged_content_names_the_shard(loopback, folder):
    whole = (folder / "corpus/gz/part-0.json.gz").read_bytes()
    loopback.repos[CORPUS].files["gz/part-0.json.gz"] = whole[:-30]
    source = corpora.HubSource(CORPUS, "gz")
    with pytest.raises(http_files.BrokenFileError, match=r"Shard gz/part-0\.json\.gz cannot be read from row 0 on"):
        texts(source)


# -------------------------------------------------- revisions -----------------------------------------------------


def change(loopback):
    files = loopback.repos[CORPUS].files
    changed = {name: gzip.compress(b'{"text": "newer"}\n') for name in files if name.startswith("gz/part")}
    loopback.repos[CORPUS].commits.append(files | changed)


@pytest.mark.parametrize("saved", [{"commit": 5}, {"commit": ["x"]}, {"commit": "x"}, {"commit": "x", "revision": {}}])
def test_a_saved_revision_of_other_types_is_no_revision(loopback, saved):
    source = HurriedSource(CORPUS, "gz")
    commit = source.fingerprint("train")["commit"]
    source.keep_revision({"hub": CORPUS, **saved})
    assert (source.fingerprint("train")["commit"], source.fingerprint("train")["revision"]) == (commit, "main")


def test_a_run_keeps_its_commit_when_the_branch_moves(loopback, lengths, caplog):
    commit = loopback.repos[CORPUS].sha()
    task = register("test_moving", HurriedSource(CORPUS, "gz", chunk_documents=8))
    expected = take(open_batches(task, lengths), 50)
    batches = open_batches(task, lengths, num_workers=1)
    take(batches, 10)
    change(loopback)
    assert_equal(take(batches, 40), expected[10:])
    state = batches.save_state()
    assert task.source.fingerprint("train")["commit"] == commit

    # Another process finds the branch elsewhere, and goes back.
    TaskRegistry.remove("test_moving")
    again = register("test_moving", HurriedSource(CORPUS, "gz", chunk_documents=8, splits={"train": "train"}))
    newer, config = loopback.repos[CORPUS].sha(), contract.DatasetConfig(task.name, lengths, "train", 8, seed=3)
    assert again.source.fingerprint("train")["commit"] == newer != commit
    assert tasks_door.facts(config)["source of test_moving"] == f"{CORPUS} at commit {newer}"
    batches = open_batches(again, lengths, num_workers=1)
    batches.restore_state(state)
    assert tasks_door.facts(config)["source of test_moving"] == f"{CORPUS} at commit {commit}"
    assert f"revision main has moved to commit {loopback.repos[CORPUS].sha()}; the run keeps {commit}" in caplog.text
    assert again.source.fingerprint("train")["commit"] == commit
    assert_equal(take(batches, 5), take(_from(task, lengths, state), 5))

    # Another revision that was asked for is refused.
    TaskRegistry.remove("test_moving")
    other = register("test_moving", corpora.HubSource(CORPUS, "gz", chunk_documents=8, revision=newer))
    with pytest.raises(ValueError, match=f"commit was '{commit}' and is '{newer}'"):
        open_batches(other, lengths).restore_state(state)


def _from(task, lengths, state):
    batches = open_batches(task, lengths, mixture_or_task_name=task)
    batches.restore_state(state)
    return batches


# --------------------------------------------------- errors -------------------------------------------------------


def test_errors(loopback, tmp_path, monkeypatch):
    def error_of(*arguments, **options):
        with pytest.raises((ValueError, FileNotFoundError, RuntimeError)) as caught:
            corpora.HubSource(*arguments, **options).check("train")
        return str(caught.value)

    assert "no data set 'org/missing'" in error_of("org/missing") and "your token may not read it" in error_of("org/m")
    for name in ("org/..", "../models/m", "org/a/b", "org/a?b"):
        assert f"{name!r} is no name of a data set" in error_of(name)
    assert "no revision 'v9'" in error_of(CORPUS, "gz", revision="v9")
    missing = error_of(CORPUS)
    assert "'gz', 'small'" in missing and "Config name is missing" in missing
    assert "'gz', 'small'" in error_of(CORPUS, "xml")
    assert "no column 'txt'" in error_of(COLUMNS, columns=["txt"])
    with pytest.raises(ValueError, match=r"no split 'validation'; this source has 'train', 'test'"):
        corpora.HubSource(CORPUS, "gz").check("validation")
    loopback.repos[CORPUS].gated = True
    assert "restricted" in error_of(CORPUS, "gz")
    loopback.use(monkeypatch, tmp_path, token=None)
    assert "set HF_TOKEN, or run `hf auth login`" in error_of(CORPUS, "gz")
    loopback.repos[CORPUS].gated = False
    corpora.HubSource(CORPUS, "gz", token=TOKEN).check("train")
    loopback.close()
    assert "6 requests in a row failed" in error_of("org/other")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids it" in error_of(CORPUS, "gz")


# ---------------------------------------------- evaluation ends ---------------------------------------------------


def test_a_data_set_with_train_only_is_held_out_by_itself(loopback, monkeypatch, caplog):
    monkeypatch.setattr(corpora, "_HELD_OUT", 0.2)
    source = corpora.HubSource(COLUMNS)
    with caplog.at_level("INFO"):
        assert source.splits == ("train", "validation") and source.own_splits == ("train",)
    assert "has no split but 'train': 20 % of it" in caplog.text
    train, validation = texts(source), texts(source, "validation")
    assert sorted(train + validation) == sorted(texts(corpora.HubSource(COLUMNS, splits={"train": "train"})))
    assert 20 <= len(validation) <= 60 and len(train) + len(validation) == sum(SHARD_ROWS)
    # Whoever names the parts or the files gets just these.
    assert corpora.HubSource(COLUMNS, data_files={"train": "part-0*"}).splits == ("train",)


def test_held_out_documents_of_a_hub_corpus(loopback, lengths, make_document, places):
    """Whatever the number of readers, each document is in one split, and an evaluation reads no more than it says."""
    held_out = splits.held_out(0.2, among=70)
    source = corpora.HubSource(COLUMNS, splits=held_out, chunk_documents=8)
    seen = {
        split: [
            tuple(document[1:])
            for reader, shuffle in itertools.product(range(readers), [readers > 1])
            for chunk in source.chunks_of(split, shuffle, 1, reader, readers).documents(num_epochs=1)
            for document in chunk.document.tolist()
        ]
        for split, readers in (("train", 5), ("validation", 1))
    }
    assert len(set(seen["train"])) == len(seen["train"]) and not set(seen["train"]) & set(seen["validation"])
    assert all(sum(SHARD_ROWS[:shard]) + row < 70 for shard, row in seen["validation"])
    assert 5 <= len(seen["validation"]) <= 25 and 140 <= len(seen["train"]) <= 175
    task = register("test_held_out", source)
    config = contract.DatasetConfig(task.name, lengths, "validation", 8)
    rows = [batch["decoder_loss_weights"].max(1).sum() for batch in task_batches.get_eval_batches(config)[task.name]]
    assert 0 < sum(rows) < 40
