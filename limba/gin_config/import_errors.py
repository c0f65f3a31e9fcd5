"""Messages for a user's module that fails when it is imported, and for SeqIO where it is not installed."""

import difflib
import re
import sys
import traceback
import types
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from limba.files import python_path
from limba.files.local_paths import local_path
from limba.files.shell_words import quoted

# What limba[seqio] brings. Modules that were written for T5X import it; Limba's own tasks do not need it.
_OF_THE_EXTRA = ("seqio", "tensorflow", "tensorflow_text", "tensorflow_datasets", "clu")
_NEWEST_PYTHON_OF_TENSORFLOW = (3, 13)
# What Python says where a user's `tasks.py` was imported in place of Limba's package.
_FILE_OF_THE_NAME = re.compile(
    r"'(tasks|convert)' .*[/(]\1\.py\)"  # a name is missing
    r"|No module named '(tasks|convert)\.[^']+'; '\2' is not a package"
)


# Of a run: the folders from which it imported modules of the user's own.
_folders_of_run: dict[str, str] = {}


def remember(folders: Mapping[str, str]) -> None:
    """Keeps what a run's record says of modules, for messages only: nothing is imported from there."""
    _folders_of_run.update(folders)


def where_it_was(module: str) -> str:
    """The end of the message that a module is missing; "" if no run has imported it."""
    folder = _folders_of_run.get(module.partition(".")[0])
    return f" The run imported it from {folder}: {_remedy(folder)}" if folder else ""


def where_it_lies(module: str, folders: Iterable[str]) -> str:
    """The end of the message that a module is missing; "" if it is in none of the folders."""
    name = module.partition(".")[0]
    for folder in map(local_path, folders):
        if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
            return f" It lies in {folder}: {_remedy(str(folder))}"
    return ""


def _remedy(folder: str) -> str:
    folder = quoted(folder)
    return (
        f"work in that folder (cd {folder}), where relative paths, such as a vocabulary's, are found too, or set "
        f"PYTHONPATH={folder}."
    )


def did_you_mean(module: str) -> str:
    """The end of the message that a module is missing: the name without .py, the nearest file of this folder, or ""."""
    names = [file.stem for file in Path.cwd().glob("*.py") if file.stem != module]  # else its folder is not searched
    near = difflib.get_close_matches(module.removesuffix(".py"), names, n=1)
    if module.endswith(".py"):
        near = near or [Path(module).stem]
        return f" A module is named without .py: {near[0]}."
    return f" Did you mean {near[0]!r}?" if near else ""


def describe(error: BaseException) -> str | None:
    """The module, the line in it and the exception; None if no module raised the error while it was imported."""
    if isinstance(error, SyntaxError) and str(error.filename).endswith(".py"):
        return f"the Python module {error.filename}, line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    imported = [frame.filename for frame in frames if frame.name == "<module>"]
    if not imported:
        return None
    # The line in the last module that was imported, not in the library that it called.
    line = [frame.lineno for frame in frames if frame.filename == imported[-1]][-1]
    said = missing_extra(error) or conflicting_hub(error) or f"{type(error).__name__}: {error}"
    return f"the Python module {imported[-1]}, line {line}: {said}"


def describe_hidden(error: BaseException) -> str:
    """The end of the message for a module that lacks a name because another one hides it; "" elsewhere.

    In a clone an installed module hides one of the user's, from a wheel a user's tasks.py hides Limba's.
    """
    if remedy := _own_tasks(error):
        return remedy
    known: BaseException | None = error
    while known is not None:
        if isinstance(known, ImportError) and known.name:
            return _sentence(known.name)
        if isinstance(known, AttributeError) and isinstance(known.obj, types.ModuleType):
            return _sentence(known.obj.__name__)
        known = known.__context__  # Gin raises a copy of the error, without the name.
    return ""


def _own_tasks(error: BaseException) -> str:
    """The remedy where `from tasks import …` found the user's tasks.py; "" elsewhere."""
    found = _FILE_OF_THE_NAME.search(str(error)) if isinstance(error, ImportError) else None
    if found is None:
        return ""
    name = found[1] or found[2]
    return f". That {name} is your {name}.py; Limba's package is limba.{name}: write `from limba.{name} import …`."


def _sentence(module: str) -> str:
    remedy = python_path.remedy_of_hidden(module)
    return f". {remedy}" if remedy else ""


def missing_extra(error: BaseException) -> str | None:
    """How to install the package whose import raised the error; None if it is none of limba[seqio]."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    # Gin raises a copy of the error, without the name.
    name = error.name or getattr(error.__context__, "name", None)
    if name not in _OF_THE_EXTRA:
        return None
    python = ""
    if sys.version_info[:2] > _NEWEST_PYTHON_OF_TENSORFLOW:
        newest, this = (".".join(map(str, pair)) for pair in (_NEWEST_PYTHON_OF_TENSORFLOW, sys.version_info[:2]))
        python = f" It needs Python {newest} or older, because TensorFlow has no wheels for {this}."
    return (
        f"{name} is not installed. Limba's own tasks do without it; SeqIO tasks need "
        f"`pip install 'limba[seqio]'`, and LOCK=seqio for the scripts of launch/.{python}"
    )


def conflicting_hub(error: BaseException) -> str | None:
    """The remedy where `datasets` fails at a name that the installed huggingface_hub lacks; None for other errors.

    transformers 4 takes huggingface_hub below 1, and `datasets` 5 needs a newer one: pip installs both, and warns.
    """
    if not isinstance(error, ImportError) or " from 'huggingface_hub" not in str(error):
        return None
    versions = " and ".join(f"{name} {metadata.version(name)}" for name in ("datasets", "huggingface_hub"))
    return (
        f"{versions} do not go together ({str(error).partition(' (')[0]}). Beside transformers 4: "
        "pip install 'datasets<5'. `pip check` lists packages that do not go together."
    )
