"""The whole job of an encoder: killed and begun again it ends as an uninterrupted one; transformers use its models."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from limba.checkpoints import checkpointing
from limba.reports import writers
from tests.launch import launching

STEPS = 60
pytestmark = pytest.mark.slow


def test_the_whole_job_killed_and_begun_again(tmp_path, forks):
    # Compiled as for a user: these steps cost more than what XLA saves by optimizing nothing.
    environment = launching.environment(
        tmp_path,
        VENV=str(Path(sys.executable).parent.parent),
        LIMBA_ENCODER_DIR=str(tmp_path / "job"),
        TRAIN_STEPS=str(STEPS),
        JAX_PLATFORMS="cpu",
    )
    options = ["--gin.checkpoints.SaveCheckpointConfig.period=20", f"--gin.EVAL_PERIOD={STEPS}"]
    options += ["--gin.BATCH_SIZE=16", "--gin.EVAL_STEPS=10"]  # seconds: three trainings make these steps
    model, moods = tmp_path / "job/model", tmp_path / "job/moods"

    with (tmp_path / "killed.log").open("w") as log:
        job = subprocess.Popen(
            ["bash", "launch/encoder.sh", *options],
            cwd=launching.ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            launching.wait_for(lambda: (model / "checkpoint_20").is_dir() or job.poll() is not None, "step 20", 300)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.wait(60) == -signal.SIGKILL, (tmp_path / "killed.log").read_text()[-3000:]
    assert not (model / f"checkpoint_{STEPS}").exists()
    again = launching.call("encoder.sh", *options, env=environment)
    assert again.returncode == 0, again.stdout[-2000:] + again.stderr[-3000:]
    assert (model / f"checkpoint_{STEPS}").is_dir()

    # Transformers, with torch, take both.
    shown = again.stdout.partition("== in transformers\n")[2].partition("\nDone.")[0]
    filled, told = re.findall(r"\{.*\}", shown)
    assert re.search(r"'score': 0\.\d+.*'sequence': 'Although Ana \S+ the race, in the end Ana won a prize\.'", filled)
    assert re.fullmatch(r"\{'label': '(glad|calm|sad)', 'score': 0\.\d+\}", told)
    # So few steps teach it the most frequent mood; gin/recipes/encoder_moods.gin says what more of them reach.
    measured = [x for x in writers.read_metrics(moods) if x["dataset"] == "inference_eval/encoder_moods"][-1]
    assert measured["step"] == STEPS // 5
    assert measured["eval/accuracy"] > measured["eval/majority_accuracy"] - 0.01 > 50

    whole = [
        *("limba.train", "--gin_file=gin/recipes/encoder.gin", *options, f"--gin.TRAIN_STEPS={STEPS}"),
        f"--gin.VOCABULARY_FILE='{tmp_path}/job/vocab/tokenizer.json'",
        f"--gin.MODEL_DIR='{tmp_path}/whole'",
    ]
    done = forks.run(whole, environment)
    assert done.returncode == 0, done.stderr[-3000:]
    expected, resumed = (checkpointing.load_params(folder) for folder in (tmp_path / "whole", model))
    jax.tree.map(np.testing.assert_array_equal, expected, resumed)
    evaluated = [
        [x["nats_per_target_token"] for x in writers.read_metrics(folder) if x["dataset"].startswith("training_eval/")]
        for folder in (tmp_path / "whole", model)
    ]
    assert evaluated[0] == evaluated[1] and len(evaluated[0]) == 2
