"""Fine-tuning as people do it: gin/runs/pretrain.gin, then gin/runs/finetune.gin from its checkpoint."""

import json
import logging

import gin
import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba import train
from limba.checkpoints import checkpointing
from limba.reports import writers
from tests.limba import event_files

pytestmark = pytest.mark.usefixtures("one_device")

TASKS = ("finetuning_a", "finetuning_b")
MODEL = """
from __gin__ import dynamic_registration
from limba.training import actions
from limba.checkpoints import checkpointing as checkpoints
from limba import train as train_script

include '{model}'
include 'gin/runs/{run}.gin'
include 'tests/small_training.gin'

MIXTURE_OR_TASK_NAME = 'finetuning'
EVAL_PERIOD = 2
train_script.train.stats_period = 1
"""
STOPPING = """
TRAIN_STEPS_RELATIVE = 100
train_script.train.actions = {'INFER_EVAL': [@actions.EarlyStoppingAction()]}
train_script.train.infer_eval_average_metrics = {'average/exact_match': ['finetuning_a', 'finetuning_b']}
actions.EarlyStoppingAction:
  metric = ('average', 'exact_match')
  mode = 'max'
checkpoints.SaveCheckpointConfig:
  keep = 1
  checkpointer_cls = @checkpoints.SaveBestCheckpointer
checkpoints.SaveBestCheckpointer.metric_name_to_monitor = 'inference_eval/average/eval/exact_match'
"""


def _exact_match(targets, predictions):
    return {"exact_match": float(np.mean([t == p for t, p in zip(targets, predictions, strict=True)]))}


@pytest.fixture
def tasks():
    """Two tasks from examples in memory, and their mixture."""

    def examples(split, shuffle_files, seed=None):
        numbers = [str(n) for n in (range(40) if split == "train" else range(6))]
        return tf.data.Dataset.from_tensor_slices({"inputs": [f"number {n}" for n in numbers], "targets": numbers})

    feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=True)
    for name in TASKS:
        seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(examples, splits=["train", "validation"]),
            preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
            output_features={"inputs": feature, "targets": feature},
            metric_fns=[_exact_match],
        )
    seqio.MixtureRegistry.add("finetuning", [(name, 1.0) for name in TASKS])
    yield
    seqio.MixtureRegistry.remove("finetuning")
    for name in TASKS:
        seqio.TaskRegistry.remove(name)
    gin.clear_config()


def _run(folder, run, model, model_dir, more, *bindings):
    gin.clear_config()
    file = folder / f"{run}.gin"
    file.write_text(MODEL.format(run=run, model=model) + more)
    assert train.main([f"--gin_file={file}", f"--gin.MODEL_DIR='{model_dir}'", *bindings]) == 0


def test_fine_tuning_evaluates_predictions_and_stops_early(tmp_path, tasks, caplog):
    tiny = "gin/models/t5_1_1/tiny.gin"
    _run(tmp_path, "pretrain", tiny, tmp_path / "first", "", "--gin.TRAIN_STEPS=2", "--gin.PACK=True")
    assert checkpointing.checkpoint_steps(tmp_path / "first") == [2]
    initial = f"--gin.INITIAL_CHECKPOINT_PATH='{tmp_path}/first/checkpoint_2'"
    with caplog.at_level(logging.INFO):
        _run(tmp_path, "finetune", tmp_path / "first/model.gin", tmp_path / "second", STOPPING, initial)

    # A model of a few steps answers nothing right: evaluations before training and at steps 4 and 6 are alike.
    assert "exact_match of average does not improve any more: [0.0, 0.0, 0.0]" in caplog.text
    assert "An action ended training at step 6 of 102" in caplog.text
    assert checkpointing.checkpoint_steps(tmp_path / "second") == [6]
    lines = writers.read_metrics(tmp_path / "second")
    for task in TASKS:
        folder = tmp_path / "second" / "inference_eval"
        assert event_files.read_tags(folder / task) == {"eval/exact_match": {2: 0.0, 4: 0.0, 6: 0.0}}
        predictions = (folder / f"{task}-000006.jsonl").read_text().splitlines()
        assert [json.loads(line)["input"]["targets_pretokenized"] for line in predictions] == list("012345")
        assert [x["step"] for x in lines if x["dataset"] == f"training_eval/{task}"] == [2, 4, 6]
    # T5X evaluates the mixture beside its tasks.
    assert [x["step"] for x in lines if x["dataset"] == "training_eval/finetuning"] == [2, 4, 6]
