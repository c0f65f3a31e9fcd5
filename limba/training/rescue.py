"""What rescues a run from outside its loop: requests to stop, batches that do not come, steps that hang, full disks.

The loop has one `Rescue`, and tells it where it waits, changes the state and pauses. `train()` closes by `closing` what
it has opened.
"""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator
from typing import Protocol, TypeVar

import jax

from limba.checkpoints import checkpointing
from limba.data.contract import ReadingStoppedError
from limba.files import awaited, disk
from limba.files.storage import AnyPath
from limba.models import metrics as metrics_lib
from limba.reports import run_end
from limba.training.run import Run
from limba.workers import heartbeats, watchdog
from limba.workers.preemption import PREEMPTED_EXIT_CODE, StopBeforeSteps, StopRequest

logger = logging.getLogger(__name__)

RESUMES = "; the same command resumes the run"
# Seconds after a request to stop that a worker waits for a batch with which all workers could stop together.
_PATIENCE_SECONDS = 10.0


class Rescued(Protocol):
    """The loop, as its rescue sees it.

    Attributes:
      step: the last that was made.
      metrics: of `step`; None before the first step of this process.
      last_saved: the step of the newest checkpoint.
    """

    run: Run
    step: int
    metrics: metrics_lib.Metrics | None
    last_saved: int

    def save(self) -> None:
        """Begins a checkpoint of `step`, with the state in its hands."""

    def begin_checkpoint(self) -> None:
        """The same for who has the state in hands already, and ends the process after it."""


class Rescue:
    """A context around the steps of a loop.

    Attributes:
      in_hands: who changes the state or saves it holds this. A rescue keeps it until the process ends.
    """

    def __init__(self, loop: Rescued):
        self._loop, self._run, self.in_hands = loop, loop.run, threading.Lock()
        # Seconds of waits for a batch that are no news. Of the first, which fills shuffle buffers, the watchdog tells.
        self._usual_wait = math.inf
        self._input_since: float | None = None  # of `_leave_the_others`

    def __enter__(self) -> "Rescue":
        heartbeat = heartbeats.of_this_process()
        if heartbeat is not None:
            heartbeat.activity = lambda: self._run.goodput.kind
        describe_others = heartbeat.describe_others if heartbeat is not None else lambda: ""
        with contextlib.ExitStack() as entered:
            self._stop = entered.enter_context(StopRequest(heartbeat, self._stop_waiting, self._leave_if_blocked))
            self._watchdog = entered.enter_context(
                watchdog.Watchdog(
                    self._run.watchdog, self._stop.request, self._save_while_reading, describe_others, heartbeats.leave
                )
            )
            self._end = entered.pop_all().close
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    # ---------------------------------------------- what the loop tells and asks -------------------------------------

    def stop_is_due(self) -> bool:
        """Whether a request to stop ends the run after the last step; all workers get the same answer."""
        return self._stop.is_due(self._loop.step)

    def check_evaluation(self) -> None:
        """Raises `ReadingStoppedError` once a stop is requested; workers evaluate together, so one cannot leave."""
        if self._stop.is_requested and jax.process_count() == 1:
            raise ReadingStoppedError

    def first_wait(self) -> contextlib.AbstractContextManager[None]:
        """A context for the wait for the first batch; what follows compiles, and is not watched."""
        return self._watchdog.first_wait()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A context that reads a batch: a long wait is named in the log, and what cannot be read ends with a save."""
        what, began = f"a batch of {self._run.dataset.name!r} for step {self._loop.step + 1}", time.monotonic()
        try:
            with awaited.named(what, self._usual_wait):
                yield
        except ReadingStoppedError:
            raise
        except Exception:  # Whatever it is, the caller gets it.
            self._save_while_reading()
            raise
        is_first = self._loop.metrics is None
        self._usual_wait = 0.0 if is_first else max(self._usual_wait, 2 * (time.monotonic() - began))

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """A context for evaluations and checkpoints, which may take longer than a step."""
        return self._watchdog.paused()

    def step_done(self) -> None:
        """Counts a finished step."""
        self._watchdog.beat(self._loop.step)

    # ----------------------------------------------- called from other threads ---------------------------------------

    def _stop_waiting(self) -> None:
        """Ends a wait for a batch, after a signal; workers that train together still need theirs to stop together."""
        if jax.process_count() == 1:
            for source in (self._run.first_batch, self._run.batches):
                getattr(source, "stop_waiting", lambda: None)()

    def _leave_if_blocked(self) -> None:
        """Ends the process if the main thread still waits some seconds after a signal; a single one saves first.

        It may compile, or wait in a library for a batch or an evaluation.
        """
        loop, run = self._loop, self._run
        if jax.process_count() > 1:
            self._leave_the_others()
            return
        if run.goodput.kind not in ("input", "compile", "evaluation"):
            return
        # The first step, with which compiling counts, holds the state; there is nothing of it to save.
        nothing_made = run.goodput.kind == "compile" and loop.metrics is None
        if not nothing_made and not self.in_hands.acquire(blocking=False):
            return
        if loop.step > loop.last_saved:
            loop.begin_checkpoint()
            run.checkpointer.wait()
        logger.warning("Stopped on request at step %d, while it waited (%s)%s.", loop.step, run.goodput.kind, RESUMES)
        heartbeats.leave_at_once(PREEMPTED_EXIT_CODE)

    def _leave_the_others(self) -> None:
        """Ends all workers if this one waits for a batch: without it the others cannot end their step, nor save."""
        if self._run.goodput.kind != "input":
            self._input_since = None
            return
        self._input_since = self._input_since or time.monotonic()
        heartbeat = heartbeats.of_this_process()
        if heartbeat is not None and time.monotonic() - self._input_since > _PATIENCE_SECONDS:
            message = (
                f"it was asked to stop while it waited for a batch, which did not come; steps after the newest "
                f"checkpoint of {self._run.model_dir} are lost"
            )
            logger.error("This worker ends: %s.", message)
            heartbeat.fail(message, PREEMPTED_EXIT_CODE)
            heartbeats.leave_at_once(PREEMPTED_EXIT_CODE)

    def _save_while_reading(self) -> None:
        """Saves the last step while no batch comes; hosts that train together could only save together."""
        loop, run = self._loop, self._run
        step = loop.step
        if run.goodput.kind == "input" and jax.process_count() == 1 and step > loop.last_saved:
            loop.save()
            run.checkpointer.wait()
            logger.error("No batch came for step %d; step %d is saved.", step + 1, step)


def stopping_before_steps(model_dir: AnyPath) -> StopBeforeSteps:
    """A context around what a run does outside its steps: SIGTERM ends it, and it counts as stopped."""

    def leave() -> None:
        stop = SystemExit(PREEMPTED_EXIT_CODE)
        if jax.process_index() == 0:
            run_end.write(model_dir, stop)
        heartbeats.leave_at_once(PREEMPTED_EXIT_CODE)

    return StopBeforeSteps(leave)


# ----------------------------------------------------- closing -------------------------------------------------------


class Closable(Protocol):
    def close(self) -> None: ...


_Opened = TypeVar("_Opened", bound=Closable)


@contextlib.contextmanager
def closing(opened: _Opened) -> Iterator[_Opened]:
    """Closes what a run has opened, whatever happens; the first error of the run is the one that is raised."""
    try:
        yield opened
    except BaseException:
        with contextlib.suppress(OSError):  # A disk that is full fails again here; the first error says more.
            opened.close()
        raise
    opened.close()


@contextlib.contextmanager
def explaining_full_disks(checkpointer: checkpointing.Checkpointer) -> Iterator[None]:
    """Metrics and events fill a disk too: the error has the checkpoint from which the run resumes."""
    try:
        yield
    except OSError as error:
        if isinstance(error, checkpointing.SaveError) or not disk.is_full(error):
            raise
        raise checkpointer.save_error(error) from error
