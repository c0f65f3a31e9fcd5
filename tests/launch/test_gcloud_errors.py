"""Why gcloud refuses: the cause and the remedy first, and what cannot get better is not tried again."""

import pytest

from tests.launch import launching

CREATE = "ERROR: (gcloud.compute.tpus.tpu-vm.create) "
FINAL = {
    "no account": (
        CREATE + "You do not currently have an active account selected.\nPlease run:\n\n  $ gcloud auth login\n",
        "gcloud has no account, or its login has expired: run `gcloud auth login`.",
    ),
    "expired": (
        CREATE + "There was a problem refreshing your current auth tokens: Reauthentication failed.",
        "gcloud has no account, or its login has expired",
    ),
    "no project": (
        CREATE + "The required property [project] is not currently set.",
        "gcloud has no project: give --project (POD_PROJECT), or run `gcloud config set project NAME`.",
    ),
    "no zone": (
        CREATE
        + "Error parsing [tpu].\nFailed to find attribute [zone]. The attribute can be set in the following ways:",
        "gcloud has no zone: give --zone (POD_ZONE), or run `gcloud config set compute/zone NAME`.",
    ),
    "no API": (
        CREATE + "PERMISSION_DENIED: Cloud TPU API has not been used in project 1 before or it is disabled.",
        "the Cloud TPU API is not enabled in its configured project: run `gcloud services enable tpu.googleapis.com`.",
    ),
    "permission": (
        CREATE + "PERMISSION_DENIED: Permission 'tpu.nodes.create' denied on 'projects/p/locations/z'",
        "gcloud's account may not do this in its configured project (--project, POD_PROJECT): ask its owner for "
        "the role roles/tpu.admin",
    ),
    "zone": (
        CREATE + "PERMISSION_DENIED: Permission denied on 'locations/z' (or it may not exist).",
        "the zone z (--zone, POD_ZONE) does not exist or has no TPUs",
    ),
    "quota": (
        CREATE
        + '{\n  "code": 8,\n  "message": "Quota limit \'TPUV4PodPerProject\' has been exceeded. Limit: 0 in zone z"',
        "the quota of its configured project for v4-16 in z is 0 (--type, --zone): ask for more at https://",
    ),
    "exists": (
        CREATE + "ALREADY_EXISTS: Resource 'projects/p/locations/z/nodes/limba' already exists",
        "limba (--name, POD_NAME) is there already: `pod.sh state` shows its state",
    ),
    "network": (
        CREATE + "NOT_FOUND: The resource 'projects/p/regions/r/subnetworks/x' was not found",
        "something that the command names does not exist in its configured project and z",
    ),
    "type": (CREATE + "INVALID_ARGUMENT: Accelerator type v4-16 is not there.", "gcloud refuses the request as wrong"),
    "broken": (
        'Traceback (most recent call last):\n  File "gcloud.py", line 1\nModuleNotFoundError: No module: x',
        "gcloud does not start: install it again",
    ),
}
COMPUTE = {"POD_API": "compute", "POD_TYPE": "v5p-16", "POD_ZONE": "us-east5-a", "POD_PROJECT": "p"}
POLICY = "ERROR: (gcloud.compute.resource-policies.create.workload-policy) Could not fetch resource:\n - "
FINAL_COMPUTE = {
    "compute: no API": (
        POLICY + "Compute Engine API has not been used in project 1 before or it is disabled.",
        "the Compute Engine API is not enabled in p: run `gcloud services enable compute.googleapis.com`.",
    ),
    "compute: permission": (
        POLICY + "Required 'compute.resourcePolicies.create' permission for 'projects/p/regions/us-east5/x'",
        "gcloud's account may not do this in p (--project, POD_PROJECT): ask its owner for the role "
        "roles/compute.instanceAdmin.v1",
    ),
    "compute: zone": (
        POLICY + "The resource 'projects/p/zones/us-east5-a' was not found",
        "the zone us-east5-a (--zone, POD_ZONE) does not exist or has no TPUs for p: `gcloud compute ",
    ),
    "compute: machine": (
        POLICY + "Machine type with name 'ct5p-hightpu-4t' does not exist in zone 'us-east5-a'.",
        "the zone us-east5-a (--zone, POD_ZONE) does not exist or has no TPUs for p",
    ),
    "compute: quota": (
        POLICY + "Quota 'TPU-V5P-per-project-region' exceeded.  Limit: 0.0 in region us-east5.",
        "the quota of p for v5p-16 in us-east5-a is 0 (--type, --zone): ask for more at https://",
    ),
    "compute: exists": (
        POLICY + "The resource 'projects/p/regions/us-east5/resourcePolicies/limba' already exists",
        "limba (--name, POD_NAME) is there already: `pod.sh state` shows its state",
    ),
    "compute: network": (
        POLICY + "The resource 'projects/p/regions/us-east5/subnetworks/x' was not found",
        "something that the command names does not exist in p and us-east5-a",
    ),
}
TRANSIENT = {
    "compute: capacity": POLICY
    + "ZONE_RESOURCE_POOL_EXHAUSTED: The zone 'projects/p/zones/us-east5-a' does not have enough resources available.",
    "compute: quota in use": POLICY + "Quota 'TPU-V5P-per-project-region' exceeded.  Limit: 8.0 in region us-east5.",
    "capacity": CREATE + 'RESOURCE_EXHAUSTED: There is no more capacity in the zone "z"',
    "quota in use": CREATE + "Quota limit 'TPUV4' has been exceeded. Limit: 32 in zone z",
    "aborted": CREATE + "ABORTED: The operation was aborted",
    "unavailable": CREATE + "UNAVAILABLE: try again",
    "network": CREATE
    + "There was a problem refreshing your current auth tokens: HTTPSConnectionPool: Max retries exceeded",
    "crash": "Traceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'x'",
}


@pytest.fixture
def env(tmp_path):
    launching.make_environment(tmp_path)
    return launching.environment(tmp_path, POD_NAME="limba", POD_TYPE="v4-16", POD_ZONE="z", WAIT="0", LIMIT="2")


def _create(env, name):
    return launching.call("pod.sh", "create", env=env | (COMPUTE if name.startswith("compute: ") else {}))


@pytest.mark.parametrize("name", [*FINAL, *FINAL_COMPUTE])
def test_a_refusal_that_stays_names_cause_and_remedy_first(env, tmp_path, name):
    message, words = (FINAL | FINAL_COMPUTE)[name]
    (tmp_path / "cloud/refuse-create").write_text(message)
    result = _create(env, name)
    lines = result.stderr.splitlines()
    assert result.returncode == 2 and lines[0].startswith(f"error: {words}"), result.stderr
    assert (
        "Traceback" not in result.stderr
        and lines[1] == f"  gcloud: {message.splitlines()[-1 if name == 'broken' else 0]}"
    )
    assert (tmp_path / "cloud/calls").read_text().count(" create ") == 1


@pytest.mark.parametrize("name", TRANSIENT)
def test_an_error_that_may_go_away_is_no_refusal(env, tmp_path, name):
    (tmp_path / "cloud/refuse-create").write_text(TRANSIENT[name])
    result = _create(env, name)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.startswith("error: gcloud failed (exit code 1); this may go away by itself.\n  gcloud: ")


@pytest.mark.parametrize("api", [{}, COMPUTE], ids=["tpus", "compute"])
def test_every_verb_that_asks_for_the_pod_says_it(env, tmp_path, api):
    env = env | api
    (tmp_path / "cloud/refuse-describe").write_text(FINAL["no project"][0])
    # Compute Engine's things are deleted without a question for them.
    for verb in ("create", "state", "status", "stop", *(() if api else ("delete",))):
        result = launching.call("pod.sh", verb, env=env)
        assert result.returncode == 2 and result.stderr.startswith("error: gcloud has no project"), verb
    (tmp_path / "cloud/refuse-describe").unlink()
    launching.call("pod.sh", "create", env=env)
    (tmp_path / "cloud/refuse-ssh").write_text(CREATE.replace("create", "ssh") + "PERMISSION_DENIED: no")
    result = launching.call("pod.sh", "stop", env=env)
    assert result.returncode == 2 and "[1] error: gcloud's account may not do this" in result.stdout
    assert result.stderr.startswith("error: stop failed on worker 0 1 of 2: gcloud's account may not do this")


def test_a_gcloud_that_is_missing_or_does_not_start(env, tmp_path):
    binaries = tmp_path / "bin"
    binaries.mkdir()
    broken = binaries / "gcloud"
    broken.write_text("#!/nowhere/python\n")
    broken.chmod(0o755)
    result = launching.call("pod.sh", "state", env=env | {"PATH": f"{binaries}:{env['PATH']}"})
    assert result.returncode == 2 and f"error: {broken} does not start (exit code 12" in result.stderr
    broken.unlink()
    for tool in ("bash", "dirname", "git", "tr"):
        (binaries / tool).symlink_to(launching.shutil.which(tool))
    result = launching.call("pod.sh", "state", env=env | {"PATH": str(binaries)})
    assert result.returncode == 2 and "gcloud is not installed here: https://" in result.stderr


def test_waiting_in_the_queue_outlasts_an_error_that_goes_away(env, tmp_path):
    (tmp_path / "cloud/refuse-describe-after-create").write_text(TRANSIENT["unavailable"])
    waited = launching.call("pod.sh", "create", "--queued", env=env)
    assert waited.returncode == 0 and "queued resource limba is ACTIVE" in waited.stdout, waited.stderr
    assert "this may go away by itself" in waited.stderr
    (tmp_path / "cloud/refuse-describe-after-create").write_text(FINAL["expired"][0])
    refused = launching.call("pod.sh", "create", "--queued", "--name", "other", env=env)
    assert refused.returncode == 2 and "its login has expired" in refused.stderr
