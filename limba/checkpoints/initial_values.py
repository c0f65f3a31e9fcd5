"""Random beginnings by many small programs, most of them equal, in place of one large program.

A network of 24 layers has some 220 parameters of eight shapes. As one program each of them is compiled: 40 cpu-seconds
for T5 1.1 base on a CPU, where its training step takes 25. Here each array is cut out of the traced function, and
arrays that differ only in their random numbers, or not at all, share a program. Their keys are arguments of it, and are
made before: a second threefry in each program would take as long to lower and to compile as the first.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

PyTree = Any

# What makes a key of numbers that are known: of a seed, or of a key and the name of a parameter.
_KEY_MAKERS = ("random_seed", "random_fold_in")


@dataclasses.dataclass(frozen=True)
class _Argument:
    """Of a program."""

    number: int


@dataclasses.dataclass(frozen=True)
class _Result:
    """What an operation returned."""

    operation: int
    number: int


@dataclasses.dataclass(frozen=True)
class _Constant:
    """What was known when the function was traced; without a description it becomes an argument."""

    value: Any = dataclasses.field(compare=False)
    described: Hashable


_Source = _Argument | _Result | _Constant


class _Operation(NamedTuple):
    equation: core.JaxprEqn
    sources: tuple[_Source, ...]


def compute(function: Callable[[], PyTree], shardings: PyTree) -> PyTree:
    """`function()` with its arrays sharded so; the function is traced, and never compiled as a whole.

    Args:
      shardings: a sharding for each array of the result.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)()
    operations: list[_Operation] = []
    outputs = _flatten(closed, [], operations)
    placed = jax.tree.leaves(shardings)
    results: list[Any] = [None] * len(outputs)
    for group in _groups(operations, outputs):
        arrays = _run(operations, [outputs[i] for i in group], tuple(placed[i] for i in group))
        for i, array in zip(group, arrays, strict=True):
            results[i] = array
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def _flatten(closed: core.ClosedJaxpr, given: Sequence[_Source], operations: list[_Operation]) -> list[_Source]:
    """Appends a program's operations, with those of the programs that it calls; where its results come from."""
    jaxpr = closed.jaxpr
    sources: dict[core.Var, _Source] = dict(zip(jaxpr.invars, given, strict=True))
    sources |= {var: _constant(x) for var, x in zip(jaxpr.constvars, closed.consts, strict=True)}

    def source(x: core.Var | core.Literal) -> _Source:
        return _constant(x.val) if isinstance(x, core.Literal) else sources[x]

    for equation in jaxpr.eqns:
        inputs = tuple(map(source, equation.invars))
        # A function of one result, such as jax.random.normal, stays whole: it is traced once for a shape.
        if equation.primitive.name == "jit" and len(equation.outvars) > 1:
            results = _flatten(equation.params["jaxpr"], inputs, operations)
        elif equation.primitive.name in _KEY_MAKERS and len(known := _values(inputs)) == len(inputs):
            results = [_Constant(_key(equation, known), None)]
        else:
            results = [_Result(len(operations), i) for i in range(len(equation.outvars))]
            operations.append(_Operation(equation, inputs))
        sources |= dict(zip(equation.outvars, results, strict=True))
    return [source(x) for x in jaxpr.outvars]


def _values(sources: Sequence[_Source]) -> list[Any]:
    """Of the constants among them."""
    return [source.value for source in sources if isinstance(source, _Constant)]


def _key(equation: core.JaxprEqn, values: Sequence[Any]) -> jax.Array:
    avals: list[Any] = [var.aval for var in equation.invars]  # Python's own numbers have the types that are in these.
    given = [x if isinstance(x, jax.Array) else np.asarray(x, a.dtype) for x, a in zip(values, avals, strict=True)]
    return _key_maker(equation.primitive, tuple(sorted(equation.params.items())))(*given)


@functools.lru_cache(maxsize=8)
def _key_maker(primitive: Any, params: tuple[tuple[str, Any], ...]) -> Callable[..., jax.Array]:
    return jax.jit(functools.partial(primitive.bind, **dict(params)))


def _groups(operations: Sequence[_Operation], outputs: Sequence[_Source]) -> list[list[int]]:
    """Numbers of the outputs, those together that an operation of many results has made, such as a scan over layers."""
    groups: list[list[int]] = []
    group_of: dict[int, list[int]] = {}
    for i, output in enumerate(outputs):
        many = [n for n in _needed(operations, [output]) if len(operations[n].equation.outvars) > 1]
        merged = [i]
        for other in {id(group_of[n]): group_of[n] for n in many if n in group_of}.values():
            merged = sorted(merged + other)
            groups.remove(other)
        groups.append(merged)
        for n in [*many, *(n for n, group in group_of.items() if group[0] in merged)]:
            group_of[n] = merged
    return groups


def _needed(operations: Sequence[_Operation], outputs: Sequence[_Source]) -> list[int]:
    """Numbers of the operations that these results need, in order."""
    found: set[int] = set()
    waiting = list(outputs)
    while waiting:
        source = waiting.pop()
        if isinstance(source, _Result) and source.operation not in found:
            found.add(source.operation)
            waiting += operations[source.operation].sources
    return sorted(found)


def _constant(value: Any) -> _Constant:
    if isinstance(value, jax.Array) or np.ndim(value) > 0:
        return _Constant(value, None)
    array = np.asarray(value)
    # The type too: Python's own numbers are of weak dtypes.
    return _Constant(value, (type(value), array.dtype, array.tobytes()))


def _run(
    operations: Sequence[_Operation], outputs: Sequence[_Source], shardings: tuple[Any, ...]
) -> Sequence[jax.Array]:
    """The results from a program of their own, which a like program before them may have compiled."""
    needed = _needed(operations, outputs)
    new = {old: number for number, old in enumerate(needed)}
    arguments: list[Any] = []

    def place(source: _Source) -> _Source:
        if isinstance(source, _Result):
            return _Result(new[source.operation], source.number)
        # Keys tell like arrays apart. Single numbers the compiler should know: it may divide by them in another way
        # than by an argument, and the last bits differ.
        if isinstance(source, _Constant) and source.described is None:
            arguments.append(source.value)
            return _Argument(len(arguments) - 1)
        return source

    cut = [operations[n] for n in needed]
    cut = [_Operation(x.equation, tuple(map(place, x.sources))) for x in cut]
    returned = [place(source) for source in outputs]
    described = tuple((x.equation.primitive, _hashable(x.equation.params), x.sources) for x in cut)
    return _jitted(_Program((described, tuple(returned), shardings), cut, returned, shardings))(*arguments)


@dataclasses.dataclass(frozen=True)
class _Program:
    """Equal to another one that computes the same."""

    key: Hashable
    operations: Sequence[_Operation] = dataclasses.field(compare=False)
    outputs: Sequence[_Source] = dataclasses.field(compare=False)
    shardings: tuple[Any, ...] = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=256)
def _jitted(program: _Program) -> Callable[..., tuple[jax.Array, ...]]:
    evaluate = functools.partial(_evaluate, program.operations, program.outputs)
    return jax.jit(evaluate, out_shardings=program.shardings)


def _hashable(params: dict[str, Any]) -> Hashable:
    """Functions in them are equal to themselves only; JAX traces `jax.random.normal` once for a shape."""
    found = []
    for name, value in sorted(params.items()):
        try:
            hash(value)
        except TypeError:
            value = object()  # equal to nothing
        found.append((name, value))
    return tuple(found)


def _evaluate(operations: Sequence[_Operation], outputs: Sequence[_Source], *arguments: jax.Array) -> tuple[Any, ...]:
    results: list[list[Any]] = []

    def value(source: _Source) -> Any:
        if isinstance(source, _Constant):
            return source.value
        return arguments[source.number] if isinstance(source, _Argument) else results[source.operation][source.number]

    for equation, sources in operations:
        inputs = [value(source) for source in sources]
        given = {var: x for var, x in zip(equation.invars, inputs, strict=True) if isinstance(var, core.Var)}
        alone = core.Jaxpr((), list(given), equation.outvars, [equation], equation.effects)
        results.append(core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*given.values()))
    return tuple(value(source) for source in outputs)
