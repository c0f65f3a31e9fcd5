"""`limba gin-check FILE…`: parses gin files and resolves every name in them, without building or compiling anything.

    limba gin-check my_run.gin
    limba gin-check --gin_search_paths=~/t5x ~/t5x/t5x/examples
    limba gin-check --gin_file=gin/models/t5_1_1/base.gin my_vocabulary.gin

One line a file, `ok FILE` or `FAIL FILE:LINE: what is missing`; the exit code is 1 if any failed. A folder stands for
all the gin files below it, but of a run for its own alone, not for those of its checkpoints and evaluations. Each file
is read by itself, after the files of --gin_file and before bindings, if there are any. A file that binds no model to a
program is meant for inclusion: its macros may be unbound or %gin.REQUIRED, and only a macro that is almost a known name
fails. Of a run the task is looked up too, as `limba train` does; its corpus is not opened.
"""

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gin
from gin import config as gin_config

from limba import command_line
from limba.checkpoint_files import directories, run_folder
from limba.devices import native_logs
from limba.files import named_flags
from limba.gin_config import closed_list, importing, macros, t5x_names
from limba.gin_config import gin_files as gin_utils
from limba.gin_config.recipe import Recipe

# The packages that are slow to import, which is done once for all files, as for T5X's names.
_WARM = ("limba", "optax", "seqio", "tasks")


def check(
    file: str, before: Sequence[str], bindings: Sequence[str], search_paths: str, beside: Sequence[str] = ()
) -> str | None:
    """The first mistake in a file, as `FILE:LINE: message`, or None. Leaves gin's configuration changed.

    Of a run its task is looked up.

    What files `beside` it read counts as read: it may be meant for inclusion in one of them.
    """
    try:
        gin_utils.parse_files([*before, file], search_paths)
        gin_utils.parse_bindings(bindings)
        is_part = not _binds_a_run()
        gin_utils.check_names(bindings, beside, is_part)
        if not is_part:
            _check_task()
    except gin_utils.GinError as error:
        # The file itself comes first, then the one it includes in which it went wrong.
        places = [f"{name}:{line}" for name, line in error.places]
        if not places or error.places[-1][0] != file:
            places.append(file)
        return ": ".join([places[-1], *places[:1][: len(places) - 1], error.what])
    return None


def _check_task() -> None:
    """Raises GinError if the run's task or mixture is named and not registered."""
    name, module = map(_value_of, ("MIXTURE_OR_TASK_NAME", "MIXTURE_OR_TASK_MODULE"))
    if isinstance(name, str):
        from limba.inference import tasks_door

        try:
            tasks_door.evaluation_names(name, module or closed_list.module_of_flag())
        except ValueError as error:
            raise gin_utils.GinError(str(error)) from error


def _value_of(macro: str) -> Any:
    """What a macro stands for in the end; None if it is not bound."""
    return macros.resolved(gin.query_parameter(f"%{macro}"))[1] if macro in macros.bound() else None


def check_apart(
    file: str, before: Sequence[str], bindings: Sequence[str], search_paths: str, beside: Sequence[str] = ()
) -> str | None:
    """`check` in a process forked from this one: it has the imports of this process, and changes nothing here."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # JAX warns of forks; the child computes nothing.
        child = os.fork()
    if child == 0:
        os.close(reading)
        answer = "the check was cut short"
        try:
            # Task modules may print; that is not an answer.
            with contextlib.redirect_stdout(sys.stderr):
                answer = check(file, before, bindings, search_paths, beside) or "ok"
        except SystemExit as stop:
            answer = f"{file}: a module that it imports ends the process ({stop})"
        except Exception as error:  # A module that a file imports may raise anything.
            answer = f"{file}: {type(error).__name__}: {error}"
        finally:
            os.write(writing, answer.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return None if answer == "ok" else answer or f"{file}: the process that read it died"


def gin_files(paths: Sequence[str]) -> list[str]:
    """The files, and those below the folders without the ones that Limba writes inside of runs.

    Raises:
      FileNotFoundError: for a folder without gin files.
    """
    files: list[str] = []
    for path in paths:
        if Path(path).is_dir():
            below = sorted(str(file) for file in Path(path).rglob("*.gin"))
            if not below:
                raise FileNotFoundError(f"There is no gin file below {path}.")
            files += [file for file in below if not _is_inside_a_run(Path(file), Path(path))]
        else:
            files.append(path)
    return files


def _is_inside_a_run(file: Path, below: Path) -> bool:
    """Whether it is the config.gin of a checkpoint or an evaluation, which is of a run in a folder above it."""
    above = [folder for folder in file.parent.parents if folder.is_relative_to(below)]
    return file.name == run_folder.GIN and any(directories.checkpoint_steps(folder) for folder in above)


def _warm_up(files: Sequence[str]) -> None:
    """Imports the modules of the files before the children are forked. Children report the imports that fail."""
    modules = set(t5x_names.SCRIPTS.values())
    for file in filter(os.path.isfile, files):
        with contextlib.suppress(ValueError):  # Its child says what is wrong with it.
            for module in Recipe.parse(Path(file).read_text(encoding="utf-8")).modules:
                # The files of T5X's that a file includes use SeqIO.
                modules |= {module, *t5x_names.MODULES.get(module, ()), *(["seqio"] if module.startswith("t5") else [])}
    importing.prepare()
    with native_logs.filtered():
        for name in sorted(modules):
            is_alias = name in t5x_names.MODULES and t5x_names.own_file(name) is None
            if is_alias or name.partition(".")[0] in _WARM:
                with contextlib.suppress(ImportError, closed_list.RefusedNameError):
                    importing.load(name)


def _binds_a_run() -> bool:
    """Whether the files bind a model to one of T5X's programs; else they are parts of a run."""
    scripts = [(selector.rpartition(".")[2], values) for (_, selector), values in gin_config._CONFIG.items()]
    return any(name in t5x_names.SCRIPTS and "model" in values for name, values in scripts)


def main(argv: Sequence[str]) -> int:
    """Checks the files and prints a line for each."""
    parser = named_flags.Parser(
        prog="limba gin-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a gin file, or a folder of them")
    command_line.add_gin_flags(parser)
    command_line.add_module_flag(parser)
    flags = parser.parse_args(command_line.rewrite_gin_flags(argv))
    closed_list.give_flags(flags.module or [])
    command_line.take_gin_flags(flags)
    files = gin_files(flags.files)
    if len(files) > 1:  # For one file, its process imports what that file needs: mostly no TensorFlow.
        _warm_up([*flags.gin_file, *files])
    failed = 0
    for file in files:
        wrong = check_apart(file, flags.gin_file, flags.gin_bindings, flags.gin_search_paths, files)
        print(f"FAIL {wrong}" if wrong else f"ok {file}", flush=True)
        failed += wrong is not None
    if failed:
        print(f"{failed} of {len(files)} files failed.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    command_line.run_command(main)
