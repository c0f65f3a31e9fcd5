"""The parts of a training step: which of its operations belong to attention, the loss, the optimizer …, and their time.

JAX names every operation of a compiled program by the modules and scopes that it comes from; XLA's profiler says how
long each one ran. Operations that XLA has fused count for the part that the fusion is named for.
"""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from limba.addons.plan import program_cost

# Part: a pattern in the names of its operations. The first that is found counts: norms have names such as
# `pre_attention_layer_norm`.
_PARTS = {
    "norms": re.compile(r"norm\b|_norm/"),
    "attention": re.compile(r"attention|relpos_bias"),
    "feed-forward": re.compile(r"/mlp\b"),
    "embeddings": re.compile(r"embedder|position"),
    "logits and loss": re.compile(r"logits_dense|\bloss\b"),
    "optimizer": re.compile(r"\boptimizer\b"),
}
COLLECTIVES, OTHER = "collectives", "other"


@dataclasses.dataclass(frozen=True)
class Part:
    """Time of a part over all steps and devices.

    Attributes:
      seconds: of all its operations.
      products: of those that multiply matrices.
    """

    name: str
    seconds: float
    products: float


def measured_parts(trace: Path, program: str) -> list[Part]:
    """The parts of the operations in a trace, the longest first.

    Args:
      trace: a file of XLA's profiler, `*.xplane.pb`.
      program: `compiled.as_text()` of the step that was traced.
    """
    of_program = program_cost.operation_names(program)
    seconds: dict[str, float] = collections.defaultdict(float)
    products: dict[str, float] = collections.defaultdict(float)
    for name, spent in _operations(trace):
        operation = of_program.get(name)
        part = part_of(operation) if operation else OTHER
        seconds[part] += spent
        if operation and operation.multiplies:
            products[part] += spent
    parts = [Part(name, total, products[name]) for name, total in seconds.items()]
    return sorted(parts, key=lambda part: -part.seconds)


def part_of(operation: program_cost.Named) -> str:
    """The part that an operation belongs to."""
    if operation.is_collective:
        return COLLECTIVES
    return next((part for part, pattern in _PARTS.items() if pattern.search(operation.where)), OTHER)


def _operations(trace: Path) -> Iterable[tuple[str, float]]:
    """Each operation that ran, by its name in the program, and its seconds without those that ran inside of it."""
    from jax.profiler import ProfileData

    for plane in ProfileData.from_file(str(trace)).planes:
        for line in plane.lines:
            yield from _own_seconds(_named_events(line.events))


def _named_events(events: Iterable[Any]) -> list[tuple[float, float, str]]:
    """Begin and end in seconds, and the operation's name."""
    found = []
    for event in events:
        name = _stats(event).get("hlo_op")
        if name:
            begin = event.start_ns / 1e9
            found.append((begin, begin + event.duration_ns / 1e9, str(name)))
    return sorted(found, key=lambda event: (event[0], -event[1]))


def _stats(event: Any) -> Mapping[str, Any]:
    return dict(event.stats)


def _own_seconds(events: list[tuple[float, float, str]]) -> Iterable[tuple[str, float]]:
    """Of events of one line: a loop lasts as long as what it runs.

    On a GPU a kernel may begin before the last one has ended. What they share counts for the later one.
    """
    open_: list[list[Any]] = []  # end, name, seconds of its own
    for begin, end, name in events:
        while open_ and open_[-1][0] < end:
            before, earlier, seconds = open_.pop()
            yield earlier, seconds - max(0.0, before - begin)
        if open_:
            open_[-1][2] -= end - begin
        open_.append([end, name, end - begin])
    for _, name, seconds in reversed(open_):
        yield name, seconds
