"""A batch script for Slurm with pyxis: launch/slurm.sbatch, whose workers run in a container."""

import re

from limba.addons.plan.manifests.request import Request, known
from limba.files import repository, shell_words

_LAUNCHER = "launch/slurm.sbatch"


def manifest(request: Request) -> str:
    """The script, to submit in a clone; ValueError for TPUs, spot machines and secrets."""
    topology = request.topology
    if topology.chip.platform != "gpu":
        known({"h100": "", "h200": "", "a100": ""}, topology, "Slurm with GPUs")
    if request.spot:
        raise ValueError("--spot is given; Slurm's partitions decide which machines a job gets. Leave it out")
    if request.secrets:
        raise ValueError(f"--secret is {request.secrets[0]}; sbatch passes your shell's variables on. Leave it out")
    values = {
        "job-name": request.name,
        "nodes": topology.num_hosts,
        "ntasks-per-node": request.chips_of_a_host,
        "gpus-per-node": request.chips_of_a_host,
    }
    header = re.findall(r"^#SBATCH --.*$", (repository.REPOSITORY / _LAUNCHER).read_text("utf-8"), re.M)
    lines = ["#!/usr/bin/env bash", "# In a clone on a file system that all nodes see: sbatch FILE"]
    for line in header:
        option = line.removeprefix("#SBATCH --").partition("=")[0]
        lines.append(f"#SBATCH --{option}={values[option]}" if option in values else line)
    settings = request.variables | {"LIMBA_CONTAINER_IMAGE": request.image, "MAX_RESTARTS": str(request.max_restarts)}
    if request.mounts:
        settings["LIMBA_CONTAINER_MOUNTS"] = ",".join(request.mounts)
    lines += [f"export {name}={shell_words.quoted(value)}" for name, value in settings.items()]
    command = " ".join(map(shell_words.quoted, (request.recipe, *request.options)))
    return "\n".join([*lines, f'exec bash "$SLURM_SUBMIT_DIR/{_LAUNCHER}" {command}', ""])
