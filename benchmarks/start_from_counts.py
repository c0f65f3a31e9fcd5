"""What a start from counts costs: a training of one step of the quickstart, from nothing, and with what is kept.

    python -m benchmarks.start_from_counts --work runs/starts

WORK gets the quickstart's corpus and vocabulary, unless they are there. Each row is a whole command of `limba train`
with one step, its evaluation and its checkpoint, in a new run: seconds, cpu-seconds of all its processes, and the most
memory that these had together (proportional shares; Linux). On a busy machine compare cpu-seconds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import startup

_POLL_SECONDS = 0.2
# The rows: whether compiled programs and counts of the row before are kept.
_ROWS = (("nothing kept", False, False), ("compiled programs kept", True, False), ("everything kept", True, True))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the quickstart's corpus and vocabulary")
    parser.add_argument("--gin", nargs="*", default=[], metavar="BINDING", help="such as BATCH_SIZE=8")
    flags = parser.parse_args(argv)
    work = flags.work.absolute()
    startup.prepare(work, [])
    with tempfile.TemporaryDirectory() as folder:
        programs, counts = Path(folder, "programs"), Path(folder, "counts")
        for number, (name, keeps_programs, keeps_counts) in enumerate(_ROWS):
            for kept, path in ((keeps_programs, programs), (keeps_counts, counts)):
                if not kept:
                    shutil.rmtree(path, ignore_errors=True)
            command = [*_command(work, Path(folder, f"run-{number}")), *(f"--gin.{binding}" for binding in flags.gin)]
            environment = startup.environment(startup.Side(startup.HERE), work, programs)
            cost = measure(command, environment | {"LIMBA_COUNTS_CACHE": str(counts)})
            print(json.dumps({"row": name, **cost}), flush=True)


def _command(work: Path, model_dir: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "limba", "train", "gin/recipes/quickstart.gin", "--gin.TRAIN_STEPS=1"),
        f"--gin.VOCABULARY_FILE='{work}/vocab/spiece.model'",
        f"--gin.MODEL_DIR='{model_dir}'",
    ]


def measure(command: Sequence[str], environment: dict[str, str]) -> dict[str, float]:
    """The cost of a command.

    Raises:
      RuntimeError: if it fails, with the end of its messages.
    """
    with tempfile.TemporaryFile() as written:
        began, peak = time.monotonic(), 0
        process = subprocess.Popen(command, cwd=startup.HERE, env=environment, stdout=written, stderr=written)
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            peak = max(peak, sum(map(_kib, _tree(process.pid))))
            time.sleep(_POLL_SECONDS)
        seconds, used = time.monotonic() - began, ended[2]
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        written.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{written.read().decode(errors='replace')[-3000:]}")
    cpu = used.ru_utime + used.ru_stime
    return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "peak_mib": peak >> 10}


def _tree(pid: int) -> list[int]:
    """The process and all below it."""
    try:
        found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # It has ended meanwhile.
        return []
    below = {int(child) for children in found for child in children}
    return [pid, *(process for child in sorted(below) for process in _tree(child))]


def _kib(pid: int) -> int:
    """Its share of memory."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
