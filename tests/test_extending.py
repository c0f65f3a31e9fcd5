"""The package of docs/extending.md is made, installed beside the repository, and all of it is used."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from convert.tensors import safetensors_files
from limba.checkpoint_files import saved_tensors
from tests import house
from tests.convert.conftest import new_run, sentences, spiece_model

__all__ = ["new_run", "sentences", "spiece_model"]  # fixtures

PAGE = house.ROOT / "docs" / "extending.md"
TEXT = "abcdefghijklmnopqrstuvwx"
RATE = 0.01
pytestmark = pytest.mark.slow


def blocks() -> dict[str, str]:
    """The files of the page's blocks: the first line of each is a comment with its name."""
    found = re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len({name for name, _ in found}) == len(found) == 9
    return dict(found)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A working directory with the package as pip would install it, and a corpus of seven documents."""
    folder = tmp_path_factory.mktemp("home")
    for name, content in blocks().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    (folder / "mylang" / "__init__.py").touch()
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name']}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = (
        [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
        for group, entries in project["entry-points"].items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(line for group in groups for line in group))
    (folder / "corpus").mkdir()
    (folder / "corpus" / "a.xml").write_text(f"<corpus>{f'<doc>{TEXT}</doc>' * 7}</corpus>")
    return folder


def _environment(home: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(home), str(house.ROOT)]), "JAX_PLATFORMS": "cpu"}


def started(home: Path, *arguments: str) -> str:
    """What `limba` prints in a process of its own."""
    command = [sys.executable, "-m", "limba", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, env=_environment(home))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def limba(forks):
    """The same in a fork."""

    def run(home: Path, *arguments: str) -> str:
        done = forks.run(["limba", *arguments], _environment(home), home)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.fixture(scope="module")
def run(home, limba) -> Path:
    """Two steps of the recipe, with a checkpoint of each."""
    shown = {"MODEL_DIR": f"'{home}/run'", "TRAIN_STEPS": 2, "BATCH_SIZE": 8, "RANDOM_SEED": 0, "DATASET_SEED": 0}
    shown |= {"train/data.DatasetConfig.num_readers": 1, "train_script.train.train_eval_dataset_cfg": None}
    shown |= {"checkpoints.SaveCheckpointConfig.period": 1, "checkpoints.SaveCheckpointConfig.keep": None}
    limba(home, "train", "--gin_file=mylang/recipe.gin", *(f"--gin.{name}={value}" for name, value in shown.items()))
    return home / "run"


def test_an_objective_and_a_source_format(home, limba):
    output = limba(home, "preview", "every_third", "--module=mylang.tasks_of_mine", "--inputs_length=8", "--num=1")
    assert "inputs: 8 of 8 tokens" in output and "targets: 22 of 22 tokens" in output
    inputs, targets = (re.search(rf"{name}: .*\n(\w+) </s>", output)[1] for name in ("inputs", "targets"))
    # A window of three times seven letters of a document after another; the inputs are every third of it.
    assert targets in TEXT * 7 and len(targets) == 21 and inputs == targets[::3]


def test_an_optimizer(run):
    first, second = (saved_tensors.open_tensors(run / f"checkpoint_{step}") for step in (1, 2))
    for name in (name for name in first if name.startswith("target/")):
        steps = np.abs(np.asarray(second[name]) - np.asarray(first[name])) / RATE
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)
        assert set(np.round(steps).ravel()) <= {0.0, 1.0} and steps.max() > 0.99


def test_a_network(run):
    tensors = saved_tensors.open_tensors(run / "checkpoint_2")
    shapes = {name: tensors[name].shape for name in tensors if name.startswith("target/")}
    assert shapes == {"target/token_embedder/embedding": (384, 16), "target/logits/kernel": (16, 384)}
    losses = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["cross_ent_loss_per_all_target_tokens"] for line in losses if line["dataset"] == "train"]
    assert losses and all(0 < loss < 2 * np.log(384) for loss in losses)


def test_a_family(home, new_run, limba):
    trained = new_run(home / "t5", num_encoder_layers=1, num_decoder_layers=1, logits_via_embedding=False)
    limba(home, "convert", "to-hf", str(trained), "folder", "--family=mylang_t5")
    config = json.loads((home / "folder" / "config.json").read_text())
    assert (config["model_type"], config["hidden_size"]) == ("mylang_t5", 32) and "d_model" not in config
    written = safetensors_files.open_tensors([home / "folder" / "model.safetensors"])
    kernel = np.asarray(saved_tensors.open_tensors(trained / "checkpoint_10")["target/decoder/logits_dense/kernel"])
    np.testing.assert_array_equal(np.asarray(written["output.weight"]), kernel.T)
    limba(home, "convert", "from-hf", "folder", "back")
    back = saved_tensors.open_tensors(home / "back" / "checkpoint_10")
    np.testing.assert_array_equal(np.asarray(back["target/decoder/logits_dense/kernel"]), kernel)


def test_a_command(home, limba):
    assert started(home, "hello", "Ana") == "hello Ana\n"
    assert "hello" in limba(home, "--help").partition("from other packages")[2]
    with pytest.raises(AssertionError, match="error: hello to whom"):
        limba(home, "hello")


def test_each_part_is_short():
    """At most 15 lines of text a section, blocks of code aside."""
    text = re.sub(r"^```.*?^```$", "", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    assert [section.partition("\n")[0] for section in sections] == [
        *("An objective", "A source format", "An optimizer", "A network"),
        *("A model family with its conversion", "A command"),
    ]
    assert all(len([line for line in section.splitlines() if line.strip()]) <= 15 for section in sections)
