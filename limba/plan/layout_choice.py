"""Finds the fastest layout that fits: estimates rank the layouts, and the compiler checks the best of them."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from limba.plan.compiled_step import Memory, StateSizes, Training
from limba.plan.memory_estimate import temporary_bytes
from limba.plan.mesh_layouts import REMAT_POLICIES, MeshLayout, Work, candidates
from limba.plan.time_estimate import relative_seconds
from limba.plan.topologies import Topology

# Share of the memory that a plan fills. It keeps the rest free: plans are compiled with less effort than a run's step,
# whose peak was up to 14 % higher, and a run has metrics, the next batch and fragments beside its step.
USABLE = 0.9
# Layouts that are compiled before a plan gives up.
MAX_COMPILED = 6


@dataclasses.dataclass(frozen=True)
class LayoutCost:
    """Memory (`compiled`: the compiler's, else an estimate) and `relative_seconds` of a layout."""

    layout: MeshLayout
    memory: Memory
    seconds: float
    compiled: bool = False


def fits(memory: Memory, topology: Topology) -> bool:
    """Whether the memory that a plan keeps free stays free."""
    return memory.needed <= USABLE * topology.memory


def estimate(layout: MeshLayout, work: Work, state: StateSizes, topology: Topology) -> LayoutCost:
    """Of one layout; of a network without a `T5Config` only the state and the gradients are counted."""
    memory = state.memory(layout)
    rest = memory.parameters if work.sizes is None else temporary_bytes(work, layout, memory.parameters)
    memory = dataclasses.replace(memory, peak=memory.parameters + memory.optimizer + rest)
    return LayoutCost(layout, memory, relative_seconds(work, layout, topology, memory.parameters))


def rank(training: Training, work: Work, state: StateSizes, topology: Topology) -> list[LayoutCost]:
    """All layouts, the fastest first; of equal ones the simplest."""
    policies: Sequence[str] = REMAT_POLICIES if training.config is not None else ("none",)
    estimates = [estimate(layout, work, state, topology) for layout in candidates(work, topology, policies)]
    return sorted(estimates, key=lambda x: (x.seconds, x.layout.microbatches, x.layout.model, x.layout.fsdp))


def choose(
    ranked: Sequence[LayoutCost],
    topology: Topology,
    compile_layout: Callable[[MeshLayout], Memory] | None,
    report: Callable[[MeshLayout, Memory], None] | None = None,
) -> LayoutCost | None:
    """The fastest layout that fits, of `ranked`, the fastest first; None if none does.

    Without `compile_layout` it takes the estimates. `report` is called with each compiled layout and its memory.
    """
    wrong_by = 1.0  # The compiler's memory over the estimate, at most, of the layouts that did not fit.
    compiled = 0
    for guess in ranked:
        if guess.memory.needed * wrong_by > USABLE * topology.memory:
            continue
        if compile_layout is None:
            return guess
        if compiled == MAX_COMPILED:
            return None
        memory = compile_layout(guess.layout)
        compiled += 1
        if report is not None:
            report(guess.layout, memory)
        if fits(memory, topology):
            return dataclasses.replace(guess, memory=memory, compiled=True)
        if math.isfinite(memory.needed):
            wrong_by = max(wrong_by, memory.needed / guess.memory.needed)
    return None
