"""Scripts in forks of a process that has imported torch and transformers, in an environment without Limba.

    python forked_scripts.py        then, a line each on stdin: {"words": […], "environment": {…}, "out": …, "err": …}

`words` are a script, or `-c` and code, and arguments. It answers with the exit code. As tests/forked.py, for one at a
time.
"""

import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path


class Server:
    """The process that forks; it ends with `close`."""

    def __init__(self, python: str, folder: Path):
        self._folder = folder
        # A PYTHONPATH would bring this environment's packages along.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [python, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=folder,
            )

    def run(self, *words: str | Path, env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
        """Like `subprocess.run([python, *words], capture_output=True, text=True)`, without PYTHONPATH."""
        out, err = self._folder / "out", self._folder / "err"
        environment = {name: value for name, value in env.items() if name != "PYTHONPATH"}
        request = {"words": [*map(str, words)], "environment": environment, "out": str(out), "err": str(err)}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code = self._process.stdout.readline()
        assert code, (self._folder / "log").read_text()
        return subprocess.CompletedProcess([*words], int(code), out.read_text(), err.read_text())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _become(words: Sequence[str], environment: Mapping[str, str], out: str, err: str) -> None:
    """The fork: never returns."""
    code = 1
    try:
        for descriptor, name in ((1, out), (2, err)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.environ.clear()
        os.environ.update(environment)
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<code of a test>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [*words]
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    import torch  # noqa: F401
    import transformers.models.t5.modeling_t5  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
