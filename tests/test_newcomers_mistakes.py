"""Mistakes that newcomers made, and what they are told: the value, where it is, and what to write."""

import json

import gin
import numpy as np
import pytest

from limba import eval as evaluation
from limba import train
from limba.addons.cache import write_cache
from limba.addons.plan import command as plan
from limba.addons.run import command as run
from limba.addons.sweep import sweep_file
from limba.checkpoints import restore
from limba.data import contract
from limba.gin_config import gin_files
from limba.inference import input_files
from limba.network import t5
from limba.partitioning import meshes
from tasks import objectives
from tasks.pretraining import pretraining_tasks
from tasks.registry import rows, tasks
from tasks.sources import arrow_tables, chunks, corpora
from tasks.sources.damaged_files import bad_lines
from tasks.vocabularies import sentencepiece_training
from tests import quickstart_corpus

RECIPE = "gin/recipes/quickstart.gin"


@pytest.fixture(autouse=True)
def forgets_gin():
    yield
    gin.clear_config()


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("MODEL_DIR=''", "MODEL_DIR is ''; it is a folder"),
        ("MIXTURE_OR_TASK_NAME=3", "MIXTURE_OR_TASK_NAME is 3; it is a name"),
        ("MIXTURE_OR_TASK_NAME=['my_corpus']", "MIXTURE_OR_TASK_NAME is a list of 1; it is a name"),
        ("MIXTURE_OR_TASK_NAME=None", "MIXTURE_OR_TASK_NAME is None; it is a name"),
        ("network.T5Config.head_dimm=7", "parameter named 'head_dimm'. Did you mean head_dim, emb_dim?"),
    ],
)
def test_bindings_of_a_wrong_kind(binding, words):
    with pytest.raises(gin_files.GinError) as error:
        train.main([RECIPE, f"--gin.{binding}", "--dry_run"])
    assert words in str(error.value)


def test_log_every_is_an_argument_of_train(capsys, monkeypatch, tmp_path):
    quickstart_corpus.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    train.main([RECIPE, "--log_every", "25", "--dry_run"])
    assert "train.log_every = 25" in " ".join(capsys.readouterr().out.split())


def test_a_name_that_is_near_to_none_gets_no_suggestion():
    with pytest.raises(gin_files.GinError) as error:
        train.main([RECIPE, "--gin.network.T5Config.nothere=7"])
    assert "'nothere'" in str(error.value) and "Did you mean" not in str(error.value)


def test_files_that_are_no_recipe(tmp_path):
    (tmp_path / "empty.gin").write_text("")
    with pytest.raises(gin_files.GinError, match=r"empty\.gin: nothing binds train\.model; give a recipe before it"):
        train.main([str(tmp_path / "empty.gin")])
    with pytest.raises((gin_files.GinError, OSError), match=r"is a folder; name a gin file, such as .*empty\.gin"):
        train.main([str(tmp_path)])
    (tmp_path / "export").mkdir()
    (tmp_path / "export/config.json").write_text("{}")
    with pytest.raises(gin_files.GinError, match=r"is a Hugging Face folder: make a run .* runs/NAME/model\.gin"):
        train.main([str(tmp_path / "export")])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: restore.RestoreCheckpointConfig(path=5), r"\(INITIAL_CHECKPOINT_PATH\) is 5; it is a run's directory"),
        (lambda: contract.DatasetConfig("a", {}, "train", True), r"BATCH_SIZE\) is True; it is a whole number"),
        (lambda: contract.DatasetConfig("a", {}, "train", 2**62), r"BATCH_SIZE\) is 4611686018427387904; it is a"),
        (lambda: t5.T5Config(vocab_size=32, dropout_rate=None), r"dropout_rate \(DROPOUT_RATE\) is None; it is a numb"),
        (lambda: t5.T5Config(vocab_size=32, logits_via_embedding="y" * 9000), "y{60}…'; it is True or False"),
        (lambda: t5.T5Config(vocab_size=32, scan_layers=[[]]), "scan_layers is a list of 1; it is True or False"),
        (lambda: t5.T5Config(vocab_size=32, mlp_activations=("Dense",)), "has no activation 'Dense'; try 'gelu'"),
        (lambda: t5.T5Config(vocab_size=32, mlp_activations=("jit", "linear")), "has no activation 'jit'; try 'gelu'"),
        (lambda: t5.T5Config(vocab_size=32, mlp_activations=()), "mlp_activations is empty; it is a tuple of names"),
        (lambda: t5.T5Config(vocab_size="y" * 9000), r"vocab_size .VOCAB_SIZE. is 'y{60}…'; it is a whole number"),
        (lambda: t5.T5Config(vocab_size=32, dropout_rate=10**400), "is a whole number of about 401 digits; it is a"),
        (lambda: t5.T5Config(vocab_size=32, mlp_activations=(3,)), "has no activation 3; try 'gelu'"),
        (lambda: meshes.PjitPartitioner(num_partitions=0), "num_partitions is 0; it is a whole number of at least 1"),
        (lambda: objectives.span_corruption_lengths(inputs_length="64"), "inputs_length is '64'; it is a number"),
        (lambda: objectives.SpanCorruption(noise_density="0.15"), "noise_density is '0.15'; it lies between 0 and 1"),
        (lambda: objectives.SpanCorruption(mean_noise_span_length=None), "length is None; a span has at least 1 token"),
        (lambda: contract.DatasetConfig("a", {}, "train", 8, num_readers="x"), "num_readers is 'x', which does not"),
        (lambda: tasks.Task("a", None, {}, shuffle_buffer_size=-1), "shuffle_buffer_size of task 'a' is -1; it is a w"),
        (
            lambda: pretraining_tasks.register_pretraining_task(
                "a", data_files={}, vocabulary=None, objective="PrefixLM"
            ),
            r"lacks .*; write objective=objectives\.SpanCorruption\(\)",
        ),
        (
            lambda: rows.texts(rows.Rows({"text": np.array([5, 6])}, np.zeros((2, 3)), np.arange(2)), "text"),
            "Column 'text' has numbers, such as 5, and the task needs texts",
        ),
    ],
)
def test_values_of_a_wrong_kind(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_numbers_are_no_corpus(tmp_path):
    (tmp_path / "numbers.jsonl").write_text('{"text": 5}\n' * 5)
    source = corpora.HuggingFaceSource({"train": str(tmp_path / "numbers.jsonl")})
    with pytest.raises(ValueError, match="Column 'text' of split 'train' has 5, which is not text"):
        sentencepiece_training.train_vocabulary(source, tmp_path / "a.model", vocab_size=512)
    with pytest.raises(ValueError, match="vocab_size is 128000000000; it is at most 16,777,216"):
        sentencepiece_training.train_vocabulary(source, tmp_path / "a.model", vocab_size=128_000_000_000)


def test_a_home_in_the_name_of_a_vocabulary_is_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.model").write_text("mine")
    with pytest.raises(FileExistsError, match=str(tmp_path / "a.model")):
        sentencepiece_training.train_vocabulary(corpora.HuggingFaceSource({"train": "x"}), "~/a.model", vocab_size=512)


def test_lines_that_are_lists(tmp_path):
    (tmp_path / "a.jsonl").write_text("[1, 2]\n[3]\n")
    shard = arrow_tables.local_shard(tmp_path / "a.jsonl")
    bad = bad_lines.find(shard, "json", ["text"])
    assert bad.what == 'line 1 is a list, and a row is an object: {"text": …}'
    (tmp_path / "a.jsonl").write_text('[{"text": "a"},\n{"text": "b"}]\n')  # one list of rows
    assert bad_lines.find(shard, "json", ["text"]) is None


def test_the_cache_is_blamed_and_not_the_corpus(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    refused = PermissionError(13, "Permission denied", "/home/a/.cache/huggingface/datasets/x.lock")
    message = str(chunks.broken(arrow_tables.local_shard(tmp_path / "a.jsonl"), 0, refused, ["text"]))
    assert "cache of Hugging Face's datasets" in message and "Set HF_HOME" in message and "a.jsonl" not in message


def test_a_folder_of_something_else(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    task = tasks.Task("a", None, {})
    with pytest.raises(ValueError, match=r"holds other files, such as notes\.txt: give a new folder"):
        write_cache.write_cache(task, "train", {"inputs": 8, "targets": 8}, tmp_path)
    with pytest.raises(SystemExit):
        plan.main(["--topology", "v4-8", "--record", str(tmp_path), RECIPE])
    assert "which is a folder; name a file" in capsys.readouterr().err


def test_eval_of_nothing(capsys):
    with pytest.raises(SystemExit):
        evaluation.main([])
    assert "give RUN, or --gin_file=RUN/config.gin" in capsys.readouterr().err


def test_a_folder_of_inputs(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"--input_file .* is a folder; give a file with one input a line"):
        input_files.read_lines(str(tmp_path))


def test_a_readme_of_ones_own_is_not_replaced(tmp_path):
    (tmp_path / "README.md").write_text("my notes")
    keys = {"config_name": "x", "train_file": "y", "output_dir": str(tmp_path), "do_train": True}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    with pytest.raises(ValueError, match=r"holds the file README\.md, which no `limba run` has written"):
        run.main([str(tmp_path / "keys.json")])
    assert (tmp_path / "README.md").read_text() == "my notes"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; a sweep's file has keys and values"),
        ("5", "holds 5; a sweep's file has keys and values"),
        ("method: grid\nmetric: {name: a/b, goal: less}\n", "metric.goal is 'less'; it is minimize or maximize"),
    ],
)
def test_files_of_sweeps(tmp_path, text, words):
    (tmp_path / "sweep.yaml").write_text(text)
    with pytest.raises(ValueError, match=words):
        sweep_file.load(tmp_path / "sweep.yaml")
