"""Processes that another launcher started."""

import logging

import pytest

from limba.workers import distributed, launchers

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "host-a"}
TORCHRUN |= {"MASTER_PORT": "29500"}
DEEPSPEED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
OPEN_MPI |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-host-1234@1"}
HOROVOD = {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environ", "settings"),
    [
        (TORCHRUN, ("host-a:29501", 8, 3, [1])),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, ("host-a:29501", 8, 3, None)),
        (DEEPSPEED, ("127.0.0.1:29501", 2, 0, [0])),
        (HOROVOD | {"HOROVOD_LOCAL_SIZE": "4", "HOROVOD_GLOO_RENDEZVOUS_PORT": "7000"}, ("127.0.0.1:7001", 4, 2, [0])),
        (OPEN_MPI, (None, 2, 1, [1])),
        (OPEN_MPI | {"PMIX_NAMESPACE": "77"}, ("127.0.0.1:21828", 2, 1, [1])),  # 78 would be a port of the system.
    ],
)
def test_the_place_of_a_process(environ, settings, caplog):
    caplog.set_level(logging.INFO)
    cluster = distributed.find_cluster({}, environ=environ)
    address, count, index, devices = settings
    assert (cluster.process_count, cluster.process_index, cluster.local_device_ids) == (count, index, devices)
    if environ is OPEN_MPI:  # The same for all processes of a run, another for another run.
        other = distributed.find_cluster({}, environ=OPEN_MPI | {"PMIX_NAMESPACE": "prterun-host-99@1"})
        first = distributed.find_cluster({}, environ=OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0"})
        assert first.coordinator_address == cluster.coordinator_address != other.coordinator_address
    else:
        assert cluster.coordinator_address == address
    assert f"this is process {index} of {count}" in caplog.text


@pytest.mark.parametrize(
    ("environ", "is_beside"),
    [
        ({}, False),
        (TORCHRUN, True),
        (TORCHRUN | {"LOCAL_RANK": "0"}, False),  # the first of its host, which has a terminal or log of its own
        (TORCHRUN | {"WORLD_SIZE": "1"}, False),
        (OPEN_MPI, True),
        (HOROVOD, False),
        (TORCHRUN | {"LOCAL_RANK": "x"}, False),  # which is named elsewhere
    ],
)
def test_which_processes_share_the_terminal_of_another(environ, is_beside):
    assert launchers.is_beside_another(environ) is is_beside


def test_what_accelerate_asks_for_in_vain():
    quiet = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_FSDP": "false", "ACCELERATE_DYNAMO_BACKEND": "NO"}
    assert launchers.without_effect(quiet) == launchers.without_effect({}) == []
    loud = launchers.without_effect({"ACCELERATE_USE_FSDP": "1", "ACCELERATE_USE_DEEPSPEED": "true"})
    assert [line.partition(" (")[0] for line in loud] == [
        "accelerate launch asks for FSDP",
        "accelerate launch asks for DeepSpeed",
    ]


def test_the_flag_of_deepspeed_in_front_of_the_command():
    for flag in ("--local_rank=0", "--local-rank=3"):
        assert launchers.without_local_rank([flag, "run", "c.json"]) == ["run", "c.json"]
    for argv in (["run", "--local_rank=0"], ["--local_rank", "0"], []):
        assert launchers.without_local_rank(argv) == argv


def test_flags_and_variables_of_limba_come_first():
    flags = {"coordinator_address": "host-b:1", "process_count": 2, "process_index": 1}
    assert distributed.find_cluster(flags, environ=TORCHRUN).coordinator_address == "host-b:1"
    own = {"LIMBA_COORDINATOR_ADDRESS": "host-c:2", "LIMBA_PROCESS_COUNT": "3", "LIMBA_PROCESS_INDEX": "2"}
    assert distributed.find_cluster({}, environ=TORCHRUN | own).process_count == 3


def test_a_process_alone():
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for environ in (alone, {"RANK": "5"}, {}, {"RANK": "", "WORLD_SIZE": ""}):
        assert launchers.find(environ) is None
    # Commands that use one machine do not ask.
    assert distributed.find_cluster({}, detect=False, environ=TORCHRUN) is None


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (HOROVOD, r"horovodrun started this process as HOROVOD_RANK 2 of HOROVOD_SIZE 4 on several hosts.*--coordinat"),
        ({"WORLD_SIZE": "2"}, "RANK is '': it must be a whole number"),
        (TORCHRUN | {"RANK": "x"}, "RANK is 'x'"),
        (TORCHRUN | {"RANK": "8"}, r"RANK 8 and WORLD_SIZE 8 of torchrun.*: an index is below the count\. Start all"),
        (TORCHRUN | {"RANK": "0", "WORLD_SIZE": "0"}, "RANK 0 and WORLD_SIZE 0 of torchrun"),
        (MPICH | {"MPI_LOCALNRANKS": "1"}, r"MPICH or Intel MPI started this process as PMI_RANK 0 of PMI_SIZE 2"),
    ],
)
def test_what_is_missing_is_named(environ, words):
    with pytest.raises(ValueError, match=words):
        distributed.find_cluster({}, environ=environ)
