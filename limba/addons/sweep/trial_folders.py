"""The trials of a sweep on disk, and their processes.

    DIR/sweep.json                  the sweep's settings
    DIR/trials/0003/trial.json      values, status, result
    DIR/trials/0003/lock            held by the trial's process, whichever `limba sweep` started it
    DIR/trials/0003/exit_code       written by the process's own shell
    DIR/trials/0003/log.txt
    DIR/trials/0003/run/            MODEL_DIR

If a sweep is killed, the process of a trial continues, keeps its lock and writes its exit code; the next `limba sweep`
waits for it. So no result is lost, and no trial runs twice. Optuna's storage knows values and results but no processes,
and grid and random need no Optuna.
"""

import dataclasses
import fcntl
import itertools
import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from limba.checkpoint_files.directories import checkpoint_steps
from limba.checkpoints.best import metric_values, nearest_metrics
from limba.files import json_text, storage, untrusted_files, untrusted_json, written_files
from limba.files.number_ranges import AT_LEAST_0
from limba.reports import json_lines
from limba.workers.preemption import PREEMPTED_EXIT_CODE

logger = logging.getLogger(__name__)

# The trap keeps the shell alive on a signal, so that it writes the exit code of a program that was stopped.
_SHELL = 'trap : TERM INT; "$@"; code=$?; echo "$code" >"$0.tmp"; mv "$0.tmp" "$0"; exit "$code"'
# A trial fails if it is killed this often, for example by the kernel for its memory.
_MOST_ATTEMPTS = 3
# What is read of a log, for its last line.
_END_OF_LOG = 2**20
_MOST_OF_EXIT_CODE = 32
# Between two checks of a process that an earlier `limba sweep` left running.
_SECONDS = 0.5


@dataclasses.dataclass
class Trial:
    """One trial.

    Attributes:
      status: "new", "running" (also after the sweep was killed), "done" or "failed".
      attempts, seconds: how often it was started, and how long its last process ran.
      value, step: the best value of the metric, and its step.
    """

    number: int
    parameters: dict[str, Any]
    folder: Path
    status: str = "new"
    attempts: int = 0
    value: float | None = None
    step: int | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def is_finished(self) -> bool:
        return self.status in ("done", "failed")

    @property
    def model_dir(self) -> Path:
        return self.folder / "run"

    def is_running(self) -> bool:
        """Whether a process of it has its lock, whichever `limba sweep` started it."""
        file = self.folder / "lock"
        if not file.exists():
            return False
        with written_files.append(file) as lock:
            return not _take(lock)

    def save(self) -> None:
        """Replaces trial.json atomically."""
        written_files.make_folder(self.folder.parents[1], self.folder.relative_to(self.folder.parents[1]))
        fields = {name: value for name, value in vars(self).items() if name != "folder"}
        storage.replace_text(self.folder / "trial.json", json_text.dumps(fields, indent=1, ensure_ascii=False) + "\n")


class SweepFolder:
    """The folder of a sweep, locked against other `limba sweep` processes.

    Raises:
      ValueError: if another `limba sweep` has locked it, or if it holds a different sweep.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], recipes: Mapping[str, int] | None = None):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = written_files.append(path / "lock")
        if not _take(self._lock):
            raise ValueError(f"Another `limba sweep` is working in {path}.")
        record = path / "sweep.json"
        if record.is_file() and self.trials():
            before = untrusted_json.read_object(record)
            if changed := sorted(name for name in identity if before.get(name) != identity[name]):
                self._change(changed)
            crcs = before.get("recipes")
            crcs = crcs if isinstance(crcs, dict) else {}
            if edited := [untrusted_files.cut(name) for name in crcs if (recipes or {}).get(name) != crcs[name]]:
                what = untrusted_files.some(edited)
                logger.warning("%s changed since earlier trials, which may not compare.", what)
        kept = {**identity, "recipes": recipes}
        storage.replace_text(record, json_text.dumps(kept, indent=1, ensure_ascii=False) + "\n")

    def _change(self, changed: Sequence[str]) -> None:
        """Makes room for other settings: the trials get a new name, or are judged by the new metric.

        Raises:
          ValueError: if a trial has a result, or still runs.
        """
        trials = self.trials()
        if any(trial.status == "done" or trial.is_running() for trial in trials):
            raise ValueError(
                f"{self.path} holds a sweep with another {', '.join(changed)}, and trials of it have a result or still "
                "run: choose another --dir. trials, parallel, devices and slurm may change."
            )
        if {*changed} <= {"metric", "maximize"}:
            for trial in trials:  # Its exit code is there: it is judged and not run again.
                if trial.status == "failed" and _exit_code(trial.folder / "exit_code") == 0:
                    trial.status, trial.error = "new", ""
                    trial.save()
            return
        number = next(n for n in itertools.count(1) if not (self.path / f"trials-{n}").exists())
        (self.path / "trials").rename(self.path / f"trials-{number}")
        logger.warning(
            "%s: another %s; no trial had a result, and they are now in trials-%d.",
            self.path,
            ", ".join(changed),
            number,
        )

    def trials(self) -> list[Trial]:
        """The recorded trials, by number."""
        files = sorted((self.path / "trials").glob("*/trial.json"))
        return [_trial_of(file) for file in files]

    def new_trial(self, number: int, parameters: dict[str, Any]) -> Trial:
        trial = Trial(number, parameters, self.path / "trials" / f"{number:04d}")
        trial.save()
        return trial

    def close(self) -> None:
        self._lock.close()


class Process:
    """The process of a trial: a new one, or one that a killed `limba sweep` left running."""

    def __init__(self, trial: Trial, command: Sequence[str], env: Mapping[str, str], cwd: Path):
        self._trial = trial
        self._command = command
        self._env = dict(env)
        self._cwd = cwd
        self._popen: subprocess.Popen | None = None
        self._stopped = False

    def run(self) -> int | None:
        """Waits for a process that is still running, or runs the command. Returns the exit code; None if unknown."""
        exit_file = self._trial.folder / "exit_code"
        began = time.monotonic()
        with written_files.append(self._trial.folder / "lock") as lock:
            while not _take(lock):
                if self._stopped:
                    return None
                time.sleep(_SECONDS)
            earlier = _exit_code(exit_file)
            if earlier is not None and not _is_resumable(earlier):
                return earlier
            if self._stopped:
                return None
            for file in (exit_file, exit_file.with_name(f"{exit_file.name}.tmp")):
                file.unlink(missing_ok=True)  # The shell would write through a link, and wait at a FIFO.
            written_files.refuse_link(self._trial.model_dir)
            self._trial.status = "running"
            self._trial.attempts += 1
            self._trial.save()
            with written_files.append(self._trial.folder / "log.txt", "ab") as log:
                self._popen = subprocess.Popen(
                    ["/bin/sh", "-c", _SHELL, str(exit_file), *self._command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._env,
                    cwd=self._cwd,
                    pass_fds=[lock.fileno()],
                    start_new_session=True,
                )
                if self._stopped:  # `stop` was called before there was a process.
                    self.stop()
                self._popen.wait()
        self._trial.seconds = time.monotonic() - began
        return _exit_code(exit_file)

    def stop(self) -> None:
        """Asks the process to save and stop."""
        self._stopped = True
        if self._popen is not None and self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGTERM)


def _take(lock: IO[str]) -> bool:
    """Takes a lock; False if another process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _exit_code(file: Path) -> int | None:
    try:
        return int(untrusted_files.read_text(file, _MOST_OF_EXIT_CODE))
    except (FileNotFoundError, ValueError):
        return None


def _is_resumable(code: int) -> bool:
    """Whether the exit code is that of a process that was stopped, and resumes when it is started again."""
    return code == PREEMPTED_EXIT_CODE or code > 128


def conclude(trial: Trial, code: int | None, metric: str, maximize: bool) -> None:
    """Records how a trial ended: done or failed. The status of a trial that was stopped stays."""
    if code is None or _is_resumable(code):
        if trial.attempts >= _MOST_ATTEMPTS and code not in (None, PREEMPTED_EXIT_CODE):
            trial.status = "failed"
            trial.error = f"killed {trial.attempts} times, the last time with exit code {code}"
            trial.save()
        return
    if code != 0:
        trial.status, trial.error = "failed", f"exit code {code}: {_last_line(trial.folder / 'log.txt')}"
    elif (best := best_measurement(trial.model_dir, metric, maximize)) is None:
        trial.status, trial.error = "failed", f"it measured no {metric}; {_nearest(trial.model_dir, metric)}"
    else:
        trial.status, (trial.step, trial.value) = "done", best
    trial.save()


def best_measurement(model_dir: Path, metric: str, maximize: bool) -> tuple[int, float] | None:
    """Step and value of the best `<dataset>/<name>` at a step with a checkpoint; of all steps, if none has one."""
    values = metric_values(model_dir, metric)
    saved = checkpoint_steps(model_dir) if model_dir.is_dir() else []
    values = {step: values[step] for step in saved if step in values} or values
    if not values:
        return None
    step = (max if maximize else min)(values, key=lambda step: values[step])
    return step, values[step]


def _nearest(model_dir: Path, metric: str) -> str:
    names = nearest_metrics(model_dir, metric)
    return f"the nearest names are {', '.join(names)}" if names else "it measured nothing"


def _is_finite(value: object) -> bool:
    return json_lines.is_number(value) and math.isfinite(cast(float, value))


# What a sweep records of a trial. Its step is a part of a path.
_STEP = AT_LEAST_0._replace(below=2**31, or_none=True)
_VALUES: untrusted_json.Values = {
    **dict.fromkeys(("number", "attempts"), untrusted_json.COUNT),
    "parameters": (lambda value: isinstance(value, dict), "a table"),
    "step": (_STEP.has, str(_STEP)),
    "status": (lambda value: value in ("new", "running", "done", "failed"), "new, running, done or failed"),
    "value": (lambda value: value is None or _is_finite(value), "a number, or null"),
    "seconds": (_is_finite, "a number"),
    "error": (lambda value: isinstance(value, str), "a text"),
}


def _trial_of(file: Path) -> Trial:
    """Raises ValueError if it is no record of a trial: a folder may come from somebody else."""
    content = untrusted_json.read_object(file)
    if wrong := untrusted_json.wrong_value(content, _VALUES):
        raise ValueError(f"{file} is no record of a trial: {wrong}. Remove its folder.")
    try:
        return Trial(folder=file.parent, **content)
    except TypeError as error:
        raise ValueError(f"{file} is no record of a trial ({error}); remove its folder.") from error


def _last_line(log: Path) -> str:
    text = b""
    if log.is_file():
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _END_OF_LOG))
            text = file.read(_END_OF_LOG)
    lines = text.decode("utf-8", errors="replace").replace("\r", "\n").split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or ["no output"])[-1]
