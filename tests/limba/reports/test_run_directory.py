"""The small files of a run that lives in a bucket."""

import types

from limba.files import storage
from limba.reports import run_directory, run_lock


def test_a_resumed_run_continues_the_files_of_its_bucket(tmp_path, monkeypatch):
    # A folder stands for the bucket; tests/limba/files/test_storage.py has a server of buckets.
    as_bucket = types.SimpleNamespace(**{**vars(storage), "is_remote": lambda path: True})
    monkeypatch.setattr(run_directory, "storage", as_bucket)
    home = tmp_path / "bucket"
    for name in ("metrics.jsonl", "train/events.out", "checkpoint_2/params", run_lock.FILE_NAME):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"{name}\n")
    directory = run_directory.RunDirectory(str(home))
    here = {str(path.relative_to(directory.local)) for path in directory.local.rglob("*") if path.is_file()}
    assert here == {"metrics.jsonl", "train/events.out"}
    with (directory.local / "metrics.jsonl").open("a") as file:
        file.write("more\n")
    (home / "train/events.out").write_text("changed there")
    directory.copy()
    assert (home / "metrics.jsonl").read_text() == "metrics.jsonl\nmore\n"
    assert (home / "train/events.out").read_text() == "changed there", "only what changed here is copied"
