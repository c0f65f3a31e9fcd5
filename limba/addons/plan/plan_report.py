"""The report of `limba plan`: whether a training fits, its time and cost, and the layout to take."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax

from limba.addons.plan import compiled_step, layout_choice, topologies
from limba.addons.plan.compiled_step import Memory, Training
from limba.addons.plan.layout_choice import CompiledCost, LayoutCost
from limba.addons.plan.memory_estimate import has_fused_kernels
from limba.addons.plan.mesh_layouts import MeshLayout, Work
from limba.addons.plan.time_estimate import LEAST_SECONDS
from limba.addons.plan.topologies import GIB, Topology
from limba.files import json_text
from limba.gin_config import gin_names

_SECONDS_A_DAY = 86_400
# What others reached, by platform. A user's 4,000,000 steps of mT5 large (1.2 billion parameters, 512 + 256 tokens)
# with T5X took about three weeks on a v4-32: 14 % if the batch was T5X's 128. nanoT5's figure is in docs/plan.md.
_MFU_OF_OTHERS = {
    "tpu": (0.14, "a user's mT5 large with T5X on a v4-32"),
    "gpu": (0.31, "nanoT5's T5 1.1 base with PyTorch on an A100"),
}
# Of the figures in a record: another one where the programs that we compile change.
_RECORD = "with fused attention"


@dataclasses.dataclass(frozen=True)
class Prices:
    """Time and cost of a training.

    Attributes:
      mfu: assumed model FLOPs, as a share of the peak.
      price: of a chip-hour, in whatever currency; None where it is not known.
      steps: of the whole training.
      currency: of the price, as it was given; may be empty.
    """

    mfu: float
    price: float | None
    steps: int
    currency: str = ""

    def rows_per_second(self, work: Work, topology: Topology) -> float:
        return self.mfu * topology.chip.peak * topology.all_chips / (work.model_flops / work.batch_size)

    def is_too_small(self, work: Work, topology: Topology) -> bool:
        """Whether a step waits for its kernels, so that its time is known by its bound only."""
        return work.batch_size / self.rows_per_second(work, topology) < LEAST_SECONDS

    def days(self, work: Work, topology: Topology) -> float:
        """Of the training; of too small steps the most, at `LEAST_SECONDS` a step."""
        seconds = max(work.batch_size / self.rows_per_second(work, topology), LEAST_SECONDS)
        return self.steps * seconds / _SECONDS_A_DAY

    def cost(self, work: Work, topology: Topology) -> float | None:
        """In the price's currency; of too small steps the most."""
        return None if self.price is None else self.days(work, topology) * 24 * topology.all_chips * self.price

    def paid(self, work: Work, topology: Topology) -> str:
        """ ", 5,564 EUR at 3.22 EUR a chip-hour"; nothing without a price."""
        cost = self.cost(work, topology)
        if cost is None:
            return ""
        currency = f" {self.currency}" if self.currency else ""
        return f", {_amount(cost)}{currency} at {self.price:g}{currency} a chip-hour"


class Planner:
    """Plans a training for any topology.

    `given` is the configured layout, without the data axis, which depends on the devices. `record` is a file with the
    compiler's results, so that nothing is compiled twice; None keeps none.
    """

    def __init__(self, training: Training, given: MeshLayout, prices: Prices, record: Path | None, key: str):
        self.training, self.given, self.prices, self.record, self._key = training, given, prices, record, key
        self.work = training.work
        self.state = compiled_step.StateSizes(training)
        self._known: dict[str, CompiledCost] = {}

    # ------------------------------------------------- compiling -----------------------------------------------------

    def compile(self, layout: MeshLayout, topology: Topology) -> CompiledCost:
        """Memory and bound of a layout: known, from the record or from the compiler."""
        key = f"{self._key} {topology.num_slices} x {topology.name} {layout}, {jax.__version__}, {_RECORD}"
        if key in self._known:
            return self._known[key]
        if self.record is not None and self.record.is_file():
            for line in self.record.read_text().splitlines():
                if (known := json.loads(line))["key"] == key:
                    return CompiledCost(Memory(**known["memory"]), known["bound"])
        began = time.monotonic()
        training = self.training.with_layers(layout.remat, scanned=self._is_scanned(topology))
        mesh = compiled_step.partitioner(layout, compiled_step.devices_of(topology))
        step = compiled_step.compile_step(training, mesh, layout.microbatches)
        cost = self._known[key] = CompiledCost(step.memory, step.bound(topology))
        if self.record is not None:
            with self.record.open("a") as file:
                seconds = round(time.monotonic() - began, 1)
                print(json_text.dumps({"key": key, **dataclasses.asdict(cost), "seconds": seconds}), file=file)
        return cost

    def _is_scanned(self, topology: Topology) -> bool:
        """Whether a plan scans layers: on TPUs it compiles faster, on GPUs a loop copies twice what it keeps."""
        return topology.chip.platform != "gpu" and self.training.can_scan

    def choose(
        self, topology: Topology, *, compiled: bool, report: Callable[[MeshLayout, CompiledCost], None] | None = None
    ) -> LayoutCost | None:
        """The fastest layout that fits."""
        ranked = layout_choice.rank(self.training, self.work, self.state, topology)
        compile_layout = (lambda layout: self.compile(layout, topology)) if compiled else None
        return layout_choice.choose(ranked, topology, compile_layout, report)

    def as_given(self, topology: Topology) -> MeshLayout:
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
        print(f"best by estimate: {guess.layout}: {_split(guess.memory)}", file=sys.stderr, flush=True)
        if not compiled:
            self._recommend(guess, topology)
            return True

        def report(layout: MeshLayout, cost: CompiledCost) -> None:
            found = f"{self._bound(cost.bound, topology)}{_verdict(cost.memory, topology)}"
            print(f"compiled: {layout}: {found}", file=sys.stderr, flush=True)

        choice = self.choose(topology, compiled=True, report=report)
        if choice is None:
            print(f"None of the layouts that were compiled fits {topology.name}. {self._larger(topology)}")
            return False
        self._recommend(choice, topology)
        return True

    def headline(self, topology: Topology) -> str:
        work, chip = self.work, topology.chip
        lengths = " + ".join(str(n) for n in (work.inputs, work.targets) if n)
        slices = f"{topology.num_slices} x " if topology.num_slices > 1 else ""
        used = work.used_parameters or work.num_parameters
        of_experts = f" ({used:,} used by a token)" if used < work.num_parameters else ""
        hosts = f"{topology.num_hosts} host{'s' if topology.num_hosts > 1 else ''}"
        return (
            f"{work.num_parameters:,} parameters{of_experts}, {work.batch_size} rows of {lengths} tokens, on {slices}"
            f"{topology.name}: {topology.all_chips} chips, {hosts}, {topology.memory / GIB:.2f} GiB "
            f"for each of {topology.num_devices} devices, {chip.peak / 1e12:g} TFLOP/s a chip"
        )

    def _report_given(self, topology: Topology, *, compiled: bool) -> None:
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
            bound = None
            if compiled:
                cost = self.compile(layout, topology)
                memory, bound = cost.memory, cost.bound
            else:
                memory = layout_choice.estimate(layout, self.work, self.state, topology).memory
            print(f"as configured: {layout}: {self._bound(bound, topology)}{_verdict(memory, topology)}", flush=True)
        except ValueError as error:
            print(f"as configured: cannot be: {error}", flush=True)

    def _bound(self, seconds: float | None, topology: Topology) -> str:
        """ "52.3 ms or more (53% MFU at most), "; nothing where the bound is not known."""
        if seconds is None:
            return ""
        return f"{1000 * seconds:.3g} ms or more ({self._most_mfu(seconds, topology):.0%} MFU at most), "

    def _most_mfu(self, bound: float, topology: Topology) -> float:
        return self.work.model_flops / (topology.chip.peak * topology.all_chips) / bound

    def _larger(self, topology: Topology) -> str:
        """The smallest slice or box of the kind on which something is estimated to fit."""
        kinds = [name for name in topologies.names() if name.rpartition("-")[0] == topology.kind]
        for larger in (topologies.find(name, topology.num_slices) for name in kinds):
            if larger.num_chips > topology.num_chips and self.choose(larger, compiled=False) is not None:
                return f"By estimate {larger.name} is the smallest that has room."
        return f"No {topology.kind} that is known has room for this batch."

    def _recommend(self, choice: LayoutCost, topology: Topology) -> None:
        work, prices = self.work, self.prices
        print(f"recommended{'' if choice.compiled else ' (estimated, not compiled)'}: {choice.layout}")
        print(f"  memory per device  {_split(choice.memory)}")
        again = work.hardware_flops(choice.layout.remat) / work.model_flops - 1
        print(f"  FLOPs per step     {work.model_flops / 1e12:.4g} T of the model, {again:.0%} more by recomputation")
        config = self.training.config
        if config is not None:
            fused = "fused kernels; the run compares them with XLA's on the device first, and uses XLA's if they differ"
            words = fused if has_fused_kernels(work, topology) else "XLA's"
            print(f"  attention          {words}")
        if choice.bound is not None:
            most = self._most_mfu(choice.bound, topology)
            print(f"  bound              {1000 * choice.bound:.3g} ms a step or more, {most:.0%} MFU at most")
            if most < prices.mfu:
                print(f"  --mfu {prices.mfu:.0%} is more than that: the time is that of {most:.0%}")
                prices = dataclasses.replace(prices, mfu=most)
        for line in _time(prices, work, topology):
            print(f"  {line}")
        name = None if config is None else gin_names.gin_name(type(config))
        for line in choice.layout.gin_lines(name, scanned=self._is_scanned(topology)):
            print(f"  {line}")

    def row(self, topology: Topology, *, compiled: bool) -> str:
        """A line of a table; see `TABLE_HEAD`."""
        choice = self.choose(topology, compiled=compiled)
        name = f"{topology.num_slices} x {topology.name}" if topology.num_slices > 1 else topology.name
        if choice is None:
            tried = compiled and self.choose(topology, compiled=False) is not None
            return f"| {name} | {topology.all_chips} | does not fit | | | | {_source(tried)} | | |"
        layout, memory, prices = choice.layout, choice.memory, self.prices
        mesh = f"{layout.data} x {layout.model}{' FSDP' if layout.fsdp else ''}"
        used = [x / GIB for x in (memory.needed, memory.parameters, memory.optimizer, memory.temporary)]
        most = prices.is_too_small(self.work, topology)
        cost = prices.cost(self.work, topology)
        rows = "" if most else f"{prices.rows_per_second(self.work, topology):,.0f}"
        paid = "" if cost is None else f", {_amount(cost)} {prices.currency}".rstrip()
        return (
            f"| {name} | {topology.all_chips} | {mesh} | {layout.remat} | {layout.microbatches} | "
            f"{used[0]:.1f} = {used[1]:.2f} + {used[2]:.2f} + {used[3]:.1f} of {topology.memory / GIB:.1f} | "
            f"{_source(choice.compiled)} | {rows} | "
            f"{'at most ' if most else ''}{prices.days(self.work, topology):.3g}{paid} |"
        )


def _time(prices: Prices, work: Work, topology: Topology) -> list[str]:
    """Time and cost of the training at the assumed MFU, and at the one that others reached on such chips."""
    rows = prices.rows_per_second(work, topology)
    seconds = work.batch_size / rows
    if prices.is_too_small(work, topology):
        chips = f"{topology.all_chips} chips" if topology.all_chips > 1 else "this chip"
        return [
            f"at {prices.mfu:.0%} MFU         {1000 * seconds:.2g} ms a step: too small for {chips}. Such a step waits "
            f"for its kernels, so MFU says nothing; at {1000 * LEAST_SECONDS:g} ms {prices.steps:,} steps take "
            f"{_duration(prices.steps * LEAST_SECONDS)}{prices.paid(work, topology)}, at most. Measure it."
        ]
    found = [f"at {prices.mfu:.0%} MFU         {rows:,.0f} sequences/s, {seconds:.3g} s a step"]
    mfu, who = _MFU_OF_OTHERS[topology.chip.platform]
    for assumed, whose in ((prices, ""), (dataclasses.replace(prices, mfu=mfu), f" at {mfu:.0%} MFU, as {who}")):
        duration = _duration(assumed.days(work, topology) * _SECONDS_A_DAY)
        found.append(f"{prices.steps:,} steps  {duration}{assumed.paid(work, topology)}{whose}")
    return found


def _amount(cost: float) -> str:
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.2f}"


def _duration(seconds: float) -> str:
    """In the largest unit of which there is one: "18 days", "5.2 hours"."""
    units = (("days", _SECONDS_A_DAY), ("hours", 3600), ("minutes", 60), ("seconds", 1))
    unit, size = next((x for x in units if seconds >= x[1]), units[-1])
    number = f"{seconds / size:.3g}"
    return f"{number} {unit.removesuffix('s') if number == '1' else unit}"


TABLE_HEAD = (
    "| topology | chips | mesh, data x model | remat | microbatches | GiB per device = parameters + optimizer + rest | "
    "by | sequences/s | days |\n|---|---|---|---|---|---|---|---|---|"
)


def _source(compiled: bool) -> str:
    return "compiler" if compiled else "estimate"


def _split(memory: Memory) -> str:
    parts = (memory.needed, memory.parameters, memory.optimizer, memory.temporary)
    total, parameters, optimizer, rest = (f"{x / GIB:.2f}" for x in parts)
    return f"{total} GiB = parameters {parameters} + optimizer {optimizer} + activations, gradients {rest}"


def _verdict(memory: Memory, topology: Topology) -> str:
    if layout_choice.fits(memory, topology):
        return f"fits: {_split(memory)}"
    limit = f"of {topology.memory / GIB:.2f} GiB a device, of which a plan fills {layout_choice.USABLE:.0%}"
    return f"does not fit: {_split(memory)} {limit}"
