"""Runs `limba lint` many times for the price of its imports: each run is a fork that has them already.

    python -m tests.addons.plan.lint.linting < REQUESTS.json

REQUESTS.json is a list of {"arguments": [...], "environment": {...}, "folder": "…"}.
Prints a list of {"code", "out", "err"}.
"""

import contextlib
import io
import json
import os
import sys
import traceback

import datasets
import seqio

from limba import command_line
from limba import train as train_command
from limba.addons.plan.data import lint_tasks
from limba.addons.plan.lint import command
from limba.gin_config import importing
from tasks import objectives
from tasks.pretraining import pretraining_tasks

# `train` is not a name here: T5X's gin files take `train` from the script that is run, which is this one.
_WARM = (datasets, seqio, train_command, lint_tasks, objectives, pretraining_tasks)


def _answer(request):
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:0] = [request["folder"]]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command_line.run_command(command.main, request["arguments"])
        except SystemExit as stop:
            code = stop.code
        except Exception:
            code = traceback.format_exc()
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def _in_a_fork(request):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            json.dump(_answer(request), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer)


if __name__ == "__main__":
    importing.prepare()
    print(json.dumps([_in_a_fork(request) for request in json.load(sys.stdin)]))
