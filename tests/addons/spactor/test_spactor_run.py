"""gin/runs/spactor.gin as people use it: a run, then evaluation, prediction, export and fine-tuning."""

import json
import logging

import gin
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from convert.to_hf import to_hf
from limba import eval as eval_script
from limba import infer, train
from limba.checkpoint_files import pretraining_parts, run_folder, saved_tensors, small_files
from limba.checkpoints import checkpointing
from limba.checkpoints.train_state import TrainState
from tests.test_finetuning import tasks  # noqa: F401

RECIPE = """
from __gin__ import dynamic_registration
from limba.checkpoints import checkpointing as checkpoints
from limba.addons.spactor import spactor
from limba import train as train_script

include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/pretrain.gin'
include 'gin/runs/spactor.gin'
include 'tests/small_training.gin'
MIXTURE_OR_TASK_NAME = 'finetuning_a'
EVAL_PERIOD = 3
train_script.train.stats_period = 1
train_script.train.run_eval_before_training = False
train_script.train.baselines = None
spactor.SpacTorModel.steps = 2
checkpoints.SaveCheckpointConfig.period = 1
"""
FINETUNE = """
from __gin__ import dynamic_registration
from limba import train as train_script
include '{run}/model.gin'
include 'gin/runs/finetune.gin'
include 'tests/small_training.gin'
MIXTURE_OR_TASK_NAME = 'finetuning_a'
INITIAL_CHECKPOINT_PATH = '{run}'
TRAIN_STEPS_RELATIVE = 1
DROPOUT_RATE = 0.0
train_script.train.train_eval_dataset_cfg = None
train_script.train.infer_eval_dataset_cfg = None
train_script.train.run_eval_before_training = False
"""


def _train(folder, name, text, *bindings):
    gin.clear_config()
    (folder / f"{name}.gin").write_text(text)
    arguments = [f"--gin_file={folder}/{name}.gin", f"--gin.MODEL_DIR='{folder}/{name}'"]
    assert train.main([*arguments, *(f"--gin.{binding}" for binding in bindings)]) == 0
    return folder / name


def _tensors(checkpoint):
    return {name: np.asarray(t) for name, t in saved_tensors.open_tensors(checkpoint).items()}


def _as_a_plain_t5(checkpoint, folder):
    """The checkpoint of a plain T5 with the same parameters."""
    tensors = {name: x for name, x in _tensors(checkpoint).items() if not pretraining_parts.is_part(name)}
    params = {tuple(name.split("/")[1:]): x for name, x in tensors.items() if name.startswith("target/")}
    checkpointer = checkpointing.Checkpointer(folder, checkpointing.SaveCheckpointConfig())
    state = TrainState(jnp.int32(tensors["state/step"]), traverse_util.unflatten_dict(params), {})
    checkpointer.save(state, None, small_files.load_files(checkpoint, run_folder.FOLDER))
    checkpointer.close()
    return folder


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_pretraining_becomes_spactor_by_one_include(tmp_path, tasks, caplog, capsys):  # noqa: F811
    run = _train(tmp_path, "run", RECIPE, "TRAIN_STEPS=3")
    lines = [x for x in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if x["dataset"] == "train"]
    detected = [{name for name in line if name.startswith("replaced_tokens/")} for line in lines]
    names = {f"replaced_tokens/{name}" for name in ("mlm_loss", "rtd_loss", "rtd_accuracy", "share")}
    assert [x for x in detected if x] == [names, names], "of the first stage's steps"

    expected = _tensors(run / "checkpoint_3")
    assert any(map(pretraining_parts.is_part, expected))

    # Everything that uses the run has a plain T5, and says so.
    plain = _as_a_plain_t5(run / "checkpoint_3", tmp_path / "plain")
    with caplog.at_level(logging.INFO):
        for folder in (run, plain):
            to_hf(folder, tmp_path / f"export_of_{folder.name}", verify=False)
    assert caplog.text.count("what only replaced-token detection needs (15 tensors) is left out") == 1
    for file in ("model.safetensors", "config.json"):
        exported = [(tmp_path / f"export_of_{folder.name}" / file).read_bytes() for folder in (run, plain)]
        assert exported[0] == exported[1]
    caplog.clear()
    capsys.readouterr()
    assert infer.main(["--run_dir", str(run), "--input", "number 3"]) == 0
    assert "number 3\n  -> " in capsys.readouterr().out
    gin.clear_config()
    assert eval_script.main([str(run)]) == 0
    assert "nats" in capsys.readouterr().out
    tuned = _train(tmp_path, "tuned", FINETUNE.format(run=run))
    after = _tensors(tuned / "checkpoint_4")
    assert after.keys() == {name for name in expected if not pretraining_parts.is_part(name)}
    assert caplog.text.count("(15 tensors) are left out") == 3
