"""A trial without a model, as a sweep calls it: `sweep_trial.py TRIAL_DIR NAME=VALUE …`.

Ten steps, each written to `run/metrics.jsonl` as training does, and kept in `run/step`, from where it goes on. What it
does is noted in `calls`, so that a test sees what was done twice.
"""

import json
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
parameters = {name: float(value) for name, value in (word.split("=") for word in sys.argv[2:])}
run = folder / "run"
run.mkdir(exist_ok=True)
state = run / "step"
first = int(state.read_text()) if state.is_file() else 0
with (folder / "calls").open("a") as calls, (run / "metrics.jsonl").open("a") as metrics:
    print("begins", first, file=calls, flush=True)
    if parameters.get("broken"):
        sys.exit("error: it is broken")
    for step in range(first + 1, 11):
        time.sleep(parameters.get("seconds", 0.0))
        # The best is at x = 3, and at step 8 of 10.
        loss = (parameters["x"] - 3) ** 2 + abs(step - 8) / 10
        print(json.dumps({"step": step, "dataset": "training_eval/t", "loss": loss}), file=metrics, flush=True)
        print("step", step, file=calls, flush=True)
        written = run / "step.tmp"
        written.write_text(str(step))
        written.replace(state)
