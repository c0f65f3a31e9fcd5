"""A sweep's own `command`: its macros, and the folder that each trial gets where the command is Limba's."""

import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.files import json_text
from limba.gin_config.recipe import Reference

TRIAL_DIR = "${trial_dir}"
# Keys of `limba run` for its folder.
_PLACES = ("output_dir", "model_path")
_MODEL_DIR = re.compile(r"--gin(_bindings=|\.)MODEL_DIR\s*=.*", re.DOTALL)


def key_of_run(name: str) -> str:
    """The key of `limba run` that a parameter is, without the group that it may stand in."""
    return name if name.startswith("gin.") else name.rpartition(".")[2]


def is_place(name: str) -> bool:
    """Whether a parameter names the folder of a run of `limba run`, which a trial has already."""
    return key_of_run(name) in _PLACES


def without_places(words: Sequence[str]) -> list[str]:
    """The words of a command without those that give the folder of a run."""
    kept: list[str] = []
    is_place_given = False  # whose name was the word before
    for word in words:
        if is_place_given and not word.startswith("--"):
            is_place_given = False
            continue
        name, equals, _ = word.removeprefix("--").partition("=")
        is_folder = word.startswith("--") and is_place(name)
        is_place_given = is_folder and not equals
        if not is_folder and not _MODEL_DIR.fullmatch(word):
            kept.append(word)
    return kept


def command_of_limba(program: str, command: Sequence[str]) -> str | None:
    """ "run" or "train" for a command that starts one of Limba's without saying where a trial writes, else None."""
    return None if any(TRIAL_DIR in word for word in command) else _started(program, command)


def _started(program: str, command: Sequence[str]) -> str | None:
    """ "run" or "train" for a command that starts one of Limba's, else None."""
    words = [part for word in command for part in (_words_of_program(program) if word == "${program}" else [word])]
    for name, following in itertools.pairwise(words):
        if Path(name).name == "limba" and following in ("run", "train"):
            return following
    return None


def _words_of_program(program: str) -> list[str]:
    """`run` is `limba run`; another program may have blanks in its name."""
    first = program.split()[:1]
    return ["limba", *program.split()] if first in (["run"], ["train"]) else [program]


def warnings(program: str, command: Sequence[str], parameters: Sequence[str]) -> Iterator[str]:
    """Sentences about the folder of a trial.

    Args:
      parameters: their names.
    """
    if any(TRIAL_DIR in word for word in command):
        return
    if command_of_limba(program, command) is None:
        yield (
            f"command has no {TRIAL_DIR}: what the trials write goes into one folder, and the metric is read from "
            f"{TRIAL_DIR}/run/metrics.jsonl. Give the program its folder, such as --output_dir={TRIAL_DIR}."
        )
        return
    given = [word for word in command if word not in without_places([word])]
    for name in dict.fromkeys([*filter(is_place, parameters), *(word.partition("=")[0] for word in given)]):
        yield f"{name} is ignored because each trial has a folder of its own."


def words_of(program: str, command: Sequence[str], parameters: Mapping[str, Any], folder: Path) -> list[str]:
    """The command of a trial: W&B's macros, and two of Limba's, `${gin_args}` and `${trial_dir}`.

    A `limba run` or `limba train` that names no folder gets the trial's.
    """
    of_limba = command_of_limba(program, command)
    if of_limba is not None:
        command = without_places(command)
        parameters = {name: value for name, value in parameters.items() if not is_place(name) and name != "MODEL_DIR"}
    if _started(program, command) == "run":
        parameters = {key_of_run(name): value for name, value in parameters.items()}
    macros = {
        "${env}": [],
        "${interpreter}": [sys.executable],
        "${program}": _words_of_program(program),
        "${args}": [f"--{name}={flag(value)}" for name, value in parameters.items()],
        "${args_no_hyphens}": [f"{name}={flag(value)}" for name, value in parameters.items()],
        "${args_json}": [json_text.dumps(dict(parameters))],
        "${gin_args}": [gin_flag(name, value) for name, value in parameters.items()],
    }
    words: list[str] = []
    for word in command:
        words += macros.get(word, [word.replace(TRIAL_DIR, str(folder))])
    if of_limba == "run":
        words.append(f"--output_dir={folder}")
    elif of_limba == "train":
        words.append(f"--gin.MODEL_DIR={str(folder / 'run')!r}")
    return words


def gin_flag(name: str, value: Any) -> str:
    """A binding of `limba train`. Strings are quoted, except references (`@…`) and macros (`%…`)."""
    return f"--gin.{name}={Reference(value) if str(value).startswith(('@', '%')) else value!r}"


def flag(value: Any) -> str:
    """A value behind a flag of `limba run`, or of a script."""
    return value if isinstance(value, str) else json_text.dumps(value)
