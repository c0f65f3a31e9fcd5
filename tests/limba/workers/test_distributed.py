"""The settings of a cluster, the roll call, and the exchange of values. test_many_processes joins real workers."""

import concurrent.futures
import json
import re
import socket

import pytest

from limba.workers import distributed
from limba.workers.distributed import ClusterSettings, MissingWorkerError

ALONE = {"TPU_SKIP_MDS_QUERY": "1"}
LIMBA = {
    "LIMBA_COORDINATOR_ADDRESS": "10.0.0.1:1234", "LIMBA_PROCESS_COUNT": "4", "LIMBA_PROCESS_INDEX": "2"
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "5000", "SLURM_STEP_NODELIST": "gpu[07-09],login", "SLURM_NTASKS": "4", "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}  # fmt: skip


def test_alone():
    assert distributed.find_cluster({}, environ=ALONE) is None
    assert distributed.find_cluster({}, environ=ALONE | SLURM | {"SLURM_NTASKS": "1"}) is None
    assert (
        distributed.find_cluster({}, environ=ALONE | LIMBA | {"LIMBA_PROCESS_COUNT": "1", "LIMBA_PROCESS_INDEX": "0"})
        is None
    )


@pytest.mark.parametrize("wrong", [{"SLURM_PROCID": ""}, {"SLURM_NTASKS": "many"}, {"SLURM_PROCID": "4"}])
def test_a_part_of_a_slurm_step_is_refused(wrong):
    with pytest.raises(ValueError, match=r"a part of a SLURM step's environment. Start by srun, or unset"):
        distributed.find_cluster({}, environ=ALONE | SLURM | wrong)


def test_flags_come_before_variables_and_variables_before_slurm(monkeypatch):
    flags = {"coordinator_address": "h:1", "process_count": 2, "process_index": 1}
    assert distributed.find_cluster(flags, required=True, environ=LIMBA) == ClusterSettings("h:1", 2, 1)
    assert distributed.find_cluster({}, environ=LIMBA | SLURM) == ClusterSettings("10.0.0.1:1234", 4, 2)
    for name, value in SLURM.items():  # JAX reads them itself
        monkeypatch.setenv(name, value)
    # The port is the job's number modulo 4096, above 61440.
    assert distributed.find_cluster({}, environ=ALONE | SLURM) == ClusterSettings("gpu07:62344", 4, 3, [1])
    assert distributed.find_cluster({}, detect=False, environ=ALONE | SLURM) is None


@pytest.mark.parametrize(
    ("given", "environ", "words"),
    [
        ({}, {"LIMBA_PROCESS_COUNT": "4"}, ["environment", "process_count = 4", "coordinator_address"]),
        ({"process_index": 1}, {}, ["flags", "process_index = 1", "process_count"]),
        ({}, LIMBA | {"LIMBA_PROCESS_INDEX": "4"}, ["process 4 of 4", "below the count"]),
        ({}, LIMBA | {"LIMBA_PROCESS_INDEX": "two"}, ["LIMBA_PROCESS_INDEX", "two"]),
        ({}, LIMBA | {"LIMBA_COORDINATOR_ADDRESS": "10.0.0.1"}, ["'10.0.0.1'", "HOST:PORT"]),
    ],
)
def test_incomplete_or_wrong_settings(given, environ, words):
    with pytest.raises(ValueError) as error:
        distributed.find_cluster(given, required=bool(given), environ=ALONE | environ)
    for word in words:
        assert word in str(error.value)


# ---------------------------------------------------- the roll call --------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _roll(workers, timeout=1.0, hosts=None):
    """The result of the roll call for each of some workers: a list of hosts, or an error."""

    def report(one):
        try:
            return (distributed._call_roll if one.process_index == 0 else distributed._answer_roll_call)(one, timeout)
        except MissingWorkerError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(len(workers)) as threads:
        return list(threads.map(report, workers))


def test_all_are_here():
    address = f"127.0.0.1:{free_port()}"
    answers = _roll([ClusterSettings(address, 3, i) for i in (2, 0, 1)], timeout=20)
    assert answers == [[socket.gethostname()] * 3] * 3


def test_who_did_not_come_is_named_to_all_who_did():
    address = f"127.0.0.1:{free_port()}"
    answers = _roll([ClusterSettings(address, 5, i) for i in (0, 1, 3)])
    assert len(set(answers)) == 1
    assert re.search(r"Workers 2, 4 of 5 did not start within 1 s; 0 \(\S+\), 1 \(\S+\), 3 \(\S+\) did\.", answers[0])


def test_without_worker_0():
    (answer,) = _roll([ClusterSettings(f"127.0.0.1:{free_port()}", 2, 1)])
    assert "Worker 0 of 2 did not answer at 127.0.0.1:" in answer


def test_two_of_one_number_and_other_counts():
    address = f"127.0.0.1:{free_port()}"
    answers = _roll([ClusterSettings(address, 4, i) for i in (0, 1, 1)], timeout=20)
    assert all("Two processes were started as worker 1" in answer for answer in answers[:1])
    address = f"127.0.0.1:{free_port()}"
    answers = _roll([ClusterSettings(address, 3, 0), ClusterSettings(address, 4, 3)], timeout=20)
    assert all(
        re.search(r"Worker 3 .* was started with a count of 4 workers, and worker 0 .* with 3", answer)
        for answer in answers
    )


def test_a_stranger_at_the_port_is_no_worker():
    port = free_port()
    workers = [ClusterSettings(f"127.0.0.1:{port}", 2, i) for i in (0, 1)]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first = threads.submit(distributed._call_roll, workers[0], 20)
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n")
                break
            except OSError:
                continue
        assert threads.submit(distributed._answer_roll_call, workers[1], 20).result() == first.result()


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"cannot listen at {address}.*another port"):
            distributed._call_roll(ClusterSettings(address, 2, 0), 1)


# ------------------------------------------------- exchanging values ------------------------------------------------


class Store:
    """JAX's key-value store, as far as Limba uses it."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite or key not in self.values
        self.values[key] = value

    def key_value_dir_get(self, folder):
        return [(key, value) for key, value in self.values.items() if key.startswith(f"{folder}/")]

    def blocking_key_value_get(self, key, timeout_in_ms):
        if key not in self.values:
            raise RuntimeError(f"DEADLINE_EXCEEDED: no {key} after {timeout_in_ms} ms")
        return self.values[key]


@pytest.fixture
def worker_of_three(monkeypatch):
    """Makes this process worker 1 of 3 with a store of its own."""
    store = Store()
    monkeypatch.setattr(distributed, "store", lambda: store)
    monkeypatch.setattr(distributed, "process_index", lambda: 1)
    monkeypatch.setattr(distributed, "process_count", lambda: 3)
    monkeypatch.setattr(distributed, "_hosts", ["a", "b", "c"])
    monkeypatch.setattr(distributed, "_rounds", distributed.collections.Counter())
    return store


def test_exchange(worker_of_three):
    worker_of_three.values = {
        "limba/exchange/x/1/0": "zero",
        "limba/exchange/x/1/2": "two",
        "limba/exchange/x/2/0": "0",
    }
    assert distributed.exchange("x", "one") == ["zero", "one", "two"]
    with pytest.raises(MissingWorkerError, match=r"Waited 0 s for worker 2 \(c\) to reach the x"):
        distributed.exchange("x", "1", timeout=0.01)


def test_the_first_worker_decides(worker_of_three, monkeypatch):
    worker_of_three.values = {"limba/first/x/1": json.dumps({"steps": [1, 2]})}
    assert distributed.from_first("x", pytest.fail) == {"steps": [1, 2]}
    worker_of_three.values |= {"limba/exchange/y/1/0": "", "limba/exchange/y/1/2": "damaged"}
    assert distributed.first_problem("y", None) == (2, "damaged")
    monkeypatch.setattr(distributed, "process_index", lambda: 0)
    assert distributed.from_first("x", lambda: [3]) == [3]


def test_alone_there_is_nobody_to_ask():
    assert (distributed.process_index(), distributed.process_count()) == (0, 1)
    assert distributed.exchange("x", "y") == ["y"]
    assert distributed.from_first("x", lambda: 1) == 1
    assert distributed.first_problem("x", "damaged") == (0, "damaged")
    assert distributed.first_problem("x", None) is None
