"""`limba lint` as people type it: silent on our recipes, and every trap of a T5X project by its name."""

import json
import re
import subprocess
import sys

import pytest

from limba import gin_utils
from tests import line
from tests.convert import vocabularies

pytestmark = pytest.mark.slow

RECIPES = sorted(path.stem for path in (gin_utils.REPOSITORY / "gin" / "recipes").glob("*.gin"))

# What a recipe leaves to its user. Buckets have room, and nothing is asked of them.
_MODEL_DIR = "--gin.MODEL_DIR='gs://some-bucket/run'"
_OVERRIDES = {
    "pretrain_base": [
        *("--gin.MIXTURE_OR_TASK_NAME='quickstart_span_corruption'", "--gin.MIXTURE_OR_TASK_MODULE='tasks.quickstart'"),
        "--gin.VOCABULARY_FILE='vocab/spiece.model'",
    ],
    "quickstart": ["--gin.VOCABULARY_FILE='vocab/spiece.model'"],
}

# A project as T5X's users have it: what it binds is what runs of T5 on a private corpus bound, and all of it hurts.
_PROJECT = {
    "run.gin": """
include 't5x/examples/t5/t5_1_1/base.gin'
include 'run_pretrain.gin'

network.T5Config:
  vocab_size = 64000

VOCABULARY = @seqio.SentencePieceVocabulary()
seqio.SentencePieceVocabulary.sentencepiece_model_file = "gs://some-bucket/sentencepiece/mine.model"

import t5.data.mixtures
import run_tasks

MIXTURE_OR_TASK_NAME = "stream_span_corruption"
TASK_FEATURE_LENGTHS = {"inputs": 512, "targets": 256}
TRAIN_STEPS = 2_000_000
DROPOUT_RATE = 0.0
PjitPartitioner.num_partitions = 2
""",
    "continued.gin": """
include 't5x/examples/t5/mt5/large.gin'
include 'run_pretrain.gin'

import run_tasks

MIXTURE_OR_TASK_NAME = "stream_span_corruption"
TASK_FEATURE_LENGTHS = {"inputs": 512, "targets": 512}
TRAIN_STEPS = 1_000_000
DROPOUT_RATE = 0.0
INITIAL_CHECKPOINT_PATH = "gs://other-bucket/mt5_large/checkpoint_1000000"
PjitPartitioner.num_partitions = 2
utils.RestoreCheckpointConfig:
  path = %INITIAL_CHECKPOINT_PATH
  mode = 'specific'
""",
    "run_pretrain.gin": """
from __gin__ import dynamic_registration
import __main__ as train_script
from t5x import partitioning
from t5x import utils
from t5x import trainer

include 't5x/configs/runs/pretrain.gin'

USE_CACHED_TASKS = True
train_script.train.eval_steps = 20
utils.SaveCheckpointConfig:
  period = 10000
  keep = 5
  save_dataset = False
""",
    "gone_task.py": """
from tasks import pretraining

pretraining.register_pretraining_task("gone", data_files={"train": "gone-*.jsonl"}, vocabulary="vocab/spiece.model")
""",
    "run_tasks.py": """
import functools

import seqio
import tensorflow as tf
from datasets import load_dataset
from t5.data import preprocessors

vocabulary = seqio.SentencePieceVocabulary("gs://some-bucket/sentencepiece/mine.model", extra_ids=0)
byte_vocabulary = seqio.ByteVocabulary()


def documents(split):
    files = {"train": "corpus/train-0.jsonl", "validation": "corpus/validation-0.jsonl"}
    dataset = load_dataset("json", data_files=files, streaming=True)
    while True:
        for row in dataset[split]:
            yield row["text"]


def make_dataset(split, shuffle_files, seed=None):
    dataset = tf.data.Dataset.from_generator(
        functools.partial(documents, split), output_signature=tf.TensorSpec([], tf.string)
    )
    return dataset.map(lambda text: {"targets": text})


def add(name, output_features):
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(make_dataset, splits=("train", "validation"), caching_permitted=False),
        preprocessors=[
            seqio.preprocessors.tokenize,
            preprocessors.span_corruption,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=output_features,
        metric_fns=[],
    )


add("stream_span_corruption", {"targets": seqio.Feature(vocabulary, add_eos=True)})
add("bytes_span_corruption", {name: seqio.Feature(byte_vocabulary) for name in ("inputs", "targets")})
""",
}
_OF_ITS_SOURCE = {"unshardable_source", "generator_source", "endless_evaluation"}
_SMALL = [
    *(f"--gin.T5Config.{name}={value}" for name, value in {"emb_dim": 32, "num_heads": 4, "mlp_dim": 48}.items()),
    *(f"--gin.T5Config.num_{stack}_layers=1" for stack in ("encoder", "decoder")),
]
_QUICK = ["gin/recipes/quickstart.gin", *_OVERRIDES["quickstart"], *_SMALL]

# Arguments by name.
RUNS = {
    **{name: [f"--gin_file=gin/recipes/{name}.gin", _MODEL_DIR, *_OVERRIDES.get(name, [])] for name in RECIPES},
    "project": ["run.gin", "--gin_search_paths=.", "--buckets=buckets", _MODEL_DIR],
    "continued": [
        *("continued.gin", "--gin_search_paths=.", "--buckets=buckets", _MODEL_DIR, *_SMALL),
        "--gin.seqio.SentencePieceVocabulary.sentencepiece_model_file='vocab/mt5.model'",
        "--gin.T5Config.dtype='float16'",
        "--num_devices=6",
    ],
    "bytes": [
        *("run.gin", "--gin_search_paths=.", "--buckets=buckets", _MODEL_DIR, *_SMALL),
        "--gin.MIXTURE_OR_TASK_NAME='bytes_span_corruption'",
    ],
    "much": [
        *(*_QUICK, "--num_devices=12", "--gin.MODEL_DIR='here'"),
        *("--gin.VOCAB_SIZE=128", "--gin.TASK_FEATURE_LENGTHS={'inputs': 128, 'targets': 24}"),
        *("--gin.PjitPartitioner.num_partitions=3", "--gin.TRAIN_STEPS=2000000000"),
        *("--gin.SaveCheckpointConfig.period=500", "--gin.SaveCheckpointConfig.keep=None", "--gin.BATCH_SIZE=30"),
        "--gin.create_learning_rate_scheduler.base_learning_rate=30.0",
        "--gin.INITIAL_CHECKPOINT_PATH='nowhere'",
    ],
    "nothing there": [
        *(*_QUICK, _MODEL_DIR, "--gin.DROPOUT_RATE=2.0", "--gin.EVAL_STEPS=0"),
        *("--gin.MIXTURE_OR_TASK_NAME='gone'", "--gin.MIXTURE_OR_TASK_MODULE='gone_task'"),
    ],
    "no training": ["gin/models/t5_1_1/base.gin"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("lint")
    line.write_corpus(made / "corpus")
    (made / "vocab").mkdir()
    spiece = vocabularies.train(made / "vocab" / "spiece.model")
    (made / "vocab" / "mt5.model").write_bytes(vocabularies.with_sentinels(spiece, 100))
    bucket = made / "buckets" / "some-bucket" / "sentencepiece"
    bucket.mkdir(parents=True)
    (bucket / "mine.model").write_bytes(spiece.read_bytes())
    for name, text in _PROJECT.items():
        (made / name).write_text(text, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def answers(folder):
    environment = {
        "LIMBA_QUICKSTART_DIR": str(folder),
        "RO_CORPUS": str(folder / "corpus"),
        "RO_VOCABULARY": str(folder / "vocab" / "spiece.model"),
        "MT5_VOCABULARY": str(folder / "vocab" / "mt5.model"),
    }
    requests = [
        {"arguments": arguments, "environment": environment, "folder": str(folder)} for arguments in RUNS.values()
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.limba.linting"],
        input=json.dumps(requests),
        cwd=line.ROOT,
        env=line.environment(folder),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(RUNS, json.loads(done.stdout), strict=True))


def _named(answer):
    return dict(re.findall(r"^(?:error|warning) +(\w+): (.*)", answer["out"], re.MULTILINE))


@pytest.mark.parametrize("recipe", RECIPES)
def test_our_recipes_are_silent(answers, recipe):
    assert (answers[recipe]["code"], answers[recipe]["out"]) == (0, "no findings\n"), answers[recipe]


def test_every_trap_of_a_t5x_project_is_named(answers):
    answer = answers["project"]
    assert answer["code"] == 1
    found = _named(answer)
    assert found.keys() == {
        *("target_length", "missing_eos", "sentinel_collision", "position_not_saved", *_OF_ITS_SOURCE)
    }
    assert "gives 256 targets; 512 inputs of 'stream_span_corruption' have exactly 114" in found["target_length"]
    assert "32% more FLOPs" in answer["out"]
    assert (
        "32 of the first 32 examples" in found["missing_eos"] and "no output feature 'inputs'" in found["missing_eos"]
    )
    assert "its last 28 pieces" in found["sentinel_collision"]
    assert "1 shard for 8 readers" in found["unshardable_source"]
    assert "began anew after 60 documents" in found["endless_evaluation"]
    assert "the 20 batches of every evaluation" in answer["out"]


def test_continuing_from_a_checkpoint(answers):
    found = _named(answers["continued"])
    assert found.keys() == {
        *("ends_at_once", "float16", "batch_size", "target_length", "position_not_saved", "missing_eos"),
        *("sentinel_collision", "other_vocabulary", "initial_checkpoint", *_OF_ITS_SOURCE),
    }
    assert "TRAIN_STEPS (train.total_steps) is 1,000,000, and the run begins at step 1,000,000" in found["ends_at_once"]
    assert found["float16"].startswith("T5Config.dtype is float16")
    assert "BATCH_SIZE is 128, which does not divide by 3 data shards" in found["batch_size"]


def test_bytes(answers):
    found = _named(answers["bytes"])
    assert "masks spans of 3 tokens on average, and its tokens are bytes" in found["byte_span"]
    assert "its last 28 pieces" in found["sentinel_collision"]
    assert "missing_eos" not in found


def test_much_at_once(answers):
    answer = answers["much"]
    assert answer["code"] == 1
    found = _named(answer)
    assert {"embedding_rows", "target_length", "disk", "model_axis", "batch_size", "learning_rate"} <= found.keys()
    assert "gives 24 targets; 128 inputs of 'quickstart_span_corruption' have 29" in found["target_length"]
    assert "num_heads is 4, which does not divide by the mesh axis 'model' of size 3" in found["model_axis"]
    assert found["disk"].startswith("4000000 checkpoints of ")
    assert "The vocabulary has 512 tokens and the embedding 128 rows" in answer["out"]
    assert "No checkpoint at " in found["initial_checkpoint"]
    assert answer["out"].rstrip().endswith("warnings")


def test_what_cannot_be_made_is_a_finding_and_the_rest_is_looked_at(answers):
    answer = answers["nothing there"]
    assert "configuration: train.model: T5Config.dropout_rate (DROPOUT_RATE) is 2.0" in answer["out"]
    assert "configuration: train.eval_steps is 0" in answer["out"]
    assert "No file matches the pattern 'gone-*.jsonl'" in _named(answer)["source"]


def test_files_without_a_training(answers):
    assert answers["no training"]["code"] == 1
    assert "lint looks at trainings: add gin/runs/pretrain.gin" in answers["no training"]["err"]
