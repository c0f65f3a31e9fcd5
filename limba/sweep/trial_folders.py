"""The trials of a sweep on disk, and the processes that make them.

    DIR/sweep.json                  what the sweep is
    DIR/trials/0003/trial.json      values, status, result
    DIR/trials/0003/lock            held by the trial's process, whoever started it
    DIR/trials/0003/exit_code       how it ended; written by the process's own shell
    DIR/trials/0003/log.txt
    DIR/trials/0003/run/            MODEL_DIR

A trial's process outlives a sweep that is killed, keeps its lock and writes how it ended; the next `limba sweep` waits
for it. So none is lost, and none runs twice.
"""

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from limba.checkpoint_directories import checkpoint_steps
from limba.preemption import PREEMPTED_EXIT_CODE
from limba.writers import read_metrics

# The trap keeps the shell, not the program, so that it says how a program ended that was asked to stop.
_SHELL = 'trap : TERM INT; "$@"; code=$?; echo "$code" >"$0.tmp"; mv "$0.tmp" "$0"; exit "$code"'
# A trial that is killed each time, for want of memory or so, is given up.
_MOST_ATTEMPTS = 3
# Between two looks at a process that another sweep left behind.
_SECONDS = 0.5


@dataclasses.dataclass
class Trial:
    """One trial.

    Attributes:
      number: from 0 on.
      parameters: its values by name.
      folder: of its own.
      status: "new", "running" (also after a sweep was killed), "done" or "failed".
      attempts: how often it was started.
      value, step: the best value of the metric, and where.
      seconds: that its last process took.
      error: why it failed.
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
    def is_over(self) -> bool:
        return self.status in ("done", "failed")

    @property
    def model_dir(self) -> Path:
        return self.folder / "run"

    def save(self) -> None:
        """Writes trial.json, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fields = {name: value for name, value in vars(self).items() if name != "folder"}
        written = self.folder / "trial.tmp"
        written.write_text(json.dumps(fields, indent=1) + "\n", "utf-8")
        written.replace(self.folder / "trial.json")


class SweepFolder:
    """The folder of a sweep; one `limba sweep` at a time holds it.

    Raises:
      ValueError: if another `limba sweep` works there, or it is another sweep's.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        if not _is_free(self._lock):
            raise ValueError(f"Another `limba sweep` is working in {folder}.")
        record = folder / "sweep.json"
        if record.is_file() and self.trials():  # One that could not begin may be mended.
            before = json.loads(record.read_text("utf-8"))
            changed = sorted(name for name in identity if before.get(name) != identity[name])
            if changed:
                raise ValueError(
                    f"{folder} holds a sweep with another {', '.join(changed)}: choose another --dir. trials, "
                    "parallel, devices and slurm may change."
                )
        else:
            written = record.with_suffix(".tmp")
            written.write_text(json.dumps(identity, indent=1) + "\n", "utf-8")
            written.replace(record)

    def trials(self) -> list[Trial]:
        """Those that there are, by number."""
        found = []
        for file in sorted((self.folder / "trials").glob("*/trial.json")):
            found.append(Trial(folder=file.parent, **json.loads(file.read_text("utf-8"))))
        return found

    def new_trial(self, number: int, parameters: dict[str, Any]) -> Trial:
        trial = Trial(number, parameters, self.folder / "trials" / f"{number:04d}")
        trial.save()
        return trial

    def close(self) -> None:
        self._lock.close()


class Process:
    """The process of a trial: one that a killed sweep left behind, or a new one."""

    def __init__(self, trial: Trial, command: Sequence[str], env: Mapping[str, str], cwd: Path):
        self._trial = trial
        self._command = command
        self._env = dict(env)
        self._cwd = cwd
        self._popen: subprocess.Popen | None = None
        self._stopped = False

    def run(self) -> int | None:
        """Waits for the process that is left behind, or runs the command; the exit code, None if nobody says it."""
        exit_file = self._trial.folder / "exit_code"
        began = time.monotonic()
        with (self._trial.folder / "lock").open("w") as lock:
            while not _is_free(lock):
                if self._stopped:
                    return None
                time.sleep(_SECONDS)
            left_behind = _exit_code(exit_file)
            if left_behind is not None and not _goes_on(left_behind):
                return left_behind
            if self._stopped:
                return None
            exit_file.unlink(missing_ok=True)
            self._trial.status = "running"
            self._trial.attempts += 1
            self._trial.save()
            with (self._trial.folder / "log.txt").open("ab") as log:
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
                if self._stopped:  # Asked in between.
                    self.stop()
                self._popen.wait()
        self._trial.seconds = time.monotonic() - began
        return _exit_code(exit_file)

    def stop(self) -> None:
        """Asks it to save and stop."""
        self._stopped = True
        if self._popen is not None and self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGTERM)


def _is_free(lock: IO[str]) -> bool:
    """Takes a lock unless somebody has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _exit_code(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _goes_on(code: int) -> bool:
    """Whether a process that ended so was stopped, and goes on when it is started again."""
    return code == PREEMPTED_EXIT_CODE or code > 128


def conclude(trial: Trial, code: int | None, metric: str, maximize: bool) -> None:
    """Records how a trial ended: done, failed, or to go on (then its status stays)."""
    if code is None or _goes_on(code):
        if trial.attempts >= _MOST_ATTEMPTS and code != PREEMPTED_EXIT_CODE and code is not None:
            trial.status = "failed"
            trial.error = f"killed {trial.attempts} times, the last time with exit code {code}"
            trial.save()
        return
    if code != 0:
        trial.status, trial.error = "failed", f"exit code {code}: {_last_line(trial.folder / 'log.txt')}"
    else:
        best = best_measurement(trial.model_dir, metric, maximize)
        if best is None:
            trial.status, trial.error = "failed", f"it measured no {metric}; it has {_measured(trial.model_dir)}"
        else:
            trial.status, (trial.step, trial.value) = "done", best
    trial.save()


def best_measurement(model_dir: Path, metric: str, maximize: bool) -> tuple[int, float] | None:
    """Step and value of the best measurement of which there is a checkpoint; of all, if it has none for any.

    Args:
      model_dir: of a trial.
      metric: `<dataset>/<name>`.
      maximize: whether more is better.
    """
    measured = {
        line["step"]: line[name]
        for line in read_metrics(model_dir)
        for name in line
        if f"{line['dataset']}/{name}" == metric and line[name] is not None
    }
    saved = checkpoint_steps(model_dir) if model_dir.is_dir() else []
    measured = {step: measured[step] for step in saved if step in measured} or measured
    if not measured:
        return None
    step = (max if maximize else min)(measured, key=lambda step: measured[step])
    return step, float(measured[step])


def _measured(model_dir: Path) -> str:
    names = {f"{line['dataset']}/{name}" for line in read_metrics(model_dir) for name in line}
    return ", ".join(sorted(name for name in names if not name.endswith(("/step", "/dataset")))[:8]) or "no metrics"


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", errors="replace").replace("\r", "\n").split("\n") if log.is_file() else []
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or ["it said nothing"])[-1]
