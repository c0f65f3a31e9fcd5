"""The sides of a comparison, each in a process of its own: they hold their models and take turns.

Of an interleaved round each side in turn runs a number of steps while the others sleep, so that all see the same
machine and none shares threads, memory or package versions with another. A ratio is what the other side needs over what
the first one needs, the median over rounds, beside its range: a wide one says that the machine was not quiet.

A benchmark is a script that runs with `--serve SIDE` as such a process: it calls `serve`.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from limba.devices import accelerators

REPOSITORY = Path(__file__).resolve().parent.parent

# What runs a number of steps and waits for them, and facts for the report.
Side = tuple[Callable[[int], None], dict[str, Any]]

# Sides whose library is PyTorch; the others have JAX.
OF_PYTORCH = ("huggingface", "huggingface_compiled")


# ---------------------------------------------------- child process -------------------------------------------------


def _device_kind(side: str) -> str:
    if side in OF_PYTORCH:
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    import jax

    return jax.devices()[0].device_kind


def _peak_memory(side: str) -> dict[str, Any]:
    """Peak use of the accelerator's memory; on CPUs the peak resident size of the process."""
    peak = None
    if side in OF_PYTORCH:
        import torch

        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    else:
        import jax

        peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    of = "device"
    if peak is None:
        unit = 1 if sys.platform == "darwin" else 1024
        peak, of = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "process"
    return {"peak_memory_mib": round(peak / 2**20), "peak_memory_of": of}


def serve(side: str, build: Callable[[dict[str, Any]], Side]) -> None:
    """Builds a side from the workload on stdin, then answers each number of steps there with what they took.

    Answers are JSON lines.
    """
    # Only answers may go to stdout; whatever libraries print there joins stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    try:
        run, facts = build(json.loads(sys.stdin.readline()))
        run(1)
    except Exception as error:  # Whatever another project's code raises is the reason that is reported.
        traceback.print_exc()
        answer(unavailable=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return
    answer(device=_device_kind(side), **facts)
    for line in sys.stdin:
        num_steps = int(line)
        start, start_cpu = time.monotonic(), time.process_time()
        run(num_steps)
        seconds, cpu = time.monotonic() - start, time.process_time() - start_cpu
        answer(seconds=seconds / num_steps, cpu_seconds=cpu / num_steps, **_peak_memory(side))


class Child:
    """A side in its own process.

    Attributes:
      facts: what the side said of itself; `unavailable` holds the reason if it cannot run.
    """

    def __init__(self, script: Path, side: str, workload: Mapping[str, Any], log: Path):
        self.side, self.log = side, log
        environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
        paths = [str(REPOSITORY), environment.get("PYTHONPATH", "")]
        python = sys.executable
        if side == "limba":
            accelerators.prepare_gpu(environment)  # as `limba train` does
        if side == "t5x":
            paths.insert(0, environment.get("T5X_DIR", ""))
            python = environment.get("T5X_PYTHON", python)
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                [python, str(script), "--serve", side],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment,
            )  # fmt: skip
        self.facts = self._ask(json.dumps(workload))

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # It has died; its log says why.
        answer = self._process.stdout.readline()
        if answer:
            return json.loads(answer)
        last = (self.log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
        return {"unavailable": f"exit status {self._process.wait()}: {last[:300]}"}

    def run(self, num_steps: int) -> dict[str, Any]:
        """Seconds and cpu-seconds per step."""
        return self._ask(str(num_steps))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# ---------------------------------------------------- measurement ---------------------------------------------------


def _progress(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def measure(
    script: Path, label: str, workload: Mapping[str, Any], sides: list[str], steps: int, rounds: int, log_folder: Path
) -> dict[str, Any]:
    """A report per side; the ratios compare with sides[0]. A side that cannot run is "unavailable: reason".

    Args:
      script: of the benchmark, which serves the sides.
      label: before each line of progress.
      workload: what the sides are built from.
    """
    children: dict[str, Child] = {}
    reports: dict[str, Any] = {}
    measured: dict[str, list[dict[str, Any]]] = {}
    try:
        for side in sides:
            _progress(f"{label}: {side} builds and compiles")
            child = Child(script, side, workload, log_folder / f"{side}.log")
            children[side] = child
            if "unavailable" in child.facts:
                _progress(f"{label}: {side} is unavailable: {child.facts['unavailable']}")
                reports[side] = f"unavailable: {child.facts['unavailable']}"
            else:
                measured[side] = []
        for number in range(rounds):
            # Every other round in reverse, so that no side always comes after the same one.
            for side in list(measured)[:: -1 if number % 2 else 1]:
                answer = children[side].run(steps)
                if "unavailable" in answer:
                    reports[side] = f"unavailable: {answer['unavailable']}"
                    del measured[side]
                    continue
                measured[side].append(answer)
                _progress(
                    f"{label}: round {number + 1} of {rounds}: {side} {answer['seconds']:.4g} s, "
                    f"{answer['cpu_seconds']:.4g} cpu-s a step"
                )
    finally:
        for child in children.values():
            child.close()
    for side, answers in measured.items():
        reports[side] = report(children[side].facts, answers, measured.get(sides[0], answers))
    return {side: reports[side] for side in sides}


def report(facts: Mapping[str, Any], answers: list[dict], ours: list[dict]) -> dict[str, Any]:
    """Medians of a side's rounds; of another side than `ours` also the median of their ratios, and its range."""

    def median(name: str) -> float:
        return statistics.median(answer[name] for answer in answers)

    def ratios(name: str) -> dict[str, Any]:
        of_rounds = [a[name] / b[name] for a, b in zip(answers, ours, strict=True)]
        return {
            f"{name}_ratio": round(statistics.median(of_rounds), 3),
            f"{name}_ratio_range": [round(min(of_rounds), 3), round(max(of_rounds), 3)],
        }

    result = {
        "seconds": float(f"{median('seconds'):.4g}"),
        "cpu_seconds": float(f"{median('cpu_seconds'):.4g}"),
        "peak_memory_mib": answers[-1]["peak_memory_mib"],
        "peak_memory_of": answers[-1]["peak_memory_of"],
        **facts,
    }
    return result | (ratios("seconds") | ratios("cpu_seconds") if answers is not ours else {})


def cpu_bf16() -> list[str]:
    """The instructions for bf16 products that this CPU says it has; the bf16 figures depend on them."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if info.is_file() else set()
    return [flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags]
