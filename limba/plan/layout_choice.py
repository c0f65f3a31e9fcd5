"""Which of many layouts is the fastest that fits: estimates put them in order, the compiler has the last word."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from limba.plan_compile import Memory, StateSizes, Training
from limba.plan_layouts import REMAT_POLICIES, Layout, Work, candidates, relative_seconds, temporary_bytes
from limba.topologies import Topology

# Of the memory, for what a plan does not see: plans are compiled with less effort than a run's step, whose peak was
# found up to 14 % higher, and a run has metrics, the next batch and fragments in memory beside its step.
USABLE = 0.9
# Layouts that are compiled before a plan gives up.
MAX_COMPILED = 6


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a layout is thought to need and to take.

    Attributes:
      layout: mesh, recomputation, microbatches.
      memory: of one device; `peak` is an estimate.
      seconds: see `plan_layouts.relative_seconds`.
    """

    layout: Layout
    memory: Memory
    seconds: float


@dataclasses.dataclass(frozen=True)
class Choice:
    """The layout that was chosen.

    Attributes:
      layout: mesh, recomputation, microbatches.
      memory: of one device, compiled or estimated.
      compiled: whether the compiler has confirmed it.
    """

    layout: Layout
    memory: Memory
    compiled: bool


def fits(memory: Memory, topology: Topology) -> bool:
    """Whether it leaves the room that a plan keeps free."""
    return memory.needed <= USABLE * topology.memory


def estimate(layout: Layout, work: Work, state: StateSizes, topology: Topology) -> Estimate:
    """Of one layout; a network that is not ours counts with its state and gradients alone."""
    memory = state.memory(layout)
    temporary = memory.parameters
    if work.sizes is not None:
        temporary = temporary_bytes(work, layout, memory.parameters)
    memory = dataclasses.replace(memory, peak=memory.parameters + memory.optimizer + temporary)
    return Estimate(layout, memory, relative_seconds(work, layout, topology, memory.parameters))


def rank(training: Training, work: Work, state: StateSizes, topology: Topology) -> list[Estimate]:
    """All layouts, the fastest first; of equal ones the simplest."""
    policies: Sequence[str] = REMAT_POLICIES if training.config is not None else ("none",)
    made = [estimate(layout, work, state, topology) for layout in candidates(work, topology, policies)]
    return sorted(made, key=lambda x: (x.seconds, x.layout.microbatches, x.layout.model, x.layout.fsdp))


def choose(
    ranked: Sequence[Estimate],
    topology: Topology,
    compile_layout: Callable[[Layout], Memory] | None,
    tell: Callable[[Layout, Memory], None] = lambda layout, memory: None,
) -> Choice | None:
    """The fastest layout that fits; None if none does.

    Args:
      ranked: the fastest first.
      topology: with the limit.
      compile_layout: None believes the estimates.
      tell: hears of everything that was compiled.
    """
    wrong_by = 1.0  # How much more the compiler asked for than was estimated, the last time that a layout did not fit.
    compiled = 0
    for guess in ranked:
        if guess.memory.needed * wrong_by > USABLE * topology.memory:
            continue
        if compile_layout is None:
            return Choice(guess.layout, guess.memory, compiled=False)
        if compiled == MAX_COMPILED:
            return None
        memory = compile_layout(guess.layout)
        compiled += 1
        tell(guess.layout, memory)
        if fits(memory, topology):
            return Choice(guess.layout, memory, compiled=True)
        if math.isfinite(memory.needed):
            wrong_by = max(wrong_by, memory.needed / guess.memory.needed)
    return None
