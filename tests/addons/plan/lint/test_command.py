"""`limba lint` as people type it: silent on our recipes, and every trap of a T5X project by its name."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from limba.addons.diacritics import romanian_sentences
from limba.addons.plan.lint import command
from limba.gin_config import gin_files
from tests import line, t5x_project
from tests.convert import vocabularies

pytestmark = pytest.mark.slow

_LONG = ("diacritics", "ro_mt5_base")
# One of each kind. The others are such a recipe with another network, and `quickstart` includes `pretrain_laptop`; the
# speedrun's corpora come from the network: tests/launch/test_speedrun.py runs its recipes on a hub of its own.
_KINDS = ("encoder", "encoder_moods", "encoder_names", "moods", "quickstart", "quickstart_modern")
RECIPES = sorted((*_KINDS, *_LONG))

# What a recipe leaves to its user. Buckets have room, and nothing is asked of them.
_MODEL_DIR = "--gin.MODEL_DIR='gs://some-bucket/run'"
_OF_A_USER = [
    *(
        "--gin.MIXTURE_OR_TASK_NAME='quickstart_span_corruption'",
        "--gin.MIXTURE_OR_TASK_MODULE='limba.addons.examples.quickstart'",
    ),
    "--gin.VOCABULARY_FILE='vocab/spiece.model'",
]
# Tracing all layers takes longer than all else that lint does.
_FEW_LAYERS = [f"--gin.T5Config.num_{stack}_layers=1" for stack in ("encoder", "decoder")]
_OVERRIDES = {
    "quickstart": ["--gin.VOCABULARY_FILE='vocab/spiece.model'"],
    "quickstart_modern": ["--gin.VOCABULARY_FILE='vocab/spiece.model'"],
    "moods": [
        *("--gin.VOCABULARY_FILE='vocab/spiece.model'", "--gin.VOCAB_SIZE=4096"),
        "--gin.INITIAL_CHECKPOINT_PATH=()",
    ],
    "encoder": ["--gin.VOCABULARY_FILE='vocab/tokenizer.json'"],
    "encoder_moods": ["--gin.VOCABULARY_FILE='vocab/tokenizer.json'", "--gin.INITIAL_CHECKPOINT_PATH=()"],
    "encoder_names": ["--gin.VOCABULARY_FILE='vocab/tokenizer.json'", "--gin.INITIAL_CHECKPOINT_PATH=()"],
}

_GONE = """
from tasks import pretraining

pretraining.register_pretraining_task("gone", data_files={"train": "gone-*.jsonl"}, vocabulary="vocab/spiece.model")
"""
_STAGES = """
from __gin__ import dynamic_registration
from limba.data import contract as data

train/data.DatasetConfig.stages = [@second/data.Stage()]
second/data.Stage:
  begins = 100
  task_feature_lengths = {'inputs': 128, 'targets': 24}
"""
_OF_ITS_SOURCE = {"unshardable_source", "generator_source", "endless_evaluation"}
_SMALL = [
    *(f"--gin.T5Config.{name}={value}" for name, value in {"emb_dim": 32, "num_heads": 4, "mlp_dim": 48}.items()),
    *(f"--gin.T5Config.num_{stack}_layers=1" for stack in ("encoder", "decoder")),
]
_PROJECT = ["--gin_search_paths=.", "--buckets=buckets", _MODEL_DIR]
_QUICK = ["gin/recipes/pretrain_laptop.gin", *_OF_A_USER, "--gin.VOCAB_SIZE=4096", *_SMALL]

# Arguments by name.
RUNS = {
    **{
        name: [
            *(f"--gin_file=gin/recipes/{name}.gin", _MODEL_DIR, *_OVERRIDES.get(name, [])),
            *([] if name.startswith("encoder") else _FEW_LAYERS),
        ]
        for name in RECIPES
    },
    "my_t5_base": ["my_t5_base.gin", *_PROJECT, *_FEW_LAYERS],
    "continued, of bytes": [
        *("my_mt5_large.gin", *_PROJECT, *_SMALL, f"--gin.MIXTURE_OR_TASK_NAME='{t5x_project.BYTE_TASK}'"),
        *("--gin.T5Config.dtype='float16'", "--gin.TRAIN_STEPS=1000000", "--num_devices=6"),
    ],
    "much": [
        *(*_QUICK, "--num_devices=12", "--gin.MODEL_DIR='here'"),
        *("--gin.VOCAB_SIZE=128", "--gin.TASK_FEATURE_LENGTHS={'inputs': 128, 'targets': 24}"),
        *("--gin.PjitPartitioner.num_partitions=3", "--gin.TRAIN_STEPS=2000000000"),
        *("--gin.SaveCheckpointConfig.period=500", "--gin.SaveCheckpointConfig.keep=None", "--gin.BATCH_SIZE=30"),
        "--gin.create_learning_rate_scheduler.base_learning_rate=30.0",
        "--gin.INITIAL_CHECKPOINT_PATH='nowhere'",
    ],
    "as another": [
        *(*_QUICK, _MODEL_DIR, "gin/optimizers/adamw.gin", "--gin.TRAIN_STEPS=4000"),
        *("--gin.create_learning_rate_scheduler.base_learning_rate=0.01", "--gin.SaveCheckpointConfig.period=5000"),
    ],
    "adafactor as adamw": [
        *(*_QUICK, _MODEL_DIR, "--gin.create_learning_rate_scheduler.base_learning_rate=1e-4"),
        *("--gin.create_learning_rate_scheduler.factors='constant * linear_warmup'", "--gin.TRAIN_STEPS=50000"),
        *("--gin.create_learning_rate_scheduler.warmup_steps=50000", "--gin.SaveCheckpointConfig.keep=2"),
    ],
    "nothing there": [
        *(*_QUICK, _MODEL_DIR, "--gin.DROPOUT_RATE=2.0", "--gin.EVAL_STEPS=0"),
        *("--gin.MIXTURE_OR_TASK_NAME='gone'", "--gin.MIXTURE_OR_TASK_MODULE='gone_task'"),
    ],
    "staged": [*_QUICK, _MODEL_DIR, "stages.gin", "--gin_search_paths=."],
    "elsewhere": [*_QUICK, "--gin.MODEL_DIR='stories/train.csv'"],
    "no training": ["gin/models/t5_1_1/base.gin"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("lint")
    line.write_corpus(made / "corpus")
    (made / "stories").mkdir()
    for split in ("train", "validation"):
        (made / "stories" / f"{split}.csv").write_text("story,mood\n" + "At work Ana won a prize.,glad\n" * 500)
        words = {"tokens": ["At", "work", "Ana", "won"], "tags": ["B-SETTING", "I-SETTING", "B-PERSON", "O"]}
        (made / "stories" / f"{split}-words.jsonl").write_text((json.dumps(words) + "\n") * 500)
    for name, split in (("corpus", "train"), ("corpus-validation", "validation")):
        (made / "stories" / f"{name}.jsonl").write_bytes((made / "corpus" / f"{split}-0.jsonl").read_bytes())
    romanian_sentences.write_corpus(made / "ro", {"train": 200, "validation": 20})
    (made / "vocab").mkdir()
    spiece = vocabularies.train(made / "vocab" / "spiece.model", user_defined_symbols=list("AIĂÂÎ"))
    (made / "vocab" / "mt5.model").write_bytes(vocabularies.with_sentinels(spiece, 100))
    vocabularies.write_words(made / "vocab" / "tokenizer.json", ["At", "work", "Ana", "won", "a", "prize", "."])
    for name, model in ((t5x_project.VOCABULARY, "spiece"), (t5x_project.MULTILINGUAL, "mt5")):
        (made / "buckets" / name).parent.mkdir(parents=True)
        (made / "buckets" / name).write_bytes((made / "vocab" / f"{model}.model").read_bytes())
    t5x_project.write(made, {split: f"corpus/{split}-0.jsonl" for split in ("train", "validation")})
    (made / "gone_task.py").write_text(_GONE, encoding="utf-8")
    (made / "stages.gin").write_text(_STAGES, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def answers(folder):
    environment = {
        "LIMBA_QUICKSTART_DIR": str(folder),
        "LIMBA_MOODS_DIR": str(folder),
        "LIMBA_DIACRITICS_DIR": str(folder),
        "LIMBA_ENCODER_DIR": str(folder),
        "RO_CORPUS": str(folder / "ro"),
        "RO_VOCABULARY": str(folder / "vocab" / "spiece.model"),
        "MT5_VOCABULARY": str(folder / "vocab" / "mt5.model"),
    }
    requests = [
        {"arguments": arguments, "environment": environment, "folder": str(folder)} for arguments in RUNS.values()
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.addons.plan.lint.linting"],
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
    # The vocabulary of these tests has 512 ids, too few for the recipes' embeddings, and few letters.
    of_vocabulary = {"unused_rows", "unknown_letters"} | ({"unknown_pieces"} if recipe == "moods" else set())
    # The corpus has some hundred sentences, which a real run reads thousands of times.
    of_corpus = {"many_epochs"} if recipe in _LONG else set()
    assert answers[recipe]["code"] == 0 and _named(answers[recipe]).keys() <= of_vocabulary | of_corpus, answers[recipe]


def test_every_trap_of_a_t5x_project_is_named(answers):
    answer = answers["my_t5_base"]
    assert answer["code"] == 1
    found = _named(answer)
    found.pop("unused_rows", None)
    found.pop("disk", None)  # of a machine with less free space than the checkpoints take
    assert found.keys() == {
        *("target_length", "missing_eos", "position_not_saved", "sentinel_collision", *_OF_ITS_SOURCE)
    }
    assert f"gives 256 targets; 512 inputs of '{t5x_project.TASK}' have at most 114" in found["target_length"]
    assert re.search(r"\d% more FLOPs", answer["out"])
    assert (
        "32 of the first 32 examples" in found["missing_eos"] and "no output feature 'inputs'" in found["missing_eos"]
    )
    assert "its last 28 pieces" in found["sentinel_collision"]
    assert "1 shard for 8 readers" in found["unshardable_source"]
    assert "began again after 60 documents" in found["endless_evaluation"]
    assert "every evaluation sees the same 20 batches" in answer["out"]


def test_continuing_from_a_checkpoint_with_a_task_of_bytes(answers):
    found = _named(answers["continued, of bytes"])
    assert found.keys() == {
        *("ends_at_once", "float16", "batch_size", "target_length", "position_not_saved", "missing_eos"),
        *("initial_checkpoint", "byte_span", "other_vocabulary", "sentinel_collision", *_OF_ITS_SOURCE),
    }
    assert "TRAIN_STEPS (train.total_steps) is 1,000,000, and the run begins at step 1,000,000" in found["ends_at_once"]
    assert found["float16"].startswith("T5Config.dtype is float16")
    assert "batch_size is 128, which does not divide by 3 data shards" in found["batch_size"]
    assert "masks spans of 3 tokens on average, and its tokens are bytes" in found["byte_span"]


def test_rates_of_another_optimizer_and_a_period_longer_than_the_run(answers):
    found = _named(answers["as another"])
    assert {"rate_of_another_optimizer", "period"} <= found.keys() and "long_warmup" not in found
    assert "is 0.00999 at most, and the optimizer's steps are as large" in found["rate_of_another_optimizer"]
    found = _named(answers["adafactor as adamw"])
    assert {"rate_of_another_optimizer", "long_warmup", "many_epochs"} <= found.keys() and "period" not in found
    assert "is 0.0001 at most" in found["rate_of_another_optimizer"]


def test_much_at_once(answers):
    answer = answers["much"]
    assert answer["code"] == 1
    found = _named(answer)
    assert {"embedding_rows", "target_length", "disk", "model_axis", "batch_size", "learning_rate"} <= found.keys()
    assert "gives 24 targets; 128 inputs of 'quickstart_span_corruption' have 29" in found["target_length"]
    assert "num_heads is 4, which does not divide by the mesh axis 'model' of size 3" in found["model_axis"]
    assert found["disk"].startswith("4000000 checkpoints of ")
    assert "The vocabulary has 512 tokens and the embedding 128 rows" in answer["out"]
    assert answer["out"].count("embedding_rows:") == 1
    assert "No checkpoint at " in found["initial_checkpoint"]
    assert answer["out"].endswith("6 errors, 2 warnings\n")


def test_each_stage_is_looked_at(answers):
    found = _named(answers["staged"])
    assert found.keys() >= {"target_length"}, answers["staged"]
    assert "gives 24 targets; 128 inputs of 'quickstart_span_corruption' have 29" in found["target_length"]


def test_what_cannot_be_made_is_a_finding_and_the_rest_is_looked_at(answers):
    answer = answers["nothing there"]
    assert "configuration: train.model: T5Config.dropout_rate (DROPOUT_RATE) is 2.0" in answer["out"]
    assert "configuration: train.eval_steps (EVAL_STEPS) is 0" in answer["out"]
    assert "No file matches the pattern 'gone-*.jsonl'" in _named(answer)["source"]


def test_a_folder_that_cannot_be(answers):
    found = _named(answers["elsewhere"])
    assert "model_dir" in found and answers["elsewhere"]["code"] == 1
    assert "stories/train.csv" in found["model_dir"]


def test_every_finding_has_a_test_where_it_must_come():
    """Where it must not: our recipes, which are silent, and the tests of each check."""
    table = (gin_files.REPOSITORY / "docs" / "lint.md").read_text(encoding="utf-8").partition("| in the files |")[0]
    names = {
        name for row in re.findall(r"^\| (`[a-z0-9_`, ]+) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)
    }
    tests = "".join(file.read_text(encoding="utf-8") for file in (line.ROOT / "tests").rglob("test_*lint*.py"))
    tests += Path(__file__).read_text(encoding="utf-8")
    for other in (
        "addons/diacritics/test_diacritics_tasks.py",
        "tasks/metrics/test_metric_packages.py",
        "tasks/vocabularies/test_framed_rows.py",
    ):
        tests += (line.ROOT / "tests" / other).read_text(encoding="utf-8")
    assert len(names) > 35 and not {name for name in names if not re.search(f'"{name}[":]', tests)}


def test_files_without_a_training(answers):
    assert answers["no training"]["code"] == 1
    assert "lint looks at trainings: add gin/runs/pretrain.gin" in answers["no training"]["err"]


def test_a_number_of_devices_that_cannot_be(capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(["gin/recipes/quickstart.gin", "--num_devices=0"])
    assert stop.value.code == 2
    assert "--num_devices is 0; it is a whole number of at least 1" in capsys.readouterr().err
