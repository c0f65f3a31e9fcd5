"""`limba plan`: does a training fit a TPU slice or GPU box, how fast and how dear is it, and what layout is best there.

    limba plan --topology v4-32 --gin_file=gin/models/t5_1_1/xl.gin --gin_file=gin/runs/pretrain.gin \\
        --gin.TRAIN_STEPS=1_000_000 --gin.TASK_FEATURE_LENGTHS="{'inputs': 512, 'targets': 114}"

Files, flags and bindings are those of `limba train`; data and vocabulary are not opened, nothing is written, and no
accelerator is touched. For TPUs the training step is compiled by the slice's own compiler (libtpu: pip install
'limba[plan]'), with scanned layers, which compute what unrolled ones do. GPUs are estimated. docs/plan.md says what the
figures mean.

Exit code 0: a layout fits; 1: nothing that was tried does.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limba import gin_utils, topologies
from limba.topologies import GIB, Topology

if TYPE_CHECKING:  # They import JAX, which `prepare_environment` must precede.
    from limba.plan_choice import Choice
    from limba.plan_compile import Memory, Training
    from limba.plan_layouts import Layout, Work

# What a plan does not look at, where the files leave it open.
_NOT_NEEDED = {"MODEL_DIR": "not used", "MIXTURE_OR_TASK_NAME": "not_used", "INITIAL_CHECKPOINT_PATH": ()}
_LARGEST_IN_TABLE = 64
_SECONDS_A_DAY = 86_400


def prepare_environment() -> None:
    """Keeps JAX and libtpu from looking for a TPU here; before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Else libtpu asks the metadata server of a TPU's host, for minutes, and complains.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v4-8")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # Several plans may run at once, and none has the device that the lock is for.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    # Half of the default effort's time, for peaks that differ little; `plan_choice.USABLE` covers the difference.
    os.environ.setdefault("JAX_OPTIMIZATION_LEVEL", "O0")


@dataclasses.dataclass(frozen=True)
class Prices:
    """What time costs.

    Attributes:
      mfu: the model FLOPs that are reached, as a share of the peak.
      price: of a chip-hour, in whatever currency; None where it is not known.
      steps: of the whole training.
    """

    mfu: float
    price: float | None
    steps: int

    def rows_per_second(self, work: "Work", topology: Topology) -> float:
        return self.mfu * topology.chip.peak * topology.all_chips / (work.model_flops / work.batch_size)

    def days(self, work: "Work", topology: Topology) -> float:
        return self.steps * work.batch_size / self.rows_per_second(work, topology) / _SECONDS_A_DAY

    def cost(self, work: "Work", topology: Topology) -> float | None:
        return None if self.price is None else self.days(work, topology) * 24 * topology.all_chips * self.price


class Planner:
    """A training, and what was compiled of it.

    Attributes:
      training: as it is configured.
      given: the layout that is configured, without the data axis, which depends on the devices.
      record: a file of what was compiled, so that nothing is compiled twice; None keeps none.
    """

    def __init__(self, training: "Training", given: "Layout", prices: Prices, record: Path | None, key: str):
        from limba.plan_compile import StateSizes

        self.training, self.given, self.prices, self.record, self._key = training, given, prices, record, key
        self.work = training.work
        self.state = StateSizes(training)

    # ------------------------------------------------- compiling -----------------------------------------------------

    def compile(self, layout: "Layout", topology: Topology) -> "Memory":
        """Memory of a layout, from the record or from the compiler."""
        from limba import plan_compile

        key = f"{self._key} {topology.num_slices} x {topology.name} {layout}"
        if self.record is not None and self.record.is_file():
            for line in self.record.read_text().splitlines():
                if (known := json.loads(line))["key"] == key:
                    return plan_compile.Memory(**known["memory"])
        began = time.monotonic()
        training = self.training.with_layers(layout.remat)
        mesh = plan_compile.partitioner(layout, plan_compile.devices_of(topology))
        memory = plan_compile.compile_step(training, mesh, layout.microbatches)
        if self.record is not None:
            with self.record.open("a") as file:
                seconds = round(time.monotonic() - began, 1)
                print(json.dumps({"key": key, "memory": dataclasses.asdict(memory), "seconds": seconds}), file=file)
        return memory

    def choose(self, topology: Topology, *, compiled: bool, tell: Any = lambda layout, memory: None) -> "Choice | None":
        """The fastest layout that fits."""
        from limba import plan_choice

        ranked = plan_choice.rank(self.training, self.work, self.state, topology)
        compile_layout = (lambda layout: self.compile(layout, topology)) if compiled else None
        return plan_choice.choose(ranked, topology, compile_layout, tell)

    def as_given(self, topology: Topology) -> "Layout":
        """The configured layout on these devices.

        Raises:
          ValueError: if it cannot be spread over them.
        """
        devices = topology.num_devices // topology.num_slices
        if devices % self.given.model:
            raise ValueError(
                f"PjitPartitioner.num_partitions = {self.given.model} does not divide the {devices} devices of "
                f"{topology.name}."
            )
        layout = dataclasses.replace(self.given, data=devices // self.given.model, slices=topology.num_slices)
        rows = layout.data * layout.slices * layout.microbatches
        if self.work.batch_size % rows:
            raise ValueError(
                f"BATCH_SIZE is {self.work.batch_size}, which does not divide by {layout.data * layout.slices} data "
                f"shards x {layout.microbatches} microbatches."
            )
        return layout

    # ------------------------------------------------- reports -------------------------------------------------------

    def report(self, topology: Topology, *, compiled: bool) -> bool:
        """Prints the plan for one topology; whether anything fits."""
        print(self.headline(topology), flush=True)
        self._report_given(topology, compiled=compiled)
        guess = self.choose(topology, compiled=False)
        if guess is None:
            print(f"No layout fits {topology.name}, by estimate. {self._larger(topology)}")
            return False
        print(f"best by estimate: {guess.layout}: {_split(guess.memory)}", flush=True)
        if not compiled:
            self._recommend(guess, topology)
            return True

        def tell(layout: "Layout", memory: "Memory") -> None:
            print(f"compiled: {layout}: {_verdict(memory, topology)}", flush=True)

        choice = self.choose(topology, compiled=True, tell=tell)
        if choice is None:
            print(f"None of the layouts that were compiled fits {topology.name}. {self._larger(topology)}")
            return False
        self._recommend(choice, topology)
        return True

    def headline(self, topology: Topology) -> str:
        work, chip = self.work, topology.chip
        lengths = " + ".join(str(n) for n in (work.inputs, work.targets) if n)
        slices = f"{topology.num_slices} x " if topology.num_slices > 1 else ""
        return (
            f"{work.num_parameters:,} parameters, {work.batch_size} rows of {lengths} tokens, on {slices}"
            f"{topology.name}: {topology.all_chips} chips, {topology.num_hosts} hosts, {topology.memory / GIB:.2f} GiB "
            f"for each of {topology.num_devices} devices, {chip.peak / 1e12:g} TFLOP/s a chip"
        )

    def _report_given(self, topology: Topology, *, compiled: bool) -> None:
        from limba import plan_choice

        try:
            layout = self.as_given(topology)
            memory = self.state.memory(layout)
            state = memory.parameters + memory.optimizer
            # Gradients are as large as the parameters: what does not fit with them needs no compiler.
            if state + memory.parameters > topology.memory:
                print(
                    f"as configured: {layout}: does not fit: parameters, optimizer state and gradients alone take "
                    f"{(state + memory.parameters) / GIB:.1f} GiB of {topology.memory / GIB:.2f}",
                    flush=True,
                )
                return
            if compiled:
                memory = self.compile(layout, topology)
            else:
                memory = plan_choice.estimate(layout, self.work, self.state, topology).memory
            print(f"as configured: {layout}: {_verdict(memory, topology)}", flush=True)
        except ValueError as error:
            print(f"as configured: cannot be: {error}", flush=True)

    def _larger(self, topology: Topology) -> str:
        """The smallest slice or box of the kind on which something is estimated to fit."""
        kinds = [name for name in topologies.names() if name.rpartition("-")[0] == topology.kind]
        for larger in (topologies.find(name, topology.num_slices) for name in kinds):
            if larger.num_chips > topology.num_chips and self.choose(larger, compiled=False) is not None:
                return f"By estimate {larger.name} is the smallest that has room."
        return f"No {topology.kind} that is known has room for this batch."

    def _recommend(self, choice: "Choice", topology: Topology) -> None:
        work, prices = self.work, self.prices
        print(f"recommended{'' if choice.compiled else ' (estimated, not compiled)'}: {choice.layout}")
        print(f"  memory per device  {_split(choice.memory)}")
        again = work.hardware_flops(choice.layout.remat) / work.model_flops - 1
        print(f"  FLOPs per step     {work.model_flops / 1e12:.4g} T of the model, {again:.0%} more by recomputation")
        rows = prices.rows_per_second(work, topology)
        print(f"  at {prices.mfu:.0%} MFU         {rows:,.0f} sequences/s, {work.batch_size / rows:.3g} s a step")
        cost = prices.cost(work, topology)
        days = f"{prices.days(work, topology):.3g} days"
        print(f"  {prices.steps:,} steps  {days}" + (f", {cost:,.0f} at {prices.price:g} a chip-hour" if cost else ""))
        for line in choice.layout.gin_lines(self.config_name):
            print(f"  {line}")

    @property
    def config_name(self) -> str | None:
        """How a gin file calls the network's configuration."""
        config = self.training.config
        return config and f"{type(config).__module__.rpartition('.')[2]}.{type(config).__name__}"

    def row(self, topology: Topology, *, compiled: bool) -> str:
        """A line of a table; see `TABLE_HEAD`."""
        choice = self.choose(topology, compiled=compiled)
        name = f"{topology.num_slices} x {topology.name}" if topology.num_slices > 1 else topology.name
        if choice is None:
            return f"| {name} | {topology.all_chips} | does not fit | | | | | |"
        layout, memory, prices = choice.layout, choice.memory, self.prices
        mesh = f"{layout.data} x {layout.model}{' FSDP' if layout.fsdp else ''}"
        used = [x / GIB for x in (memory.needed, memory.parameters, memory.optimizer, memory.temporary)]
        cost = prices.cost(self.work, topology)
        return (
            f"| {name} | {topology.all_chips} | {mesh} | {layout.remat} | {layout.microbatches} | "
            f"{used[0]:.1f} = {used[1]:.2f} + {used[2]:.2f} + {used[3]:.1f} of {topology.memory / GIB:.1f} | "
            f"{prices.rows_per_second(self.work, topology):,.0f} | {prices.days(self.work, topology):.3g}"
            + (f", {cost:,.0f}" if cost else "")
            + " |"
        )


TABLE_HEAD = (
    "| topology | chips | mesh, data x model | remat | microbatches | GiB per device = parameters + optimizer + rest | "
    "sequences/s | days |\n|---|---|---|---|---|---|---|---|"
)


def _split(memory: "Memory") -> str:
    parts = (memory.needed, memory.parameters, memory.optimizer, memory.temporary)
    total, parameters, optimizer, rest = (f"{x / GIB:.2f}" for x in parts)
    return f"{total} GiB = parameters {parameters} + optimizer {optimizer} + activations, gradients {rest}"


def _verdict(memory: "Memory", topology: Topology) -> str:
    from limba import plan_choice

    if plan_choice.fits(memory, topology):
        return f"fits: {_split(memory)}"
    limit = f"of {topology.memory / GIB:.2f} GiB a device, of which {plan_choice.USABLE:.0%} are planned with"
    return f"does not fit: {_split(memory)} {limit}"


# ------------------------------------------------------ command ------------------------------------------------------


def _training(configured: Any) -> tuple["Training", "Layout", int]:
    """The training that gin describes, its layout, and its steps."""
    import copy

    import gin
    import jax

    from limba.data import DatasetConfig
    from limba.partitioning import PjitPartitioner
    from limba.plan_compile import Training
    from limba.plan_layouts import Layout
    from limba.trainer import Trainer

    bound = gin.get_bindings(configured, resolve_references=False)
    missing = [name for name in ("model", "train_dataset_cfg") if name not in bound]
    if missing:
        raise gin_utils.GinError(
            f"The gin files bind no train.{missing[0]}; give those of a training: a model of gin/models/ and "
            "gin/runs/pretrain.gin or gin/runs/finetune.gin."
        )
    # Gin builds what is referred to when it is copied.
    made = {name: copy.deepcopy(bound[name]) for name in ("model", "train_dataset_cfg")}
    trainer_cls = copy.deepcopy(bound["trainer_cls"]) if "trainer_cls" in bound else Trainer
    dataset: DatasetConfig = made["train_dataset_cfg"]
    if not dataset.task_feature_lengths:
        raise gin_utils.GinError(
            "TASK_FEATURE_LENGTHS is not bound to lengths: add --gin.TASK_FEATURE_LENGTHS=\"{'inputs': 512, "
            "'targets': 114}\"."
        )
    training = Training(made["model"], dataset, trainer_cls)

    mesh = gin.get_bindings(PjitPartitioner, resolve_references=True)
    if mesh.get("ici_mesh_shape") or mesh.get("dcn_mesh_shape"):
        raise gin_utils.GinError(
            "PjitPartitioner.ici_mesh_shape and dcn_mesh_shape fix the number of devices; leave them out and give "
            "--num_slices: slices are replicas by themselves."
        )
    submesh = mesh.get("model_parallel_submesh") or ()
    model_axis = 1
    for size in submesh:
        model_axis *= size
    model_axis = model_axis if submesh else mesh.get("num_partitions") or 1
    fsdp = ("embed", "data") in [tuple(rule) for rule in mesh.get("logical_axis_rules") or ()]
    alone = PjitPartitioner(num_partitions=1, devices=jax.devices()[:1])
    trainer = trainer_cls(model=training.with_layers("none").model, partitioner=alone, rng=jax.random.key(0))
    remat = (training.config and training.config.remat_policy) or "none"
    layout = Layout(0, model_axis, fsdp, remat, getattr(trainer, "num_microbatches", None) or 1)
    steps = bound.get("total_steps")
    steps = copy.deepcopy(steps) if steps is not None else None
    return training, layout, steps if isinstance(steps, int) and steps > 0 else 1_000_000


def _bind_what_is_not_needed() -> None:
    import gin

    for name, value in _NOT_NEEDED.items():
        try:
            bound = gin.query_parameter(f"%{name}")
        except ValueError:
            continue
        if bound is gin.REQUIRED or "gin.REQUIRED" in str(bound):
            gin.bind_parameter(f"%{name}", value)


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = gin_utils.argument_parser("plan", __doc__ or "")
    parser.add_argument("files", nargs="*", metavar="GIN", help="gin files, read after those of --gin_file")
    parser.add_argument(
        "--topology", action="append", default=[], metavar="NAME",
        help="v4-32, v5e-16, h100-8 …; repeatable: several make a table of what is recommended",
    )  # fmt: skip
    parser.add_argument(
        "--all-topologies", "--all_topologies", action="store_true",
        help=f"a table of every topology of up to {_LARGEST_IN_TABLE} chips, by estimate",
    )  # fmt: skip
    parser.add_argument("--num_slices", type=int, default=1, metavar="N", help="TPU slices of this topology (1)")
    parser.add_argument(
        "--mfu", type=_positive, default=0.4, metavar="SHARE",
        help="model FLOPs over peak FLOPs that the run is taken to reach (0.4)",
    )  # fmt: skip
    parser.add_argument("--price", type=_positive, metavar="P", help="of a chip-hour, for the cost of the training")
    parser.add_argument("--estimate_only", action="store_true", help="compile nothing: seconds, and no libtpu")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="keep what was compiled in FILE, and compile nothing twice"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and plans."""
    parser = _parser()
    flags = gin_utils.parse_flags(parser, argv)
    files = [*flags.gin_file, *flags.files]
    if not files:
        parser.error("give a model and a run, for example gin/models/t5_1_1/base.gin gin/runs/pretrain.gin")
    if not flags.topology and not flags.all_topologies:
        parser.error(f"give --topology: one of {', '.join(topologies.names())}; or --all-topologies")
    if flags.mfu > 1:
        parser.error(f"--mfu is {flags.mfu:g}; it is a share of the peak, such as 0.4")
    names = flags.topology or topologies.names()
    wanted = [topologies.find(name, flags.num_slices if flags.topology else 1) for name in names]
    if not flags.topology:
        wanted = [topology for topology in wanted if topology.num_chips <= _LARGEST_IN_TABLE]
    compiled = [not flags.estimate_only and bool(flags.topology) and t.chip.platform == "tpu" for t in wanted]
    prepare_environment()
    from limba import plan_compile  # JAX comes in here.

    if any(compiled):
        plan_compile.check_compiler()
    planner = _planner(files, flags)
    if len(wanted) == 1:
        return 0 if planner.report(wanted[0], compiled=compiled[0]) else 1
    print(TABLE_HEAD)
    rows = []
    for topology, confirm in zip(wanted, compiled, strict=True):
        rows.append(planner.row(topology, compiled=confirm))
        print(rows[-1], flush=True)
    return 0 if any("does not fit" not in row for row in rows) else 1


def _planner(files: Sequence[str], flags: argparse.Namespace) -> Planner:
    import gin

    from limba import native_logs
    from limba.train import train

    configured = gin.external_configurable(train, module="limba.train")
    gin_utils.parse_gin_flags(files, flags.gin_bindings, flags.gin_search_paths)
    _bind_what_is_not_needed()
    gin_utils.require_bindings(
        TASK_FEATURE_LENGTHS="\"{'inputs': 512, 'targets': 114}\"", TRAIN_STEPS="1_000_000", DROPOUT_RATE="0.0"
    )
    key = hashlib.sha256(gin.config_str().encode()).hexdigest()[:16]
    with native_logs.filtered():
        training, given, steps = _training(configured)
    return Planner(training, given, Prices(flags.mfu, flags.price, steps), flags.record, key)


if __name__ == "__main__":
    # `python -m` makes a second copy of this module; gin must see the functions of the first.
    from limba import plan as _this

    gin_utils.run_command(_this.main)
