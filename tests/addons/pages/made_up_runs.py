"""Folders of runs for tests, without a training."""

import json
import zlib

GIN = """
from __gin__ import dynamic_registration
from limba import train as train_script
MIXTURE_OR_TASK_NAME = 'stories'
TRAIN_STEPS = {total}
BATCH_SIZE = {batch}
train_script.train.total_steps = %TRAIN_STEPS
train_script.train.relative_steps = None
train_script.train.epochs = None
"""


# Of a network for which tests count by hand.
SIZES = {
    "emb_dim": 4,
    "num_heads": 2,
    "head_dim": 3,
    "mlp_dim": 5,
    "mlp_activations": ["relu"],
    "vocab_size": 10,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
}


def set_info(run, **fields):
    """Gives a run a checkpoint with a `run.json`, and returns its folder."""
    info = {
        "network_class": "T5Config",
        "network": SIZES,
        "feature_lengths": {"inputs": 3, "targets": 2},
        "batch_size": 8,
        "initial_step": 0,
        "task": "stories",
        "parameters": 1234,
        "seeds": {"random": 7},
        "environment": {"devices": {"TPU v4": 2}, "packages": {"jax": "0.10.1"}, "processes": 1},
    }
    content = json.dumps(info | fields).encode()
    folder = run / "checkpoint_100"
    (folder / "state").mkdir(parents=True)
    (folder / "run").mkdir()
    (folder / "run" / "run.json").write_bytes(content)
    (folder / "run" / "checksums-0.json").write_text(json.dumps({"run.json": zlib.crc32(content)}))
    return run


def write_lines(file, lines):
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_run(folder, steps=range(10, 101, 10), total=100, batch=8, tokens_per_second=2000.0, **train):
    """A run whose loss at step s is 5 - s / 100, and whose validation loss is a quarter more."""
    folder.mkdir(parents=True)
    lines = []
    for step in steps:
        loss = 5 - step / 100
        lines.append({"step": step, "dataset": "training_eval/stories", "nats_per_target_token": 1.25 * loss})
        lines.append(
            {
                "step": step,
                "dataset": "train",
                "loss": loss,
                "learning_rate": 0.01,
                "timing/tokens_per_second": tokens_per_second,
            }
            | train
        )
    write_lines(folder / "metrics.jsonl", lines)
    (folder / "config.gin").write_text(GIN.format(total=total, batch=batch))
    last = list(steps)[-1]
    write_lines(
        folder / "goodput.jsonl",
        [
            {"step": 0, "began": 1000.0, "time": 1000.0, "seconds": {}},
            {"step": last, "began": 1000.0, "time": 2800.0, "seconds": {"step": 1350.0, "compile": 450.0}},
        ],
    )
    return folder
