import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from limba.files import repository

ROOT = Path(__file__).parents[3]


def test_a_tasks_py_of_the_users_does_not_hide_ours(tmp_path):
    (tmp_path / "tasks.py").write_text("raise RuntimeError('of a T5X project')")
    program = "import limba.gin_config.gin_files, tasks.objectives; print(tasks.objectives.__file__)"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert Path(run.stdout.strip()).resolve() == ROOT / "tasks/objectives/__init__.py"


def test_what_is_hidden_is_named(tmp_path, monkeypatch, caplog):
    (tmp_path / "tasks.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    repository.warn_of_hidden_modules()
    assert [r.getMessage() for r in caplog.records] == [
        f"{tmp_path}/tasks.py is hidden by Limba's own package 'tasks': rename it, to my_tasks for example, and "
        "name that instead (--module my_tasks)."
    ]


def test_beside_a_clone_of_its_name(tmp_path):
    """Python takes the folder `limba` for a namespace package, before an editable install's finder is asked."""
    (tmp_path / "limba").symlink_to(repository.REPOSITORY)
    code = "import limba; print(limba.__file__); import limba.checkpoints.run_description, convert.t5x.limba_run"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for arguments in (["-c", code], ["-m", "limba", "env"]):
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("None\n" if "-c" in arguments else "Limba    0.1.0"), done.stdout


def test_names_that_files_of_users_have():
    """Their gin files and modules of tasks, and programs that start the server."""
    names = {
        "tasks.diacritics": "limba.addons.diacritics",
        "tasks.examples.moods": "limba.addons.examples.moods",
        "tasks.examples.romanian": "limba.addons.diacritics.romanian",
        "tasks.examples.speedrun": "limba.addons.instructions.speedrun",
        "limba.addons.examples.speedrun": "limba.addons.instructions.speedrun",
        "tasks.supervised.instructions.instruction_files": "limba.addons.instructions.instruction_files",
        "tasks.minimal_pairs.pairs_tasks": "limba.addons.pairs.pairs_tasks",
        "limba.commands.serve.app": "limba.addons.serve.app",
        "convert.to_hf": "limba.convert.to_hf",
    }
    for name, real in names.items():
        module = importlib.import_module(name)
        assert module is importlib.import_module(real) and module.__name__ == module.__spec__.name == real
    from tasks.pipeline import cached

    assert cached.__name__ == "limba.addons.cache"
    with pytest.raises(ModuleNotFoundError, match=r"limba\.commands\.nothing"):
        importlib.import_module("limba.commands.nothing")


def test_python_runs_modules_by_these_names(tmp_path):
    command = [sys.executable, "-m", "tasks.examples.moods", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert not done.stderr and (tmp_path / "train.csv").is_file()
