"""A JobSet (jobset.x-k8s.io/v1alpha2) for GKE: a Job for each TPU slice, or one for all boxes with GPUs.

On TPUs GKE tells each pod its place; on GPUs the manifest does. A JobSet starts all pods again if one ends with an
error, and `limba train` resumes.
"""

from typing import Any

from limba.addons.plan.manifests.request import COORDINATOR_PORT, FINAL_CODES, Request, known

# GKE's names of accelerators, in the labels of its nodes.
_TPUS = {
    "v4": "tpu-v4-podslice", "v5e": "tpu-v5-lite-podslice", "v5p": "tpu-v5p-slice", "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}  # fmt: skip
_GPUS = {
    "h100": "nvidia-h100-80gb", "h200": "nvidia-h200-141gb", "a100": "nvidia-a100-80gb",
    "a100-40gb": "nvidia-tesla-a100",
}  # fmt: skip
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# What a save of a large state to a bucket may take; a machine of GKE's that is taken away gives less.
_SECONDS_TO_SAVE = 600


def manifest(request: Request) -> dict[str, Any]:
    """The JobSet; ValueError for machines that GKE does not have."""
    is_tpu = request.topology.chip.platform == "tpu"
    metadata: dict[str, Any] = {"name": request.name}
    if is_tpu:  # Each slice has a node pool for itself.
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    hosts = request.topology.num_hosts // request.topology.num_slices
    job = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "train", "operator": "In", "values": list(FINAL_CODES)},
                }
            ]
        },
        "template": {"spec": _pod(request, is_tpu, hosts)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": request.max_restarts,
                "rules": [
                    {
                        "name": "wouldComeAgain",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [
                {"name": "workers", "replicas": request.topology.num_slices, "template": {"spec": job}},
            ],
        },
    }


def _literal(text: str) -> str:
    """A text in which Kubernetes replaces no $(NAME)."""
    return text.replace("$(", "$$(")


def _pod(request: Request, is_tpu: bool, hosts: int) -> dict[str, Any]:
    topology = request.topology
    if is_tpu:
        selector = {
            "cloud.google.com/gke-tpu-accelerator": known(_TPUS, topology, "GKE's TPUs"),
            "cloud.google.com/gke-tpu-topology": "x".join(map(str, topology.shape)),
        }
    else:
        selector = {"cloud.google.com/gke-accelerator": known(_GPUS, topology, "GKE's GPUs")}
    env: list[dict[str, Any]] = [{"name": name, "value": _literal(value)} for name, value in request.variables.items()]
    if not is_tpu and hosts > 1:
        first = f"{request.name}-workers-0-0.{request.name}:{COORDINATOR_PORT}"
        env += [
            {"name": "LIMBA_COORDINATOR_ADDRESS", "value": first},
            {"name": "LIMBA_PROCESS_COUNT", "value": str(hosts)},
            {"name": "LIMBA_PROCESS_INDEX", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        ]
    container: dict[str, Any] = {
        "name": "train",
        "image": request.image,
        "command": [_literal(word) for word in request.worker],
        "env": env,
    }
    if request.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in request.secrets]
    if is_tpu:  # libtpu's own; the second is between slices.
        container["ports"] = [{"containerPort": 8471}, {"containerPort": 8080}]
    limit = "google.com/tpu" if is_tpu else "nvidia.com/gpu"
    container["resources"] = {"limits": {limit: request.chips_of_a_host}}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _SECONDS_TO_SAVE,
        "nodeSelector": selector,
        "containers": [container],
    }
    if is_tpu:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if request.spot:
        selector["cloud.google.com/gke-spot"] = "true"
        spot = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
        pod["tolerations"] = [spot]
    return pod
