"""Manifests of `limba launch --to`: fields that the schedulers' schemas have, places of workers, and what is refused.

The tables below have the fields of JobSet v1alpha2 and Kubernetes' Job, of SkyPilot 0.14.1's schema of tasks, and of
Vertex's CustomJobSpec. The whole schemas are in large packages (docs/pods.md).
"""

import pytest
import yaml

from limba import launch
from limba.addons.plan.manifests import command, request

BUCKET = "--gin.MODEL_DIR='gs://b/ro'"
JOBSET = {
    "": "apiVersion kind metadata spec",
    "metadata": "name annotations",
    "spec": "network failurePolicy replicatedJobs",
    "spec.network": "enableDNSHostnames publishNotReadyAddresses",
    "spec.failurePolicy": "maxRestarts rules",
    "spec.failurePolicy.rules": "name action onJobFailureReasons",
    "spec.replicatedJobs": "name replicas template",
    "spec.replicatedJobs.template": "spec",
    "JOB": "parallelism completions completionMode backoffLimit podFailurePolicy template",
    "JOB.podFailurePolicy": "rules",
    "JOB.podFailurePolicy.rules": "action onExitCodes",
    "JOB.podFailurePolicy.rules.onExitCodes": "containerName operator values",
    "JOB.template": "spec",
    "POD": "restartPolicy terminationGracePeriodSeconds nodeSelector containers hostNetwork dnsPolicy tolerations",
    "POD.tolerations": "key operator value effect",
    "POD.containers": "name image command env envFrom ports resources",
    "POD.containers.env": "name value valueFrom",
    "POD.containers.env.valueFrom": "fieldRef",
    "POD.containers.env.valueFrom.fieldRef": "fieldPath",
    "POD.containers.envFrom": "secretRef",
    "POD.containers.envFrom.secretRef": "name",
    "POD.containers.ports": "containerPort",
    "POD.containers.resources": "limits",
}
SKYPILOT = {
    "": "name workdir num_nodes resources envs secrets setup run",
    "resources": "infra accelerators accelerator_args use_spot job_recovery",
    "resources.accelerator_args": "runtime_version",
    "resources.job_recovery": "max_restarts_on_errors recover_on_exit_codes",
}
VERTEX = {
    "": "workerPoolSpecs scheduling",
    "scheduling": "timeout restartJobOnWorkerRestart strategy",
    "workerPoolSpecs": "machineSpec replicaCount containerSpec",
    "workerPoolSpecs.machineSpec": "machineType acceleratorType acceleratorCount tpuTopology",
    "workerPoolSpecs.containerSpec": "imageUri command env",
    "workerPoolSpecs.containerSpec.env": "name value",
}
# Maps with keys of users or of others.
FREE = {"metadata.annotations", "POD.nodeSelector", "POD.containers.resources.limits", "envs", "secrets"}


def _unknown(value, fields, path=""):
    """Fields of a manifest that a table does not have."""
    short = path.replace("spec.replicatedJobs.template.spec", "JOB").replace("JOB.template.spec", "POD")
    if isinstance(value, list):
        return [one for item in value for one in _unknown(item, fields, path)]
    if not isinstance(value, dict) or short in FREE:
        return []
    wrong = [f"{short}.{key}" for key in value if key not in fields.get(short, "").split()]
    return wrong + [x for key, item in value.items() for x in _unknown(item, fields, f"{path}.{key}".strip("."))]


def _manifest(capsys, *words):
    assert launch.main(["--to", *words]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def _pod(jobset):
    (job,) = jobset["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    return job, pod, pod["containers"][0]


def test_a_jobset_of_two_slices(capsys):
    words = (
        "--topology",
        "tpu7x-16",
        "--num_slices",
        "2",
        "--image",
        "i",
        "--spot",
        "--secret",
        "hf",
        "--env",
        "A=$(B)",
    )
    jobset = _manifest(capsys, "jobset", *words, "--max_restarts", "7", "ro_t5_base", BUCKET, "--gin.NAME='$(date)'")
    assert _unknown(jobset, JOBSET) == [] and jobset["spec"]["failurePolicy"]["maxRestarts"] == 7
    job, pod, container = _pod(jobset)
    assert jobset["metadata"]["annotations"] == {
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
    }
    assert (job["replicas"], job["template"]["spec"]["parallelism"], job["template"]["spec"]["completions"]) == (
        2,
        2,
        2,
    )
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x",
        "cloud.google.com/gke-tpu-topology": "2x2x2",
        "cloud.google.com/gke-spot": "true",
    }
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    # Kubernetes replaces no $(NAME) of the user's.
    assert container["command"] == ["bash", "launch/worker.sh", "ro_t5_base", BUCKET, "--gin.NAME='$$(date)'"]
    assert container["env"] == [{"name": "LIMBA_ACCELERATOR", "value": "tpu"}, {"name": "A", "value": "$$(B)"}]
    assert container["envFrom"] == [{"secretRef": {"name": "hf"}}]


def test_a_jobset_of_gpus_tells_each_its_place(capsys):
    jobset = _manifest(
        capsys, "jobset", "--topology", "h200-32", "--image", "i", "--name", "mine", "quickstart", BUCKET
    )
    assert _unknown(jobset, JOBSET) == [] and "annotations" not in jobset["metadata"]
    job, pod, container = _pod(jobset)
    assert (job["replicas"], job["template"]["spec"]["completions"]) == (1, 4)
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env == {
        "LIMBA_ACCELERATOR": "cuda",
        "LIMBA_COORDINATOR_ADDRESS": "mine-workers-0-0.mine:8476",
        "LIMBA_PROCESS_COUNT": "4",
        "LIMBA_PROCESS_INDEX": None,
    }


def test_skypilot(capsys):
    slice_ = _manifest(
        capsys, "skypilot", "--topology", "v5litepod-16", "--spot", "--secret", "HF_TOKEN", "quickstart", BUCKET
    )
    assert _unknown(slice_, SKYPILOT) == [] and slice_["num_nodes"] == 1 and slice_["secrets"] == {"HF_TOKEN": None}
    assert slice_["resources"]["accelerators"] == "tpu-v5litepod-16" and slice_["resources"]["use_spot"] is True
    assert slice_["resources"]["accelerator_args"] == {"runtime_version": "v2-alpha-tpuv5-lite"}
    assert slice_["resources"]["job_recovery"]["recover_on_exit_codes"] == [75, 69, 76]
    assert slice_["run"] == f'exec bash launch/worker.sh quickstart "{BUCKET}"\n'
    boxes = _manifest(capsys, "skypilot", "--topology", "a100-16", "quickstart", BUCKET)
    assert (boxes["num_nodes"], boxes["resources"]["accelerators"]) == (2, "A100-80GB:8")
    assert "LIMBA_PROCESS_INDEX=$SKYPILOT_NODE_RANK\n" in boxes["run"]


def test_a_recipe_that_the_image_lacks_is_named(capsys):
    for recipe, is_named in (("my_recipe.gin", True), ("gin/recipes/ro_t5_base.gin", False), ("ro_t5_base", False)):
        assert command.main(["--to", "jobset", "--topology", "v6e-16", "--image", "i", recipe, BUCKET]) == 0
        assert (f"note: {recipe} does not come with Limba: the image needs it" in capsys.readouterr().err) == is_named


def test_vertex(capsys):
    gpu = _manifest(capsys, "vertex", "--topology", "h100-4", "--image", "i", "--spot", "quickstart", BUCKET)
    tpu = _manifest(capsys, "vertex", "--topology", "v6e-8", "--image", "i", "quickstart", BUCKET)
    assert _unknown(gpu, VERTEX) == _unknown(tpu, VERTEX) == [] and gpu["scheduling"]["strategy"] == "SPOT"
    assert gpu["workerPoolSpecs"][0]["machineSpec"] == {
        "machineType": "a3-highgpu-4g",
        "acceleratorType": "NVIDIA_H100_80GB",
        "acceleratorCount": 4,
    }
    assert tpu["workerPoolSpecs"][0]["machineSpec"] == {"machineType": "ct6e-standard-8t", "tpuTopology": "2x4"}


PLAN = """\
247,577,856 parameters, 128 rows of 512 + 114 tokens, on 2 x v4-32: 32 chips, 8 hosts, 30.75 GiB for each of 32 devices
recommended: 16 x 2, remat none, 1 microbatch
  memory per device  6.02 GiB = parameters 0.92 + optimizer 0.00 + activations, gradients 5.10
  1,000,000 steps  4.1 hours
  partitioning.PjitPartitioner.num_partitions = 2
  network.T5Config.remat_policy = 'none'
"""


def test_the_layout_of_a_plan(capsys, tmp_path):
    plan = tmp_path / "plan.txt"
    plan.write_text(PLAN)
    jobset = _manifest(capsys, "jobset", "--plan", str(plan), "--image", "i", "quickstart", BUCKET)
    job, pod, container = _pod(jobset)
    assert job["replicas"] == 2 and pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x2x4"
    assert container["command"][3:] == [
        "--gin.partitioning.PjitPartitioner.num_partitions=2",
        "--gin.network.T5Config.remat_policy='none'",
        BUCKET,
    ]
    plan.write_text(PLAN.partition("recommended")[0])
    with pytest.raises(ValueError, match="in which `limba plan` recommends no layout"):
        request.of_plan(plan)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("jobset", "--topology", "v6e-8", "quickstart", BUCKET), "--to jobset needs --image"),
        (("skypilot", "--topology", "v6e-8", "--image", "i", "quickstart", BUCKET), "--to skypilot takes no --image"),
        (("skypilot", "--topology", "v6e-8", "no_recipe", BUCKET), "there is no recipe 'no_recipe'; there are"),
        (("skypilot", "quickstart", BUCKET), "give --topology NAME, such as v6e-16 or h100-8, or --plan FILE"),
        (("skypilot", "--topology", "v6e-8", "quickstart"), "--gin.MODEL_DIR is not given; the machine's disk is lost"),
        (("skypilot", "--topology", "v6e-8", "quickstart", "--gin.MODEL_DIR='runs/q'"), "--gin.MODEL_DIR is 'runs/q';"),
        (("skypilot", "--topology", "tpu7x-8", "quickstart", BUCKET), "--topology is tpu7x-8; of SkyPilot these are k"),
        (("skypilot", "--topology", "v4-8", "--num_slices", "2", "quickstart", BUCKET), "--num_slices is 2; a task of"),
        (("vertex", "--topology", "h100-16", "--image", "i", "quickstart", BUCKET), "--topology is h100-16, 2 machine"),
        (("slurm-container", "--topology", "v4-8", "--image", "i", "quickstart"), "--topology is v4-8; of Slurm with"),
        (
            ("skypilot", "--topology", "v4-8", "--env", "HF_TOKEN=hf_planted", "quickstart", BUCKET),
            "--env HF_TOKEN looks like",
        ),
        (("skypilot", "--topology", "v4-8", "--name", "A_b", "quickstart", BUCKET), "--name is 'A_b'; give 2 to 40"),
        (("kubernetes", "quickstart"), "invalid choice: 'kubernetes'"),
        (
            ("slurm-container", "--topology", "h100-8", "--image", "i", "--spot", "quickstart"),
            "--spot is given; Slurm's",
        ),
        (
            ("vertex", "--topology", "h100-8", "--image", "i", "--max_restarts", "3", "quickstart", BUCKET),
            "--max_restarts is 3; Vertex",
        ),
        (("skypilot", "--plan", "p.txt", "--num_slices", "2", "quickstart", BUCKET), "--num_slices is 2; the slices a"),
    ],
)
def test_what_cannot_be_written(capsys, words, message):
    with pytest.raises(SystemExit) as end:
        command.main(["--to", *words])
    said = capsys.readouterr()
    assert end.value.code == 2 and message in said.err and said.out == "" and "planted" not in said.err
