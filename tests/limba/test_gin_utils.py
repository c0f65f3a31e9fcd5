import logging
import sys

import gin
import jax
import optax
import pytest

from limba import cli, gin_utils, models, network
from tests.limba import small


@pytest.fixture(autouse=True)
def _clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def gin_file(tmp_path):
    def write(text, name="run.gin"):
        path = tmp_path / name
        path.write_text("from __gin__ import dynamic_registration\nfrom limba import network\n" + text)
        return str(path)

    return write


SMALL = "SIZE = 8\nnetwork.T5Config:\n  vocab_size = 128\n  emb_dim = %SIZE\n"


def test_files_then_bindings(gin_file):
    arguments = gin_utils.rewrite_gin_flags(["--gin_file=x", "--gin.SIZE=16", "--gin.network.T5Config.num_heads=2"])
    assert arguments == ["--gin_file=x", "--gin_bindings=SIZE = 16", "--gin_bindings=network.T5Config.num_heads = 2"]
    bindings = [a.removeprefix("--gin_bindings=") for a in arguments[1:]]
    gin_utils.parse_gin_flags([gin_file(SMALL)], bindings)
    config = gin.get_configurable(network.T5Config)()
    assert (config.emb_dim, config.num_heads, config.vocab_size) == (16, 2, 128)


def test_later_files_override_earlier_ones(gin_file):
    gin_utils.parse_gin_flags([gin_file(SMALL), gin_file("SIZE = 32\n", "later.gin")], [])
    assert gin.get_configurable(network.T5Config)().emb_dim == 32


def test_our_own_files_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gin_utils.GinError, match=r"gin/models/t5_1_1/smal\.gin .*Did you mean gin/models/t5_1_1/small"):
        gin_utils.parse_gin_flags(["gin/models/t5_1_1/smal.gin"], [])


def test_search_paths_come_first(tmp_path, gin_file):
    gin_file("SIZE = 64\n", "included.gin")
    main = gin_file("SIZE = 1\ninclude 'included.gin'\nnetwork.T5Config.emb_dim = %SIZE\n", "main.gin")
    gin_utils.parse_gin_flags([main], ["network.T5Config.vocab_size = 128"], search_paths=str(tmp_path))
    assert gin.get_configurable(network.T5Config)().emb_dim == 64


@pytest.mark.parametrize(
    ("text", "bindings", "words"),
    [
        ("network.T5Confg.emb_dim = 8\n", [], ["T5Confg", "Did you mean T5Config"]),
        ("network.T5Config.embdim = 8\n", [], ["embdim", "emb_dim"]),
        (SMALL, ["SISE = 4"], ["SISE", "Did you mean SIZE"]),
        (SMALL, ["SIZE = four"], ["four", "quotes"]),
        ("network.T5Config.emb_dim = %MODEL\n", [], ["MODEL", "gin/models/"]),
        ("network.T5Config.emb_dim = %WIDTH\n", [], ["WIDTH", "--gin.WIDTH="]),
        ("import no_such_module\n", [], ["no_such_module"]),
    ],
)
def test_mistakes_name_themselves_and_the_nearest(gin_file, text, bindings, words):
    with pytest.raises(gin_utils.GinError) as error:
        gin_utils.parse_gin_flags([gin_file(text)], bindings)
    for word in words:
        assert word in str(error.value)


def test_binding_without_value():
    with pytest.raises(gin_utils.GinError, match=r"--gin\.SIZE"):
        gin_utils.rewrite_gin_flags(["--gin.SIZE"])


def test_required_macros(gin_file):
    gin_utils.parse_gin_flags([gin_file("STEPS = %gin.REQUIRED\nnetwork.T5Config.emb_dim = %STEPS\n")], [])
    with pytest.raises(gin_utils.GinError, match=r"STEPS is required: add --gin\.STEPS=100"):
        gin_utils.require_bindings(STEPS="100", OTHER="1")


def test_the_folder_gin_holds_no_python():
    assert not list((gin_utils.REPOSITORY / "gin").rglob("*.py"))


@pytest.fixture
def _logging_as_before():
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    yield
    root.level, root.handlers[:] = before


@pytest.mark.usefixtures("_logging_as_before")
def test_command_errors_are_one_message_and_exit_code_1(capsys, monkeypatch):
    monkeypatch.delenv("LIMBA_TRACEBACK", raising=False)

    def broken(_):
        raise ValueError("batch_size is 3; use 4.\n  In call to configurable 'x' (<class 'X'>)")

    with pytest.raises(SystemExit) as stop:
        gin_utils.run_command(broken, [])
    assert stop.value.code == 1
    assert capsys.readouterr().err == "error: batch_size is 3; use 4.\n"


@pytest.mark.parametrize(("argument", "words"), [("trian", ["trian", "'train'"]), ("xyz", ["xyz", "convert"])])
def test_unknown_command(argument, words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["limba", argument])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    for word in words:
        assert word in capsys.readouterr().err or word == words[-1]


def test_help_lists_every_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["limba", "--help"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert all(f"  {name} " in out for name in ("train", "eval", "infer", "convert", "vocab", "preview"))


ADAMW = """
from limba import models
from limba import optimizers
import optax
include 'gin/models/t5_1_1/tiny.gin'
OPTIMIZER = @optimizers.OptaxOptimizer()
optimizers.OptaxOptimizer.transformation = @optax.adamw()
optax.adamw:
  learning_rate = 1.0
  weight_decay = 0.01
LOSS_NORMALIZING_FACTOR = 'NUM_REAL_TARGET_TOKENS'
"""


def test_an_optax_optimizer_by_gin_trains(gin_file):
    vocabulary = "VOCABULARY = None"
    gin_utils.parse_gin_flags([gin_file(ADAMW)], ["DROPOUT_RATE = 0.0", vocabulary, "VOCAB_SIZE = 256"])
    model = gin.get_configurable(models.EncoderDecoderModel)()
    made = small.make_trainer(model, learning_rate=1e-2)
    state = made.new_state(jax.random.key(0))
    batch = made.partitioner.shard_batch(small.batch(0))
    losses = []
    for _ in range(8):
        state, metrics = made.train_step(state, batch)
        losses.append(metrics["loss"].compute())
    assert losses[-1] < 0.97 * losses[0]
    assert int(optax.tree.get(state.opt_state, "count")) == 8


def test_recipes_parse():
    for recipe in sorted((gin_utils.REPOSITORY / "gin" / "recipes").glob("*.gin")):
        gin.clear_config()
        gin_utils.parse_gin_flags([str(recipe)], ["MODEL_DIR = 'x'"])
        assert gin.query_parameter("%TRAIN_STEPS") > 0, recipe
        header = recipe.read_text().partition("from __gin__")[0]
        assert "bash launch/" in header and "expect" in header, recipe
