"""Kernels are compared with XLA on the device at hand, before a program uses them there.

A kernel that is right in one compiler's version and on one card may be wrong on the next. So the first program that
wants a kernel runs it on a small input of its kind, and XLA's operations on the same. A kernel that differs, or cannot
be compiled or run, is not used: XLA's operations take its place.
"""

import concurrent.futures
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from limba.devices import target
from limba.workers import distributed

Array = jax.Array
Arrays = Mapping[str, Any]
logger = logging.getLogger(__name__)

# A kernel's error is at most this many times that of XLA's operations in the same type. Both are to XLA's in float32.
_MOST_TIMES_XLA = 3.0
# The share of an array's size that is rounding in any case, or one step of the type if that is more.
_ROUNDING = 1e-5
# Of the compiler, for programs that run once: on GPUs most of its time goes into trying ways to multiply.
_OPTIONS = {"gpu": {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}}
# The size of an error: one shows where a few numbers are wrong, the other where all are a little.
_SIZES = {
    "the largest": lambda x: np.max(np.abs(x)),
    "the root mean square": lambda x: np.sqrt(np.mean(np.square(x))),
}


class Case(Protocol):
    """A kernel and a kind of its input; hashable, and `str` describes the kind."""

    def __hash__(self) -> int: ...

    @property
    def kernel(self) -> str:
        """Its name."""
        ...

    @property
    def dtype(self) -> str:
        """Of what it computes."""
        ...

    def inputs(self, rng: np.random.Generator) -> tuple[Arrays, tuple[Any, ...]]:
        """Arrays with gradients, by name, and others. All numbers are drawn, so that no two parts are alike."""
        ...

    def by_kernel(self, arrays: Arrays, *others: Any) -> Arrays:
        """What a program uses of the kernel's results, by name; numbers that nobody uses are 0, or NaN if they are."""
        ...

    def by_xla(self, arrays: Arrays, *others: Any) -> Arrays:
        """The same by XLA's operations, in the type of the arrays."""
        ...


@dataclasses.dataclass(frozen=True)
class Result:
    """Of one comparison.

    Attributes:
      kind: of the input.
      device: its model.
      problem: why the kernel is not used; empty if it is.
      error, xla_error: of the array and size where the kernel is worst, as a share of that size of the array itself,
        and XLA's own there; None for a kernel that does not run.
    """

    kernel: str
    kind: str
    device: str
    problem: str
    error: float | None = None
    xla_error: float | None = None


_results: dict[Case, Result] = {}
_lock = threading.Lock()


def results() -> list[Result]:
    """All comparisons of this process."""
    return list(_results.values())


def is_right(case: Case) -> bool:
    """Whether a kernel may be used for such inputs on the device that is traced for, the same on all workers.

    The first call for a kind compares; later calls remember, so a process traces all of its programs alike. A kernel
    that was wrong once is not tried on other kinds. Where the device is not here (`limba plan`), nothing can run.
    """
    if not target.is_here():
        return True
    with _lock:
        if case not in _results:
            wrong = next((x for x in results() if x.kernel == case.kernel and x.problem), None)
            if wrong is None:
                _results[case] = _agreed(case)
            else:
                _results[case] = Result(case.kernel, str(case), wrong.device, f"not tried: {wrong.problem}")
        return not _results[case].problem


def _agreed(case: Case) -> Result:
    """Compares; if it is wrong on one worker, it is on all of them."""
    began, platform = time.monotonic(), target.platform()
    # Programs are traced here, for a mesh of all workers. A thread of its own has neither a trace nor a mesh.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        own = thread.submit(compare, case, platform).result()
    found = distributed.first_problem(f"comparison of {own.kernel} ({own.kind})", own.problem)
    if found is None:
        logger.info(
            "%s computes what XLA does on %s: off by %.1e, XLA itself by %.1e (%s; %.1f s).",
            own.kernel,
            own.device,
            own.error,
            own.xla_error,
            own.kind,
            time.monotonic() - began,
        )
        return own
    index, problem = found
    where = f"on {own.device}" if distributed.process_count() == 1 else f"on {distributed.worker_name(index)}"
    logger.warning(
        "The kernel %s is not used: %s %s (%s). XLA's operations take its place, which need more time and memory.",
        own.kernel,
        where,
        problem,
        own.kind,
    )
    return dataclasses.replace(own, problem=f"{where} {problem}")


def compare(case: Case, platform: str) -> Result:
    """Runs a kernel and XLA's operations, values and gradients, on the first device of this process."""
    device = jax.local_devices(backend=platform)[0]
    compiled = functools.partial(jax.jit, compiler_options=_OPTIONS.get(platform))
    result = Result(case.kernel, str(case), device.device_kind, "")
    with jax.default_device(device), target.tracing_for_platform(platform):
        rng = np.random.default_rng(0)
        arrays, others = case.inputs(rng)
        shapes = jax.eval_shape(case.by_xla, arrays, *others)
        cotangents = {name: jnp.asarray(rng.normal(size=x.shape), x.dtype) for name, x in shapes.items()}

        def by_xla(arrays: Arrays, cotangents: Arrays) -> Arrays:
            return _values_and_gradients(case.by_xla, arrays, others, cotangents)

        @compiled
        def exact(arrays: Arrays, cotangents: Arrays) -> Arrays:
            with jax.default_matmul_precision("highest"):
                return by_xla(*jax.tree.map(lambda x: x.astype(jnp.float32), (arrays, cotangents)))

        expected, rounded = jax.device_get((exact(arrays, cotangents), compiled(by_xla)(arrays, cotangents)))
        try:
            kernel = compiled(lambda x, y: _values_and_gradients(case.by_kernel, x, others, y))
            found = jax.device_get(kernel(arrays, cotangents))
        except Exception as error:  # Compilers raise errors of all types. It is in the warning.
            lines = str(error).strip().splitlines() or [""]
            return dataclasses.replace(result, problem=f"it does not run: {type(error).__name__}: {lines[0][:300]}")
    return _judged(result, found, rounded, expected, max(float(jnp.finfo(case.dtype).eps), _ROUNDING))


def _values_and_gradients(function: Any, arrays: Arrays, others: tuple[Any, ...], cotangents: Arrays) -> Arrays:
    """Results by name, and gradients as "gradient of" their arrays."""
    values, pull_back = jax.vjp(lambda x: function(x, *others), arrays)
    (gradients,) = pull_back(cotangents)
    return {**values, **{f"gradient of {name}": x for name, x in gradients.items()}}


def _judged(result: Result, found: Arrays, rounded: Arrays, expected: Arrays, rounding: float) -> Result:
    """The result with the errors that are worst in proportion, and the problem if rounding does not explain them."""
    worst = 0.0
    for name in expected:
        array, by_xla, exact = (np.asarray(x[name], np.float64) for x in (found, rounded, expected))
        if not np.isfinite(array).all():
            return dataclasses.replace(result, problem=f"its {name} is not finite", error=None, xla_error=None)
        for words, size in _SIZES.items():
            assert size(exact) > 0, f"{result.kind}: {name} is 0 whatever the kernel does"
            error, of_xla = (float(size(x - exact) / size(exact)) for x in (array, by_xla))
            share = error / (_MOST_TIMES_XLA * of_xla + rounding)
            if share > worst:
                worst = share
                problem = f"its {name} is off by {error:.1e} of {words}, XLA's by {of_xla:.1e}" if share > 1.0 else ""
                result = dataclasses.replace(result, problem=problem, error=error, xla_error=of_xla)
    return result
