"""`limba launch --to KIND`: the manifest that trains a recipe by another scheduler; each worker runs launch/worker.sh.

    limba launch --to jobset --topology v6e-16 --image IMAGE ro_t5_base --gin.MODEL_DIR="'gs://my-bucket/ro'" > ro.yaml
    limba launch --to skypilot --topology h100-8 --spot ro_t5_base --gin.MODEL_DIR="'s3://my-bucket/ro'" > ro.yaml
    limba launch --to slurm-container --topology h100-16 --image IMAGE ro_t5_base --gin.MODEL_DIR="'runs/ro'" > ro.sh
    limba launch --to vertex --topology h100-8 --image IMAGE ro_t5_base --gin.MODEL_DIR="'gs://my-bucket/ro'" > ro.yaml

`limba plan … > plan.txt` chooses a layout; `--plan plan.txt` takes its machines and its gin lines. Options of `limba
train` come after the recipe. The image is one of launch/train.Dockerfile; SkyPilot sends the clone in which you are.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba import recipes
from limba.addons.plan import topologies
from limba.addons.plan.manifests import jobset, request, skypilot, slurm_container, vertex
from limba.files import named_flags, number_ranges, redaction
from limba.files.repository import REPOSITORY

# How a manifest is submitted, and whether its containers need an image.
_KINDS: dict[str, tuple[Any, str, bool]] = {
    "jobset": (jobset.manifest, "kubectl apply -f FILE", True),
    "skypilot": (skypilot.manifest, "sky jobs launch FILE, in the clone", False),
    "slurm-container": (slurm_container.manifest, "", True),
    "vertex": (vertex.manifest, "gcloud ai custom-jobs create --region=REGION --display-name=NAME --config=FILE", True),
}


def _parser() -> named_flags.Parser:
    parser = named_flags.Parser(
        prog="limba launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--to", required=True, choices=_KINDS, metavar="KIND", help=f"one of {', '.join(_KINDS)}")
    parser.add_argument("--topology", metavar="NAME", help=f"the machines: {topologies.families()}")
    parser.add_argument("--num_slices", type=int, metavar="N", help="TPU slices of this topology (1)")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="what `limba plan` printed, instead of --topology")
    parser.add_argument("--image", default="", metavar="IMAGE", help="of the container; not for SkyPilot")
    parser.add_argument("--name", metavar="NAME", help="of the job (the recipe's)")
    parser.add_argument("--spot", action="store_true", help="machines that may be taken away")
    parser.add_argument("--max_restarts", type=int, metavar="N", help="starts after the first (20); not for Vertex")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the run, not secret; repeatable"
    )
    parser.add_argument(
        "--secret", action="append", default=[], metavar="NAME",
        help="a Secret of Kubernetes, whose keys become variables, or a variable that SkyPilot takes of your shell",
    )  # fmt: skip
    parser.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="HOST:CONTAINER",
        help="a folder of the host in Slurm's container",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a gin file in the clone or image, or a recipe's name")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="…", help="options of limba train")
    return parser


def main(argv: Sequence[str]) -> int:
    """Prints the manifest; returns the exit code."""
    parser = _parser()
    flags = parser.parse_args(argv)
    manifest, submit, _ = _KINDS[flags.to]
    try:
        made = manifest(_request(flags))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    recipe = REPOSITORY / flags.recipe
    if recipe.suffix == ".gin" and not (recipe.is_file() and recipe.is_relative_to(REPOSITORY)):
        place = "image" if flags.image else "clone"
        print(
            f"note: {flags.recipe} does not come with Limba: the {place} needs it at this path, beside its vocabulary "
            "and the modules that it imports. Without them the job ends at its start.",
            file=sys.stderr,
        )
    if isinstance(made, str):
        sys.stdout.write(made)
        return 0
    print(f"# {submit}")
    sys.stdout.write(_yaml(made))
    return 0


def _yaml(value: Any) -> str:
    """YAML, with texts of several lines as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, represent)
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)


def _request(flags: argparse.Namespace) -> request.Request:
    """Raises ValueError for flags that do not fit together."""
    topology, num_slices, options = flags.topology, flags.num_slices, list(flags.options)
    if (flags.plan is None) == (topology is None):
        given = "one of them" if topology else "--topology NAME, such as v6e-16 or h100-8, or --plan FILE"
        raise ValueError(f"--topology and --plan name the machines: give {given}")
    if not flags.recipe.endswith(".gin"):
        recipes.find(flags.recipe)  # worker.sh takes names of these
    if flags.plan is not None:
        if num_slices is not None:
            raise ValueError(f"--num_slices is {num_slices}; the slices are those of --plan {flags.plan}. Leave it out")
        topology, num_slices, planned = request.of_plan(flags.plan)
        options = planned + options
    if _KINDS[flags.to][2] != bool(flags.image):
        needs = "needs --image, an image of launch/train.Dockerfile" if _KINDS[flags.to][2] else "takes no --image"
        raise ValueError(f"--to {flags.to} {needs}")
    if flags.mount and flags.to != "slurm-container":
        raise ValueError(f"--mount is {flags.mount[0]}; it is for --to slurm-container")
    if flags.max_restarts is not None:
        number_ranges.check("--max_restarts", flags.max_restarts, number_ranges.AT_LEAST_0)
        if flags.to == "vertex":
            raise ValueError(f"--max_restarts is {flags.max_restarts}; Vertex takes no such number. Leave it out")
    if flags.to != "slurm-container":
        _require_bucket(options)
    name = flags.name or re.sub(r"[^a-z0-9]+", "-", Path(flags.recipe).stem.lower()).strip("-")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,38}[a-z0-9]", name):
        raise ValueError(f"--name is {name!r}; give 2 to 40 lower-case letters, digits and dashes, with a letter first")
    return request.Request(
        name, topologies.find(topology, 1 if num_slices is None else num_slices), flags.recipe, tuple(options),
        flags.image, tuple(map(_variable, flags.env)), tuple(flags.secret), flags.spot,
        20 if flags.max_restarts is None else flags.max_restarts, tuple(flags.mount),
    )  # fmt: skip


def _require_bucket(options: Sequence[str]) -> None:
    """The disk of a machine is lost with it, and a checkpoint on it."""
    folders = [option.partition("=")[2].strip("'\"") for option in options if option.startswith("--gin.MODEL_DIR=")]
    if not folders or "://" not in folders[-1]:
        given = f"is {folders[-1]!r}" if folders else "is not given"
        raise ValueError(
            f"--gin.MODEL_DIR {given}; the machine's disk is lost with it, so give a bucket behind the recipe: "
            "--gin.MODEL_DIR=\"'gs://my-bucket/run'\""
        )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"--env is {redaction.redact(text)!r}; give NAME=VALUE")
    if re.search("TOKEN|SECRET|PASSWORD|KEY", name.upper()) or redaction.redact(text) != text:
        raise ValueError(f"--env {name} looks like a secret, and manifests are kept and shared; give --secret NAME")
    return name, value
