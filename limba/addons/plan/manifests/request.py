"""What a manifest is to run and where, the same for all kinds of manifests."""

import dataclasses
import re
from pathlib import Path

from limba.addons.plan import topologies
from limba.files import shell_words

# Exit codes of launch/worker.sh that would come again: wrong usage, and commands that cannot be run.
FINAL_CODES = (2, 126, 127)
# Saved on request, another worker was lost, a step hung: the next start resumes.
RESUMED_CODES = (75, 69, 76)
COORDINATOR_PORT = 8476


@dataclasses.dataclass(frozen=True)
class Request:
    """A training as a manifest.

    Attributes:
      name: of the job: lower-case letters, digits and dashes.
      topology: the machines.
      recipe: of launch/worker.sh: a gin file in the image, or the name of one of gin/recipes.
      options: of `limba train`.
      image: of the container; "" where the kind needs none.
      env: variables of the run, none of them secret.
      secrets: names of what the scheduler keeps: variables, or for Kubernetes Secrets.
      spot: machines that may be taken away.
      max_restarts: starts after the first.
      mounts: HOST:CONTAINER folders, for Slurm.
    """

    name: str
    topology: topologies.Topology
    recipe: str
    options: tuple[str, ...]
    image: str = ""
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    spot: bool = False
    max_restarts: int = 20
    mounts: tuple[str, ...] = ()

    @property
    def worker(self) -> list[str]:
        """The command of one worker, in a clone or an image of Limba."""
        return ["bash", "launch/worker.sh", self.recipe, *self.options]

    @property
    def shell_line(self) -> str:
        """`worker`, for a shell."""
        return " ".join(map(shell_words.quoted, self.worker))

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment of every worker."""
        kind = "tpu" if self.topology.chip.platform == "tpu" else "cuda"
        return {"LIMBA_ACCELERATOR": kind, **dict(self.env)}

    @property
    def chips_of_a_host(self) -> int:
        return self.topology.all_chips // self.topology.num_hosts

    def one_slice(self, where: str) -> None:
        """Raises ValueError if there are several slices."""
        if self.topology.num_slices > 1:
            raise ValueError(f"--num_slices is {self.topology.num_slices}; {where} starts one slice. Leave it out")


def known(table: dict[str, str], topology: topologies.Topology, where: str) -> str:
    """A name of these chips there.

    Raises:
      ValueError: if there are none.
    """
    if topology.kind not in table:
        raise ValueError(
            f"--topology is {topology.name}; of {where} these are known here: {', '.join(table)}. Choose one of them"
        )
    return table[topology.kind]


def of_plan(file: Path) -> tuple[str, int, list[str]]:
    """The topology, its slices and the gin flags that `limba plan … > FILE` recommends.

    Raises:
      ValueError: if the file is no plan that fits.
    """
    text = file.read_text("utf-8")
    machine = re.search(r"tokens, on (?:(\d+) x )?([a-z0-9-]+): \d+ chips", text)
    recommended = re.search(r"^recommended.*?: .*\n((?:  .*\n?)+)", text, re.M)
    if machine is None or recommended is None:
        raise ValueError(f"--plan is {file}, in which `limba plan` recommends no layout; give `limba plan … > FILE`")
    bindings = re.findall(r"^  ([a-z_]+(?:\.\w+)+) = (.+)$", recommended[1], re.M)
    return machine[2], int(machine[1] or 1), [f"--gin.{name}={value}" for name, value in bindings]
