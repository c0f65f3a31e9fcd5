"""What the speedrun brings and streams, made small: a hub with C4 and the vocabulary, instructions, and gin files."""

import gzip
import json
import random
from pathlib import Path

from limba.addons.instructions import speedrun
from tests import line
from tests.loopback_hub import LoopbackHub, Repo

ANSWERS = ["a list", "a file", "a value"]
_TINY = """
from __gin__ import dynamic_registration
from limba.checkpoints import checkpointing as checkpoints
from limba.data import contract as data
from limba.network import t5 as network
from limba.optimizers import schedules
from limba import train as train_script
from tasks import objectives

VOCAB_SIZE = 256
BATCH_SIZE = 4
train/data.DatasetConfig.num_readers = 2
train_script.train.stats_period = 1
checkpoints.SaveCheckpointConfig.period = {period}
network.T5Config:
  emb_dim = 16
  num_heads = 2
  head_dim = 8
  mlp_dim = 32
  num_encoder_layers = 1
  num_decoder_layers = 1
  dtype = 'float32'
"""
_PRETRAIN = """
objectives.span_corruption_lengths.inputs_length = 32
TRAIN_STEPS = {steps}
EVAL_STEPS = 2
schedules.early_cosine.warmup_steps = 4
"""
_FINETUNE = """
TASK_FEATURE_LENGTHS = {'inputs': 96, 'targets': 16}
schedules.create_learning_rate_scheduler.base_learning_rate = 0.01
"""


def make(folder: Path, hub: LoopbackHub, steps: int) -> list[str]:
    """Fills the hub and the folder, and returns the arguments of launch/speedrun.sh."""
    line.write_corpus(folder / "corpus")
    line.write_vocabulary(folder / "corpus", folder / "spiece.model")
    names = {
        "train-0": "train.00000-of-01024",
        "train-1": "train.00001-of-01024",
        "validation-0": "validation.00000-of-00008",
    }
    files = {
        f"en/c4-{name}.json.gz": gzip.compress((folder / f"corpus/{part}.jsonl").read_bytes(), mtime=0)
        for part, name in names.items()
    }
    hub.repos[speedrun.C4] = Repo(False, commits=[files | {"ro/c4-ro.json.gz": b""}], pinned={speedrun.C4_COMMIT: 0})
    vocabulary = {"spiece.model": (folder / "spiece.model").read_bytes()}
    hub.repos[speedrun.VOCABULARY] = Repo(False, commits=[vocabulary], pinned={speedrun.VOCABULARY_COMMIT: 0})
    _write_instructions(folder / "instructions")
    (folder / "pretrain.gin").write_text(_TINY.format(period=30) + _PRETRAIN.format(steps=steps))
    (folder / "finetune.gin").write_text(_TINY.format(period=8) + _FINETUNE)
    return ["--pretrain_gin", str(folder / "pretrain.gin"), "--finetune_gin", str(folder / "finetune.gin")]


def _write_instructions(folder: Path) -> None:
    rng = random.Random(0)
    for name in ("tasks", "splits/default"):
        (folder / name).mkdir(parents=True)
    names = {"train": [f"task{n:03}_train" for n in range(4)], "test": ["task100_test", "task101_test"]}
    for split, tasks in names.items():
        (folder / f"splits/default/{split}_tasks.txt").write_text("\n".join(tasks))
        for task in tasks:
            examples = [{"input": "the value of it", "output": answer} for answer in ANSWERS[:2]]
            instances = [
                {"input": f"names {rng.randint(0, 99)}", "output": rng.sample(ANSWERS, rng.randint(1, 2))}
                for _ in range(12)
            ]
            fields = {"Definition": ["the order of names"], "Positive Examples": examples, "Instances": instances}
            (folder / f"tasks/{task}.json").write_text(json.dumps(fields, indent=2))
