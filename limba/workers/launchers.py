"""Other launchers: what torchrun, mpirun and their like say in the environment about the processes that they start."""

import dataclasses
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

_LOCAL_RANK = re.compile(r"--local[-_]rank=\d+")


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The variables of one launcher.

    Attributes:
      name: of its commands.
      index, count: of all processes.
      local_index, local_count: of those on one host.
      address: the host of process 0; None if it sets none.
      port: a port that it uses itself, or another text that is the same for all processes.
    """

    name: str
    index: str
    count: str
    local_index: str
    local_count: str
    address: str | None
    port: str


LAUNCHERS = (
    Launcher(
        name="torchrun, accelerate launch or deepspeed",
        index="RANK",
        count="WORLD_SIZE",
        local_index="LOCAL_RANK",
        local_count="LOCAL_WORLD_SIZE",
        address="MASTER_ADDR",
        port="MASTER_PORT",
    ),
    Launcher(
        name="horovodrun",
        index="HOROVOD_RANK",
        count="HOROVOD_SIZE",
        local_index="HOROVOD_LOCAL_RANK",
        local_count="HOROVOD_LOCAL_SIZE",
        address=None,
        port="HOROVOD_GLOO_RENDEZVOUS_PORT",
    ),
    Launcher(
        name="mpirun of Open MPI",
        index="OMPI_COMM_WORLD_RANK",
        count="OMPI_COMM_WORLD_SIZE",
        local_index="OMPI_COMM_WORLD_LOCAL_RANK",
        local_count="OMPI_COMM_WORLD_LOCAL_SIZE",
        address=None,
        port="PMIX_NAMESPACE",
    ),
    Launcher(
        name="mpiexec of MPICH or Intel MPI",
        index="PMI_RANK",
        count="PMI_SIZE",
        local_index="MPI_LOCALRANKID",
        local_count="MPI_LOCALNRANKS",
        address=None,
        port="PMI_PORT",
    ),
)


def find(environ: Mapping[str, str]) -> tuple[Launcher, dict[str, Any]] | None:
    """The launcher of this process, and the fields of `ClusterSettings`; None if no launcher started several.

    An address that is not known is None: process 0 may be on another host.

    Raises:
      ValueError: if only some of the variables are set, or one is not a number.
    """
    for launcher in LAUNCHERS:
        if not _has_several(launcher, environ):
            continue
        count, index = _number(launcher.count, environ), _number(launcher.index, environ)
        if not index < count:
            raise ValueError(
                f"The environment has {launcher.index} {index} and {launcher.count} {count} of {launcher.name}: an "
                "index is below the count. Start all processes by one launcher, or unset both for a process alone."
            )
        local = [_number(x, environ) if x in environ else None for x in (launcher.local_index, launcher.local_count)]
        is_one_host = local[1] == count
        host = environ.get(launcher.address or "") or ("127.0.0.1" if is_one_host else None)
        return launcher, {
            "coordinator_address": host and f"{host}:{_free_port(environ.get(launcher.port, ''))}",
            "process_count": count,
            "process_index": index,
            # One GPU each, where a host has several processes.
            "local_device_ids": None if local[0] is None or local[1] == 1 else [local[0]],
        }
    return None


def is_beside_another(environ: Mapping[str, str]) -> bool:
    """Whether a launcher started this process beside the first one of its host, whose terminal or log it shares."""
    indices = (environ.get(launcher.local_index, "") for launcher in LAUNCHERS if _has_several(launcher, environ))
    index = next(indices, "")
    return index.isdecimal() and int(index) > 0


def _has_several(launcher: Launcher, environ: Mapping[str, str]) -> bool:
    return (environ.get(launcher.count) or "1") != "1"


def without_local_rank(argv: Sequence[str]) -> list[str]:
    """A command line without `--local_rank=N` at its front, where deepspeed and torch.distributed.launch put it.

    The environment says the same.
    """
    return list(argv[1:]) if argv and _LOCAL_RANK.fullmatch(argv[0]) else list(argv)


def without_effect(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each setting of `accelerate launch` that asks for what the run does not."""
    found = []
    for name, what in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
        if environ.get(name, "").lower() in ("true", "1"):
            found.append(
                f"accelerate launch asks for {what} ({name}), which has no effect here: rules of gin shard parameters "
                "(docs/partitioning.md)."
            )
    return found


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ.get(name, "")
    if not text.isdecimal():
        raise ValueError(
            f"The environment has variables of a launcher, and {name} is {text!r}: it must be a whole number. Start "
            "all processes by one launcher, or unset its variables for a process alone."
        )
    return int(text)


def _free_port(own: str) -> int:
    """A port that all processes choose alike, beside the launcher's own."""
    if own.isdecimal() and 1023 < int(own) < 65_535:  # Ports below belong to the system.
        return int(own) + 1
    return 20_000 + zlib.crc32(own.encode()) % 10_000
