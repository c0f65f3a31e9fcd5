"""A project as T5X's users have it, in a folder of its own, trains as it is."""

import json

import pytest

from tests import line, t5x_project

pytestmark = pytest.mark.slow


def test_it_trains_and_evaluates_unedited(tmp_path, forks):
    project, buckets = tmp_path / "project", tmp_path / "buckets"
    line.write_corpus(tmp_path / "corpus")
    line.write_vocabulary(tmp_path / "corpus", buckets / t5x_project.VOCABULARY)
    project.mkdir()
    splits = ("train", "validation")
    t5x_project.write(project, {split: str(tmp_path / "corpus" / f"{split}-0.jsonl") for split in splits})
    (project / "tasks.py").write_text("raise RuntimeError('nothing imports this')", encoding="utf-8")

    def train(steps):
        sizes = {"vocab_size": 256, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32}
        layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
        return forks.run(
            [
                "limba.train",
                f"--gin_search_paths={project}",
                "--gin_file=my_t5_base.gin",
                f"--gin.MODEL_DIR='{tmp_path / 'model'}'",
                f"--buckets={buckets}",
                f"--gin.TRAIN_STEPS={steps}",
                "--gin.BATCH_SIZE=4",
                "--gin.train.eval_steps=2",
                "--gin.utils.SaveCheckpointConfig.save_dataset=True",
                "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 32}",
                *(f"--gin.T5Config.{name}={value}" for name, value in (sizes | layers).items()),
            ],
            cwd=project,
            env=line.environment(tmp_path, PYTHONPATH=f"{project}:{line.ROOT}"),
        )

    # That a stream of such a task resumes: tests/addons/seqio/test_seqio_streams.py.
    first = train(2)
    assert first.returncode == 0, first.stderr
    assert "tasks.py is hidden by Limba's own package" in first.stderr
    assert "takes the last pieces of the vocabulary for sentinels" in first.stderr
    lines = [json.loads(text) for text in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()]
    losses = {x["step"]: x["loss_per_nonpadding_target_token"] for x in lines if x["dataset"] == "train"}
    assert set(losses) == {2} and all(4 < loss < 9 for loss in losses.values())
    evaluated = [x for x in lines if x["dataset"] == f"training_eval/{t5x_project.TASK}"]
    assert [x["step"] for x in evaluated] == [2]
    assert evaluated[-1]["num_target_tokens"] <= 2 * 4 * 32
