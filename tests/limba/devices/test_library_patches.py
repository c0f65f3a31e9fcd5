import subprocess
import sys

import pytest
import seqio

from limba.devices import library_patches
from limba.files import storage


@pytest.fixture
def mounted(tmp_path):
    storage.mount_buckets(str(tmp_path))
    yield tmp_path
    storage._mounts.clear()


def test_old_task_modules_may_pass_their_token_and_nothing_of_a_run_imports_pytorch(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a b"}\n')
    program = f"""
import pathlib, sys
from limba.devices import library_patches as patches
from limba.reports import writers
patches.install()
from datasets import load_dataset
rows = load_dataset({str(tmp_path)!r}, use_auth_token=True, streaming=True)["train"]
writer = writers.TensorBoardWriter(pathlib.Path({str(tmp_path)!r}))
writer.write_scalars(1, "train", {{"loss": 2.0}})
writer.write_text(1, "train", "text", "some")
writer.close()
print(list(rows), "torch" in sys.modules)
print(list(rows.with_format("torch"))[0]["text"])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[{'text': 'a b'}] False", "a b"]


def test_vocabularies_of_mounted_buckets(mounted):
    library_patches.install()
    assert seqio.SentencePieceVocabulary("gs://mine/ro.model").sentencepiece_model_file == f"{mounted}/mine/ro.model"
    assert seqio.SentencePieceVocabulary("vocab/ro.model").sentencepiece_model_file == "vocab/ro.model"
    assert storage.as_path("gs://mine/run") == mounted / "mine" / "run"


def test_a_mount_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"--buckets=.*none is not a directory"):
        storage.mount_buckets(str(tmp_path / "none"))
