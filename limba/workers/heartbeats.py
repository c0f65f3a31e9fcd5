"""Heartbeats: the workers of a run tell each other that they are alive, that they must stop, or that they failed.

Each worker has a thread that writes a few words into the run's key-value store every second, and reads those of the
others. Neither the devices nor the training loop wait for it, except while the workers agree on a stop.

- If a worker gives no heartbeat for `LOST_SECONDS`, all others name it and end: their collectives would wait forever.
- A worker that fails says why. The others repeat the reason with its name, and end with its exit code.
- Any worker may request a stop; then all workers stop after the same step. Until they have agreed, no worker begins
  another step. The last step is one after the latest step that any worker has reached.

JAX's own heartbeat (0.10) aborts the survivors from C++: it gives a lost worker's number, without host, step or reason.
"""

import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from limba.devices import out_of_memory
from limba.files import json_text
from limba.workers import distributed
from limba.workers.preemption import PREEMPTED_EXIT_CODE

logger = logging.getLogger(__name__)

# sysexits.h EX_UNAVAILABLE: a worker is lost. After a restart all workers resume from the newest checkpoint.
LOST_WORKER_EXIT_CODE = 69
# Seconds without a heartbeat. Shorter than JAX's own limit (100 s), after which it aborts and names nobody.
LOST_SECONDS = 25.0
# The same before a worker's first step: loading TensorFlow's libraries from a slow disk stops all threads of a process.
LOST_SECONDS_AT_START = 50.0
_PERIOD = 1.0
# A message lists this many workers one by one.
_NAMED = 8
_FOLDER = "limba/peers"


class _LastHeartbeat(NamedTuple):
    """The last heartbeat of a worker, `<count> <step> <activity>`, and when this process first saw it."""

    text: str
    step: int
    activity: str
    seen: float


class Heartbeat:
    """The threads of worker `index` of `count`. The training loop calls `request_stop` and `stop_due`.

    Attributes:
      step: the last finished step.
      activity: returns one word that tells the others what this worker is doing.
    """

    def __init__(self, store: Any, index: int, count: int):
        self._store = store
        self.index, self.count = index, count
        self.step = 0
        self.activity: Callable[[], str] = lambda: "start"
        self._beats = 0
        self._last_heartbeats: dict[int, _LastHeartbeat] = {}
        self._last_tick = time.monotonic()
        self._stop_reason: str | None = None
        self._stop_at: int | None = None
        self._may_step = threading.Event()
        self._may_step.set()
        self._ended = threading.Event()
        self._waiting_since: float | None = None  # for the store
        self._failing = False
        self._threads = [
            threading.Thread(target=target, name=f"limba-{target.__name__.strip('_')}", daemon=True)
            for target in (self._beat, self._watch_store)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    # ---------------------------------------------------- stopping ---------------------------------------------------

    def request_stop(self, reason: str) -> None:
        """Asks all workers to stop. Returns at once; a signal handler may call it."""
        self._stop_reason = self._stop_reason or reason

    def stop_due(self, step: int) -> bool:
        """Whether all workers stop after this step. Called between steps; waits while the workers agree on a stop."""
        self.step = step
        self._may_step.wait()
        return self._stop_at is not None and step >= self._stop_at

    def _agree_on_stop(self, stored: dict[str, str]) -> None:
        """One tick of the agreement, once a worker has requested a stop."""
        reasons = {key: reason for key, reason in stored.items() if key.startswith("stop/")}
        if self._stop_reason is not None and f"stop/{self.index}" not in stored:
            self._set(f"stop/{self.index}", self._stop_reason)
        if not reasons or self._stop_at is not None:
            return
        if self._may_step.is_set():
            self._may_step.clear()
            # The loop may have passed `stop_due` already and begin the next step: that step is still allowed.
            self._set(f"step/{self.index}", str(self.step))
            for key, reason in reasons.items():
                logger.warning("%s: %s.", distributed.worker_name(int(key.partition("/")[2])), reason)
            return
        steps = [int(step) for key, step in stored.items() if key.startswith("step/")]
        if len(steps) == self.count:
            self._stop_at = max(steps) + 1
            logger.info("All workers stop after step %d.", self._stop_at)
            self._may_step.set()

    # ----------------------------------------------- failed and lost workers -----------------------------------------

    def fail(self, message: str, code: int) -> None:
        """Tells the others that this worker ends, and why."""
        self._failing = True
        with contextlib.suppress(RuntimeError):  # The store may be what failed.
            self._set(f"failed/{self.index}", json_text.dumps({"message": message, "code": code}))
        if self.index == 0:  # The store is in this process: the others need it to read the message.
            time.sleep(3 * _PERIOD)

    def steps(self) -> dict[int, int]:
        """The last step of each worker, about a second ago."""
        return {index: last.step for index, last in self._last_heartbeats.items()} | {self.index: self.step}

    def describe_others(self) -> str:
        """The workers that are behind this one or do something else: if all wait, the one that they wait for."""
        others = sorted((last.step, index, last.activity) for index, last in self._last_heartbeats.items())
        named = [
            f"{distributed.worker_name(index)} is at step {step + 1}, on {activity!r}"
            for step, index, activity in others
            if step < self.step or activity != "step"
        ]
        rest = len(others) - len(named[:_NAMED])
        words = named[:_NAMED] + ([f"{rest} others wait as this one does"] if rest else [])
        return f"{'; '.join(words)}." if words else ""

    def close(self) -> None:
        """Ends the threads, after all workers have finished."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def wait_for_cause(self) -> None:
        """Waits until any lost worker would have been noticed. If one is lost, the process ends in this time."""
        time.sleep((LOST_SECONDS if self.step else LOST_SECONDS_AT_START) + 8)

    def _set(self, key: str, value: str) -> None:
        self._store.key_value_set(f"{_FOLDER}/{key}", value, allow_overwrite=True)

    def _beat(self) -> None:
        while not self._ended.wait(_PERIOD if self._may_step.is_set() else _PERIOD / 10):
            self._waiting_since = self._waiting_since or time.monotonic()
            with contextlib.suppress(RuntimeError):  # jax.errors.JaxRuntimeError: `_watch_store` looks for the cause.
                self._tick()
                self._waiting_since = None

    def _tick(self) -> None:
        self._beats += 1
        self._set(f"alive/{self.index}", f"{self._beats} {self.step} {self.activity()}")
        stored = {key.removeprefix(f"{_FOLDER}/"): value for key, value in self._store.key_value_dir_get(_FOLDER)}
        for key, value in stored.items():
            kind, _, index = key.partition("/")
            if kind == "failed" and int(index) != self.index and not self._failing:
                failure = json.loads(value)
                self._end(f"{distributed.worker_name(int(index))} ended: {failure['message']}", failure["code"])
        self._look_for_lost(stored)
        self._agree_on_stop(stored)

    def _look_for_lost(self, stored: dict[str, str]) -> None:
        now = time.monotonic()
        if now - self._last_tick > LOST_SECONDS / 2:
            self._last_heartbeats.clear()  # This process itself was stopped for a while.
        self._last_tick = now
        lost = []
        for index in range(self.count):
            if index == self.index:
                continue
            text = stored.get(f"alive/{index}", "0 0 ?")
            last = self._last_heartbeats.get(index)
            if last is None or last.text != text:
                _, step, activity = text.split()
                self._last_heartbeats[index] = _LastHeartbeat(text, int(step), activity, now)
            # Worker 0 waits longer: the others need its store to name the lost worker.
            elif now - last.seen > self._lost_after(index) + (5 if self.index == 0 else 0):
                lost.append(index)
        if lost:
            steps = self.steps()
            self._end(
                " and ".join(f"{distributed.worker_name(i)}, last at step {steps[i]}," for i in lost)
                + f" gave no sign of life for {self._lost_after(lost[0]):.0f} s: it was killed, or its host is down or "
                "unreachable. See its log; restart all workers, and they resume from the newest checkpoint",
                LOST_WORKER_EXIT_CODE,
            )

    def _lost_after(self, index: int) -> float:
        return LOST_SECONDS if self.steps()[index] else LOST_SECONDS_AT_START

    def _watch_store(self) -> None:
        while not self._ended.wait(_PERIOD / 2):
            self._look_for_store()

    def _look_for_store(self) -> None:
        """Ends the process if worker 0, which has the store, neither answers nor listens any more.

        JAX's calls would wait for it until JAX aborts the process; see `start`.
        """
        waited = 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since
        if waited < 2 * _PERIOD or self.index == 0 or self._failing:
            return
        try:
            socket.create_connection(distributed.coordinator(), timeout=_PERIOD).close()
        except ConnectionRefusedError:
            pass
        except OSError:  # A host that does not answer may be slow.
            if waited < LOST_SECONDS:
                return
        else:
            return
        self._end(
            f"{distributed.worker_name(0)}, last at step {self.steps().get(0, 0)}, does not answer any more: it was "
            "killed, or its host is down or unreachable. See its log; restart all workers, and they resume from the "
            "newest checkpoint",
            LOST_WORKER_EXIT_CODE,
        )

    def _end(self, message: str, code: int) -> None:
        """Ends this process at once: its other threads may wait forever in a collective."""
        print(f"error: {message}.", file=sys.stderr)
        print(f"This is {distributed.worker_name(self.index)}, at step {self.step}; it ends.", file=sys.stderr)
        if self.index == 0:
            time.sleep(3 * _PERIOD)
        leave_at_once(code)


_heartbeat: Heartbeat | None = None


def of_this_process() -> Heartbeat | None:
    """The heartbeat of this process; None if it runs alone."""
    return _heartbeat


def start() -> None:
    """Starts this worker's heartbeat, right after it joined the others."""
    global _heartbeat
    _heartbeat = Heartbeat(distributed.store(), distributed.process_index(), distributed.process_count())
    # When worker 0 is lost, a thread of JAX's aborts this process within milliseconds and names nobody. With the C
    # library's `sleep` as the handler, `_watch_store` has time to name worker 0: sleep(SIGABRT) takes six seconds.
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
    # Until the training loop handles SIGTERM itself.
    signal.signal(signal.SIGTERM, _terminate)
    _heartbeat.start()


class _TerminatedError(SystemExit):
    """This worker got SIGTERM outside the training loop; the others did not."""


def _terminate(signum: int, frame: Any) -> None:
    del signum, frame
    raise _TerminatedError(PREEMPTED_EXIT_CODE)


def leave(code: int) -> None:
    """Ends this process and, through the heartbeats, all others. Works from any thread, also if the main one hangs."""
    if _heartbeat is not None:
        _heartbeat.fail(f"it hung at step {_heartbeat.step + 1}", code)
    leave_at_once(code)


def leave_at_once(code: int) -> None:
    """Ends the process without `jax.distributed.shutdown`, which waits for all workers."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def tell_failure(error: BaseException, message: str) -> None:
    """Tells the other workers why this one ends. If another worker is the cause, names it and ends the process here."""
    if _heartbeat is None:
        return
    import jax

    if isinstance(error, jax.errors.JaxRuntimeError) and not out_of_memory.is_cause(error):
        print(f"The devices of the workers cannot work together any more: {_first_line(message)}", file=sys.stderr)
        _heartbeat.wait_for_cause()
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    _heartbeat.fail(_first_line(message), code)


@contextlib.contextmanager
def membership() -> Iterator[None]:
    """Around a command: a worker that fails tells the others, and workers that finish wait for each other."""
    try:
        yield
    # Any exception, exits included: the others must know the reason before this process ends.
    except BaseException as error:
        if _heartbeat is None:
            raise
        orderly = isinstance(error, SystemExit) and error.code in (0, None, PREEMPTED_EXIT_CODE)
        if orderly and not isinstance(error, _TerminatedError):
            import jax

            # A late SIGTERM changes nothing: this worker ends anyway.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            distributed.exchange("end of the run", "")
            _heartbeat.close()
            jax.distributed.shutdown()
            raise
        if isinstance(error, SystemExit):
            if isinstance(error, _TerminatedError):
                tell_failure(error, "it was asked to stop (SIGTERM) while it was not training")
            leave_at_once(error.code if isinstance(error.code, int) else 1)
        traceback.print_exc()
        tell_failure(error, f"{type(error).__name__}: {error}")
        leave_at_once(1)


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "it did not say why"
