"""`limba plan`: whether a training fits a TPU slice or GPU box, its speed and its cost, and the best layout there.

    limba plan --topology v4-32 --gin_file=gin/models/t5_1_1/xl.gin --gin_file=gin/runs/pretrain.gin \\
        --gin.TRAIN_STEPS=1_000_000 --gin.TASK_FEATURE_LENGTHS="{'inputs': 512, 'targets': 114}"

Files, flags and bindings are those of `limba train`. It opens no data and no vocabulary, writes nothing and needs no
accelerator. The training step is compiled by the device's own compiler. For TPUs that is libtpu (pip install
'limba[plan]'), and layers are scanned, which compute what unrolled ones do. For GPUs it is XLA's with CUDA's libraries
(pip install 'limba[plan_gpu]', 3 GB); it gives a bound of the step's time too, and without it GPUs are estimated.
docs/plan.md says what the figures mean.

Exit code 0: a layout fits; 1: none that was tried fits.
"""

import argparse
import hashlib
import logging
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limba import command_line
from limba.addons.plan import gpu_targets, topologies
from limba.gin_config import gin_files, macros

if TYPE_CHECKING:  # They import JAX, which `prepare_environment` must precede.
    from limba.addons.plan.compiled_step import Training
    from limba.addons.plan.mesh_layouts import MeshLayout
    from limba.addons.plan.plan_report import Planner

logger = logging.getLogger(__name__)

# A plan does not use these, so the files may leave them unbound.
_UNUSED_MACROS = {"MODEL_DIR": "not used", "MIXTURE_OR_TASK_NAME": "not_used", "INITIAL_CHECKPOINT_PATH": ()}
_LARGEST_IN_TABLE = 64


def prepare_environment() -> None:
    """Makes JAX compile for devices that are not here, and not look for its own; before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Otherwise libtpu asks the metadata server of a TPU's host, for minutes, and complains.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v4-8")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # Several plans may run at once; the lock is for a device, and none of them uses one.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    # Half of the default effort's time, for peaks that differ little; `plan_choice.USABLE` covers the difference.
    os.environ.setdefault("JAX_OPTIMIZATION_LEVEL", "O0")
    # JAX would keep these programs, and cannot read them again without the chips.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    gpu_targets.prepare_environment()


def _training(configured: Any) -> tuple["Training", "MeshLayout", int]:
    """The training that gin describes, its layout, and its steps."""
    import copy

    import gin
    import jax

    from limba.addons.plan.compiled_step import Training
    from limba.addons.plan.mesh_layouts import MeshLayout
    from limba.partitioning.meshes import PjitPartitioner, fsdp_logical_axis_rules, standard_logical_axis_rules
    from limba.training.configured_trainer import make_trainer

    bound = gin.get_bindings(configured, resolve_references=False)
    needed = ("model", "train_dataset_cfg", "trainer_cls")
    missing = [name for name in needed if name not in bound]
    if missing:
        raise gin_files.GinError(
            f"The gin files bind no train.{missing[0]}; give those of a training: a model of gin/models/ and "
            "gin/runs/pretrain.gin or gin/runs/finetune.gin."
        )
    # Gin builds a reference when it is copied.
    model, dataset, trainer_cls = (copy.deepcopy(bound[name]) for name in needed)
    dataset = max(dataset.by_stage(), key=lambda x: x.batch_size * sum((x.task_feature_lengths or {}).values()))
    if not dataset.task_feature_lengths:
        raise gin_files.GinError(
            "TASK_FEATURE_LENGTHS is not bound to lengths: add --gin.TASK_FEATURE_LENGTHS=\"{'inputs': 512, "
            "'targets': 114}\"."
        )
    training = Training(model, dataset, trainer_cls)

    mesh = gin.get_bindings(PjitPartitioner, resolve_references=True)
    if mesh.get("ici_mesh_shape") or mesh.get("dcn_mesh_shape"):
        raise gin_files.GinError(
            "PjitPartitioner.ici_mesh_shape and dcn_mesh_shape fix the number of devices; leave them out and give "
            "--num_slices: slices are replicas by themselves."
        )
    submesh = mesh.get("model_parallel_submesh") or ()
    model_axis = math.prod(submesh) if submesh else mesh.get("num_partitions") or 1
    rules = mesh.get("logical_axis_rules") or standard_logical_axis_rules()
    fsdp = ("embed", "data") in [tuple(rule) for rule in rules]
    if rules not in (standard_logical_axis_rules(), fsdp_logical_axis_rules()):
        logger.warning("Plans know the standard and the FSDP rules; PjitPartitioner.logical_axis_rules has others.")
    alone = PjitPartitioner(num_partitions=1, devices=jax.devices()[:1])
    trainer = make_trainer(trainer_cls, training.with_layers("none").model, alone)
    remat = (training.config and training.config.remat_policy) or "none"
    layout = MeshLayout(0, model_axis, fsdp, remat, trainer.num_microbatches)
    steps = bound.get("total_steps")
    steps = copy.deepcopy(steps) if steps is not None else None
    return training, layout, steps if isinstance(steps, int) and steps > 0 else 1_000_000


def _bind_unused_macros() -> None:
    import gin

    for name in _UNUSED_MACROS.keys() & set(macros.required()):
        gin.bind_parameter(f"%{name}", _UNUSED_MACROS[name])


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _price(text: str) -> tuple[float, str]:
    """Number and currency: of 3.22, "3.22 EUR", 3.22EUR and $3.22."""
    found = re.fullmatch(r"\s*([^\d\s.]*)\s*(\d+\.?\d*|\.\d+)\s*([^\d\s.]*)\s*", text)
    if found is None or (found[1] and found[3]) or not float(found[2]) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a price of a chip-hour, such as 3.22 or '3.22 EUR'")
    return float(found[2]), found[1] or found[3]


def _parser() -> argparse.ArgumentParser:
    parser = command_line.argument_parser("plan", __doc__ or "")
    parser.add_argument(
        "--topology", action="append", default=[], metavar="NAME",
        help="v4-32, v5e-16, h100-8 …; repeatable: several make a table of the recommended layouts",
    )  # fmt: skip
    parser.add_argument(
        "--all-topologies", "--all_topologies", action="store_true",
        help=f"a table of every topology of up to {_LARGEST_IN_TABLE} chips, by estimate",
    )  # fmt: skip
    parser.add_argument("--num_slices", type=int, default=1, metavar="N", help="TPU slices of this topology (1)")
    parser.add_argument(
        "--mfu", type=_positive, default=0.4, metavar="SHARE",
        help="model FLOPs over peak FLOPs that the run is assumed to reach (0.4)",
    )  # fmt: skip
    parser.add_argument(
        "--price", type=_price, default=(None, ""), metavar="P",
        help="of a chip-hour, for the cost of the training; 3.22, or with its currency: '3.22 EUR'",
    )  # fmt: skip
    parser.add_argument("--estimate_only", action="store_true", help="compile nothing: seconds, and no libtpu")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="keep results of the compiler in FILE, and compile nothing twice"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and plans."""
    prepare_environment()  # Parsing imports JAX.
    parser = _parser()
    flags = command_line.parse_flags(parser, argv)
    if not flags.gin_file:
        parser.error("give a model and a run, for example gin/models/t5_1_1/base.gin gin/runs/pretrain.gin")
    if not flags.topology and not flags.all_topologies:
        parser.error(f"give --topology, such as v4-32; there are {topologies.families()}; or --all-topologies")
    if flags.record is not None and flags.record.is_dir():
        parser.error(f"--record is {flags.record}, which is a folder; name a file")
    if flags.mfu > 1:
        parser.error(f"--mfu is {flags.mfu:g}; it is a share of the peak, such as 0.4")
    names = flags.topology or topologies.names()
    wanted = [topologies.find(name, flags.num_slices if flags.topology else 1) for name in names]
    if not flags.topology:
        wanted = [topology for topology in wanted if topology.num_chips <= _LARGEST_IN_TABLE]
    compiled = [not flags.estimate_only and bool(flags.topology) and _has_compiler(t) for t in wanted]
    from limba.addons.plan import compiled_step, plan_report  # JAX comes in here.

    for topology, is_compiled in zip(wanted, compiled, strict=True):
        if is_compiled:
            compiled_step.check_compiler(topology)
    planner = _planner(flags)
    if len(wanted) == 1:
        return 0 if planner.report(wanted[0], compiled=compiled[0]) else 1
    print(plan_report.TABLE_HEAD)
    rows = []
    for topology, confirm in zip(wanted, compiled, strict=True):
        rows.append(planner.row(topology, compiled=confirm))
        print(rows[-1], flush=True)
    return 0 if any("does not fit" not in row for row in rows) else 1


def _has_compiler(topology: topologies.Topology) -> bool:
    """Whether to compile for these devices; without libtpu TPUs end in an error, GPUs are estimated."""
    if topology.chip.platform == "tpu":
        return True
    if not gpu_targets.is_known(topology.kind):
        logger.info("%s is estimated: the compiler has no description of it.", topology.name)
        return False
    if not gpu_targets.is_installed():
        logger.info(
            "%s is estimated; pip install 'limba[plan_gpu]' (3 GB) compiles for it, without a card.", topology.name
        )
    return gpu_targets.is_installed()


def _planner(flags: argparse.Namespace) -> "Planner":
    import gin

    from limba.addons.plan.plan_report import Planner, Prices
    from limba.devices import native_logs

    with native_logs.filtered():
        training, given, steps = configured_training(flags)
    price, currency = flags.price
    key = hashlib.sha256(gin.config_str().encode()).hexdigest()[:16]
    return Planner(training, given, Prices(flags.mfu, price, steps, currency), flags.record, key)


def configured_training(flags: argparse.Namespace) -> tuple["Training", "MeshLayout", int]:
    """The training of gin flags (`gin_file`, `gin_bindings`, `gin_search_paths`), its layout, and its steps.

    Raises:
      GinError: if the files do not describe a training.
    """
    from limba.train import train

    configured = gin_files.configurable(train, module="limba.train")
    gin_files.parse_gin_flags(flags.gin_file, flags.gin_bindings, flags.gin_search_paths)
    _bind_unused_macros()
    gin_files.require_bindings(
        TASK_FEATURE_LENGTHS="\"{'inputs': 512, 'targets': 114}\"", TRAIN_STEPS="1_000_000", DROPOUT_RATE="0.0"
    )
    return _training(configured)


if __name__ == "__main__":
    # `python -m` makes a second copy of this module; gin must see the functions of the first.
    from limba.addons.plan import command as _this

    command_line.run_command(_this.main)
