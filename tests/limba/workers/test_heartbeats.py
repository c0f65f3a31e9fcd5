"""Heartbeats tick by tick, with a clock of the test. test_many_processes kills real workers."""

import json
import socket
import threading

import pytest

from limba.workers import distributed, heartbeats
from tests.limba.workers.test_distributed import Store


class _EndedError(Exception):
    """In place of the end of the process."""


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(heartbeats.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(heartbeats.time, "sleep", lambda seconds: None)
    return now


@pytest.fixture
def workers(monkeypatch, clock):
    """Three workers with one store; their threads do not run."""

    def end(code):
        raise _EndedError(code)

    monkeypatch.setattr(heartbeats, "leave_at_once", end)
    monkeypatch.setattr(distributed, "_hosts", ["a", "b", "c"])
    store = Store()
    return [heartbeats.Heartbeat(store, i, 3) for i in range(3)]


def _tick(*workers):
    for worker in workers:
        worker._tick()


def test_a_stop_is_agreed_on_and_nobody_passes_it(workers):
    for worker, step in zip(workers, (5, 6, 5), strict=True):
        assert not worker.stop_due(step)
    _tick(*workers)
    workers[2].request_stop("asked to stop (SIGTERM)")
    workers[2].request_stop("once more")
    _tick(*workers)  # worker 2 requests the stop
    _tick(workers[0], workers[1])  # they stop at `stop_due` and store their steps
    assert not workers[0]._may_step.is_set() and workers[2]._may_step.is_set()
    workers[2].step = 6  # its loop runs meanwhile
    _tick(*workers)
    _tick(*workers)
    for worker in workers:
        assert worker._may_step.is_set()
        assert [worker.stop_due(step) for step in (6, 7, 7)] == [False, True, True]


def test_a_loop_waits_while_a_stop_is_agreed(workers):
    assert not workers[0].stop_due(2)
    workers[0].request_stop("asked to stop")
    _tick(workers[0], workers[0])
    assert not workers[0]._may_step.is_set()
    due = []
    loop = threading.Thread(target=lambda: due.append(workers[0].stop_due(3)), daemon=True)
    loop.start()
    loop.join(0.2)
    assert loop.is_alive() and not due
    _tick(workers[1], workers[2], workers[0])
    loop.join(10)
    assert due == [True]  # it had stored step 2, and began step 3


def test_a_worker_without_heartbeat_is_named(workers, clock, capsys):
    workers[2].step = 7
    _tick(*reversed(workers))
    for _ in range(5):
        clock[0] += heartbeats.LOST_SECONDS / 5
        _tick(workers[0], workers[1])
    assert workers[1].steps() == {0: 0, 1: 0, 2: 7}
    clock[0] += 1
    _tick(workers[0])  # it keeps the store, and waits a little longer
    with pytest.raises(_EndedError, match=str(heartbeats.LOST_WORKER_EXIT_CODE)):
        _tick(workers[1])
    assert (
        "error: worker 2 (c), last at step 7, gave no sign of life for 25 s: it was killed" in capsys.readouterr().err
    )
    clock[0] += 5
    with pytest.raises(_EndedError):
        _tick(workers[0])


def test_a_process_that_was_stopped_itself_names_nobody(workers, clock):
    _tick(*workers)
    clock[0] += 10 * heartbeats.LOST_SECONDS
    _tick(workers[0])
    clock[0] += 1
    _tick(workers[0])


def test_a_failure_is_repeated_under_its_name_with_its_code(workers, capsys):
    _tick(*workers)
    workers[1].fail("the loss of step 3 is nan", 1)
    with pytest.raises(_EndedError, match="1"):
        _tick(workers[0])
    assert "error: worker 1 (b) ended: the loss of step 3 is nan." in capsys.readouterr().err
    workers[2].fail("the same", 1)
    _tick(workers[2])  # its own failure is stored already


def test_without_the_store_worker_0_is_gone(workers, clock, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        monkeypatch.setattr(distributed, "coordinator", lambda: address)
        workers[1]._look_for_store()
        workers[1]._waiting_since = clock[0]
        clock[0] += 3
        workers[1]._look_for_store()  # slow, but there
    clock[0] -= 2
    workers[1]._look_for_store()
    clock[0] += 2
    with pytest.raises(_EndedError, match=str(heartbeats.LOST_WORKER_EXIT_CODE)):
        workers[1]._look_for_store()
    assert "error: worker 0 (a), last at step 0, does not answer any more: it was killed" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 75, 1])
def test_alone_a_command_ends_as_it_would(code):
    with pytest.raises(SystemExit) as exit_, heartbeats.membership():
        raise SystemExit(code)
    assert exit_.value.code == code
    with pytest.raises(KeyError), heartbeats.membership():
        raise KeyError
    heartbeats.tell_failure(ValueError(), "to nobody")


@pytest.fixture
def failure(workers, monkeypatch):
    monkeypatch.setattr(heartbeats, "_heartbeat", workers[1])
    return lambda: json.loads(workers[1]._store.values["limba/peers/failed/1"])


def test_the_others_get_the_error_of_a_command(failure, capsys):
    with pytest.raises(_EndedError, match="1"), heartbeats.membership():
        raise KeyError("x")
    assert failure() == {"message": "KeyError: 'x'", "code": 1}
    assert "Traceback" in capsys.readouterr().err


def test_the_others_get_a_sigterm_outside_training_with_its_code(failure):
    with pytest.raises(_EndedError, match="75"), heartbeats.membership():
        heartbeats._terminate(15, None)
    assert failure() == {"message": "it was asked to stop (SIGTERM) while it was not training", "code": 75}
