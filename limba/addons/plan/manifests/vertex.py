"""The specification of a custom job of Vertex AI, for `gcloud ai custom-jobs create --config=FILE`."""

from typing import Any

from limba.addons.plan.manifests.request import Request, known

_TPUS = {"v5e": "ct5lp-hightpu", "v6e": "ct6e-standard"}
# Machines by cards, and Vertex's name of a card.
_GPUS = {"h100": "a3-highgpu", "h200": "a3-ultragpu", "a100": "a2-ultragpu", "a100-40gb": "a2-highgpu"}
_CARDS = {
    "h100": "NVIDIA_H100_80GB", "h200": "NVIDIA_H200_141GB", "a100": "NVIDIA_A100_80GB",
    "a100-40gb": "NVIDIA_TESLA_A100",
}  # fmt: skip
_WEEK = "604800s"


def manifest(request: Request) -> dict[str, Any]:
    """The CustomJobSpec; ValueError for machines that Vertex does not have, several slices or boxes, and secrets."""
    request.one_slice("a custom job of Vertex's")
    topology = request.topology
    if request.secrets:
        raise ValueError(
            f"--secret is {request.secrets[0]}; a custom job of Vertex's has no secrets. Leave it out, or give "
            "--to jobset"
        )
    chips = request.chips_of_a_host
    if topology.num_hosts > 1:
        raise ValueError(
            f"--topology is {topology.name}, {topology.num_hosts} machines; for Vertex this writes one machine, of up "
            "to 8 chips. For several give --to jobset"
        )
    if topology.chip.platform == "tpu":
        machine: dict[str, Any] = {
            "machineType": f"{known(_TPUS, topology, 'Vertex')}-{chips}t",
            "tpuTopology": "x".join(map(str, topology.shape)),
        }
    else:
        machine = {
            "machineType": f"{known(_GPUS, topology, 'Vertex')}-{chips}g",
            "acceleratorType": _CARDS[topology.kind],
            "acceleratorCount": chips,
        }
    env = [{"name": name, "value": value} for name, value in request.variables.items()]
    pool = {
        "machineSpec": machine,
        "replicaCount": 1,
        "containerSpec": {"imageUri": request.image, "command": request.worker, "env": env},
    }
    scheduling: dict[str, Any] = {"timeout": _WEEK, "restartJobOnWorkerRestart": True}
    if request.spot:
        scheduling["strategy"] = "SPOT"
    return {"workerPoolSpecs": [pool], "scheduling": scheduling}
