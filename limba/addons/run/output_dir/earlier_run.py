"""A run that is in OUTPUT_DIR already: it is resumed, goes back to one of its checkpoints, or makes room for a new one.
A training of Hugging Face's Trainer makes room too, or goes on with its weights (`trainer_checkpoints`).

OUTPUT_DIR/before_1/             a run that `overwrite_output_dir` moved away, or results of a Trainer's that goes on
OUTPUT_DIR/run/later_1/          checkpoints after the one of `resume_from_checkpoint`
"""

import difflib
import json
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba.addons.run.keys import script_keys
from limba.addons.run.keys.request import Request
from limba.addons.run.output_dir import given_files, trainer_checkpoints
from limba.checkpoint_files.directories import checkpoint_path, checkpoint_steps
from limba.files.local_paths import local_path
from limba.reports import run_lock

logger = logging.getLogger(__name__)

_OF_MODEL = ("model_name_or_path", "config_name", "model_type", "tokenizer_name", "initialize_from_scratch")
# What a run leaves in OUTPUT_DIR: a model in these files, and the others.
_WEIGHTS = ("model*.safetensors*",)
_WITHOUT_WEIGHTS = (
    *("config.json", "generation_config.json", "spiece.model", "tokenizer*.json", "special_tokens_map.json"),
    *("vocab.txt", "merges.txt"),
)
_FILES = (*("run", "initial", "eval", "predictions"), *given_files.OF_RUNS, *_WEIGHTS, *_WITHOUT_WEIGHTS)
# What the Trainer leaves there beside files of these names.
_FILES_OF_TRAINER = ("checkpoint-*", "training_args.bin", "runs")
# A checkpoint as Limba and as transformers name it.
_CHECKPOINT = re.compile(r"checkpoint[-_](\d+)")


def check(request: Request, out: Path) -> None:
    """Raises ValueError if `out` holds a run with another model or order of the data, which is not to be replaced."""
    if not request.do_train:
        return
    model = (request.model_name_or_path, request.config_name, request.tokenizer_name)
    source = _of_source(out, *model, request.initialize_from_scratch)
    patterns = [pattern for pattern in _patterns(out) if pattern not in source]
    for name in (*_OF_MODEL, "train_file"):
        value = getattr(request, name)
        if request.overwrites and isinstance(value, str) and _is_moved(local_path(value), out, patterns):
            raise ValueError(
                f"overwrite_output_dir moves the run in {out} away, and {name} {value!r} is a part of it: choose "
                "another output_dir."
            )
    if request.overwrites or trainer_checkpoints.begins_again(request.of_trainer, out):
        return
    if not (out / "run.json").is_file():
        return
    before = json.loads((out / "run.json").read_text("utf-8"))

    def of_before(name: str) -> Any:
        return before.get(name, script_keys.FIELDS[name].default)

    differing = [(name, of_before(name), getattr(request, name)) for name in _OF_MODEL]
    if request.do_train and checkpoint_steps(out / "run"):
        seeds = of_before("data_seed"), of_before("seed")
        name = "data_seed" if request.data_seed is not None else "seed"
        differing.append((name, next(x for x in seeds if x is not None), getattr(request, name)))
    for name, old, new in differing:
        if old != new:
            raise ValueError(
                f"{out} holds a run with {name} {old!r}, and this one has {new!r}: choose another output_dir, or write "
                "overwrite_output_dir, which keeps the old run in a folder of its own and begins a new one."
            )


def _is_moved(path: Path, out: Path, patterns: Sequence[str]) -> bool:
    return out in path.parents and any(Path(path.relative_to(out).parts[0]).match(pattern) for pattern in patterns)


def _patterns(out: Path) -> tuple[str, ...]:
    """Those of the files in `out` that `overwrite_output_dir` moves away."""
    return _FILES + (_FILES_OF_TRAINER if trainer_checkpoints.newest_in(out) else ())


def _of_source(
    out: Path, model: str | None, config: str | None, tokenizer: str | None, from_scratch: bool
) -> tuple[str, ...]:
    """The patterns of the files in `out` that are the model to begin with, or its network and tokenizer."""
    if model is not None and local_path(model) == out:
        return _WITHOUT_WEIGHTS if from_scratch else _WITHOUT_WEIGHTS + _WEIGHTS
    given = [local_path(name) for name in (config, tokenizer) if name is not None]
    return _WITHOUT_WEIGHTS if any(path == out or path.parent == out for path in given) else ()


def changes(gin_file: Path, text: str) -> list[str]:
    """The lines that differ from those of the gin file of an earlier run; none without one."""
    now = text.splitlines()
    before = gin_file.read_text("utf-8").splitlines() if gin_file.is_file() else now
    if not any(map(given_files.is_comment, before)):  # of a version that did not write them
        now = "\n".join(line for line in now if not given_files.is_comment(line)).rstrip().splitlines()
        before = "\n".join(before).rstrip().splitlines()
    return [line for line in difflib.ndiff(before, now) if line.startswith(("- ", "+ "))]


def make_room(request: Request, out: Path, text: str) -> Path | None:
    """Does with the run in `out` what `overwrite_output_dir` and `resume_from_checkpoint` say; `text` is the gin file.

    A run of the same values and files is resumed in any case: its end is the same, and a second start loses no work.

    Returns:
      The folder with what was moved away, if anything was.

    Raises:
      RunLockedError: if another process trains there.
    """
    of_trainer = trainer_checkpoints.to_go_on_from(request.do_train, out)
    has_run = (out / "run.gin").is_file()
    if request.overwrites:
        if of_trainer is None and has_run and not changes(out / "run.gin", text):
            logger.info("overwrite_output_dir: the run in %s has the same values and files, and is resumed.", out)
            return None
        paths = [path for pattern in _patterns(out) for path in out.glob(pattern)]
        model = (request.model_name_or_path, request.config_name, request.tokenizer_name)
        source = _of_source(out, *model, request.initialize_from_scratch)
        stay = [path for path in paths if any(path.match(pattern) for pattern in source)]
        if set(paths) <= set(stay) and not set(_WEIGHTS) <= set(source):
            return None
        with run_lock.held(out / "run"):
            folder = _move(out, paths, "before", stay)
        logger.warning("overwrite_output_dir: a new run begins in %s; the old one is kept in %s.", out, folder)
        return folder
    if trainer_checkpoints.begins_again(request.of_trainer, out) or (of_trainer is not None and not has_run):
        # The Trainer's checkpoints stay where they are.
        paths = [path for pattern in _FILES for path in out.glob(pattern)]
        with run_lock.held(out / "run"):
            return _move(out, paths, "before") if paths else None
    if not has_run:
        return None
    model_dir, step = out / "run", resumed_step(request.resume_from_checkpoint, out)
    if step is None:
        return None
    later = [Path(checkpoint_path(model_dir, x)) for x in checkpoint_steps(model_dir) if x > step]
    if not later:
        return None
    with run_lock.held(model_dir):
        folder = _move(model_dir, later, "later")
    logger.warning(
        "resume_from_checkpoint: the run resumes from step %d. Its later checkpoints (%d) are kept in %s, and its "
        "metrics after that step are written again.",
        *(step, len(later), folder),
    )
    return folder


def _move(out: Path, paths: Sequence[Path], name: str, stay: Sequence[Path] = ()) -> Path:
    """Moves files and folders into a new folder beside them; of those that stay it gets copies."""
    number = 1
    while (folder := out / f"{name}_{number}").exists():
        number += 1
    folder.mkdir()
    for path in dict.fromkeys(paths):
        if path in stay:
            shutil.copy2(path, folder / path.name)
        else:
            path.rename(folder / path.name)
    return folder


def resumed_step(given: str | None, out: Path) -> int | None:
    """The step of `resume_from_checkpoint`; None for the newest.

    Raises:
      FileNotFoundError, ValueError: if there is no such checkpoint, or it is not of the run in `out`.
    """
    if given is None or given.lower() in ("true", "false"):
        return None
    path = local_path(given)
    if trainer_checkpoints.is_one(path):  # The run began with it, or is to begin.
        return None
    steps = trainer_checkpoints.own_steps(out)
    there = f"the run in {out} has {', '.join(f'checkpoint_{step}' for step in steps) or 'none'}"
    if out != path and out not in path.parents:
        if not path.exists():
            raise FileNotFoundError(f"resume_from_checkpoint is {path}, and there is no such folder; {there}.")
        raise ValueError(
            f"resume_from_checkpoint is {path}, which is no checkpoint of this run; {there}. Leave it out to resume "
            "from the newest, or write model_name_or_path to begin with the weights of another run."
        )
    if path in (out, out / "run"):
        return None
    match = _CHECKPOINT.fullmatch(path.name)
    if match is None or path.parent not in (out, out / "run") or int(match[1]) not in steps:
        raise FileNotFoundError(f"resume_from_checkpoint is {path}, and there is no such checkpoint; {there}.")
    return int(match[1])
