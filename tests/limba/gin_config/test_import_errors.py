import importlib
import re
import sys
from importlib import metadata

import gin
import pytest

from limba import command_line
from limba.addons.plan.lint import command as lint
from limba.checkpoint_files import run_folder, small_files
from limba.gin_config import gin_files, import_errors
from limba.workers import code_versions
from tasks.registry import providers

# Text of a module, and what is said of it: the line in it that led to the exception.
BROKEN = {
    "def f():\n    return {}['x']\n\n\nf()\n": "line 2: KeyError: 'x'",
    "import json\n\njson.loads('[')\n": "line 3: JSONDecodeError: Expecting value",
    "import no_such_module_of_mine\n": "line 1: ModuleNotFoundError: No module named 'no_such_module_of_mine'",
    "X = 1\nX = = 2\n": "line 2: invalid syntax",
}


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_module_that_fails_is_named_with_its_line(tmp_path, monkeypatch, number):
    text, words = list(BROKEN.items())[number]
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"broken_{number}.py").write_text(text)
    (tmp_path / "run.gin").write_text(f"X = 1\nimport broken_{number}\n")
    said = f"the Python module {tmp_path}/broken_{number}.py, {words}"
    with pytest.raises((KeyError, ValueError, ImportError, SyntaxError)) as directly:
        importlib.import_module(f"broken_{number}")
    assert import_errors.describe(directly.value).startswith(said)
    with pytest.raises(gin_files.GinError) as raised:
        gin_files.parse_gin_flags([str(tmp_path / "run.gin")], [])
    gin.clear_config()
    assert raised.value.what.startswith(said)
    place = f"broken_{number}.py" if "invalid syntax" in words else "run.gin"
    assert raised.value.places == ((str(tmp_path / place), 2),)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tasks", "cannot import name 'x' from partially initialized module 'tasks' (a circular import) (/a/tasks.py)"),
        ("convert", "No module named 'convert.to_hf'; 'convert' is not a package"),
        (None, "cannot import name 'x' from 'tasks' (/a/limba/tasks/__init__.py)"),
    ],
)
def test_a_tasks_py_in_place_of_limbas(tmp_path, monkeypatch, name, said):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "of_ana", raising=False)
    (tmp_path / "of_ana.py").write_text(f"raise ImportError({said!r})\n")
    (tmp_path / "run.gin").write_text("import of_ana\n")
    with pytest.raises(gin_files.GinError) as raised:
        gin_files.parse_gin_flags([str(tmp_path / "run.gin")], [])
    gin.clear_config()
    remedy = f". That {name} is your {name}.py; Limba's package is limba.{name}: write `from limba.{name} import …`."
    assert raised.value.what.endswith(said + (remedy if name else ""))


def test_datasets_beside_an_older_hub():
    lacking = "cannot import name 'BucketNotFoundError' from 'huggingface_hub.errors' (/x/huggingface_hub/errors.py)"
    said = import_errors.conflicting_hub(ImportError(lacking))
    assert f"datasets {metadata.version('datasets')} and huggingface_hub" in said and "'datasets<5'" in said
    assert import_errors.conflicting_hub(ImportError("cannot import name 'x' from 'json' (/x)")) is None


def test_an_error_of_no_module():
    try:
        raise KeyError("x")
    except KeyError as error:
        assert import_errors.describe(error) is None


NEEDS_SEQIO = (
    "seqio is not installed. Limba's own tasks do without it; SeqIO tasks need `pip install 'limba[seqio]'`, and "
    "LOCK=seqio for the scripts of launch/."
)


class NoSeqIO:
    """A finder that does not let Python find SeqIO."""

    @staticmethod
    def find_spec(fullname, path, target=None):
        if fullname == "seqio":
            raise ModuleNotFoundError("No module named 'seqio'", name="seqio")


@pytest.fixture
def without_seqio(monkeypatch):
    """A process whose environment has no SeqIO."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "seqio"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoSeqIO, *sys.meta_path])
    monkeypatch.setattr(sys, "version_info", (3, 13, 1))
    yield
    gin.clear_config()


@pytest.mark.parametrize("line", ["import t5_tasks_of_mine", "import seqio", "from seqio import vocabularies"])
def test_seqio_that_is_not_installed(tmp_path, monkeypatch, without_seqio, line):
    """In a task module, and in a gin file."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "t5_tasks_of_mine.py"
    module.write_text("import functools\n\nimport seqio\n")
    (tmp_path / "run.gin").write_text(f"from __gin__ import dynamic_registration\n{line}\n")
    with pytest.raises(gin_files.GinError) as raised:
        gin_files.parse_gin_flags([str(tmp_path / "run.gin")], [])
    place = f"the Python module {module}, line 3: " if "mine" in line else ""
    assert raised.value.what == place + NEEDS_SEQIO
    assert raised.value.places == ((str(tmp_path / "run.gin"), 2),)


def test_seqio_that_a_command_needs_and_is_not_installed(without_seqio, capsys):
    def main(argv):
        import seqio

        return seqio, argv

    with pytest.raises(SystemExit) as ended:
        command_line.run_command(main, [])
    assert ended.value.code == 1 and capsys.readouterr().err == f"error: {NEEDS_SEQIO}\n"


def test_a_python_that_tensorflow_has_no_wheels_for(without_seqio, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 14, 2))
    why = " It needs Python 3.13 or older, because TensorFlow has no wheels for 3.14."
    assert import_errors.missing_extra(ModuleNotFoundError(name="seqio")) == NEEDS_SEQIO + why


def test_the_remedy_for_a_module_can_be_pasted_into_a_shell(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "tasks_of_ana.py").touch()
    assert import_errors.where_it_lies("tasks_of_ana", [str(folder)]) == (
        f" It lies in {folder}: work in that folder (cd '{folder}'), where relative paths, such as a vocabulary's, are "
        f"found too, or set PYTHONPATH='{folder}'."
    )


@pytest.mark.parametrize("name", ["seqio.no_such_module", "optuna", None])
def test_modules_that_the_extra_does_not_bring(name):
    assert import_errors.missing_extra(ModuleNotFoundError(name=name)) is None


def test_a_missing_module_of_a_run_is_said_with_the_folder_where_it_was(tmp_path, monkeypatch):
    """In gin files and as a task's module; nothing is imported from there."""
    monkeypatch.setattr(import_errors, "_folders_of_run", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tasks_of_ana.py").touch()
    importlib.import_module("tasks_of_ana")
    folders = code_versions.folders_of(["tasks_of_ana", "json", "numpy.linalg", "limba.train", "not_imported"])
    assert folders == {"tasks_of_ana": str(tmp_path)}

    monkeypatch.delitem(sys.modules, "tasks_of_ana")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    import_errors.remember(folders)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.gin").write_text("import tasks_of_ana\n")
    said = f"No module named 'tasks_of_ana'. The run imported it from {tmp_path}: work in that folder (cd {tmp_path})"
    with pytest.raises(gin_files.GinError, match=re.escape(said)):
        gin_files.parse_gin_flags([str(tmp_path / "run/run.gin")], [])
    gin.clear_config()
    with pytest.raises(ValueError, match=re.escape(said.partition(". ")[2])):
        providers.find_provider("a_task", "tasks_of_ana")
    with pytest.raises(ValueError, match=r"PYTHONPATH\.$"):
        providers.find_provider("a_task", "tasks_of_nobody")


def test_a_run_that_lint_reads_names_the_folder_of_its_modules(tmp_path, monkeypatch):
    monkeypatch.setattr(import_errors, "_folders_of_run", {})
    checkpoint = tmp_path / "run" / "checkpoint_1"
    (checkpoint / "state").mkdir(parents=True)
    record = run_folder.files({"modules": {"tasks_of_ben": "/home/ben"}}, "import tasks_of_ben\n", None)
    small_files.write_files(checkpoint / "run", record)
    with pytest.raises(gin_files.GinError, match=r"named 'tasks_of_ben'\. The run imported it from /home/ben: work in"):
        lint.main([str(tmp_path / "run")])
    gin.clear_config()
