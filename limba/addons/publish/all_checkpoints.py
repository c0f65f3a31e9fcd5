"""Converts every checkpoint of a run to Hugging Face folders, also while the run still trains.

    python -m convert all runs/base exports/base --watch

Each gets its own folder, `OUT/checkpoint_<step>`. Folders that are complete stay, so the command can be repeated.
"""

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

from limba.checkpoint_files.directories import all_checkpoints, checkpoint_path, checkpoint_steps, run_directory
from limba.checkpoint_files.run_folder import has_run_info, load_run_info
from limba.convert import to_hf
from limba.convert.model_files import any_format
from limba.files import storage, written_files
from limba.files.local_paths import local_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", help="the run's directory, of Limba or T5X")
    parser.add_argument("out", help="the folder in which each checkpoint gets its own")
    parser.add_argument("--keep-converting", action="store_true", help="continue after a checkpoint that fails")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=120.0,
        metavar="MINUTES",
        help="wait for the next checkpoint, until the run's last step and at most MINUTES (120)",
    )
    to_hf.add_options(parser)
    any_format.add_hint_arguments(parser)


def run(args: argparse.Namespace) -> None:
    if args.watch is not None and not 0 < args.watch < math.inf:
        raise ValueError(f"--watch {args.watch}: the minutes to wait are above 0 and finite.")
    convert_all(
        args.run_dir,
        local_path(args.out),
        options=to_hf.options(args),
        keep_converting=args.keep_converting,
        watch_seconds=None if args.watch is None else 60 * args.watch,
    )


def convert_all(
    run_dir: str,
    out: Path,
    *,
    options: dict[str, Any],
    keep_converting: bool = False,
    watch_seconds: float | None = None,
    poll_seconds: float = 20.0,
) -> list[int]:
    """Converts every checkpoint that is not converted yet; returns the steps that now are.

    Args:
      options: arguments of `to_hf.to_hf`.
      keep_converting: an error is printed, and raised when all others are done.
      watch_seconds: how long to wait for another checkpoint; None does not wait.
      poll_seconds: between two looks.

    Raises:
      FileNotFoundError: if there is no checkpoint, and none is waited for.
      ValueError: if one could not be converted, or its folder in OUT is a link.
    """
    if watch_seconds is None:
        all_checkpoints(run_dir)
    converted: list[int] = []
    failed: list[int] = []
    last_news = time.monotonic()
    while True:
        directory = run_directory(run_dir)  # Its first checkpoint may not be there at first.
        waiting = [step for step in checkpoint_steps(directory) if step not in (*converted, *failed)]
        for step in waiting:
            path = checkpoint_path(directory, step)
            try:
                written_files.refuse_link(out / path.name)
                to_hf.to_hf(path, out / path.name, **options)
                converted.append(step)
            except (ValueError, OSError) as error:
                was_removed = watch_seconds is not None and not storage.is_dir(path)
                if not was_removed and not keep_converting:
                    raise
                removed = "was removed by the run before it was converted."
                print(f"{path.name} {removed}" if was_removed else f"error: {path.name}: {error}", file=sys.stderr)
                failed.append(step)
            last_news = time.monotonic()
        done = not waiting and (
            watch_seconds is None
            or time.monotonic() - last_news > watch_seconds
            or any(step >= _last_step(directory, step) for step in converted[-1:])
        )
        if done:
            break
        if not waiting:
            time.sleep(min(poll_seconds, watch_seconds or 0))
    if not converted and not failed:
        all_checkpoints(directory)  # Says that there is none.
    print(f"{len(converted)} checkpoints are in {out}.")
    if lost := [step for step in failed if storage.is_dir(checkpoint_path(directory, step))]:
        raise ValueError(f"{len(lost)} could not be converted: {', '.join(f'checkpoint_{step}' for step in lost)}.")
    return converted


def _last_step(directory: storage.AnyPath, step: int) -> float:
    """The step at which the run ends, as a checkpoint says it; infinite if it does not."""
    path = checkpoint_path(directory, step)
    if not has_run_info(path):
        return float("inf")
    return load_run_info(path).get("total_steps") or float("inf")
