"""What the user's modules import is found by every command: T5's names, and a fork's own modules of T5X."""

import json
import os
import pickle
import sys

import pytest

from limba.addons.cards import run_example
from limba.addons.reader_processes import served_batches
from tests import line
from tests.convert import vocabularies

# `t5`, `t5.data` and their like without SeqIO, which takes seconds; and a module that only the fork has.
TASKS = """
import t5, t5.data, t5.data.mixtures
from t5.evaluation import metrics
from t5x.contrib.mine import lengths
from tasks import pretraining

assert callable(metrics.rouge) and t5.data.mixtures.__name__ == "t5.data.mixtures"
pretraining.register_pretraining_task(
    "of_the_fork", data_files={"train": "text.txt"}, vocabulary="spiece.model", objective=lengths.OBJECTIVE
)
"""
OBJECTIVE = "from tasks import objectives\n\nOBJECTIVE = objectives.SpanCorruption(0.15, 3.0)\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "fork_tasks.py").write_text(TASKS)
    (folder / "t5x" / "contrib" / "mine").mkdir(parents=True)
    (folder / "t5x" / "contrib" / "mine" / "lengths.py").write_text(OBJECTIVE)
    vocabularies.train(folder / "spiece.model", vocab_size=90)
    (folder / "text.txt").write_text("\n".join(vocabularies.sentences(60)))
    return folder


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("preview of_the_fork --inputs_length 32", "fill of the first"),
        ("cache of_the_fork --sequence_length inputs=32,targets=12 --out cached", "cached/train: "),
    ],
)
def test_commands_that_read_a_task_alone(project, forks, command, says):
    words = ["limba", *command.split(), "--module", "fork_tasks", "--split", "train"]
    done = forks.run(words, line.environment(project), project)
    assert (done.returncode, done.stderr.count("Error")) == (0, 0), done.stderr
    assert says in done.stdout


def test_a_model_card(project, monkeypatch):
    monkeypatch.setattr(run_example, "_SECONDS", None)  # A busy machine would reach it.
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.chdir(project)
    gin = "import fork_tasks\nimport t5.data.mixtures\nfrom t5x import utils\nfrom t5x.contrib.mine import lengths\n"
    assert run_example.modules(gin) == ["fork_tasks", "t5x.contrib.mine.lengths"]
    example = run_example.of_run({"task": "of_the_fork"}, gin)
    assert example.split == "train" and example.targets


def test_a_reader_s_process(monkeypatch):
    """It has no import of the main process: what a stream's functions import is found there too."""
    prepared = []
    monkeypatch.setattr(served_batches.importing, "prepare", lambda: prepared.append(pickle))

    class Ended:
        def recv(self):
            assert prepared, "before anything is unpickled"
            raise EOFError

    monkeypatch.setattr(served_batches.signal, "signal", lambda *_: None)
    served_batches.serve(Ended(), 8)
    assert prepared


# What a process finds under T5X's names: who made the module, by name.
_WHO = """
import importlib, json, sys
from limba.gin_config import importing
found = {}
for name in sys.argv[1:]:
    try:
        module = importing.load(name)
        found[name] = getattr(module, "WHO", "Limba" if hasattr(module, "T5Config") else type(module).__name__)
    except ImportError as error:
        found[name] = str(error)
print(json.dumps(found))
"""
_NETWORK, _LAYERS, _CALM = "t5x.examples.t5.network", "t5x.examples.mine.layers", "t5x.contrib.calm.layers"
_ENGINE = ("checkpoints", "partitioning", "trainer")


@pytest.mark.parametrize("is_package", [True, False])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_fork_s_own_modules_come_before_the_aliases(tmp_path, forks, is_package, is_whole):
    """Also in folders without __init__.py. Of a whole copy of T5X only what T5X itself lacks is the fork's own."""
    files = [_NETWORK, _LAYERS, _CALM, *(f"t5x.{name}" for name in _ENGINE if is_whole)]
    for name in files:
        file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("WHO = 'the fork'\n")
    if is_package:
        for folder in [path for path in tmp_path.rglob("*") if path.is_dir()]:
            (folder / "__init__.py").write_text("import t5x.adafactor\n" if folder.name == "t5x" else "")
    (tmp_path / "t5x" / "models").mkdir()  # Of checkpoints: no Python.
    (tmp_path / "who.py").write_text(f"def main(argv):\n    import sys\n    sys.argv[1:] = argv\n    exec({_WHO!r})\n")
    names = [_NETWORK, _LAYERS, _CALM, "t5x.models", "t5x.trainer", "t5x.trainr"]
    done = forks.run(["who", *names], line.environment(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found[_LAYERS] == "the fork"
    assert (found[_NETWORK], found["t5x.models"]) == ("Limba" if is_whole else "the fork", "_Alias")
    assert found[_CALM] == "the fork" if not is_whole else "Limba has no early-exit decoding" in found[_CALM]
    assert found["t5x.trainer"] == "_Alias" and found["t5x.trainr"].endswith("It provides t5x.trainer.")


def test_limba_s_own_stand_in_for_t5x_is_no_fork(forks, tmp_path):
    (tmp_path / "who.py").write_text(f"def main(argv):\n    import sys\n    sys.argv[1:] = argv\n    exec({_WHO!r})\n")
    environment = line.environment(tmp_path, PYTHONPATH=os.pathsep.join([str(line.ROOT / "launch"), *sys.path[:1]]))
    done = forks.run(["who", "t5x.train"], environment, tmp_path)
    assert json.loads(done.stdout) == {"t5x.train": "_Alias"}, done.stderr
