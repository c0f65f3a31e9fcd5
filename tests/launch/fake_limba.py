"""Stands for `limba train` in tests of the launchers: steps that cost nothing, a checkpoint every five, an end as told.

Like `limba train`, processes begin when all have come (unless FAKE_ALONE is set).

FAKE_RUN    a folder: `checkpoint`, the step that was saved; `starts`, a line for each process: index, how often it had
            begun before, first step; `environment`, the variables of the last one, as JSON
FAKE_ENDS   "INDEX:STEP:CODE …": that process ends so at that step, once; 137 is a kill. The others end too,
            with 75 after a stop and else with 69.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

run = Path(os.environ["FAKE_RUN"])
index = os.environ.get("LIMBA_PROCESS_INDEX") or os.environ.get("SLURM_PROCID", "0")
stopping = []


def value(name, default):
    """Of `--gin.NAME=VALUE`."""
    return next((x.partition("=")[2] for x in sys.argv if x.startswith(f"--gin.{name}=")), default)


def replace(file, text):
    """Writes a file that other processes read, at once."""
    new = file.with_name(f"{file.name}-{index}")
    new.write_text(text)
    new.replace(file)


def leave(code, why):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which may come when another worker has stopped already
    replace(ended, str(code))
    print(why, file=sys.stderr, flush=True)
    if code == 137:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(code)


if "FAKE_DEAF" not in os.environ:
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
starts = run / "starts"
# How often this worker has begun before.
attempt = str(sum(x.split()[0] == index for x in starts.read_text().splitlines()) if starts.exists() else 0)
ends = [end.split(":") for end in os.environ.get("FAKE_ENDS", "").split()]
total = int(value("TRAIN_STEPS", 20))
checkpoint = run / "checkpoint"
ended = run / f"ended-{attempt}"
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
with starts.open("a") as file:
    file.write(f"{index} {attempt} {first}\n")
replace(run / "environment", json.dumps(dict(os.environ)))
count = int(os.environ.get("LIMBA_PROCESS_COUNT") or os.environ.get("SLURM_NTASKS", "1"))
waited = time.monotonic() + 30
while len({x.split()[0] for x in starts.read_text().splitlines() if x.split()[1] == attempt}) < count:
    if "FAKE_ALONE" in os.environ:
        break
    if time.monotonic() > waited or stopping:
        leave(75 if stopping else 69, "another worker has not come")
    time.sleep(0.01)
for step in range(first, total + 1):
    for number, (who, at, code) in enumerate(ends):
        once = run / f"end-{number}"
        if (who, at) == (index, str(step)) and not once.exists():
            once.touch()
            leave(int(code), f"told to end with {code}")
    if ended.exists() and not stopping:
        leave(75 if ended.read_text() == "75" else 69, "another worker has ended")
    sys.stderr.write(f"INFO step {step}/{total}: loss 5.100, 3 steps/s, 30 tokens/s, 00:00 left\n")
    sys.stderr.flush()
    if step % 5 == 0 and index == "0":
        replace(checkpoint, str(step))
    if stopping:
        if index == "0":
            replace(checkpoint, str(step))
        leave(75, "\nWARNING Stopped on request")
    time.sleep(float(value("SECONDS", 0.02)))
