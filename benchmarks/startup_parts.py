"""Runs a command of `limba` in this process, and writes where its seconds went: for `benchmarks/startup.py --parts`.

    python benchmarks/startup_parts.py FILE train --gin_file=…

Each part is a set of intervals of the main thread: those of functions of the engine (`FUNCTIONS`), of Python's imports,
and of JAX's own events. Where intervals lie in each other, the innermost counts: an import inside a gin file is an
import. What is in none of them is "rest". Each part has its seconds and the cpu-seconds that the whole process spent in
them, which on a machine with other work say more. The functions are wrapped when their module is imported.
"""

import bisect
import functools
import importlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Module and function (or Class.method): the part.
FUNCTIONS = {
    ("limba.gin_config.gin_files", "parse_gin_flags"): "gin",
    ("limba.gin_config.gin_files", "parse_files"): "gin",
    ("limba.inference.tasks_door", "facts"): "data",
    ("limba.inference.tasks_door", "verify_matching_vocabs"): "data",
    ("limba.training.inputs", "open_stream"): "data",
    ("limba.training.inputs", "open_eval_batches"): "data",
    ("limba.training.inputs", "open_evaluator"): "data",
    ("limba.training.loop", "_Loop._next_batch"): "data",
    ("limba.training.loop", "evaluate"): "evaluation",
    ("limba.training.loop", "_Loop._make_first_step"): "steps",
    ("limba.training.loop", "_Loop._make_step"): "steps",
    ("limba.checkpoints.train_state", "TrainStateInitializer.from_scratch"): "initial state",
    ("limba.checkpoints.checkpointing", "Checkpointer.__init__"): "checkpoint",
    ("limba.checkpoints.checkpointing", "Checkpointer.save"): "checkpoint",
    ("limba.checkpoints.checkpointing", "Checkpointer.wait"): "checkpoint",
    ("limba.checkpoints.checkpointing", "Checkpointer.close"): "checkpoint",
    ("limba.checkpoints.checkpointing", "Checkpointer.restore_latest"): "checkpoint",
    ("limba.checkpoints.restore", "load_params"): "checkpoint",
    ("limba.checkpoints.restore", "load_sharded_params"): "checkpoint",
}
# JAX's events with durations: the part.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
    "/jax/compilation_cache/cache_retrieval_time_sec": "compile",
}

_intervals: list[tuple[float, float, str]] = []
_memory: dict[str, int] = {}
_clocks: list[tuple[float, float]] = []  # time of day and cpu-seconds of the process, every few milliseconds


def _note(part: str, began: float) -> None:
    if threading.current_thread() is threading.main_thread():
        _intervals.append((began, time.time(), part))


def _read_clocks() -> None:
    while True:
        _clocks.append((time.time(), time.process_time()))
        time.sleep(0.005)


def _timed(function: Callable[..., Any], part: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if part == "steps" and not _memory:
            _memory["memory_before_first_step"] = _resident()
        began = time.time()
        try:
            return function(*args, **kwargs)
        finally:
            _note(part, began)

    return wrapper


def _resident() -> int:
    """MiB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def _wrap(name: str) -> None:
    """Times the functions of a module that was just imported."""
    module: Any = sys.modules[name]
    for (of_module, path), part in FUNCTIONS.items():
        if of_module == name:
            *owner, last = path.split(".")
            holder = getattr(module, owner[0]) if owner else module
            if not hasattr(getattr(holder, last), "__wrapped__"):
                setattr(holder, last, _timed(getattr(holder, last), part))
    if name == "jax":
        module.monitoring.register_event_duration_secs_listener(_event)


def _event(name: str, seconds: float, **_) -> None:
    if name in EVENTS:
        _note(EVENTS[name], time.time() - seconds)


def _watch_imports() -> None:
    find = importlib._bootstrap._find_and_load  # type: ignore[attr-defined]
    wanted = {module for module, _ in FUNCTIONS} | {"jax"}

    def timed(name: str, import_: Any) -> Any:
        began = time.time()
        try:
            module = find(name, import_)
        finally:
            _note("imports", began)
        if name in wanted:
            _wrap(name)
        return module

    importlib._bootstrap._find_and_load = timed  # type: ignore[attr-defined]


Pieces = list[tuple[float, float, str]]


def innermost(began: float, ended: float, intervals: Pieces) -> Pieces:
    """Cuts the time into pieces, each of the interval that began last of those around it, or of "rest"."""
    pieces: Pieces = []
    around: list[tuple[float, str]] = [(ended, "rest")]  # end and part, the innermost last
    now = began

    def advance(moment: float) -> None:
        nonlocal now
        while now < moment:
            end, part = around[-1]
            until = min(end, moment)
            if until > now:
                pieces.append((now, until, part))
                now = until
            if end <= now and len(around) > 1:
                around.pop()

    # Of intervals that begin together, the outer one first.
    for start, end, part in sorted(intervals, key=lambda interval: (interval[0], -interval[1])):
        advance(start)
        around.append((end, part))
    advance(ended)
    return pieces


def by_part(pieces: Pieces, clocks: list[tuple[float, float]]) -> dict[str, list[float]]:
    """Seconds and cpu-seconds of each part, the longest first."""
    times, cpu = zip(*clocks, strict=True)

    def cpu_at(moment: float) -> float:
        i = min(max(bisect.bisect(times, moment), 1), len(times) - 1)
        share = (moment - times[i - 1]) / (times[i] - times[i - 1])
        return cpu[i - 1] + min(max(share, 0.0), 1.0) * (cpu[i] - cpu[i - 1])

    total: dict[str, list[float]] = {}
    for start, end, part in pieces:
        spent = total.setdefault(part, [0.0, 0.0])
        spent[0] += end - start
        spent[1] += cpu_at(end) - cpu_at(start)
    return dict(sorted(total.items(), key=lambda item: -item[1][0]))


def main() -> None:
    began = time.time()
    file = Path(sys.argv[1])
    sys.argv = ["limba", *sys.argv[2:]]
    sys.path[0] = str(Path.cwd())
    threading.Thread(target=_read_clocks, daemon=True).start()
    _watch_imports()
    from limba import cli

    try:
        cli.main()
    finally:
        ended = time.time()
        _clocks.append((ended, time.process_time()))
        _memory["peak_memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        parts = by_part(innermost(began, ended, _intervals), _clocks)
        file.write_text(json.dumps({"began": began, "ended": ended, "parts": parts, "memory": _memory}))


if __name__ == "__main__":
    main()
