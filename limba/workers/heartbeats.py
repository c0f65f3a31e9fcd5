"""What the workers of a run tell each other while it goes on: that they live, that they must stop, that they failed.

Each worker has a thread that writes a few words into the run's key-value store every second, and reads those of the
others. Nothing is sent that the devices or the training loop wait for, except in the moments in which a stop is agreed.

- A worker that is not heard for `LOST_SECONDS` is named by all others, which end: collectives would wait for ever.
- A worker that fails says why. The others repeat it under its name, and end with its exit code.
- A request to stop, made on any worker, is agreed on: all of them stop after the same step. While it is agreed, no
  worker begins another step; the step after the latest that any of them has reached is the last.
"""

import contextlib
import ctypes
import dataclasses
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
from typing import Any

from limba import distributed
from limba.preemption import PREEMPTED_EXIT_CODE

logger = logging.getLogger(__name__)

# sysexits.h EX_UNAVAILABLE: a worker is gone. Starting all of them again goes on from the newest checkpoint.
LOST_WORKER_EXIT_CODE = 69
# Without a sign of life. Shorter than JAX's own patience (100 s), whose end is an abort without a name.
LOST_SECONDS = 25.0
# The same before its first step: loading TensorFlow's libraries from a slow disk stops all threads of a process.
LOST_SECONDS_AT_START = 50.0
_PERIOD = 1.0
# Workers that a message lists one by one.
_NAMED = 8
_FOLDER = "limba/peers"


@dataclasses.dataclass
class _Life:
    """What is known of a worker: its last sign, and when this process saw it change."""

    sign: str
    seen: float


class Peers:
    """The thread of one worker. `stop_due` and `request_stop` belong to the training loop.

    Args:
      store: JAX's key-value store.
      index, count: this worker, and how many there are.

    Attributes:
      step: the last one that is over.
      doing: says it in a word, for the others.
    """

    def __init__(self, store: Any, index: int, count: int):
        self._store = store
        self.index, self.count = index, count
        self.step = 0
        self.doing: Callable[[], str] = lambda: "start"
        self._beats = 0
        self._lives: dict[int, _Life] = {}
        self._last_tick = time.monotonic()
        self._reason: str | None = None
        self._stop_at: int | None = None
        self._may_step = threading.Event()
        self._may_step.set()
        self._ended = threading.Event()
        self._asked_at: float | None = None
        self._failing = False
        self._threads = [
            threading.Thread(target=target, name=f"limba-{target.__name__.strip('_')}", daemon=True)
            for target in (self._tell_and_listen, self._watch_store)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    # ---------------------------------------------------- stopping ---------------------------------------------------

    def request_stop(self, reason: str) -> None:
        """Asks all workers to stop. Returns at once; a signal handler may call it."""
        self._reason = self._reason or reason

    def stop_due(self, step: int) -> bool:
        """Whether all workers stop after this step. Called between steps; waits while a stop is being agreed."""
        self.step = step
        self._may_step.wait()
        return self._stop_at is not None and step >= self._stop_at

    def _agree_on_stop(self, said: dict[str, str]) -> None:
        """One tick of the agreement, once anybody has asked for it."""
        reasons = {key: reason for key, reason in said.items() if key.startswith("stop/")}
        if self._reason is not None and f"stop/{self.index}" not in said:
            self._set(f"stop/{self.index}", self._reason)
        if not reasons or self._stop_at is not None:
            return
        if self._may_step.is_set():
            self._may_step.clear()
            # The loop may be past the gate already, on its way to the next step: that step is still allowed.
            self._set(f"step/{self.index}", str(self.step))
            for key, reason in reasons.items():
                logger.warning("%s: %s.", distributed.worker_name(int(key.partition("/")[2])), reason)
            return
        steps = [int(step) for key, step in said.items() if key.startswith("step/")]
        if len(steps) == self.count:
            self._stop_at = max(steps) + 1
            logger.info("All workers stop after step %d.", self._stop_at)
            self._may_step.set()

    # --------------------------------------------------- lives and deaths --------------------------------------------

    def fail(self, message: str, code: int) -> None:
        """Tells the others that this worker ends, and why."""
        self._failing = True
        with contextlib.suppress(RuntimeError):  # The store may be what failed.
            self._set(f"failed/{self.index}", json.dumps({"message": message, "code": code}))
        if self.index == 0:  # The store is here: the others need it to read the message.
            time.sleep(3 * _PERIOD)

    def steps(self) -> dict[int, int]:
        """The last step of each worker that has told one, a second or so ago."""
        return {index: int(step) for index, (_, step, _) in self._told()} | {self.index: self.step}

    def describe_others(self) -> str:
        """Who is behind this worker, or at something else; of a pod that waits, the one that it waits for."""
        others = [(int(step), index, doing) for index, (_, step, doing) in self._told()]
        named = [
            f"{distributed.worker_name(index)} is at step {step + 1}, on {doing!r}"
            for step, index, doing in sorted(others)
            if step < self.step or doing != "step"
        ]
        rest = len(others) - len(named[:_NAMED])
        words = named[:_NAMED] + ([f"{rest} others wait as this one does"] if rest else [])
        return f"{'; '.join(words)}." if words else ""

    def _told(self) -> list[tuple[int, list[str]]]:
        return [(index, life.sign.split()) for index, life in self._lives.items()]

    def close(self) -> None:
        """Ends the threads, when all workers have reached the end."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def wait_for_cause(self) -> None:
        """Returns when it is clear that no other worker is to blame for what went wrong here; else the process ends."""
        time.sleep((LOST_SECONDS if self.step else LOST_SECONDS_AT_START) + 8)

    def _set(self, key: str, value: str) -> None:
        self._store.key_value_set(f"{_FOLDER}/{key}", value, allow_overwrite=True)

    def _tell_and_listen(self) -> None:
        while not self._ended.wait(_PERIOD if self._may_step.is_set() else _PERIOD / 10):
            self._asked_at = self._asked_at or time.monotonic()
            with contextlib.suppress(RuntimeError):  # jax.errors.JaxRuntimeError: `_watch_store` finds out
                self._tick()
                self._asked_at = None

    def _tick(self) -> None:
        self._beats += 1
        self._set(f"alive/{self.index}", f"{self._beats} {self.step} {self.doing()}")
        said = {key.removeprefix(f"{_FOLDER}/"): value for key, value in self._store.key_value_dir_get(_FOLDER)}
        for key, value in said.items():
            kind, _, index = key.partition("/")
            if kind == "failed" and int(index) != self.index and not self._failing:
                failure = json.loads(value)
                self._end(f"{distributed.worker_name(int(index))} ended: {failure['message']}", failure["code"])
        self._look_for_lost(said)
        self._agree_on_stop(said)

    def _look_for_lost(self, said: dict[str, str]) -> None:
        now = time.monotonic()
        if now - self._last_tick > LOST_SECONDS / 2:
            self._lives.clear()  # It was this process that stood still.
        self._last_tick = now
        lost = []
        for index in range(self.count):
            if index == self.index:
                continue
            sign = said.get(f"alive/{index}", "0 0 ?")
            life = self._lives.get(index)
            if life is None or life.sign != sign:
                self._lives[index] = _Life(sign, now)
            elif now - life.seen > self._patience(index) + (5 if self.index == 0 else 0):  # The others need the store.
                lost.append(index)
        if lost:
            steps = self.steps()
            self._end(
                " and ".join(f"{distributed.worker_name(i)}, last at step {steps[i]}," for i in lost)
                + f" gave no sign of life for {self._patience(lost[0]):.0f} s: killed, or its host is gone or cut off. "
                "See its log; started again, all workers go on from the newest checkpoint",
                LOST_WORKER_EXIT_CODE,
            )

    def _patience(self, index: int) -> float:
        return LOST_SECONDS if self.steps()[index] else LOST_SECONDS_AT_START

    def _watch_store(self) -> None:
        while not self._ended.wait(_PERIOD / 2):
            self._look_for_store()

    def _look_for_store(self) -> None:
        """Ends the process if the store, which is worker 0's, neither answers nor is there any more.

        JAX's calls would wait for it, and JAX aborts the process in the meantime; see `start`.
        """
        waited = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
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
            f"{distributed.worker_name(0)}, last at step {self.steps().get(0, 0)}, does not answer any more: killed, "
            "or its host is gone or cut off. See its log; started again, all workers go on from the newest checkpoint",
            LOST_WORKER_EXIT_CODE,
        )

    def _end(self, message: str, code: int) -> None:
        """Ends this process, whose other threads may wait for a collective that never comes."""
        print(f"error: {message}.", file=sys.stderr)
        print(f"This is {distributed.worker_name(self.index)}, at step {self.step}; it ends.", file=sys.stderr)
        if self.index == 0:
            time.sleep(3 * _PERIOD)
        leave_at_once(code)


_peers: Peers | None = None


def peers() -> Peers | None:
    """Of this process; None where it is alone."""
    return _peers


def start() -> None:
    """Begins to watch the others, right after joining them."""
    global _peers
    _peers = Peers(distributed.store(), distributed.process_index(), distributed.process_count())
    # When worker 0 is gone, a thread of JAX's aborts this process within milliseconds, without a name. The C library's
    # `sleep` as the handler gives ours the time to find out and say who it was: sleep(SIGABRT) is six seconds.
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
    # Until the training loop listens to it itself.
    signal.signal(signal.SIGTERM, _terminate)
    _peers.start()


class _TerminatedError(SystemExit):
    """SIGTERM outside of the training loop, which only this worker got."""


def _terminate(signum: int, frame: Any) -> None:
    del signum, frame
    raise _TerminatedError(PREEMPTED_EXIT_CODE)


def leave(code: int) -> None:
    """Ends this process, and the others with it, from any thread: what it was doing cannot be ended otherwise."""
    if _peers is not None:
        _peers.fail(f"it hung at step {_peers.step + 1}", code)
    leave_at_once(code)


def leave_at_once(code: int) -> None:
    """Ends the process without JAX's farewell, which waits for all workers."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def tell_failure(error: BaseException, message: str) -> None:
    """Tells the other workers what ends this one. If one of them is to blame, this process ends here, with its name."""
    if _peers is None:
        return
    import jax

    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in message:
        print(f"The devices of the workers cannot work together any more: {_first_line(message)}", file=sys.stderr)
        _peers.wait_for_cause()
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    _peers.fail(_first_line(message), code)


@contextlib.contextmanager
def membership() -> Iterator[None]:
    """Around a command: the others do not wait for a worker that failed, and all leave together when they are done."""
    try:
        yield
    # Whatever it is, and also where it began as an exit: the others must hear of it before this process ends.
    except BaseException as error:
        if _peers is None:
            raise
        orderly = isinstance(error, SystemExit) and error.code in (0, None, PREEMPTED_EXIT_CODE)
        if orderly and not isinstance(error, _TerminatedError):
            _leave_together()
            raise
        if isinstance(error, SystemExit):
            if isinstance(error, _TerminatedError):
                tell_failure(error, "it was asked to stop (SIGTERM) while it was not training")
            leave_at_once(error.code if isinstance(error.code, int) else 1)
        traceback.print_exc()
        tell_failure(error, f"{type(error).__name__}: {error}")
        leave_at_once(1)


def _leave_together() -> None:
    assert _peers is not None
    import jax

    # A request to stop reaches the workers one after the other; this one is on its way out already.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    distributed.exchange("end of the run", "")
    _peers.close()
    jax.distributed.shutdown()


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "it did not say why"
