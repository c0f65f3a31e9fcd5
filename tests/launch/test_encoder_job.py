"""The whole job of an encoder, killed and begun again; transformers use its models.

That a resumed training is the uninterrupted one is tested in tests/limba/models/test_encoder_only_model.py.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from limba.reports import writers
from tests.launch import launching

STEPS = 30
pytestmark = pytest.mark.slow


def test_the_whole_job_killed_and_begun_again(tmp_path):
    # Compiled as for a user: these steps cost more than what XLA saves by optimizing nothing.
    environment = launching.environment(
        tmp_path,
        VENV=str(Path(sys.executable).parent.parent),
        LIMBA_ENCODER_DIR=str(tmp_path / "job"),
        TRAIN_STEPS=str(STEPS),
        JAX_PLATFORMS="cpu",
    )
    environment.pop("USE_TF", None)
    options = [f"--gin.EVAL_PERIOD={STEPS}", "--gin.BATCH_SIZE=16", "--gin.EVAL_STEPS=10"]
    options.append("--gin.train_script.train.baselines=None")  # which tests/limba/training/test_baselines.py has
    model, moods = tmp_path / "job/model", tmp_path / "job/moods"
    vocabulary = tmp_path / "job/vocab/tokenizer.json"

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
            launching.wait_for(lambda: vocabulary.is_file() or job.poll() is not None, "vocabulary", 300)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.wait(60) == -signal.SIGKILL, (tmp_path / "killed.log").read_text()[-3000:]
    assert not (model / f"checkpoint_{STEPS}").exists()
    built = vocabulary.stat().st_mtime_ns
    again = launching.call("encoder.sh", *options, env=environment)
    assert again.returncode == 0, again.stdout[-2000:] + again.stderr[-3000:]
    assert (model / f"checkpoint_{STEPS}").is_dir() and vocabulary.stat().st_mtime_ns == built

    # Transformers, with torch, take both.
    shown = again.stdout.partition("== in transformers\n")[2].partition("\nDone.")[0]
    filled, told = re.findall(r"\{.*\}", shown)
    assert re.search(r"'score': 0\.\d+.*'sequence': 'Although Ana \S+ the race, in the end Ana won a prize\.'", filled)
    assert re.fullmatch(r"\{'label': '(glad|calm|sad)', 'score': 0\.\d+\}", told)
    # So few steps teach it the most frequent mood; gin/recipes/encoder_moods.gin says what more of them reach.
    measured = [x for x in writers.read_metrics(moods) if x["dataset"] == "inference_eval/encoder_moods"][-1]
    assert measured["step"] == STEPS * 2 // 5
    assert measured["eval/accuracy"] > measured["eval/majority_accuracy"] - 0.01 > 50
