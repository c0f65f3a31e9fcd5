"""What `limba train` refuses before its first step, `--dry_run` and `limba lint` refuse in the same words."""

import json
import logging
import re

import gin
import jax
import pytest

from limba import train
from limba.addons.pages import run_state
from limba.addons.plan.lint import command as lint
from limba.checkpoints import checkpointing
from limba.gin_config import messages
from limba.reports import run_end, run_lock
from tests import house

MODULE = """
from tasks import pretraining, vocabularies
from tasks.registry import TaskRegistry

for _name, _files in (("start_text", "text-*.jsonl"), ("start_other", "text-*.jsonl"), ("start_gone", "gone-*.jsonl")):
    if _name not in TaskRegistry.names():
        pretraining.register_pretraining_task(
            _name,
            data_files={"train": _files, "validation": _files},
            vocabulary=vocabularies.ByteVocabulary(125),
            shuffle_buffer_size=4,
        )
"""
RECIPE = """
from __gin__ import dynamic_registration
import seqio
from limba import train as train_script
from limba.checkpoints import checkpointing as checkpoints
from limba.training import actions

include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/pretrain.gin'
include 'tests/small_training.gin'

seqio.ByteVocabulary.extra_ids = 125
MIXTURE_OR_TASK_NAME = 'start_text'
MIXTURE_OR_TASK_MODULE = 'start_tasks'
TASK_FEATURE_LENGTHS = {'inputs': 32, 'targets': 8}
TRAIN_STEPS = 2
EVAL_STEPS = 1
train_script.train.baselines = None
actions.StopOnPlateauAction:
  metric = ('nobody', 'loss')
  mode = 'min'
"""
ADAMW = "include 'gin/optimizers/adamw.gin'\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run of two steps, which each case gets as it was."""
    made = tmp_path_factory.mktemp("refused")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.syspath_prepend(str(made))
        (made / "start_tasks.py").write_text(MODULE)
        rows = [json.dumps({"text": f"text number {n} of some, {n * n} words and words"}) for n in range(64)]
        (made / "text-0.jsonl").write_text("\n".join(rows) + "\n")
        (made / "recipe.gin").write_text(RECIPE)
        (made / "adamw.gin").write_text(RECIPE + ADAMW)
        (made / "a_file").write_text("")
        _train(MODEL_DIR="run")
        yield made
    gin.clear_config()
    from tasks.registry import TaskRegistry

    for name in [name for name in TaskRegistry.names() if name.startswith("start_")]:
        TaskRegistry.remove(name)


def _flags(recipe="recipe.gin", MODEL_DIR="run", **bindings):
    return [recipe, *(f"--gin.{name}={value!r}" for name, value in {"MODEL_DIR": MODEL_DIR, **bindings}.items())]


def _train(*more, **bindings):
    gin.clear_config()
    return train.main([*_flags(**bindings), f"--gin_search_paths={house.ROOT}", *more])


def _refusal(*more, **bindings):
    with pytest.raises((ValueError, OSError, RuntimeError)) as error:
        _train(*more, **bindings)
    return " ".join(messages.without_gin_trailer(error.value).split())


def _lint(capsys, monkeypatch, **bindings):
    """Exit code and findings."""
    gin.clear_config()
    capsys.readouterr()
    monkeypatch.setattr(lint, "_pretend", lambda _: None)  # this process has CPU devices already
    levels = {name: logging.getLogger(name).level for name in ("limba", "tasks")}
    try:
        flags = [*_flags(**bindings), f"--gin_search_paths={house.ROOT}", f"--num_devices={jax.device_count()}"]
        return lint.main(flags), capsys.readouterr().out
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}


CASES = {
    "a file more": ({"TRAIN_STEPS": 4}, r"belongs to other data: tasks\.start_text\.source\.files\.\S+ is new"),
    "another seed of the data": ({"DATASET_SEED": 4}, "belongs to other data: seed was 0 and is 4"),
    "packed": ({"train/DatasetConfig.pack": True}, "belongs to other data: .*pack was False and is True"),
    "another batch": ({"BATCH_SIZE": 16}, "belongs to other data: batch_size was 8 and is 16"),
    "other lengths": ({"TASK_FEATURE_LENGTHS": {"inputs": 16, "targets": 8}}, "task_feature_lengths.inputs was 32"),
    "another task": ({"MIXTURE_OR_TASK_NAME": "start_other"}, "This run is of task 'start_text'"),
    "another network": ({"network.T5Config.emb_dim": 16}, "holds another network or optimizer .* emb_dim was"),
    "another optimizer": ({"recipe": "adamw.gin"}, "holds another network or optimizer"),
    "a batch that does not divide": ({"BATCH_SIZE": 9}, "batch_size is 9, which does not divide by"),
    "an evaluation that does not divide": (
        {"train_eval/DatasetConfig.batch_size": 9},
        "the evaluation batch_size is 9, which does not divide",
    ),
    "too few rows": ({"VOCAB_SIZE": 128}, "The vocabulary has 384 tokens and the embedding 128 rows"),
    "lengths that cut": (
        {"MODEL_DIR": "new", "TASK_FEATURE_LENGTHS": {"inputs": 32, "targets": 4}},
        "4 would cut them",
    ),
    "no length": ({"MODEL_DIR": "new", "TASK_FEATURE_LENGTHS": {"inputs": 32}}, r"has no length for \['targets'\]"),
    "no task": ({"MIXTURE_OR_TASK_NAME": "start_txt"}, "There is no task or mixture 'start_txt'"),
    "no split": ({"train_eval/DatasetConfig.split": "test"}, "'start_text' has no split 'test'; it has 'train'"),
    "no file": ({"MODEL_DIR": "new", "MIXTURE_OR_TASK_NAME": "start_gone"}, "No file matches the pattern 'gone-"),
    "a folder that is a file": ({"MODEL_DIR": "a_file"}, "MODEL_DIR .*a_file cannot be written to"),
    "no initial checkpoint": ({"MODEL_DIR": "new", "INITIAL_CHECKPOINT_PATH": "gone"}, "No checkpoint at .*gone"),
    "an initial checkpoint of another network": (
        {"MODEL_DIR": "new", "INITIAL_CHECKPOINT_PATH": "run", "network.T5Config.emb_dim": 16},
        "holds another network or optimizer .* emb_dim was",
    ),
    "no step behind the initial checkpoint": (
        {"MODEL_DIR": "new", "INITIAL_CHECKPOINT_PATH": "run", "TRAIN_STEPS": 1},
        r"\(TRAIN_STEPS\) is 1, and the initial checkpoint is at step 2",
    ),
    "no seed": ({"RANDOM_SEED": -1}, r"\(RANDOM_SEED\) is -1"),
    "no period": ({"EVAL_PERIOD": 0}, r"\(EVAL_PERIOD\) is 0"),
    "no epochs": ({"TRAIN_EPOCHS": -1}, r"\(TRAIN_EPOCHS\) is -1"),
    "no dropout": ({"DROPOUT_RATE": 2.0}, r"\(DROPOUT_RATE\) is 2\.0"),
    "no microbatches": ({"Trainer.num_microbatches": -1}, "Trainer.num_microbatches is -1"),
    "an average of no task": (
        {"train.training_eval_average_metrics": {"mean/loss": ["nobody"]}},
        r"average 'mean/loss' of \['nobody'\]",
    ),
    "a mode of actions": ({"train.actions": {"EVAL": []}}, "train.actions has the key 'EVAL'"),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", CASES)
def test_train_dry_run_and_lint_say_the_same(folder, case, capsys, monkeypatch):
    bindings, words = CASES[case]
    added = folder / "text-1.jsonl"
    if case == "a file more":
        added.write_text('{"text": "one more text"}\n')
    try:
        before = _files(folder)
        said = _refusal(**bindings)
        assert re.search(words, said), said
        assert _refusal("--dry_run", **bindings) == said
        code, found = _lint(capsys, monkeypatch, **bindings)
        assert code == 1 and said in found, found
        assert _files(folder) == before, "a refused start changes nothing"
    finally:
        added.unlink(missing_ok=True)


def test_a_run_in_use_and_what_needs_gins_words(folder, capsys, monkeypatch):
    """A lock of another process, and bindings to references."""
    with run_lock.held(folder / "run"):
        said = _refusal(TRAIN_STEPS=4)
        assert "is in use by another run" in said
        assert _refusal("--dry_run", TRAIN_STEPS=4) == said
        code, found = _lint(capsys, monkeypatch, TRAIN_STEPS=4)
        assert code == 1 and said in found
    for lines, words in (
        ("train_script.train.actions = {'TRAIN_EVAL': [@actions.StopOnPlateauAction()]}", "watches the task 'nobody'"),
        (
            "checkpoints.SaveCheckpointConfig.checkpointer_cls = @checkpoints.SaveBestCheckpointer\n"
            "checkpoints.SaveBestCheckpointer.metric_mode = 'best'",
            "SaveBestCheckpointer.metric_mode is 'best'",
        ),
    ):
        (folder / "more.gin").write_text(f"{RECIPE}\n{lines}\n")
        said = _refusal(recipe="more.gin")
        assert words in said
        assert _refusal("--dry_run", recipe="more.gin") == said
        code, found = _lint(capsys, monkeypatch, recipe="more.gin")
        assert code == 1 and said in found


def test_a_mistaken_start_leaves_a_finished_run_finished(folder):
    assert run_state.look(folder / "run", "run").state == "finished"
    _refusal(BATCH_SIZE=16)
    assert run_end.read(folder / "run") is None
    assert run_state.look(folder / "run", "run").state == "finished"
    # One that was killed stays one, too.
    (folder / "run" / run_lock.FILE_NAME).write_text("{}")
    _refusal(BATCH_SIZE=16, TRAIN_STEPS=4)
    assert (folder / "run" / run_lock.FILE_NAME).exists()
    (folder / "run" / run_lock.FILE_NAME).unlink()


def test_what_is_not_refused(folder, capsys, monkeypatch):
    before = _files(folder)
    assert _train("--dry_run", TRAIN_STEPS=4, INITIAL_CHECKPOINT_PATH="gone") == 0  # which is for a new run
    assert "TRAIN_STEPS = 4" in capsys.readouterr().out
    assert _lint(capsys, monkeypatch, TRAIN_STEPS=4)[0] == 0
    assert _files(folder) == before and checkpointing.checkpoint_steps(folder / "run") == [2]
