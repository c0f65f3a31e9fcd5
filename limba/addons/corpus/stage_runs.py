"""Runs the stages on this machine or on SLURM, by datatrove's executors: a finished task is not done again."""

import contextlib
import ctypes
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from loguru import logger
from tqdm import tqdm

from limba.addons.corpus.blocks import Stage
from limba.files.untrusted_files import cut

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SECONDS = 0.2
_SECONDS_OF_SLURM = 10.0
# Between two lines of a bar that is no terminal's.
_SECONDS_OF_LOG = 60.0
# Of datatrove's log: a row or a file that it could not read, and went on.
_SKIPPED = re.compile(r"\| WARNING  \| \S+ - ((?:Error when reading|File `|⏰).*)")


class StageError(ValueError):
    """A stage that did not end, and where its log is."""


@contextlib.contextmanager
def console() -> Iterator[TextIO]:
    """Standard error for people. What datatrove and its processes write there goes to nobody: their logs have it.

    It is changed before the first process starts, and back after the last one.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    logger.remove()
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8", errors="replace", buffering=1) as people:
            yield people
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def run(stage: Stage, work: Path, workers: int, slurm: Mapping[str, Any] | None, people: TextIO) -> None:
    """Runs what is left of a stage, with a bar of its tasks.

    On this machine the tasks run in forks: these have the lock of OUT, so that no second run begins while they write,
    and what the rules take seconds to import is there.

    Raises:
      StageError: if a task fails, or SLURM ends the job before its tasks are done.
    """
    logs = work / "logs" / stage.name
    logs.mkdir(parents=True, exist_ok=True)
    often = _SECONDS if people.isatty() else _SECONDS_OF_LOG
    shown = {"desc": stage.name, "unit": "task", "file": people, "mininterval": often}
    with tqdm(total=stage.tasks, initial=_done(logs), **shown) as bar:
        if slurm is not None:
            _on_slurm(stage, logs, slurm, bar)
        elif _done(logs) < stage.tasks:
            _here(stage, logs, min(workers, stage.tasks), bar)
        bar.update(_done(logs) - bar.n)
    if left := stage.tasks - _done(logs):
        raise StageError(f"{stage.name}: {left} of {stage.tasks} tasks did not end; their logs are in {logs / 'logs'}.")


def _here(stage: Stage, logs: Path, workers: int, bar: Any) -> None:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_execute, args=(stage, logs, workers, theirs))
    process.start()
    assert process.pid is not None
    theirs.close()
    try:
        while process.is_alive():
            process.join(_SECONDS)
            bar.update(_done(logs) - bar.n)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
    if process.exitcode:
        said = ours.recv() if ours.poll() else f"it ended with exit code {process.exitcode}"
        raise StageError(_failure(stage, logs, said))


def _execute(stage: Stage, logs: Path, workers: int, answer: Any) -> None:
    """In a fork: all tasks of a stage, in processes of one group, none of which outlives the run."""
    os.setpgid(0, 0)
    leader = os.getpid()
    # A worker, which has this handler too, ends alone: the pool ends its workers so.
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL) if os.getpid() == leader else os._exit(143))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.register_at_fork(before=lambda: _end_with_worker(leader, answer))
    try:
        LocalPipelineExecutor([*stage.steps], stage.tasks, workers, logging_dir=str(logs), start_method="fork").run()
    except Exception as error:
        answer.send(" ".join(str(error).split()) or type(error).__name__)
        os._exit(1)
    os._exit(0)


def _end_with_worker(leader: int, answer: Any) -> None:
    """Before a fork: ends a stage whose worker was killed, as by a machine without memory.

    Its pool forks another one in a thread of its own, and would wait for the lost task for ever.
    """
    if os.getpid() == leader and threading.current_thread() is not threading.main_thread():
        answer.send("a task was killed, as where memory is short")
        os.killpg(0, signal.SIGKILL)


def skipped(work: Path, stage: str) -> list[str]:
    """What datatrove could not read and left out, from the logs of a stage."""
    logs = sorted((work / "logs" / stage / "logs").glob("task_*.log"))
    return [found for log in logs for found in _SKIPPED.findall(log.read_text("utf-8", "replace"))]


def _done(logs: Path) -> int:
    return sum(1 for _ in (logs / "completions").glob("*"))


def _failure(stage: Stage, logs: Path, said: str) -> str:
    reading = ""
    newest = sorted((logs / "logs").glob("task_*.log"), key=lambda path: path.stat().st_mtime)
    for log in newest[-1:]:
        files = re.findall(r"Reading input file (.*), \d+/\d+", log.read_text("utf-8", "replace"))
        reading = f" while it read {cut(files[-1])}" if files else ""
    return f"{stage.name} failed{reading}: {cut(said)}. Its logs are in {logs / 'logs'}; what was finished is kept."


def check_slurm(options: Mapping[str, Any], where: str) -> None:
    """Raises ValueError where there is no SLURM, or an option that datatrove's executor does not have."""
    import inspect

    ours = {"self", "pipeline", "tasks", "job_name", "logging_dir", "depends", "depends_job_id", "skip_completed"}
    known = [name for name in inspect.signature(SlurmPipelineExecutor.__init__).parameters if name not in ours]
    if unknown := next((key for key in options if key not in known), None):
        raise ValueError(f"{where}: slurm has no option {unknown!r}; datatrove has {', '.join(known)}.")
    if missing := next((key for key in ("time", "partition") if key not in options), None):
        raise ValueError(f"{where}: slurm.{missing} is missing; SLURM asks for it.")
    if shutil.which("sbatch") is None:
        raise ValueError(
            f"{where}: slurm is given, and there is no sbatch here; leave slurm out, or log in to the cluster."
        )


def _on_slurm(stage: Stage, logs: Path, options: Mapping[str, Any], bar: Any) -> None:
    executor = SlurmPipelineExecutor(
        pipeline=[*stage.steps], tasks=stage.tasks, job_name=f"corpus_{stage.name}", logging_dir=str(logs), **options
    )
    executor.run()
    while _done(logs) < stage.tasks:
        bar.update(_done(logs) - bar.n)
        if executor.job_id in (None, -1) or not _is_queued(executor.job_id):
            time.sleep(_SECONDS)  # The last task may have ended between the two looks.
            if _done(logs) < stage.tasks:
                raise StageError(
                    f"{stage.name}: SLURM ended job {executor.job_id} after {_done(logs)} of {stage.tasks} tasks; "
                    f"their logs are in {logs}. The same command goes on."
                )
            return
        time.sleep(_SECONDS_OF_SLURM)


def _is_queued(job: Any) -> bool:
    found = subprocess.run(["squeue", "-h", "-j", str(job)], capture_output=True, text=True, check=False)
    return found.returncode == 0 and bool(found.stdout.strip())
