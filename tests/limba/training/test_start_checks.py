"""`limba train --dry_run` refuses tasks, files and checkpoints that the run would refuse."""

import sys

import gin
import pytest

from limba import train
from limba.files import storage
from limba.partitioning import meshes
from tasks.registry import TaskRegistry
from tests.convert.encoders import conftest

MODULE = """
import dataclasses

from tasks import supervised, vocabularies
from tasks.metrics import text_metrics

MOODS = supervised.SupervisedDataset("{text}", "mood", labels=["glad", "sad"])
supervised.register_supervised_task(
    "dry_moods",
    MOODS,
    vocabulary=vocabularies.ByteVocabulary(),
    data_files={"train": "train.csv", "validation": "validation.csv"},
)
supervised.register_supervised_task(
    "far_moods",
    MOODS,
    vocabulary=vocabularies.ByteVocabulary(),
    data_files={"train": "https://localhost:1/train.csv"},
)
supervised.register_supervised_task(
    "dry_moods_of_bytes",
    MOODS,
    vocabulary=vocabularies.ByteVocabulary(50),
    data_files={"train": "train.csv", "validation": "validation.csv"},
)
supervised.register_supervised_task(
    "dry_moods_with_rouge",
    dataclasses.replace(MOODS, labels=None, metric_fns=[text_metrics.rouge]),
    vocabulary=vocabularies.ByteVocabulary(),
    data_files={"train": "train.csv", "validation": "validation.csv"},
)
"""


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    """`limba train --dry_run` in a folder with a task; takes bindings and returns what is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "dry_tasks.py").write_text(MODULE)
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").write_text("text,mood\nsun,glad\n", encoding="utf-8")

    def run(model="t5_1_1/tiny", **changed):
        gin.clear_config()
        values = {
            "MODEL_DIR": str(tmp_path / "run"),
            "INITIAL_CHECKPOINT_PATH": (),
            "MIXTURE_OR_TASK_NAME": "dry_moods",
            "MIXTURE_OR_TASK_MODULE": "dry_tasks",
            "TASK_FEATURE_LENGTHS": {"inputs": 8, "targets": 8},
            "TRAIN_STEPS_RELATIVE": 3,
        } | changed
        bindings = [f"--gin.{name}={value!r}" for name, value in values.items()]
        train.main([f"gin/models/{model}.gin", "gin/runs/finetune.gin", *bindings, "--dry_run"])
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().out

    yield run
    gin.clear_config()
    sys.modules.pop("dry_tasks", None)
    from tasks.registry import tasks as registered

    for registry in registered.registries():
        for name in [name for name in registry.names() if name.startswith(("dry_moods", "far_moods"))]:
            registry.remove(name)


def test_what_the_run_refuses(dry_run, tmp_path, caplog):
    assert "dry_moods" in dry_run()
    with pytest.raises(ValueError, match="There is no task or mixture 'dry_mood'"):
        dry_run(MIXTURE_OR_TASK_NAME="dry_mood")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        dry_run(INITIAL_CHECKPOINT_PATH=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="'dry_moods' has no split 'test'; it has 'train', 'validation'"):
        dry_run(**{"train_eval/data.DatasetConfig.split": "test"})
    # What is far away, nobody asks; and the checks say so.
    far = {"INITIAL_CHECKPOINT_PATH": "gs://bucket/base/checkpoint_1", "MIXTURE_OR_TASK_NAME": "far_moods"}
    assert dry_run(**far, MODEL_DIR="gs://bucket/run")
    for name in ("model: vocabularies", "model_dir", "train_dataset_cfg", "infer_eval_dataset_cfg"):
        assert f"{name} (takes the network" in caplog.messages[-1]
    assert dry_run(**far) and "checkpoint_cfg.restore (takes the network)" in caplog.messages[-1]
    assert storage.is_remote(storage.as_path("gs://bucket/base"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "train.csv"),
        ("text,mood\n太阳,glad\n".encode("gbk"), r"train\.csv.*not UTF-8"),
        (b"text,moods\nsun,glad\n", "no column 'mood'"),
    ],
)
def test_files_that_cannot_be_read(dry_run, tmp_path, content, words):
    if content is None:
        (tmp_path / "train.csv").unlink()
    else:
        (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises((ValueError, OSError, RuntimeError), match=words):
        dry_run()


def test_a_task_with_another_vocabulary(dry_run):
    words = r"Task 'dry_moods_of_bytes' makes inputs with ByteVocabulary \(.* 50 of them extra_ids\), and the model has"
    with pytest.raises(ValueError, match=words):
        dry_run("byt5/small", MIXTURE_OR_TASK_NAME="dry_moods_of_bytes")
    assert dry_run("byt5/small", MIXTURE_OR_TASK_NAME="dry_moods")


def test_a_metric_whose_package_is_missing(dry_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(ValueError, match="'dry_moods_with_rouge' has the metric rouge, which needs the package"):
        dry_run(MIXTURE_OR_TASK_NAME="dry_moods_with_rouge")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_label_that_is_none_of_the_labels(dry_run, tmp_path, split):
    (tmp_path / f"{split}.csv").write_text("text,mood\n" + 17 * "sun,glad\n" + "rain,angry\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"row 17 \(the first is 0\) of .*{split}\.csv: .*'angry'"):
        dry_run()


def test_a_model_whose_vocabulary_is_not_there(dry_run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.model does not exist"):
        dry_run(VOCABULARY_FILE=str(tmp_path / "nowhere.model"))
    assert dry_run(VOCABULARY_FILE="gs://bucket/far.model")  # the run reads it


def test_a_pair_alone_has_no_negatives(tmp_path, capsys, monkeypatch, request):
    """Refused before a folder is made, also where microbatches or an evaluation have one pair."""
    request.addfinalizer(lambda: TaskRegistry.remove("pairs"))  # which the recipe registers
    conftest.write_tokenizer(tmp_path / "tokenizer.json", conftest.SPECIAL_TOKENS)
    (tmp_path / "pairs.csv").write_text("anchor,positive\nsun,sunny\nrain,rainy\n")
    values = {
        "VOCABULARY_FILE": str(tmp_path / "tokenizer.json"),
        "INITIAL_CHECKPOINT_PATH": (),
        "MODEL_DIR": str(tmp_path / "run"),
        "PAIRS": dict.fromkeys(("train", "validation"), str(tmp_path / "pairs.csv")),
        "TRAIN_STEPS_RELATIVE": 1,
        "BATCH_SIZE": 16,
    }

    def run(*flags, **changed):
        gin.clear_config()
        bindings = [f"--gin.{name}={value!r}" for name, value in (values | changed).items()]
        train.main(["gin/models/bert/tiny.gin", "gin/runs/contrastive.gin", *bindings, *flags])

    monkeypatch.setattr(meshes.PjitPartitioner, "check_batch_size", lambda *_: None)  # as on one device
    evaluation = {"train_eval/data.DatasetConfig.batch_size": 1}
    for changed in ({"BATCH_SIZE": 1}, {"BATCH_SIZE": 8, "trainer.Trainer.num_microbatches": 8}, evaluation):
        with pytest.raises(ValueError, match="A batch of 1 pair has no negatives: set BATCH_SIZE"):
            run("--dry_run", **changed)
    run("--dry_run")
    run("--dry_run", **{"trainer.Trainer.num_microbatches": 8})
    assert "BATCH_SIZE = 16" in capsys.readouterr().out
    for changed in ({"BATCH_SIZE": 1}, {"BATCH_SIZE": 8, "trainer.Trainer.num_microbatches": 8}, evaluation):
        with pytest.raises(ValueError, match="A batch of 1 pair has no negatives"):
            run(**changed)
    assert not (tmp_path / "run").exists()
    gin.clear_config()
