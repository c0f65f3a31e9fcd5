"""The wheel, without a clone: what it has, and a project with a `tasks.py` of its own, to the exported model."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from limba.files.version import VERSION
from tests import house, line

# Packages of the tests' own environment without the clone that it has installed.
WITHOUT_CLONE = (
    "import sys\nsys.meta_path[:] = [finder for finder in sys.meta_path if 'Editable' not in repr(finder)]\n"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=house.ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        file = house.ROOT / name
        if (file.is_file() or file.is_symlink()) and not name.startswith(("tests/", "docs/", "benchmarks/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, source / name, follow_symlinks=False)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-q",
        "-w",
        folder,
    ]
    done = subprocess.run([*build, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """Runs `python …` in a folder, with the unpacked wheel in place of the clone."""
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "sitecustomize.py").write_text(WITHOUT_CLONE)

    def call(folder, *arguments, code=0):
        env = line.environment(folder) | {"PYTHONPATH": str(site)}
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, (done.stdout + done.stderr)[-3000:]
        return done.stdout + done.stderr

    return call


def test_what_a_wheel_has(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name == f"limba-{VERSION}-py3-none-any.whl"
    assert {name.partition("/")[0] for name in names} == {"limba", f"limba-{VERSION}.dist-info"}
    ours = [x for folder in ("gin", "launch") for x in (house.ROOT / folder).rglob("*") if x.is_file()]
    ours = [x for x in ours if "__pycache__" not in x.parts]
    assert {f"limba/share/{file.relative_to(house.ROOT)}" for file in ours} <= {*names} and len(ours) > 150
    modules = [file.relative_to(house.ROOT).as_posix() for file in house.modules().values()]
    assert {name if name.startswith("limba/") else f"limba/{name}" for name in modules} <= {*names}
    assert "limba/py.typed" in names


def test_recipes_and_launchers_without_a_clone(run, tmp_path):
    assert "  quickstart " in run(tmp_path, "-m", "limba", "recipes")
    run(tmp_path, "-m", "limba", "recipes", "copy", "quickstart", "my.gin")
    assert (tmp_path / "my.gin").read_text() == (house.ROOT / "gin/recipes/quickstart.gin").read_text()
    said = run(tmp_path, "-m", "limba", "recipes", "copy", "quickstart", "my.gin", code=1)
    assert said == "error: [Errno 17] File exists: 'my.gin'\n"
    said = run(tmp_path, "-m", "limba", "recipes", "copy", "quickstrat", code=1)
    assert said.startswith("error: there is no recipe 'quickstrat'; there are diacritics, ")
    assert run(tmp_path, "-m", "limba", "launch", "--print", "worker") == (house.ROOT / "launch/worker.sh").read_text()
    listed = run(tmp_path, "-m", "limba", "launch")
    assert "  worker.sh " in listed and "variables.sh" not in listed
    assert "works in a clone" in run(tmp_path, "-m", "limba", "launch", "pod.sh", "status", code=1)


TASKS = """
import names_of_files
from limba.tasks import pretraining
pretraining.register_pretraining_task("mine", data_files=names_of_files.DATA, vocabulary="vocab/spiece.model")
"""
RECIPE = """
from __gin__ import dynamic_registration
from limba import train as train_script
from limba.network import t5 as network
from tasks import objectives  # Limba's: the tasks.py here has none
import tasks  # the one here

include 'gin/recipes/pretrain_laptop.gin'

MIXTURE_OR_TASK_NAME = 'mine'
VOCABULARY_FILE = 'vocab/spiece.model'
VOCAB_SIZE = 256
MODEL_DIR = 'runs/mine'
TRAIN_STEPS = 4
BATCH_SIZE = 4
EVAL_STEPS = 1
train_script.train.stats_period = 1
objectives.span_corruption_lengths.inputs_length = 32
network.T5Config:
  emb_dim = 16
  num_heads = 2
  head_dim = 8
  mlp_dim = 32
  num_encoder_layers = 1
  num_decoder_layers = 1
"""


@pytest.mark.slow
def test_a_project_with_a_tasks_py_of_its_own(run, tmp_path):
    line.write_corpus(tmp_path / "corpus")
    line.write_vocabulary(tmp_path / "corpus", tmp_path / "vocab/spiece.model")
    (tmp_path / "names_of_files.py").write_text('DATA = {x: f"corpus/{x}-*.jsonl" for x in ("train", "validation")}\n')
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "mine.gin").write_text(RECIPE)
    run(tmp_path, "-m", "limba", "launch", "worker.sh", "mine.gin")
    steps = [json.loads(text) for text in (tmp_path / "runs/mine/metrics.jsonl").read_text().splitlines()]
    assert [x["step"] for x in steps if x["dataset"] == "train"] == [1, 2, 3, 4]
    assert "exit:0 step=4/4" in run(tmp_path, "-m", "limba", "launch", "worker.sh", "--status").replace("process=", "")
    # The run's configuration names both, each by its own name.
    configuration = (tmp_path / "runs/mine/config.gin").read_text()
    assert "\nimport tasks\n" in configuration and "\nfrom limba.tasks import objectives\n" in configuration
    assert "step  nats" in run(tmp_path, "-m", "limba", "eval", "runs/mine", "--eval_steps=1")


def test_a_tasks_of_somebody_else_runs_only_where_it_is_named(run, tmp_path):
    """Limba's gin files say `from tasks import objectives`, and a downloaded folder may have such a module."""
    (tmp_path / "tasks").mkdir()
    for name in ("__init__", "objectives"):
        (tmp_path / f"tasks/{name}.py").write_text("print('theirs runs')\n")
    (tmp_path / "mine.gin").write_text("include 'gin/recipes/pretrain_laptop.gin'\n")
    assert run(tmp_path, "-m", "limba", "gin-check", "mine.gin") == "ok mine.gin\n"
    (tmp_path / "mine.gin").write_text("import tasks\ninclude 'gin/recipes/pretrain_laptop.gin'\n")
    assert run(tmp_path, "-m", "limba", "gin-check", "mine.gin").count("theirs runs") == 1


def test_without_a_tasks_py_the_name_is_limbas(run, tmp_path):
    (tmp_path / "my_tasks.py").write_text("from tasks import objectives, sources\nimport convert.to_hf\n")
    code = (
        "import limba.cli, my_tasks, limba.tasks.objectives as ours; "
        "from limba.files import python_path, repository; "
        "print(my_tasks.objectives is ours, repository.meant('tasks.objectives'), repository.IN_CLONE)"
    )
    assert run(tmp_path, "-c", code) == "True tasks.objectives False\n"
    assert Path(run(tmp_path, "-c", "import limba; print(limba.__file__)").strip()).parts[-2] == "limba"
