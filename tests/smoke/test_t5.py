"""The line from a corpus to an answer, as users run it, in half a minute: `bash tests/run.sh -m smoke`."""

import json

import numpy as np
import pytest

from convert.model_files import any_format
from tests import line

pytestmark = pytest.mark.smoke

# As a user's: XLA optimizes.
AS_USERS = {"XLA_FLAGS": ""}


def test_corpus_vocabulary_training_export_and_answer(tmp_path):
    def run(*arguments):
        done = line.command(tmp_path, "limba", *map(str, arguments), **AS_USERS)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    line.write_corpus(tmp_path / "corpus")
    spiece = tmp_path / "vocab/spiece.model"
    run("vocab", "build", f"--data_files={tmp_path}/corpus/train-*.jsonl", "--vocab_size=256", f"--out={spiece}")
    arguments = line.train_arguments(tmp_path, tmp_path / "run", 40)
    run("train", *arguments[1:], "--gin.create_learning_rate_scheduler.warmup_steps=10")
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
