import importlib
import sys

import pytest
import seqio

from tasks import pretraining


def test_registering_again(data_files):
    arguments = {"data_files": data_files, "vocabulary": "not/there/yet.model"}
    task = pretraining.register_pretraining_task("test_again", **arguments)
    assert pretraining.register_pretraining_task("test_again", **arguments) is task
    with pytest.raises(ValueError, match="'test_again' is registered already, with other arguments"):
        pretraining.register_pretraining_task("test_again", **arguments, noise_density=0.3)
    assert set(task.output_features) == {"inputs", "targets"}
    assert all(feature.add_eos for feature in task.output_features.values())
    assert task.output_features["inputs"].vocabulary.extra_ids == 100


def test_missing_vocabulary_is_said_when_used(data_files, lengths):
    task = pretraining.register_pretraining_task("test_lazy", data_files=data_files, vocabulary="not/there.model")
    with pytest.raises(
        FileNotFoundError, match=r"no SentencePiece model 'not/there\.model'.*tasks\.vocabularies build"
    ):
        task.get_dataset(lengths, "train")


def test_quickstart_registers_without_files(monkeypatch, tmp_path, lengths):
    monkeypatch.setenv("LIMBA_QUICKSTART_DIR", str(tmp_path))
    # Other tests may have imported it with the directory that this checkout has.
    monkeypatch.delitem(sys.modules, "tasks.quickstart", raising=False)
    if "quickstart_span_corruption" in seqio.TaskRegistry.names():
        seqio.TaskRegistry.remove("quickstart_span_corruption")
    quickstart = importlib.import_module("tasks.quickstart")

    task = seqio.TaskRegistry.get("quickstart_span_corruption")
    assert sorted(task.splits) == ["train", "validation"]
    with pytest.raises(FileNotFoundError, match=r"quickstart\.sh"):
        task.source.check("train")
    assert quickstart.VOCABULARY_FILE.name == "spiece.model"
