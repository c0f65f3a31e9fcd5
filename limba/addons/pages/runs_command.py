"""`limba runs DIR [DIR …]`: the runs under folders: step, losses, speed, and whether they run, failed or finished.

    limba runs runs
    limba runs runs /mnt/disk/sweeps --watch        # again every 5 seconds, until Ctrl-C
    limba runs runs --plot                          # and the losses as curves (pip install 'limba[report]')
    limba runs runs --json | jq '.[] | select(.state == "failed")'

A run is a folder with metrics.jsonl, or with the lock of a run that has just begun. Folders are searched five levels
deep. The states:

    running     its process holds run.lock
    finished    it is at its last step
    failed      an error ended it, which run_end.json has; a start that was refused leaves the state as it was
    stopped     it was asked to stop (SIGTERM, Ctrl-C), or an action ended it; the same command resumes it
    killed      its process ended without a word: a kill, a crash, the loss of the machine; the same command resumes it
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons.pages import run_curves, run_state, runs_table
from limba.addons.pages.required_packages import plotille
from limba.addons.pages.run_curves import Curves
from limba.files import named_flags, storage, terminal

_DEPTH = 5


def main(argv: Sequence[str]) -> int:
    """Prints the table, once or until Ctrl-C."""
    parser = named_flags.Parser(
        prog="limba runs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders with runs, or runs")
    parser.add_argument("--watch", action="store_true", help="look again and again, until Ctrl-C")
    parser.add_argument(
        "--every", type=_seconds, default=5.0, metavar="S", help="seconds between two looks of --watch (5)"
    )
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects")
    parser.add_argument(
        "--plot", action="store_true", help="draw the losses of training and validation below the table"
    )
    flags = parser.parse_args(argv)
    if flags.json and (flags.watch or flags.plot):
        parser.error("--json prints once and draws nothing: leave --watch and --plot out.")
    _check(flags.folders)
    if not flags.watch:
        print(_shown(flags.folders, flags.json, flags.plot))
        return 0
    try:
        while True:
            shown = _shown(flags.folders, False, flags.plot)
            terminal.clear()
            print(shown, flush=True)
            time.sleep(flags.every)
    except KeyboardInterrupt:
        return 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 86400")
    return seconds


def _check(folders: Sequence[Path]) -> None:
    for folder in folders:
        if storage.is_remote(str(folder)) or str(folder).startswith(("gs:/", "s3:/")):
            url = str(folder).replace(":/", "://", 1)
            raise ValueError(f"`limba runs` reads folders of this machine, and {url} is in a bucket: mount it.")
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is no folder: name one with runs in it, such as runs.")


def _shown(folders: Sequence[Path], as_json: bool, plots: bool) -> str:
    found = list(dict.fromkeys(run for folder in folders for run in find_runs(folder)))
    looked = [run_state.look(run, str(run)) for run in found]
    if as_json:
        return runs_table.as_json(looked)
    if not looked:
        return f"No runs under {', '.join(map(str, folders))}: no folder has a metrics.jsonl."
    size = shutil.get_terminal_size() if sys.stdout.isatty() else None
    text = runs_table.table(looked, size.columns if size else None)
    if not plots:
        return text
    rows = max(8, size.lines - len(looked) * 3 - 12) if size else 20
    curves = [(runs_table.printable(str(run)), run_curves.read(run)[0]) for run in found]
    drawn = _drawn(curves, size.columns if size else 100, min(rows, 30), in_color=size is not None)
    return f"{text}\n\n{drawn or 'No run has two losses yet, which --plot could join.'}"


def find_runs(folder: Path) -> Iterator[Path]:
    """The runs in a folder and below it, by name. Nothing is searched below a run."""
    for here, names, _ in os.walk(folder):
        path = Path(here)
        if run_state.is_run(path):
            yield path
            names.clear()
            continue
        deep = len(path.relative_to(folder).parts) >= _DEPTH
        names[:] = [] if deep else sorted(name for name in names if not name.startswith((".", "checkpoint_")))


_COLORS = ("blue", "bright_yellow", "green", "magenta", "red", "cyan", "white", "bright_black")
_LEGEND_AND_AXES = 22  # columns beside a plot
_MOST_POINTS = 500


def _drawn(runs: Sequence[tuple[str, dict[str, Curves]]], columns: int, rows: int, in_color: bool) -> str:
    """Losses of training and validation over steps; "" if no run has two points of one.

    Args:
      runs: names and curves.
      columns, rows: of the terminal.
    """
    found = [
        (f"{name} ({dataset})" if dataset != run_curves.TRAIN else name, *_points_of_plot(curves))
        for name, datasets in runs
        for dataset, curves in datasets.items()
        if dataset == run_curves.TRAIN or dataset.startswith(run_curves.TEACHER_FORCED)
    ]
    found = [curve for curve in found if len(curve[1]) > 1]
    if not found:
        return ""
    figure: Any = plotille().Figure()
    figure.width, figure.height = max(20, columns - _LEGEND_AND_AXES), max(5, rows)
    figure.x_label, figure.y_label = "steps", "loss"
    figure.color_mode, figure.with_colors = "names", in_color
    figure.register_label_formatter(float, lambda value, chars, delta, left=False: _label_of_axis(value, chars, left))
    figure.register_label_formatter(int, lambda value, chars, delta, left=False: _label_of_axis(value, chars, left))
    figure.set_x_limits(min_=0, max_=float(max(steps[-1] for _, steps, _ in found)))
    for number, (name, steps, losses) in enumerate(found):
        marker = None if in_color or len(found) == 1 else chr(ord("a") + number % 26)
        shown = name if marker is None else f"{marker}: {name}"
        color = _COLORS[number % len(_COLORS)] if in_color else None
        figure.plot(steps.tolist(), losses.tolist(), lc=color, label=shown, marker=marker)
    return figure.show(legend=True)


def _points_of_plot(curves: Curves) -> tuple[np.ndarray, np.ndarray]:
    name = next((name for name in ("loss", *run_curves.LOSSES) if curves.known(name)), None)
    if name is None:
        return np.array([]), np.array([])
    is_known = np.isfinite(curves.columns[name])
    steps, losses = curves.steps[is_known], curves.columns[name][is_known]
    kept = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_POINTS)).round().astype(int))
    return steps[kept].astype(float), losses[kept]


def _label_of_axis(value: float, chars: int, left: bool) -> str:
    text = f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return text.ljust(chars) if left else text.rjust(chars)


if __name__ == "__main__":
    from limba import command_line

    command_line.run_command(main)
