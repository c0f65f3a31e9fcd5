"""The line from a corpus to an answer, as users run it, in half a minute: `bash tests/run.sh -m smoke`."""

import json

import numpy as np
import pytest

from convert.model_files import any_format
from tests import line

pytestmark = pytest.mark.smoke

# As a user's: XLA optimizes.
AS_USERS = {"XLA_FLAGS": ""}

TASKS = """
from tasks import pretraining
pretraining.register_pretraining_task(
    "mine", data_files={{split: f"{folder}/corpus/{{split}}-*.jsonl" for split in ("train", "validation")}},
    vocabulary="{folder}/vocab/spiece.model",
)
"""
RECIPE = """
from __gin__ import dynamic_registration
from limba import train as train_script
from limba.network import t5 as network
from limba.optimizers import schedules
from tasks import objectives
import my_smoke_tasks

include 'gin/recipes/pretrain_laptop.gin'

MIXTURE_OR_TASK_NAME = 'mine'
VOCABULARY_FILE = '{folder}/vocab/spiece.model'
VOCAB_SIZE = 256
MODEL_DIR = '{folder}/run'
TRAIN_STEPS = 40
BATCH_SIZE = 4
EVAL_PERIOD = 1000
train_script.train.stats_period = 1
objectives.span_corruption_lengths.inputs_length = 32
schedules.create_learning_rate_scheduler.warmup_steps = 10
network.T5Config:
  emb_dim = 16
  num_heads = 2
  head_dim = 8
  mlp_dim = 32
  num_encoder_layers = 1
  num_decoder_layers = 1
  dtype = 'float32'
"""


def test_corpus_vocabulary_training_export_and_answer(tmp_path):
    def run(*arguments):
        done = line.command(tmp_path, "limba", *map(str, arguments), PYTHONPATH=str(tmp_path), **AS_USERS)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    line.write_corpus(tmp_path / "corpus")
    line.write_vocabulary(tmp_path / "corpus", tmp_path / "vocab/spiece.model")
    (tmp_path / "my_smoke_tasks.py").write_text(TASKS.format(folder=tmp_path))
    (tmp_path / "recipe.gin").write_text(RECIPE.format(folder=tmp_path))
    run("train", f"--gin_file={tmp_path}/recipe.gin")
    metrics = [json.loads(text) for text in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [x["cross_ent_loss"] for x in metrics if x["dataset"] == "train"]
    assert len(losses) == 40 and losses[-1] < losses[0] - 0.3, (losses[0], losses[-1])

    run("convert", "to-hf", tmp_path / "run", tmp_path / "export", "--format=safetensors", "--no-check")
    assert json.loads((tmp_path / "export/config.json").read_text())["architectures"] == ["T5ForConditionalGeneration"]
    back = run("convert", "from-hf", tmp_path / "export", tmp_path / "back", "--no-check")
    assert "step 40" in back
    trained, again = (any_format.open_model(tmp_path / name).tensors for name in ("run", "back"))
    assert trained.keys() == again.keys()
    assert all(np.array_equal(np.asarray(trained[name]), np.asarray(again[name])) for name in trained)
    assert run("infer", tmp_path / "back", "--input=the list of ___ is a file").strip()
