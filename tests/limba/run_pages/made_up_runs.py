"""Folders of runs for tests, without a training."""

import json

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
