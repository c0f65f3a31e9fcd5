"""Finds the fastest layout that fits: estimates rank the layouts, and the compiler checks the best of them."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from limba.addons.plan.compiled_step import Memory, StateSizes, Training
from limba.addons.plan.memory_estimate import has_fused_kernels, temporary_bytes
from limba.addons.plan.mesh_layouts import REMAT_POLICIES, MeshLayout, Work, candidates
from limba.addons.plan.time_estimate import LEAST_SECONDS, relative_seconds
from limba.addons.plan.topologies import Topology

# Share of the memory that a plan fills. It keeps the rest free: plans are compiled with less effort than a run's step,
# whose peak was up to 14 % higher, and a run has metrics, the next batch and fragments beside its step.
USABLE = 0.9
# Layouts that are compiled before a plan gives up.
MAX_COMPILED = 6
# Where the compiler gives a bound: layouts that fit and are compared by it, and how much slower than the first of them
# one may be by estimate.
COMPARED, SLOWER = 3, 1.5


@dataclasses.dataclass(frozen=True)
class LayoutCost:
    """Memory (`compiled`: the compiler's, else an estimate) and `relative_seconds` of a layout.

    Attributes:
      seconds: at least `LEAST_SECONDS`.
      bound: seconds that no run of the compiled step is below; None where it is not known.
    """

    layout: MeshLayout
    memory: Memory
    seconds: float
    compiled: bool = False
    bound: float | None = None


@dataclasses.dataclass(frozen=True)
class CompiledCost:
    """What the compiler says of a layout."""

    memory: Memory
    bound: float | None = None


def fits(memory: Memory, topology: Topology) -> bool:
    """Whether the memory that a plan keeps free stays free."""
    return memory.needed <= USABLE * topology.memory


def estimate(layout: MeshLayout, work: Work, state: StateSizes, topology: Topology) -> LayoutCost:
    """Of one layout; of a network without a `T5Config` only the state and the gradients are counted."""
    memory = state.memory(layout)
    if work.sizes is None:
        rest = memory.parameters
    else:
        rest = temporary_bytes(work, layout, memory.parameters, fused=has_fused_kernels(work, topology))
    memory = dataclasses.replace(memory, peak=memory.parameters + memory.optimizer + rest)
    seconds = relative_seconds(work, layout, topology, memory.parameters)
    return LayoutCost(layout, memory, max(seconds, LEAST_SECONDS))


def rank(training: Training, work: Work, state: StateSizes, topology: Topology) -> list[LayoutCost]:
    """All layouts, the fastest first; of equal ones the simplest, as of all whose steps only wait for their kernels."""
    policies: Sequence[str] = REMAT_POLICIES if training.config is not None else ("none",)
    estimates = [estimate(layout, work, state, topology) for layout in candidates(work, topology, policies)]
    return sorted(estimates, key=lambda x: (x.seconds, x.layout.model, x.layout.microbatches, x.layout.fsdp))


def choose(
    ranked: Sequence[LayoutCost],
    topology: Topology,
    compile_layout: Callable[[MeshLayout], CompiledCost] | None,
    report: Callable[[MeshLayout, CompiledCost], None] | None = None,
) -> LayoutCost | None:
    """The fastest layout that fits, of `ranked`, the fastest first; None if none does.

    Without `compile_layout` it takes the estimates. With bounds, the first few that fit are compared by them. `report`
    is called with each compiled layout.
    """
    wrong_by = 1.0  # The compiler's memory over the estimate, at most, of the layouts that did not fit.
    compiled = 0
    fitting: list[LayoutCost] = []
    for guess in ranked:
        if guess.memory.needed * wrong_by > USABLE * topology.memory:
            continue
        if compile_layout is None:
            return guess
        if fitting and (guess.seconds > SLOWER * fitting[0].seconds or len(fitting) == COMPARED):
            break
        if any(_without_microbatches(guess.layout) == _without_microbatches(x.layout) for x in fitting):
            continue  # Smaller products are not faster.
        if compiled == MAX_COMPILED:
            break
        cost = compile_layout(guess.layout)
        compiled += 1
        if report is not None:
            report(guess.layout, cost)
        if fits(cost.memory, topology):
            fitting.append(dataclasses.replace(guess, memory=cost.memory, bound=cost.bound, compiled=True))
            if cost.bound is None:
                break
        elif math.isfinite(cost.memory.needed):
            wrong_by = max(wrong_by, cost.memory.needed / guess.memory.needed)
    return min(fitting, key=lambda x: max(x.bound or 0.0, LEAST_SECONDS), default=None)


def _without_microbatches(layout: MeshLayout) -> MeshLayout:
    return dataclasses.replace(layout, microbatches=1)
