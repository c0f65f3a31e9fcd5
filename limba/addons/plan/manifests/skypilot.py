"""A task of SkyPilot for `sky jobs launch`: it sends the clone, and starts again where there are machines."""

from typing import Any

from limba.addons.plan.manifests.request import COORDINATOR_PORT, RESUMED_CODES, Request, known

# SkyPilot's names: of slices, with the number of the topology's name behind it, and of cards.
_TPUS = {"v2": "tpu-v2", "v3": "tpu-v3", "v4": "tpu-v4", "v5e": "tpu-v5litepod", "v5p": "tpu-v5p", "v6e": "tpu-v6e"}
_GPUS = {"h100": "H100", "h200": "H200", "a100": "A100-80GB", "a100-40gb": "A100"}
_IMAGES = {"v5e": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}


def manifest(request: Request) -> dict[str, Any]:
    """The task; ValueError for machines that SkyPilot does not have, or several slices."""
    request.one_slice("a task of SkyPilot's")
    topology = request.topology
    recovery = {"max_restarts_on_errors": request.max_restarts, "recover_on_exit_codes": list(RESUMED_CODES)}
    resources: dict[str, Any] = {"use_spot": request.spot, "job_recovery": recovery}
    if topology.chip.platform == "tpu":
        resources["infra"] = "gcp"
        resources["accelerators"] = f"{known(_TPUS, topology, 'SkyPilot')}-{topology.name.rpartition('-')[2]}"
        resources["accelerator_args"] = {"runtime_version": _IMAGES.get(topology.kind, "tpu-ubuntu2204-base")}
        boxes = 1
    else:
        boxes = topology.num_hosts
        resources["accelerators"] = f"{known(_GPUS, topology, 'SkyPilot')}:{request.chips_of_a_host}"
    place = ""
    if boxes > 1:
        place = (
            f'export LIMBA_COORDINATOR_ADDRESS="$(head -n 1 <<<"$SKYPILOT_NODE_IPS"):{COORDINATOR_PORT}"\n'
            "export LIMBA_PROCESS_COUNT=$SKYPILOT_NUM_NODES LIMBA_PROCESS_INDEX=$SKYPILOT_NODE_RANK\n"
        )
    task: dict[str, Any] = {
        "name": request.name,
        "workdir": ".",
        "num_nodes": boxes,
        "resources": resources,
        "envs": request.variables,
        "setup": "bash launch/worker.sh --setup\n",
        "run": f"{place}exec {request.shell_line}\n",
    }
    if request.secrets:  # Their values come from the shell that calls sky.
        task["secrets"] = dict.fromkeys(request.secrets)
    return task
