"""Many processes as one run: how a process finds out that it is one of many, joins the others, and asks them things.

The processes, one a host or one a GPU, are the run's workers. `jax.distributed` connects them: this module finds
out what to tell it, sees to it that everybody is there first, and uses its key-value store. In this order:

1. `--coordinator_address`, `--process_count` and `--process_index`, with `--multiprocess_gpu` as T5X's users type it
2. `LIMBA_COORDINATOR_ADDRESS`, `LIMBA_PROCESS_COUNT` and `LIMBA_PROCESS_INDEX`, which launch/worker.sh sets
3. what JAX finds out itself: on TPU VMs, in steps of SLURM jobs with several tasks; elsewhere only if
   `--multiprocess_gpu` asks for it

`jax.distributed.initialize` ends the process from C++ when somebody stays away, and does not say who. So worker 0 calls
the roll first, at the same address.
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

logger = logging.getLogger(__name__)

# That a worker may come later than the others.
TIMEOUT_SECONDS = 60

_VARIABLES = {
    "coordinator_address": "LIMBA_COORDINATOR_ADDRESS",
    "process_count": "LIMBA_PROCESS_COUNT",
    "process_index": "LIMBA_PROCESS_INDEX",
}
# After the roll call everybody is a moment away.
_CONNECT_SECONDS = 20
_FOREVER_MS = 7 * 24 * 3600 * 1000


class MissingWorkerError(RuntimeError):
    """Workers of this run did not come."""


def add_flags(group: argparse._ArgumentGroup) -> None:
    """The flags that say how to join; T5X's, but for `--multiprocess_gpu`, which the caller adds."""
    group.add_argument("--coordinator_address", metavar="HOST:PORT", help="of process 0")
    group.add_argument("--process_count", type=int, metavar="N", help="of all hosts")
    group.add_argument("--process_index", type=int, metavar="I", help="of this one")
    group.add_argument(
        "--initialization_timeout",
        type=int,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="to wait for another process (default %(default)s)",
    )


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a process stands among the workers of a run.

    Attributes:
      address: of worker 0, `host:port`.
      count: of all workers.
      index: of this one.
      local_device_ids: of the GPUs that are this process's, None for all of its host.

    Raises:
      ValueError: for an address without a port, or an index that is not below the count.
    """

    address: str
    count: int
    index: int
    local_device_ids: Sequence[int] | None = None

    def __post_init__(self):
        if not self.address.rpartition(":")[0] or not self.address.rpartition(":")[2].isdecimal():
            raise ValueError(f"The coordinator's address is {self.address!r}; write HOST:PORT, such as 10.0.0.1:1234.")
        if not 0 <= self.index < self.count:
            raise ValueError(
                f"This is process {self.index} of {self.count}: indices count from 0, and are below the count."
            )


def find_place(
    given: Mapping[str, Any],
    is_told: bool = False,
    asks_cluster: bool = True,
    timeout: int = TIMEOUT_SECONDS,
    environ: Mapping[str, str] = os.environ,
) -> Place | None:
    """Where this process stands; None if it is alone.

    Args:
      given: the flags' `coordinator_address`, `process_count` and `process_index`, those that are not None.
      is_told: `--multiprocess_gpu`: it is an error not to find out.
      asks_cluster: also look for a cluster that nobody has mentioned.
      timeout: seconds to wait for the coordinator's name to resolve on a TPU.
      environ: the environment's variables.

    Raises:
      ValueError: if only some of the numbers are known, or one of them is not one.
    """
    source = "the flags"
    if not given and (given := {name: environ[key] for name, key in _VARIABLES.items() if environ.get(key)}):
        source = "the environment"
        is_told = True
        try:
            given = {name: value if name == "coordinator_address" else int(value) for name, value in given.items()}
        except ValueError as error:
            raise ValueError(f"{' and '.join(list(_VARIABLES.values())[1:])} are whole numbers: {error}.") from None
    if not is_told and not (asks_cluster and _is_in_cluster(environ)):
        return None
    found = _complete(given, timeout)
    missing = [name for name in _VARIABLES if found[name] is None]
    if missing:
        known = ", ".join(f"{name} = {value}" for name, value in given.items())
        told = f"{source} say {known}, and " if given else ""
        raise ValueError(
            f"How this process joins the others is not known: {told}no cluster manager says "
            f"{' and '.join(missing)}. Give --coordinator_address, --process_count and --process_index, or "
            f"{', '.join(_VARIABLES.values())}."
        )
    place = Place(
        found["coordinator_address"], found["process_count"], found["process_index"], found["local_device_ids"]
    )
    return place if place.count > 1 else None


def _is_in_cluster(environ: Mapping[str, str]) -> bool:
    """Whether JAX knows by itself that there are others: a step of several SLURM tasks, or a TPU VM."""
    if "SLURM_STEP_NODELIST" in environ and int(environ.get("SLURM_NTASKS", "1")) > 1:
        return True
    import jax  # noqa: F401

    # JAX sets this when it is imported on a machine without TPU chips.
    return "TPU_SKIP_MDS_QUERY" not in environ and environ.get("JAX_PLATFORMS", "tpu").startswith("tpu")


def _complete(given: Mapping[str, Any], timeout: int) -> dict[str, Any]:
    """What is given, and from JAX's detection of clusters what is not."""
    from jax._src.clusters import ClusterEnv  # what `jax.distributed.initialize` asks; it has no public name

    names = (*_VARIABLES, "local_device_ids")
    address, count, index = (given.get(name) for name in _VARIABLES)
    if None in (address, count, index):
        found = ClusterEnv.auto_detect_unset_distributed_params(address, count, index, None, None, timeout)
    else:
        found = (address, count, index, None)
    return dict(zip(names, found, strict=True))


def join(place: Place, timeout: int = TIMEOUT_SECONDS) -> None:
    """Joins the other workers, before anything touches a device.

    Raises:
      MissingWorkerError: naming who has not come in time.
      ValueError: if two workers say that they are the same one, or were told different counts.
    """
    import jax  # Commands that never join need not wait for it.

    logger.info("Worker %d of %d joins the others at %s.", place.index, place.count, place.address)
    hosts = _call_roll(place, timeout) if place.index == 0 else _answer(place, timeout)
    # Its handler of SIGTERM would make a process deaf to it that is not in a training loop; see `limba.preemption`.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        place.address,
        num_processes=place.count,
        process_id=place.index,
        local_device_ids=place.local_device_ids,
        cluster_detection_method="deactivate",
        initialization_timeout=_CONNECT_SECONDS,
        coordinator_bind_address=os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or _bind_address(place.address),
    )
    _hosts[:] = hosts
    global _patience
    _patience = timeout


# ---------------------------------------------------- the roll call --------------------------------------------------

_LOOPBACK = ("127.0.0.1", "localhost")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _bind_address(address: str) -> str | None:
    """Where the coordinator listens: None is everywhere, but nobody else needs to reach a run of one machine."""
    host, port = _split(address)
    return f"127.0.0.1:{port}" if host in _LOOPBACK else None


def _server(address: str, count: int) -> socket.socket:
    host, port = _split(address)
    try:
        if host in _LOOPBACK:
            return socket.create_server(("127.0.0.1", port), backlog=count)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=count, dualstack_ipv6=True)
        return socket.create_server(("", port), backlog=count)
    except OSError as error:
        raise ValueError(
            f"Worker 0 cannot listen at {address}: {error.strerror}. Another run may still be there; end it, or take "
            "another port."
        ) from error


def _call_roll(place: Place, timeout: float) -> list[str]:
    """Worker 0: waits for all others and tells them who is here; the hosts of all workers."""
    deadline = time.monotonic() + timeout
    here: dict[int, str] = {0: socket.gethostname()}
    lines: list[socket.socket] = []
    problem = None
    with _server(place.address, place.count) as server:
        while len(here) < place.count and problem is None:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                line, _ = server.accept()
            except TimeoutError:
                problem = _absent(set(range(place.count)) - here.keys(), here, place.count, timeout)
                break
            said = _read(line, seconds=5)
            if said is None:  # Something that is no worker.
                line.close()
                continue
            lines.append(line)
            problem = _contradiction(said, here, place)
            here.setdefault(said["index"], said["host"])
        hosts = [here.get(i, "") for i in range(place.count)]
        for line in lines:
            with line:
                line.sendall(json.dumps({"problem": problem, "hosts": hosts}).encode() + b"\n")
    if problem is not None:
        raise MissingWorkerError(problem)
    return hosts


def _contradiction(said: Mapping[str, Any], here: Mapping[int, str], place: Place) -> str | None:
    index, count, host = said["index"], said["count"], said["host"]
    if count != place.count:
        return (
            f"Worker {index} ({host}) was told of {count} workers, and worker 0 ({here[0]}) of {place.count}: start "
            "all of them with the same number."
        )
    if index in here:
        return f"Two processes say that they are worker {index}: one on {here[index]}, one on {host}."
    return None


def _absent(missing: set[int], here: Mapping[int, str], count: int, timeout: float) -> str:
    present = ", ".join(f"{i} ({host})" for i, host in sorted(here.items()))
    names = ", ".join(map(str, sorted(missing)))
    return (
        f"Worker{'s' if len(missing) > 1 else ''} {names} of {count} did not come within {timeout:.0f} s; here are "
        f"{present}. Look at the log there; --initialization_timeout waits longer."
    )


def _answer(place: Place, timeout: float) -> list[str]:
    """The other workers: tell worker 0 that they are here; the hosts of all workers."""
    deadline = time.monotonic() + timeout
    hello = {"index": place.index, "count": place.count, "host": socket.gethostname()}
    silence = MissingWorkerError(
        f"Worker 0 of {place.count} did not answer at {place.address} within {timeout:.0f} s: it has not been started, "
        f"it has ended (look at its log), or the port is closed to {hello['host']}, which is worker {place.index}."
    )
    while time.monotonic() < deadline:
        try:
            line = socket.create_connection(_split(place.address), timeout=max(deadline - time.monotonic(), 0.1))
        except OSError:
            time.sleep(0.2)
            continue
        with line:
            line.sendall(json.dumps(hello).encode() + b"\n")
            # Worker 0 may have begun to wait only now.
            answer = _read(line, seconds=timeout + 10)
        if answer is None:
            raise silence
        if answer["problem"] is not None:
            raise MissingWorkerError(answer["problem"])
        return answer["hosts"]
    raise silence


def _read(line: socket.socket, seconds: float) -> dict[str, Any] | None:
    """One line of JSON; None if there is none in time."""
    line.settimeout(seconds)
    try:
        with line.makefile("rb") as file:
            return json.loads(file.readline(1 << 20))
    except (OSError, ValueError):
        return None


# -------------------------------------------------- asking each other ------------------------------------------------

_hosts: list[str] = []
_patience: float = TIMEOUT_SECONDS
_rounds: collections.Counter[str] = collections.Counter()


def store() -> Any:
    """JAX's key-value store of the run, None for a process that is alone."""
    from jax._src.distributed import global_state  # it has no public name

    return global_state.client


def coordinator() -> tuple[str, int]:
    """Where worker 0 keeps the store: host and port."""
    from jax._src.distributed import global_state

    return _split(global_state.coordinator_address or "")


def process_index() -> int:
    """Of this worker. Unlike JAX's function it does not start the devices."""
    from jax._src.distributed import global_state

    return global_state.process_id if store() is not None else 0


def process_count() -> int:
    """Of the workers, likewise."""
    from jax._src.distributed import global_state

    return global_state.num_processes if store() is not None else 1


def patience() -> float:
    """Seconds to wait for workers that should come at about the same time as this one."""
    return _patience


def worker_name(index: int) -> str:
    """`worker 1 (host-b)`."""
    return f"worker {index} ({_hosts[index]})" if index < len(_hosts) else f"worker {index}"


def exchange(subject: str, value: str, timeout: float | None = None) -> list[str]:
    """What all workers say on a subject, in their order. All call it, as often as each other.

    Args:
      subject: a name for keys and messages.
      value: what this worker says.
      timeout: seconds to wait for the others; None waits as long as they live (`limba.peers`).

    Raises:
      MissingWorkerError: naming who has said nothing in time.
    """
    client = store()
    if client is None:
        return [value]
    _rounds[subject] += 1
    folder = f"limba/exchange/{subject}/{_rounds[subject]}"
    client.key_value_set(f"{folder}/{process_index()}", value)
    deadline = None if timeout is None else time.monotonic() + timeout
    said = []
    for index in range(process_count()):
        milliseconds = _FOREVER_MS if deadline is None else max(int((deadline - time.monotonic()) * 1000), 1)
        try:
            said.append(client.blocking_key_value_get(f"{folder}/{index}", milliseconds))
        except RuntimeError as error:  # jax.errors.JaxRuntimeError
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            spoken = {int(key.rpartition("/")[2]) for key, _ in client.key_value_dir_get(folder)}
            silent = ", ".join(worker_name(i) for i in range(process_count()) if i not in spoken)
            raise MissingWorkerError(
                f"Waited {timeout:.0f} s for {silent} to come to the {subject}. Look at the log there; "
                "--initialization_timeout waits longer."
            ) from error
    return said


def first_problem(subject: str, problem: str | None) -> tuple[int, str] | None:
    """The first worker with a problem, and what it is; None if nobody has one. All call it, as often as each other."""
    problems = enumerate(exchange(subject, problem or ""))
    return next(((index, text) for index, text in problems if text), None)


def from_first(subject: str, make: Callable[[], Any]) -> Any:
    """What worker 0 makes, on every worker; plain values that JSON knows. All call it, as often as each other."""
    client = store()
    if client is None:
        return make()
    _rounds[subject] += 1
    key = f"limba/first/{subject}/{_rounds[subject]}"
    if process_index() == 0:
        client.key_value_set(key, json.dumps(make()))
    return json.loads(client.blocking_key_value_get(key, _FOREVER_MS))
