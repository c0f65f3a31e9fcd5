"""Several processes as one run: how a process finds the others, joins them, and exchanges values with them.

The processes, one per host or one per GPU, are the run's workers. `jax.distributed` connects them, and Limba uses its
key-value store. The settings come from the first of these that has any:

1. `--coordinator_address`, `--process_count` and `--process_index`, with `--multiprocess_gpu` as in T5X
2. `LIMBA_COORDINATOR_ADDRESS`, `LIMBA_PROCESS_COUNT` and `LIMBA_PROCESS_INDEX`, which launch/worker.sh sets
3. the variables of torchrun, mpirun and their like (`limba.workers.launchers`)
4. JAX's own detection: on TPU VMs and in steps of SLURM jobs with several tasks; elsewhere only with
   `--multiprocess_gpu`

If a worker is missing, `jax.distributed.initialize` aborts the process from C++ and does not name the worker. So worker
0 calls the roll first, at the same address.
"""

import argparse
import collections
import dataclasses
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from limba.files import json_text
from limba.workers import launchers
from limba.workers.launchers import Launcher

logger = logging.getLogger(__name__)

# How long the workers wait for the last one.
TIMEOUT_SECONDS = 60

_VARIABLES = {
    "coordinator_address": "LIMBA_COORDINATOR_ADDRESS",
    "process_count": "LIMBA_PROCESS_COUNT",
    "process_index": "LIMBA_PROCESS_INDEX",
}
# The roll call has shown that all workers are running.
_CONNECT_SECONDS = 20
_FOREVER_MS = 7 * 24 * 3600 * 1000


class MissingWorkerError(RuntimeError):
    """Workers of this run did not start in time, or their numbers contradict each other."""


def add_flags(group: argparse._ArgumentGroup) -> None:
    """T5X's flags of a run with several processes, except `--multiprocess_gpu`, which the caller adds."""
    group.add_argument("--coordinator_address", metavar="HOST:PORT", help="address of process 0")
    group.add_argument("--process_count", type=int, metavar="N", help="number of processes on all hosts")
    group.add_argument("--process_index", type=int, metavar="I", help="number of this process, from 0")
    about = "seconds to wait for the other processes (default %(default)s)"
    group.add_argument("--initialization_timeout", type=int, default=TIMEOUT_SECONDS, metavar="SECONDS", help=about)


@dataclasses.dataclass(frozen=True)
class ClusterSettings:
    """What a process needs to join the other processes of a run.

    Attributes:
      coordinator_address: of worker 0, `host:port`.
      process_count, process_index: number of workers, and index of this one.
      local_device_ids: the GPUs that this process uses; None for all GPUs of its host.

    Raises:
      ValueError: for an address without a port, or an index that is not below the count.
    """

    coordinator_address: str
    process_count: int
    process_index: int
    local_device_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        host, _, port = self.coordinator_address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(
                f"The coordinator's address is {self.coordinator_address!r}; write HOST:PORT, such as 10.0.0.1:1234."
            )
        if not 0 <= self.process_index < self.process_count:
            raise ValueError(
                f"This is process {self.process_index} of {self.process_count}: an index is at least 0 and below the "
                "count."
            )


def find_cluster(
    given: Mapping[str, Any],
    required: bool = False,
    detect: bool = True,
    timeout: int = TIMEOUT_SECONDS,
    environ: Mapping[str, str] = os.environ,
) -> ClusterSettings | None:
    """The settings of this process; None if it runs alone.

    Args:
      given: those of the flags `coordinator_address`, `process_count` and `process_index` that are not None.
      required: whether missing settings are an error (`--multiprocess_gpu`).
      detect: whether JAX looks for a cluster if neither flags nor environment name one.
      timeout: seconds to wait for the coordinator's name to resolve on a TPU.

    Raises:
      ValueError: if only some of the settings are known, or one is not a number.
    """
    source = "the flags"
    if not given and (given := {name: environ[key] for name, key in _VARIABLES.items() if environ.get(key)}):
        source = "the environment"
        required = True
        try:
            given = {name: value if name == "coordinator_address" else int(value) for name, value in given.items()}
        except ValueError as error:
            raise ValueError(f"{' and '.join(list(_VARIABLES.values())[1:])} are whole numbers: {error}.") from None
    launched = launchers.find(environ) if detect and not given else None
    if launched is None and not required and not (detect and _is_in_cluster(environ)):
        return None
    found = _complete(given, timeout) if launched is None else _by_launcher(*launched)
    missing = [name for name in _VARIABLES if found[name] is None]
    if missing:
        known = ", ".join(f"{name} = {value}" for name, value in given.items())
        raise ValueError(
            f"This process cannot join the others: {f'{source} give {known}, and ' if given else ''}no cluster manager "
            f"gives {' and '.join(missing)}. Set --coordinator_address, --process_count and --process_index, or "
            f"{', '.join(_VARIABLES.values())}."
        )
    settings = ClusterSettings(**found)
    return settings if settings.process_count > 1 else None


def _by_launcher(launcher: Launcher, found: dict[str, Any]) -> dict[str, Any]:
    index, count = found["process_index"], found["process_count"]
    if found["coordinator_address"] is None:
        raise ValueError(
            f"{launcher.name} started this process as {launcher.index} {index} of {launcher.count} {count} on several "
            "hosts, and does not say where process 0 runs. Give every process --coordinator_address=HOST:PORT, "
            f"--process_count=${launcher.count} and --process_index=${launcher.index} (docs/distributed.md)."
        )
    logger.info("%s: this is process %d of %d (%s).", launcher.name, index, count, launcher.index)
    return found


def _is_in_cluster(environ: Mapping[str, str]) -> bool:
    """Whether JAX can detect the other processes: in a SLURM step with several tasks, or on a TPU VM."""
    if "SLURM_STEP_NODELIST" in environ and (count := environ.get("SLURM_NTASKS", "1")) != "1":
        index = environ.get("SLURM_PROCID", "")
        if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ValueError(
                f"SLURM_STEP_NODELIST is set, and SLURM_PROCID is {index!r} and SLURM_NTASKS {count!r}: this is a part "
                "of a SLURM step's environment. Start by srun, or unset SLURM_STEP_NODELIST for one worker alone."
            )
        return True
    import jax  # noqa: F401

    # JAX sets this when it is imported on a machine without TPU chips.
    return "TPU_SKIP_MDS_QUERY" not in environ and environ.get("JAX_PLATFORMS", "tpu").startswith("tpu")


def _complete(given: Mapping[str, Any], timeout: int) -> dict[str, Any]:
    """The given settings, and the others from JAX's detection of clusters (None where it finds nothing)."""
    from jax._src.clusters import ClusterEnv  # `jax.distributed.initialize` calls it; it has no public name.

    address, count, index = map(given.get, _VARIABLES)
    found: Any = (address, count, index, None)
    if None in found[:3]:
        found = ClusterEnv.auto_detect_unset_distributed_params(address, count, index, None, None, timeout)
    return dict(zip((*_VARIABLES, "local_device_ids"), found, strict=True))


def join(settings: ClusterSettings, timeout: int = TIMEOUT_SECONDS) -> None:
    """Joins the other workers. Call it before JAX touches a device.

    Raises:
      MissingWorkerError: naming the workers that did not start in time, have the same index, or have another count.
      ValueError: if worker 0 cannot listen at its address.
    """
    import jax  # Only commands that join other processes pay for this import here.

    address, count, index = settings.coordinator_address, settings.process_count, settings.process_index
    logger.info("Worker %d of %d joins the others at %s.", index, count, address)
    hosts = _call_roll(settings, timeout) if index == 0 else _answer_roll_call(settings, timeout)
    # JAX's SIGTERM handler would keep SIGTERM from ending a process outside the training loop; see
    # `limba.workers.preemption`.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        address,
        num_processes=count,
        process_id=index,
        local_device_ids=settings.local_device_ids,
        cluster_detection_method="deactivate",
        initialization_timeout=_CONNECT_SECONDS,
        coordinator_bind_address=os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or _bind_address(address),
    )
    _hosts[:] = hosts
    global _exchange_timeout
    _exchange_timeout = timeout


# ---------------------------------------------------- the roll call --------------------------------------------------

_LOOPBACK = ("127.0.0.1", "localhost")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _bind_address(address: str) -> str | None:
    """Where the coordinator listens: on the loopback interface for a run on one machine; None for all interfaces."""
    host, port = _split(address)
    return f"127.0.0.1:{port}" if host in _LOOPBACK else None


def _server(address: str, count: int) -> socket.socket:
    host, port = _split(address)
    interface = "127.0.0.1" if host in _LOOPBACK else ""
    both = not interface and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server((interface, port), family=family, backlog=count, dualstack_ipv6=both)
    except OSError as error:
        raise ValueError(
            f"Worker 0 cannot listen at {address}: {error.strerror}. Another run may still use this port; end that "
            "run, or choose another port."
        ) from error


def _call_roll(settings: ClusterSettings, timeout: float) -> list[str]:
    """Worker 0 waits for all others and sends them the list of workers. Returns the hosts of all workers."""
    count = settings.process_count
    deadline = time.monotonic() + timeout
    present: dict[int, str] = {0: socket.gethostname()}
    connections: list[socket.socket] = []
    problem = None
    with _server(settings.coordinator_address, count) as server:
        while len(present) < count and problem is None:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                problem = _missing_workers(present, count, timeout)
                break
            worker = _read(connection, seconds=5)
            if worker is None:  # A port scanner or another stranger.
                connection.close()
                continue
            connections.append(connection)
            problem = _contradiction(worker, present, count)
            present.setdefault(worker["index"], worker["host"])
        hosts = [present.get(i, "") for i in range(count)]
        for connection in connections:
            with connection:
                connection.sendall(json_text.dumps({"problem": problem, "hosts": hosts}).encode() + b"\n")
    if problem is not None:
        raise MissingWorkerError(problem)
    return hosts


def _contradiction(worker: Mapping[str, Any], present: Mapping[int, str], expected_count: int) -> str | None:
    index, count, host = worker["index"], worker["count"], worker["host"]
    if count != expected_count:
        return (
            f"Worker {index} ({host}) was started with a count of {count} workers, and worker 0 ({present[0]}) with "
            f"{expected_count}: start all of them with the same number."
        )
    if index in present:
        return f"Two processes were started as worker {index}: one on {present[index]}, one on {host}."
    return None


def _missing_workers(present: Mapping[int, str], count: int, timeout: float) -> str:
    missing = [str(index) for index in range(count) if index not in present]
    started = ", ".join(f"{i} ({host})" for i, host in sorted(present.items()))
    return (
        f"Worker{'s' if len(missing) > 1 else ''} {', '.join(missing)} of {count} did not start within {timeout:.0f} "
        f"s; {started} did. Read the logs of the missing ones; --initialization_timeout waits longer."
    )


def _answer_roll_call(settings: ClusterSettings, timeout: float) -> list[str]:
    """The other workers report to worker 0. Returns the hosts of all workers."""
    address, count, index = settings.coordinator_address, settings.process_count, settings.process_index
    deadline = time.monotonic() + timeout
    report = {"index": index, "count": count, "host": socket.gethostname()}
    no_answer = MissingWorkerError(
        f"Worker 0 of {count} did not answer at {address} within {timeout:.0f} s: it has not been started, it has "
        f"ended (read its log), or {report['host']}, which is worker {index}, cannot reach the port."
    )
    while time.monotonic() < deadline:
        try:
            connection = socket.create_connection(_split(address), timeout=max(deadline - time.monotonic(), 0.1))
        except OSError:
            time.sleep(0.2)
            continue
        with connection:
            connection.sendall(json_text.dumps(report).encode() + b"\n")
            # Worker 0 may have started to wait only now.
            answer = _read(connection, seconds=timeout + 10)
        if answer is None:
            raise no_answer
        if answer["problem"] is not None:
            raise MissingWorkerError(answer["problem"])
        return answer["hosts"]
    raise no_answer


def _read(connection: socket.socket, seconds: float) -> dict[str, Any] | None:
    """One line of JSON; None if none arrives in time."""
    connection.settimeout(seconds)
    try:
        with connection.makefile("rb") as file:
            return json.loads(file.readline(1 << 20))
    except (OSError, ValueError):
        return None


# ------------------------------------------------- exchanging values ------------------------------------------------

_hosts: list[str] = []
_exchange_timeout: float = TIMEOUT_SECONDS
_rounds: collections.Counter[str] = collections.Counter()


def _joined() -> Any:
    from jax._src.distributed import global_state  # It has no public name.

    return global_state


def store() -> Any:
    """JAX's key-value store of the run; None for a process that runs alone."""
    return _joined().client


def coordinator() -> tuple[str, int]:
    """Host and port of worker 0, where the store is."""
    return _split(_joined().coordinator_address or "")


def process_index() -> int:
    """Index of this worker. Unlike JAX's function it does not initialize the devices."""
    return _joined().process_id if store() is not None else 0


def process_count() -> int:
    """Number of workers. Unlike JAX's function it does not initialize the devices."""
    return _joined().num_processes if store() is not None else 1


def exchange_timeout() -> float:
    """Seconds to wait for workers that should call `exchange` at about the same time as this one."""
    return _exchange_timeout


def worker_name(index: int) -> str:
    """`worker 1 (host-b)`."""
    return f"worker {index} ({_hosts[index]})" if index < len(_hosts) else f"worker {index}"


def exchange(subject: str, value: str, timeout: float | None = None) -> list[str]:
    """The values of all workers, by index. Every worker must call it, equally often for each subject.

    Args:
      timeout: seconds to wait for the others; None waits as long as they live (`limba.workers.heartbeats`).

    Raises:
      MissingWorkerError: naming the workers that sent no value in time.
    """
    client = store()
    if client is None:
        return [value]
    _rounds[subject] += 1
    folder = f"limba/exchange/{subject}/{_rounds[subject]}"
    client.key_value_set(f"{folder}/{process_index()}", value)
    deadline = None if timeout is None else time.monotonic() + timeout
    values = []
    for index in range(process_count()):
        milliseconds = _FOREVER_MS if deadline is None else max(int((deadline - time.monotonic()) * 1000), 1)
        try:
            values.append(client.blocking_key_value_get(f"{folder}/{index}", milliseconds))
        except RuntimeError as error:  # jax.errors.JaxRuntimeError
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            received = {int(key.rpartition("/")[2]) for key, _ in client.key_value_dir_get(folder)}
            missing = ", ".join(worker_name(i) for i in range(process_count()) if i not in received)
            raise MissingWorkerError(
                f"Waited {timeout:.0f} s for {missing} to reach the {subject}. Read the log there; "
                "--initialization_timeout waits longer."
            ) from error
    return values


def first_problem(subject: str, problem: str | None) -> tuple[int, str] | None:
    """The first worker with a problem, and the problem; None if no worker has one. Every worker must call it."""
    problems = enumerate(exchange(subject, problem or ""))
    return next(((index, text) for index, text in problems if text), None)


def from_first(subject: str, make: Callable[[], Any]) -> Any:
    """The value that `make` returns on worker 0, on every worker; it must be JSON. Every worker must call it."""
    client = store()
    if client is None:
        return make()
    _rounds[subject] += 1
    key = f"limba/first/{subject}/{_rounds[subject]}"
    if process_index() == 0:
        client.key_value_set(key, json_text.dumps(make()))
    return json.loads(client.blocking_key_value_get(key, _FOREVER_MS))
