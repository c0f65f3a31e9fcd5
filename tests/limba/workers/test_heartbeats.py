"""What workers tell each other, tick by tick and with clocks of our own. test_many_processes kills real ones."""

import json
import socket
import threading

import pytest

from limba import distributed, peers
from tests.limba.test_distributed import Store


class _EndedError(Exception):
    """In place of the end of the process."""


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(peers.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(peers.time, "sleep", lambda seconds: None)
    return now


@pytest.fixture
def workers(monkeypatch, clock):
    """Three workers with one store; their threads do not run."""

    def end(code):
        raise _EndedError(code)

    monkeypatch.setattr(peers, "leave_at_once", end)
    monkeypatch.setattr(distributed, "_hosts", ["a", "b", "c"])
    store = Store()
    return [peers.Peers(store, i, 3) for i in range(3)]


def _tick(*workers):
    for worker in workers:
        worker._tick()


def test_a_stop_is_agreed_on_and_nobody_passes_it(workers):
    for worker, step in zip(workers, (5, 6, 5), strict=True):
        assert not worker.stop_due(step)
    _tick(*workers)
    workers[2].request_stop("asked to stop (SIGTERM)")
    workers[2].request_stop("once more")
    _tick(*workers)  # worker 2 asks
    _tick(workers[0], workers[1])  # they close their gates and say where they are
    assert not workers[0]._may_step.is_set() and workers[2]._may_step.is_set()
    workers[2].step = 6  # it goes on meanwhile
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
    assert due == [True]  # it had said step 2, and was on its way to 3


def test_a_worker_that_is_not_heard_is_named(workers, clock, capsys):
    workers[2].step = 7
    _tick(*reversed(workers))
    for _ in range(5):
        clock[0] += peers.LOST_SECONDS / 5
        _tick(workers[0], workers[1])
    assert workers[1].steps() == {0: 0, 1: 0, 2: 7}
    clock[0] += 1
    _tick(workers[0])  # it keeps the store, and waits a little longer
    with pytest.raises(_EndedError, match=str(peers.LOST_WORKER_EXIT_CODE)):
        _tick(workers[1])
    assert "error: worker 2 (c), last at step 7, gave no sign of life for 25 s: killed" in capsys.readouterr().err
    clock[0] += 5
    with pytest.raises(_EndedError):
        _tick(workers[0])


def test_a_process_that_stood_still_itself_blames_nobody(workers, clock):
    _tick(*workers)
    clock[0] += 10 * peers.LOST_SECONDS
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
    _tick(workers[2])  # it has said its own


def test_without_the_store_worker_0_is_gone(workers, clock, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        monkeypatch.setattr(distributed, "coordinator", lambda: address)
        workers[1]._look_for_store()
        workers[1]._asked_at = clock[0]
        clock[0] += 3
        workers[1]._look_for_store()  # slow, but there
    clock[0] -= 2
    workers[1]._look_for_store()
    clock[0] += 2
    with pytest.raises(_EndedError, match=str(peers.LOST_WORKER_EXIT_CODE)):
        workers[1]._look_for_store()
    assert "error: worker 0 (a), last at step 0, does not answer any more: killed" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 75, 1])
def test_alone_a_command_ends_as_it_would(code):
    with pytest.raises(SystemExit) as exit_, peers.membership():
        raise SystemExit(code)
    assert exit_.value.code == code
    with pytest.raises(KeyError), peers.membership():
        raise KeyError
    peers.tell_failure(ValueError(), "to nobody")


@pytest.fixture
def told(workers, monkeypatch):
    monkeypatch.setattr(peers, "_peers", workers[1])
    return lambda: json.loads(workers[1]._store.values["limba/peers/failed/1"])


def test_what_a_command_fails_with_is_told(told, capsys):
    with pytest.raises(_EndedError, match="1"), peers.membership():
        raise KeyError("x")
    assert told() == {"message": "KeyError: 'x'", "code": 1}
    assert "Traceback" in capsys.readouterr().err


def test_sigterm_outside_of_training_is_told_with_its_code(told):
    with pytest.raises(_EndedError, match="75"), peers.membership():
        peers._terminate(15, None)
    assert told() == {"message": "it was asked to stop (SIGTERM) while it was not training", "code": 75}
