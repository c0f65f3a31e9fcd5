"""A project as T5X's users have it, in a folder of its own: gin files and a task module that know only T5X's names."""

import json
import subprocess
import sys

import pytest

from tests import line

pytestmark = pytest.mark.slow

_RECIPE = """
include 't5x/examples/t5/t5_1_1/base.gin'
include 't5x/configs/runs/pretrain.gin'

network.T5Config:
  vocab_size = 256

VOCABULARY = @seqio.SentencePieceVocabulary()
seqio.SentencePieceVocabulary.sentencepiece_model_file = "gs://some-bucket/sentencepiece/mine.model"

import t5.data.mixtures
import my_tasks

MIXTURE_OR_TASK_NAME = "my_span_corruption"
TASK_FEATURE_LENGTHS = {"inputs": 64, "targets": 32}
TRAIN_STEPS = 2_000_000
DROPOUT_RATE = 0.0
PjitPartitioner.num_partitions = 2
"""

# A generator without an end, read by `datasets` with a token; only `targets` is declared; the cache is never made.
_TASKS = """
import functools

import seqio
import tensorflow as tf
from datasets import load_dataset
from t5.data import postprocessors
from t5.data import preprocessors
from t5.evaluation import metrics

vocabulary = seqio.SentencePieceVocabulary("gs://some-bucket/sentencepiece/mine.model", extra_ids=0)


def documents(split):
    dataset = load_dataset("json", data_files={CORPUS}, use_auth_token=True, streaming=True)
    while True:
        for row in dataset[split]:
            yield row["text"]


def make_dataset(split, shuffle_files, seed=None):
    dataset = tf.data.Dataset.from_generator(
        functools.partial(documents, split), output_signature=tf.TensorSpec([], tf.string)
    )
    return dataset.map(lambda text: {"targets": text})


seqio.TaskRegistry.add(
    "my_span_corruption",
    source=seqio.FunctionDataSource(make_dataset, splits=("train", "validation"), caching_permitted=False),
    preprocessors=[
        seqio.preprocessors.tokenize,
        preprocessors.span_corruption,
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features={"targets": seqio.Feature(vocabulary, add_eos=True)},
    metric_fns=[],
)
"""


def test_it_trains_evaluates_and_goes_on_unedited(tmp_path):
    project, buckets = tmp_path / "project", tmp_path / "buckets"
    line.write_corpus(tmp_path / "corpus")
    built = line.command(
        tmp_path,
        "tasks.vocabularies",
        "build",
        f"--data_files={tmp_path}/corpus/train-*.jsonl",
        "--vocab_size=256",
        f"--out={buckets}/some-bucket/sentencepiece/mine.model",
    )
    assert built.returncode == 0, built.stderr
    project.mkdir()
    files = {split: str(tmp_path / "corpus" / f"{split}-0.jsonl") for split in ("train", "validation")}
    (project / "my_tasks.py").write_text(_TASKS.replace("{CORPUS}", repr(files)), encoding="utf-8")
    (project / "my_run.gin").write_text(_RECIPE, encoding="utf-8")
    (project / "tasks.py").write_text("raise RuntimeError('nothing imports this')", encoding="utf-8")

    def train(steps):
        sizes = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32}
        layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
        return subprocess.run(
            [
                *(sys.executable, "-m", "limba.train"),
                f"--gin_search_paths={project}",
                "--gin_file=my_run.gin",
                f"--gin.MODEL_DIR='{tmp_path / 'model'}'",
                f"--buckets={buckets}",
                f"--gin.TRAIN_STEPS={steps}",
                "--gin.BATCH_SIZE=4",
                "--gin.train.eval_steps=2",
                "--gin.utils.SaveCheckpointConfig.save_dataset=True",
                *(f"--gin.T5Config.{name}={value}" for name, value in (sizes | layers).items()),
            ],
            cwd=project,
            env=line.environment(tmp_path, PYTHONPATH=f"{project}:{line.ROOT}"),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    first = train(3)
    assert first.returncode == 0, first.stderr
    assert "tasks.py is hidden by Limba's own package" in first.stderr
    assert "takes the last pieces of the vocabulary for sentinels" in first.stderr
    second = train(4)
    assert second.returncode == 0, second.stderr
    assert "Going on from step 3" in second.stderr
    lines = [json.loads(text) for text in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()]
    losses = {x["step"]: x["loss_per_nonpadding_target_token"] for x in lines if x["dataset"] == "train"}
    assert set(losses) == {3, 4} and all(4 < loss < 9 for loss in losses.values())
    evaluated = [x for x in lines if x["dataset"] == "training_eval/my_span_corruption"]
    assert [x["step"] for x in evaluated] == [3, 4]
    assert evaluated[-1]["num_target_tokens"] <= 2 * 4 * 32
