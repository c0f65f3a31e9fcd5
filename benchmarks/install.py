"""What lock files cost to install: bytes from the package index, disk, and seconds, side by side.

    python -m benchmarks.install [LOCK …] [--rounds 3]

Each round installs each lock file with uv into a new environment from an empty cache, in turn, so that a busy network
or machine slows all of them. Without names: the environment with TensorFlow, and the one without. Needs the package
index. Bytes are counted by a proxy of this script's, through which uv goes; disk is what the files of the environment
hold, bytecode included, without the cache. Ratios are to the last lock file.
"""

import argparse
import dataclasses
import os
import socket
import socketserver
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = (ROOT / "launch" / "requirements-seqio.lock", ROOT / "launch" / "requirements.lock")


class CountingProxy(socketserver.ThreadingTCPServer):
    """An HTTPS proxy on loopback that counts the bytes which come back. It sees only encrypted bytes."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self._lock = threading.Lock()
        self.received = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, count: int) -> None:
        with self._lock:
            self.received += count


class _Tunnel(socketserver.StreamRequestHandler):
    """One `CONNECT HOST:PORT`, then bytes both ways."""

    server: CountingProxy

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass  # headers
        if method != "CONNECT":
            self.wfile.write(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
            return
        host, _, port = target.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=60) as upstream:
            self.wfile.write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
            up = threading.Thread(target=_copy, args=(self.connection, upstream, lambda count: None), daemon=True)
            up.start()
            _copy(upstream, self.connection, self.server.add)
            up.join(timeout=60)


def _copy(source: socket.socket, target: socket.socket, count) -> None:
    try:
        while piece := source.recv(1 << 16):
            count(len(piece))
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # Either side closed the connection.


@dataclasses.dataclass(frozen=True)
class Install:
    """Of one lock file: bytes received, bytes on disk, seconds."""

    download: int
    disk: int
    seconds: float


def install(lock: Path, uv: str, python: str) -> Install:
    """Installs into a new environment from an empty cache, as launch/environment.sh does.

    Raises:
      RuntimeError: with the end of what uv said, if it fails.
    """
    with tempfile.TemporaryDirectory(prefix="limba-install-") as directory, CountingProxy() as proxy:
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        environment |= {"UV_CACHE_DIR": f"{directory}/cache", "HTTPS_PROXY": proxy.url, "UV_PYTHON_DOWNLOADS": "never"}
        venv = Path(directory) / "venv"
        begin = time.monotonic()
        for command in (
            ["venv", "--python", python, str(venv)],
            ["pip", "install", "--compile-bytecode", "--python", str(venv / "bin" / "python"), "-r", str(lock)],
        ):
            # Copied, not linked: a linked environment has no bytes of its own.
            result = subprocess.run(
                [uv, *command], env=environment | {"UV_LINK_MODE": "copy"}, capture_output=True, text=True, check=False
            )
            if result.returncode:
                raise RuntimeError(f"{lock}: uv ended with exit code {result.returncode}:\n{result.stderr[-2000:]}")
        seconds = time.monotonic() - begin
        proxy.shutdown()
        return Install(proxy.received, disk_usage(venv), seconds)


def disk_usage(folder: Path) -> int:
    """Bytes that the files of a folder hold; links count nothing."""
    files = (Path(path) / name for path, _, names in os.walk(folder) for name in names)
    return sum(file.stat().st_size for file in files if not file.is_symlink())


def table(installs: dict[Path, list[Install]]) -> str:
    """Medians of the rounds, and what multiple of the last lock file's they are, smallest to largest round."""
    last = list(installs.values())[-1]
    rows = ["| lock file | lines | download, MB | disk, MB | seconds |", "|---|---|---|---|---|"]
    for lock, rounds in installs.items():
        lines = sum(line[:1].isalnum() for line in lock.read_text(encoding="utf-8").splitlines())
        cells = []
        for name, unit in (("download", 1e6), ("disk", 1e6), ("seconds", 1)):
            values, least = ([getattr(one, name) / unit for one in some] for some in (rounds, last))
            ratios = sorted(a / b for a, b in zip(values, least, strict=True))
            cells.append(f"{statistics.median(values):,.0f} ({ratios[0]:.2f}x to {ratios[-1]:.2f}x)")
        rows.append(f"| {lock} | {lines} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("locks", metavar="LOCK", nargs="*", type=Path, default=list(LOCKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--uv", default="uv", help="the installer (uv)")
    parser.add_argument("--python", default="python3", help="the interpreter of the environments (python3)")
    args = parser.parse_args(argv)
    installs: dict[Path, list[Install]] = {lock: [] for lock in args.locks}
    for number in range(args.rounds):
        for lock, rounds in installs.items():
            rounds.append(install(lock, args.uv, args.python))
            print(f"round {number + 1}: {lock}: {rounds[-1]}", flush=True)
    print(table(installs))


if __name__ == "__main__":
    main()
