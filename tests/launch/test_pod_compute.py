"""Pods of Compute Engine: types, flex-start, missing capacity, quota, what a refusal leaves, and hostile answers."""

import subprocess

import pytest

from limba.addons.plan import topologies
from tests.launch import launching

STOCKOUT = (
    "ZONE_RESOURCE_POOL_EXHAUSTED\tThe zone 'projects/p/zones/us-east5-a' does not have enough resources available to "
    "fulfill the request. '(resource type:compute)'."
)
NO_QUOTA = "QUOTA_EXCEEDED\tQuota 'TPU-V6E-per-project-zone' exceeded. Limit: 0.0 in zone us-east5-a."


@pytest.fixture
def pod(tmp_path):
    """Calls pod.sh for a pod `ro` of two machines; and the cloud."""
    launching.make_environment(tmp_path)
    cloud = tmp_path / "cloud"
    settings = {"POD_API": "compute", "POD_NAME": "ro", "POD_TYPE": "tpu7x-16", "POD_ZONE": "us-east5-a"}
    env = launching.environment(tmp_path, POD_PROJECT="p", **settings)

    def verb(*arguments, **extra):
        (cloud / "calls").write_text("")
        result = launching.call("pod.sh", *arguments, env=env | extra)
        result.calls = (cloud / "calls").read_text()
        return result

    return verb, cloud


def _left(cloud):
    """What costs or is in the way: groups, templates and policies."""
    return sorted(path.name for path in (*cloud.glob("things/*"), *cloud.glob("ro")))


def test_types_are_machines_and_shapes_of_the_plan():
    """Chips by axis, machines and Google's names of them, for every type that `limba plan` knows too."""
    kinds = {"v5p": "ct5p-hightpu-4t", "v6e": "ct6e-standard-4t", "tpu7x": "tpu7x-standard-4t"}
    single = {"v6e-1": "ct6e-standard-1t", "v6e-8": "ct6e-standard-8t"}
    names = [name for name in topologies.names() if name.partition("-")[0] in kinds]
    script = (
        f"fail() {{ echo $*; exit 1; }}; . {launching.ROOT}/launch/pod_compute.sh; "
        f"for name in {' '.join(names)}; do machine_of $name; echo $name $machine $machines $shape; done"
    )
    said = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    found = {name: topologies.find(name) for name in names}
    assert said.stdout.splitlines() == [
        f"{name} {single.get(name, kinds[one.kind])} {one.num_hosts} {'x'.join(map(str, one.shape))}"
        for name, one in found.items()
    ]
    assert len(names) == 8 + 9 + 9


def test_flex_start_waits_runs_and_ends(pod):
    verb, cloud = pod
    (cloud / "next-state").write_text("waits PENDING PENDING NEW PROVISIONING\n")
    created = verb("create", "--flex", "7d")
    assert created.returncode == 0, created.stderr
    waited = [line.split()[-1] for line in created.stdout.splitlines() if " pod ro is " in line]
    assert waited == ["WAITING_FOR_RESOURCES", "PROVISIONING", "READY"]
    creates = [line for line in created.calls.splitlines() if " create " in line or " resize " in line]
    assert len(creates) == 4
    assert " --machine-type=tpu7x-standard-4t --image-family=ubuntu-accel-2404-amd64-tpu-tpu7x " in creates[
        1
    ] and creates[1].endswith("FLEX_START --max-run-duration=7d --instance-termination-action=DELETE")
    assert " --boot-disk-type=hyperdisk-balanced " in creates[1]
    assert " --size=0 " in creates[2] and creates[2].endswith(" --target-size-policy-mode=bulk")
    assert creates[3].endswith("resize ro --zone=us-east5-a --project=p --size=2")
    # Its end, as the machines' status or as no machines at all; then nobody can be reached.
    for status, state in (("SUSPENDED", "SUSPENDED"), ("STOPPED", "STOPPED"), ("GONE", "TERMINATED")):
        (cloud / "ro/state").write_text(status)
        assert verb("state").stdout == f"{state}\n"
    assert "the pod ro is TERMINATED, not READY" in verb("status").stderr
    again = verb("create", "--flex", "7d")
    assert again.returncode == 1 and "ro is there already and TERMINATED; `pod.sh delete` first" in again.stderr
    assert verb("delete").returncode == 0 and _left(cloud) == []
    assert verb("delete").stdout.endswith("ro is not there.\n")


@pytest.mark.parametrize(
    ("trouble", "code", "words"),
    [
        (STOCKOUT, 1, "error: gcloud failed (exit code 1); this may go away by itself."),
        (NO_QUOTA, 2, "error: the quota of p for tpu7x-16 in us-east5-a is 0 (--type, --zone): ask for more"),
    ],
)
def test_missing_capacity_and_quota_give_the_pod_back(pod, trouble, code, words):
    verb, cloud = pod
    (cloud / "next-errors").write_text(trouble)
    (cloud / "next-state").write_text("waits NEW NEW NEW\n")
    refused = verb("create")
    assert refused.returncode == code and refused.stderr.startswith(words), refused.stderr
    assert f"  gcloud: {trouble}\n" in refused.stderr
    assert _left(cloud) == []
    if code == 1:  # Or it waits, and says once why.
        waits = verb("create", "--queued")
        assert waits.returncode == 0 and waits.stderr.count("this may go away by itself") == 1, waits.stderr


def test_a_part_that_is_refused_leaves_nothing_of_the_call(pod):
    verb, cloud = pod
    (cloud / "refuse-instance-groups-create").write_text(
        "ERROR: (gcloud.compute) Required 'compute.x' permission for 'y'"
    )
    denied = verb("create")
    assert denied.returncode == 2 and "ask its owner for the role roles/compute.instanceAdmin.v1" in denied.stderr
    (cloud / "refuse-instance-groups-create").unlink()
    assert _left(cloud) == []
    # Somebody else's template of that name stays.
    (cloud / "things/instanceTemplate-ro").touch()
    exists = verb("create")
    assert exists.returncode == 2 and exists.stderr.startswith("error: ro (--name, POD_NAME) is there already")
    assert _left(cloud) == ["instanceTemplate-ro"]


def test_machines_that_do_not_let_in_yet_are_waited_for(pod):
    verb, cloud = pod
    (cloud / "refuse-ssh-once").write_text("ssh: connect to host 10.0.0.2 port 22: Connection refused")
    created = verb("create", "--spot")
    assert created.returncode == 0 and created.calls.count(" ssh ") == 3, created.stderr
    assert " --provisioning-model=SPOT --instance-termination-action=STOP\n" in created.calls


def test_what_gcloud_answers_is_no_command_here(pod, tmp_path):
    verb, cloud = pod
    verb("create")
    touch = f"$(touch${{IFS}}{tmp_path}/touched)"
    for state in (f"i[{touch}]", f"{touch}\x1b[2J", f"RUNNING,{touch}"):
        (cloud / "ro/state").write_text(state)
        assert verb("state").stdout == "PROVISIONING\n"
        assert verb("exec", "true").returncode == 1
    assert not (tmp_path / "touched").exists()


def test_a_dry_run_finds_the_machines_when_it_is_pasted(pod, tmp_path):
    verb, cloud = pod
    verb("create")
    printed = verb("exec", "--dry-run", "echo $HOME")
    assert printed.calls == "" and len(printed.stdout.splitlines()) == 3
    env = launching.environment(tmp_path)
    done = subprocess.run(["bash", "-euc", printed.stdout], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"{cloud}/ro/worker-{i}" for i in (1, 0)], done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--zone", "", "create"), "--api compute (POD_API) also needs --project (POD_PROJECT) and --zone (POD_ZONE)"),
        (("--slices", "2", "create"), "--api compute (POD_API) rents one slice, and --slices (POD_SLICES) is 2."),
        (("--type", "v4-32", "create"), "--type v4-32 is not on Compute Engine"),
        (("--type", "v6e-12", "stop"), "--type v6e-12 has a size that is not known here"),
        (("--flex", "7", "create"), "--flex (POD_FLEX) is '7'; give a duration"),
        (("--flex", "7d", "--spot", "create"), "--flex (POD_FLEX) is for --api compute (POD_API), without --spot"),
        (("--api", "gke", "create"), "--api (POD_API) is 'gke'; it is tpus or compute"),
        (("--api", "tpus", "create"), "--type tpu7x-16 is not in the Cloud TPU API; Compute Engine has it"),
    ],
)
def test_wrong_calls_are_named(pod, arguments, words):
    verb, _ = pod
    refused = verb("--dry-run", *arguments)
    assert refused.returncode == 2 and words in refused.stderr and refused.stdout == ""
