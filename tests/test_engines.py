"""The recipes in T5X's vocabulary, on T5X itself. `limba lint` reads them, and tests/test_t5x_project.py trains one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import line

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """With `corpus/` and `ro.model`."""
    made = tmp_path_factory.mktemp("engines")
    line.write_corpus(made / "corpus")
    line.write_vocabulary(made / "corpus", made / "ro.model")
    return made


def _environment(directory, **extra):
    corpus, vocabulary = str(directory / "corpus"), str(directory / "ro.model")
    return line.environment(directory, RO_CORPUS=corpus, RO_VOCABULARY=vocabulary, **extra)


def _small(model_dir):
    """A network of seconds, three steps."""
    sizes = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "vocab_size": 256}
    return [
        f"--gin.MODEL_DIR='{model_dir}'",
        "--gin.TRAIN_STEPS=3",
        "--gin.BATCH_SIZE=4",
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 18}",
        "--gin.train.eval_steps=2",
        *(f"--gin.network.T5Config.{name}={size}" for name, size in sizes.items()),
        "--gin.network.T5Config.num_encoder_layers=1",
        "--gin.network.T5Config.num_decoder_layers=1",
    ]


def _launch(*arguments, **environment):
    """`bash launch/…` as a worker runs it."""
    return subprocess.run(
        ["bash", *arguments], cwd=line.ROOT, capture_output=True, text=True, check=False, timeout=600, **environment
    )


def test_the_launcher_hands_the_same_recipe_to_t5x(directory, tmp_path):
    package = tmp_path / "t5x"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys, tasks; print(sys.argv[1:], tasks.__file__)", encoding="utf-8")
    environment = _environment(directory, T5X_DIR=str(tmp_path), T5X_PYTHON=sys.executable)
    result = _launch("launch/ro_t5_large.sh", "--gin.TRAIN_STEPS=3", env=environment)
    assert result.returncode == 0, result.stderr
    assert "'--gin_file=gin/recipes/ro_t5_large.gin', '--gin.TRAIN_STEPS=3'" in result.stdout
    assert f"--gin_search_paths={line.ROOT},{line.ROOT}" in result.stdout
    assert str(line.ROOT / "limba/tasks/__init__.py") in result.stdout


def test_a_t5x_dir_without_t5x_is_named(tmp_path):
    result = _launch("launch/ro_mt5_base.sh", env=line.environment(tmp_path, T5X_DIR=str(tmp_path)))
    assert result.returncode == 1
    assert f"T5X_DIR is {tmp_path}, which has no t5x/train.py" in result.stderr


@pytest.mark.skipif(
    not Path(os.environ.get("T5X_DIR", ""), "t5x", "train.py").is_file(),
    reason="T5X itself trains the recipe only where T5X_DIR is a checkout (and T5X_PYTHON an environment) of it",
)
def test_t5x_trains_the_recipe(directory):
    model_dir = directory / "t5x"
    result = _launch("launch/ro_t5_base.sh", *_small(model_dir), env=_environment(directory))
    assert result.returncode == 0, result.stderr[-2000:]
    assert (model_dir / "checkpoint_3").is_dir()
