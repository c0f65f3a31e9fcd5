"""Commands in processes of their own for the price of one start: each is a fork of a process that has the imports.

    python tests/forked.py SOCKET MODULE...

A fork has its own arguments, environment, working directory and output, and ends with its own exit code, as a process
of `python -m MODULE` does. Only its imports are not made again, which are most of what a short command costs. A few
tests of each command start Python itself.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent
# Imported once for commands. What these do not import, a fork imports itself.
_OF_COMMANDS = (
    "limba.train",
    "limba.eval",
    "limba.infer",
    "limba.checkpoints.orbax_saving",
    "tasks.pretraining.pretraining_tasks",
    "tasks.pipeline.task_batches",
    "tests.limba.workers.worker",
)


# --------------------------------------------------------- the tests' side --------------------------------------------


class Process:
    """A fork: what tests use of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self.pid = int(connection.recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # It has ended, and the server has not said so yet.
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            answer = self._connection.recv(64)
            assert answer, "the server of tests.forked has ended"
            self.returncode = int(answer)
            self._connection.close()
        return self.returncode


def session_folder(request: Any, tmp_path_factory: Any, name: str) -> Path:
    """A folder that pytest-xdist's workers share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if hasattr(request.config, "workerinput") else own) / name
    folder.mkdir(exist_ok=True)
    return folder


class Server:
    """The process that forks. Processes that give the same folder share it, and it ends with the last of them.

    It also imports the modules in `warm`. `before` are the words of a command that runs it, such as `setpriv …`. A fork
    with OPEN_FILES in its environment may open so many. `python` is an interpreter of another environment, without
    Limba, where nothing but `warm` is imported.
    """

    def __init__(self, folder: Path, warm: Sequence[str] = (), before: Sequence[str] = (), python: str | None = None):
        self._python = python
        self._path, self._log, self._process = folder / "forked", folder / "forked.log", None
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._user = self._connection(b"user")
            except OSError:  # There is none, or the last one that used it has ended.
                self._path.unlink(missing_ok=True)
                self._process = self._begin(warm, before)
                self._user = self._connection(b"user")

    def _begin(self, warm: Sequence[str], before: Sequence[str]) -> subprocess.Popen:
        paths = [] if self._python else [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        # A training compiles fifty small programs that the one before it has compiled: a sixth of its cpu-seconds.
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        modules = warm if self._python else [*_OF_COMMANDS, *warm]
        command = [*before, self._python or sys.executable, "-P", __file__, str(self._path), *modules]
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until = time.monotonic() + 300
        while not self._path.exists():
            assert process.poll() is None and time.monotonic() < until, self._log.read_text()
            time.sleep(0.02)
        return process

    def _connection(self, message: bytes, files: Sequence[int] = ()) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(self._path))
            socket.send_fds(connection, [message], files)
        except OSError:
            connection.close()
            raise
        return connection

    def start(self, arguments: list[str], env: dict[str, str], stdout: IO, stderr: IO, cwd: Path = ROOT) -> Process:
        """Begins `python` with these words: first a module with `main(argv)`, `limba`, a script, or `-c` and code."""
        # A message must fit into the socket's buffer, so the request is a file.
        request = self._path.with_name(f"request-{os.getpid()}-{time.monotonic_ns()}")
        request.write_text(json.dumps({"arguments": arguments, "environment": env, "folder": str(cwd)}))
        return Process(self._connection(str(request).encode(), [stdout.fileno(), stderr.fileno()]))

    def run(
        self, arguments: list[str], env: dict[str, str], cwd: Path = ROOT, timeout: float = 300
    ) -> subprocess.CompletedProcess:
        """Like `subprocess.run(["python", "-m", *arguments], capture_output=True, text=True)`."""
        now = f"{os.getpid()}-{time.monotonic_ns()}"
        names = [self._path.with_name(f"{name}-{now}") for name in ("out", "err")]
        with names[0].open("wb") as out, names[1].open("wb") as err:
            process = self.start(arguments, env, out, err, cwd)
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
        return subprocess.CompletedProcess(arguments, code, *(name.read_text(errors="replace") for name in names))

    def close(self) -> None:
        self._user.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # Others may use it still.
                self._process.wait(1)


# ----------------------------------------------------- the server's side ----------------------------------------------


def serve(path: str, *warm: str) -> None:
    """Forks for each request, and tells how the forks ended, as long as it has users. It has one thread."""
    for name in warm:
        importlib.import_module(name)
    gc.freeze()  # Forks share its memory as long as they do not search it for garbage.
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(f"{path}.new")
    listening.listen(64)
    Path(f"{path}.new").rename(path)
    children: dict[int, socket.socket] = {}
    users: list[socket.socket] = []
    while True:
        ready, _, _ = select.select([listening, *users], [], [], 0.01 if children else None)
        if ended_users := [user for user in users if user in ready]:
            users = [user for user in users if user not in ended_users]
            if not users and _ends(path, listening):
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                return
        if listening in ready:
            connection, _ = listening.accept()
            message, files, _, _ = socket.recv_fds(connection, 4096, 2)
            if message == b"user":
                users.append(connection)
                continue
            request = json.loads(Path(message.decode()).read_text())
            pid = os.fork()
            if pid == 0:
                listening.close()
                connection.close()
                _run(request, *files)
            for file in files:
                os.close(file)
            connection.send(str(pid).encode())
            children[pid] = connection
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with children.pop(pid) as connection:
                    connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _ends(path: str, listening: socket.socket) -> bool:
    """Whether nobody has come; who comes later begins another server."""
    with Path(path).with_name("lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if select.select([listening], [], [], 0)[0]:
            return False
        Path(path).unlink()
        return True


def _run(request: dict[str, Any], stdout: int, stderr: int) -> None:
    """The fork: becomes what was asked for, and never returns."""
    code: Any = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        paths = [request["folder"], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        sys.path[:0] = [found for found in paths if found]
        importlib.invalidate_caches()
        if "OPEN_FILES" in os.environ:
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(os.environ["OPEN_FILES"]),) * 2)
        if "KILL_BEFORE" in os.environ:
            from tests import killing

            killing.install(os.environ["KILL_BEFORE"])
        name, *arguments = request["arguments"]
        sys.argv = [name, *arguments]
        if name == "limba":
            importlib.import_module("limba.cli").main()
        elif name == "-c":
            sys.argv = [name, *arguments[1:]]
            exec(compile(arguments[0], "<code of a test>", "exec"), {"__name__": "__main__"})
        elif name.endswith(".py"):
            sys.path.insert(0, str(Path(name).parent))
            runpy.run_path(name, run_name="__main__")
        else:
            from limba import command_line

            command_line.run_command(importlib.import_module(name).main, arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # Waits for threads, as Python does at its end.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


if __name__ == "__main__":
    serve(*sys.argv[1:])
