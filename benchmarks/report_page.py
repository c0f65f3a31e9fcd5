"""How long `limba report` takes for a long run, and how large its page is: a made-up run with a line for each step.

python -m benchmarks.report_page --steps 100000
"""

import argparse
import json
import math
import random
import tempfile
import time
from pathlib import Path

from limba.addons.pages import report_command

# As many metrics as a line of a pre-training has.
_OTHERS = 34


def write_run(folder: Path, steps: int) -> None:
    """metrics.jsonl and goodput.jsonl of a run with an evaluation after each thousandth of its steps."""
    rng = random.Random(0)
    others = {f"non_padding_fraction/part_{i}_of_the_batch": rng.random() for i in range(_OTHERS)}
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            loss = 2 + 5 / math.sqrt(step) + rng.gauss(0, 0.1)
            line = {
                "step": step,
                "dataset": "train",
                "loss": loss,
                "accuracy": 1 / loss,
                "learning_rate": 1 - step / steps,
            }
            line |= {"gradient_norm": rng.random(), "timing/tokens_per_second": 70_000 * rng.random()} | others
            file.write(json.dumps(line) + "\n")
            if step % max(1, steps // 1000) == 0:
                file.write(
                    json.dumps({"step": step, "dataset": "training_eval/task", "nats_per_target_token": loss}) + "\n"
                )
    with (folder / "goodput.jsonl").open("w", encoding="utf-8") as file:
        for i in range(2001):
            line = {"step": steps * i // 2000, "began": 0.0, "time": 60.0 * i, "seconds": {"step": 50.0 * i}}
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_run(folder, flags.steps)
        began, cpu_began = time.monotonic(), time.process_time()
        report_command.main([name, "--out", str(folder / "page.html")])
        wall, cpu = time.monotonic() - began, time.process_time() - cpu_began
        metrics, page = ((folder / file).stat().st_size / 1e6 for file in ("metrics.jsonl", "page.html"))
        print(f"{metrics:.0f} MB of metrics, {wall:.1f} s ({cpu:.1f} cpu-seconds), page of {page:.2f} MB")


if __name__ == "__main__":
    main()
