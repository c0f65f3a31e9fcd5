"""The cost of a compiled GPU program, read from its text: bytes moved, a bound in seconds, kernels, collectives.

XLA's own `cost_analysis` has no figures for GPUs. Each kernel of the scheduled program reads its operands and writes
its results once, slices as slices, and multiplies matrices at the card's peak; it takes the longer of the two, and
2 us to start. The sum is a bound: no run is faster, and two programs compare by it.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

from limba.addons.plan.topologies import Chip

# Seconds between the starts of two kernels.
LAUNCH_SECONDS = 2e-6
_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "bf16", "f16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
}
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:to_apply|calls|body|branch_computations|called_computations)=\{?((?:%[\w.\-]+(?:, )?)+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
# Of these nothing runs.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("opt-barrier", "iota"),
}
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Products of queries x keys x head_dim in our kernels for attention (limba/network/kernels/), whose first operands are
# the queries and the keys, `[batch, length, heads, head_dim]`. Of causal ones about half is computed, all is counted.
# Those of block_attention compute the pairs of tiles for which they have bits, `[groups, pairs, tile]`.
_ATTENTION_PRODUCTS = {
    "attention_forward": 2,
    "attention_query_gradients": 3,
    "attention_key_gradients": 4,
    "attention_table_gradients": 2,
    "dot_product_attention_fwd": 2,  # cuDNN
    "dot_product_attention_bwd": 5,
}
_BITS = 6
# Scratch memory that a library asks for, beside its results.
_SCRATCH = re.compile(r", [su]8\[\d+\]\{0\}\)$")


@dataclasses.dataclass(frozen=True)
class Operation:
    """One kernel of a program.

    Attributes:
      kind: its opcode, or the target of a custom call.
      times: how often a step runs it.
      bytes_moved, flops, seconds: of one time.
      where: the part of the model that it comes from, as JAX named it.
      shape: of its result.
      is_in_open_loop: whether it is in a loop of which only the run knows how often it turns, such as that of decoding.
        `times` counts one turn.
    """

    kind: str
    times: int
    bytes_moved: float
    flops: float
    seconds: float
    where: str
    shape: str
    is_in_open_loop: bool = False


@dataclasses.dataclass
class Collectives:
    """The collectives of a step.

    Attributes:
      count, asynchronous: how many, and how many of them start and end as two operations, so that others run between.
      result_bytes, sent_bytes: of their results, and that a device sends.
    """

    count: int = 0
    asynchronous: int = 0
    result_bytes: float = 0.0
    sent_bytes: float = 0.0

    def add(self, instruction: "_Instruction", computation: Mapping[str, "_Instruction"], times: int) -> float:
        """Adds a collective, and returns the bytes that a device sends in it."""
        kind = instruction.kind
        results = times * _bytes(instruction.shape)
        if instruction.is_start and kind != "all-reduce":
            # The start of others has operands and results in a tuple.
            results -= times * sum(_bytes(computation[name].shape) for name in instruction.operands)
        sent = results * (2 if kind == "all-reduce" else 1)  # On a ring sums go around twice.
        self.count += times
        self.asynchronous += times * instruction.is_start
        self.result_bytes += results
        self.sent_bytes += sent
        return sent


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """What a step of a program costs one device.

    Attributes:
      waited: seconds in which collectives send and no kernel has work, at the rates of the data sheet.
    """

    operations: tuple[Operation, ...]
    collectives: Collectives
    waited: float

    @property
    def bytes_moved(self) -> float:
        return sum(x.times * x.bytes_moved for x in self.operations)

    @property
    def flops(self) -> float:
        """Of matrix products. A fused attention's are not known from the program."""
        return sum(x.times * x.flops for x in self.operations)

    @property
    def kernels(self) -> int:
        return sum(x.times for x in self.operations)

    @property
    def seconds(self) -> float:
        """The bound, without collectives."""
        return sum(x.times * x.seconds for x in self.operations)

    def by(self, attribute: str) -> dict[str, float]:
        """Seconds by `kind` or `where`, the longest first."""
        seconds: dict[str, float] = collections.defaultdict(float)
        for operation in self.operations:
            seconds[getattr(operation, attribute)] += operation.times * operation.seconds
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))


@dataclasses.dataclass(frozen=True)
class _Instruction:
    shape: str
    opcode: str
    operands: tuple[str, ...]
    text: str

    @property
    def kind(self) -> str:
        """The opcode, of a collective also where this only starts it."""
        return self.opcode.removesuffix("-start")

    @property
    def is_start(self) -> bool:
        return self.kind != self.opcode


@dataclasses.dataclass(frozen=True)
class Named:
    """What the text of a program says of an operation.

    Attributes:
      where: the part of the model that it comes from, as JAX named it. One that XLA made without a name has that of
        what it fuses, or of what it copies.
      multiplies: whether it is or contains a matrix product.
    """

    where: str
    multiplies: bool
    is_collective: bool


def operation_names(text: str) -> dict[str, Named]:
    """All operations of `compiled.as_text()`, of any platform, by the names that a profiler shows.

    Raises:
      ValueError: if the text has no entry.
    """
    computations, _ = _parse(text)
    multiplying = {
        name for name, body in computations.items() if any(x.opcode in ("dot", "convolution") for x in body.values())
    }
    found: dict[str, Named] = {}
    for body in computations.values():
        for name, instruction in body.items():
            opcode = instruction.opcode.removesuffix("-start").removesuffix("-done")
            # Loops contain products too, but their own time is not spent on them.
            is_fusion = instruction.opcode == "fusion" and not multiplying.isdisjoint(_called(instruction))
            is_product = opcode in ("dot", "convolution") or is_fusion
            is_product |= (
                opcode == "custom-call" and re.search("matmul|gemm", instruction.text, re.IGNORECASE) is not None
            )
            where = _where(instruction) or _where_within(instruction, computations)
            if not where:
                where = next((found[x].where for x in instruction.operands if x in found and found[x].where), "")
            found[name] = Named(where, is_product, opcode in _COLLECTIVES)
    return found


def _where_within(instruction: _Instruction, computations: Mapping[str, Mapping[str, _Instruction]]) -> str:
    """The commonest name in what a fusion calls; of equal ones that of its last operation."""
    if instruction.opcode != "fusion":
        return ""
    names = [_where(x) for called in _called(instruction) for x in computations[called].values()]
    counts = collections.Counter(name for name in reversed(names) if name)
    return counts.most_common(1)[0][0] if counts else ""


def gpu_program_cost(text: str, chip: Chip, link: float | None = None) -> ProgramCost:
    """The cost of `compiled.as_text()` on one card.

    The text is in the order in which the program runs: what stands between the start and the end of a collective runs
    beside it. Collectives of one operation, and those inside of loops, wait for all that they send. Those that send at
    the same time each have the whole link: no run waits for less.

    Args:
      link: bytes/s that a card sends to others; those of its box where it is not given.

    Raises:
      ValueError: if the text has no entry.
    """
    computations, entry = _parse(text)
    operations, found = [], Collectives()
    waited, computed = 0.0, 0.0
    ends: dict[str, float] = {}  # in seconds, by the name of the start
    for name, instruction in computations[entry].items():
        if instruction.opcode.endswith("-done") and instruction.operands[0] in ends:
            waited += max(0.0, ends.pop(instruction.operands[0]) - (computed + waited))
        for part, owner, times, is_in_open_loop in _executed({**computations, "": {name: instruction}}, "", 1):
            computation = computations[entry] if part is instruction else owner
            if part.kind not in _COLLECTIVES:
                operation = _operation(part, computation, computations, times, chip)
                operations.append(dataclasses.replace(operation, is_in_open_loop=is_in_open_loop))
                computed += times * operation.seconds
                continue
            seconds = found.add(part, computation, times) / (link or chip.link)
            if part is instruction and part.is_start:
                ends[name] = computed + waited + seconds
            else:
                waited += seconds
    return ProgramCost(tuple(operations), found, waited)


def collectives(text: str) -> Collectives:
    """Those of `compiled.as_text()`, for TPUs too.

    Raises:
      ValueError: if the text has no entry.
    """
    found = Collectives()
    for instruction, computation, times, _ in _executed(*_parse(text), 1):
        if instruction.kind in _COLLECTIVES:
            found.add(instruction, computation, times)
    return found


def _parse(text: str) -> tuple[dict[str, dict[str, _Instruction]], str]:
    computations: dict[str, dict[str, _Instruction]] = {}
    current: dict[str, _Instruction] = {}
    entry = None
    for line in text.splitlines():
        if begins := _COMPUTATION.match(line):
            current = computations.setdefault(begins[2], {})
            entry = begins[2] if begins[1] else entry
        elif found := _INSTRUCTION.match(line):
            current[found[1]] = _instruction(found[2])
    if entry is None:
        raise ValueError("This is not the text of a compiled program: it has no ENTRY.")
    return computations, entry


def _instruction(text: str) -> _Instruction:
    """Of `f32[8,16]{1,0} fusion(%a, %b), kind=kLoop, …`; a tuple's shape is in parentheses."""
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    shape, rest = text[:end], text[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    operands = rest[len(opcode) : _closing(rest, len(opcode))]
    return _Instruction(shape, opcode, tuple(_NAME.findall(operands)), text)


def _closing(text: str, opening: int) -> int:
    """The index after the parenthesis that closes the one at `opening`."""
    depth = 0
    for index in range(opening, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index + 1
    return len(text)


def _executed(
    computations: Mapping[str, Mapping[str, _Instruction]], name: str, times: int, is_in_open_loop: bool = False
) -> Iterator[tuple[_Instruction, Mapping[str, _Instruction], int, bool]]:
    """The instructions that run, with their computation, how often, and whether in an open loop."""
    for instruction in computations[name].values():
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith(("-done", "-update")):
            continue
        if opcode in ("while", "call", "conditional", "async-start"):
            trips = _TRIPS.search(instruction.text) if opcode == "while" else None
            is_open = is_in_open_loop or (opcode == "while" and trips is None)
            for called in _called(instruction):
                yield from _executed(computations, called, times * (int(trips[1]) if trips else 1), is_open)
            continue
        yield instruction, computations[name], times, is_in_open_loop


def _called(instruction: _Instruction) -> list[str]:
    return [name for names in _CALLED.findall(instruction.text) for name in _NAME.findall(names)]


def _operation(
    instruction: _Instruction,
    computation: Mapping[str, _Instruction],
    computations: Mapping[str, Mapping[str, _Instruction]],
    times: int,
    chip: Chip,
) -> Operation:
    kind, flops = instruction.opcode, 0.0
    written = float(_bytes(instruction.shape))
    read = float(sum(_bytes(computation[name].shape) for name in instruction.operands))
    if kind == "fusion":
        (called,) = _called(instruction)
        body = computations[called]
        flops = sum(_dot_flops(x, body) for x in body.values() if x.opcode == "dot")
        read, written = _fusion_bytes(body, written)
    elif kind == "dot":
        flops = _dot_flops(instruction, computation)
    elif kind == "custom-call":
        target = re.search(r'custom_call_target="([^"]*)"', instruction.text)
        kind = target[1] if target else kind
        if "matmul" in kind or "gemm" in kind:
            flops = _dot_flops(instruction, computation)
        flops = flops or _attention_flops(instruction, computation)
        written = float(_bytes(_SCRATCH.sub("", instruction.shape)))
    elif kind == "dynamic-slice":
        read = written
    elif kind == "dynamic-update-slice":
        read = written = _bytes(computation[instruction.operands[1]].shape)
    seconds = max((read + written) / chip.bandwidth, flops / chip.peak_per_device) + LAUNCH_SECONDS
    return Operation(kind, times, read + written, flops, seconds, _where(instruction), instruction.shape)


def _where(instruction: _Instruction) -> str:
    named = re.search(r'op_name="([^"]*)"', instruction.text)
    return named[1] if named else ""


def _fusion_bytes(body: Mapping[str, _Instruction], written: float) -> tuple[float, float]:
    """Bytes read and written by a fusion: of operands that it only takes slices of, the slices."""
    users: dict[str, list[_Instruction]] = collections.defaultdict(list)
    for instruction in body.values():
        for name in instruction.operands:
            users[name].append(instruction)

    def read_of(name: str) -> float:
        size = float(_bytes(body[name].shape))
        parts = 0.0
        for user in users[name]:
            if user.opcode in ("slice", "dynamic-slice"):
                parts += _bytes(user.shape)
            elif user.opcode == "bitcast":
                parts += read_of(_name_of(user, body))
            elif user.opcode != "dynamic-update-slice" or body[user.operands[0]] is not body[name]:
                return size
        return min(size, parts)

    read = sum(read_of(name) for name, instruction in body.items() if instruction.opcode == "parameter")
    for instruction in body.values():
        if instruction.opcode == "dynamic-update-slice":  # in place
            written -= max(0, _bytes(instruction.shape) - _bytes(body[instruction.operands[1]].shape))
    return read, max(written, 0.0)


def _name_of(instruction: _Instruction, body: Mapping[str, _Instruction]) -> str:
    return next(name for name, x in body.items() if x is instruction)


def _dot_flops(instruction: _Instruction, computation: Mapping[str, _Instruction]) -> float:
    """Two for each element of the result and of what is contracted."""
    contracted = re.search(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([\d",]*)', instruction.text)
    left = _dims(computation[instruction.operands[0]].shape)
    sizes = [left[int(dim)] for dim in re.findall(r"\d+", contracted[1])] if contracted else []
    return 2.0 * math.prod(_dims(instruction.shape)) * math.prod(sizes)


def _attention_flops(instruction: _Instruction, computation: Mapping[str, _Instruction]) -> float:
    kernel = next((name for name in _ATTENTION_PRODUCTS if name in instruction.text), None)
    if kernel is None:
        return 0.0
    products = _ATTENTION_PRODUCTS[kernel]
    queries, keys = (_dims(computation[name].shape) for name in instruction.operands[:2])
    if f"block_{kernel}" in instruction.text:
        *_, pairs, tile = _dims(computation[instruction.operands[_BITS]].shape)
        return 2.0 * products * math.prod(queries) / queries[1] * pairs * tile**2
    return 2.0 * products * math.prod(queries) * keys[1]


def _dims(shape: str) -> list[int]:
    """Of the first array in a shape."""
    found = _ARRAY.search(shape)
    return [int(size) for size in found[2].split(",") if size] if found else []


def _bytes(shape: str) -> int:
    """Of all arrays in a shape, tuples too."""
    return sum(
        _BYTES[dtype] * math.prod(int(size) for size in dims.split(",") if size)
        for dtype, dims in _ARRAY.findall(shape)
        if dtype in _BYTES
    )
