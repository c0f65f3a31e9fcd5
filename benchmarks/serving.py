"""`limba serve`: many clients at once against one after another, and what bad requests do to the server.

    python -m benchmarks.serving runs/mine

It starts a server on this machine, and prints requests a second and the median and 95th percentile of their times, for
each number of clients. Each client sends its next request when it has its answer. Then it sends 1,000 requests that are
wrong in several ways, and prints their statuses, and the server's memory before and after.
"""

import argparse
import collections
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_TEXTS = (
    "Return the ___ of the list.",
    "The ___ is raised if the file is not ___.",
    "This function takes ___ arguments and returns a new ___.",
    "A class that ___ the value of each key.",
    "See the ___ for more information.",
)
_WRONG = (
    b"no json",
    b"[]",
    b"{}",
    b'{"prompt": 5}',
    b'{"prompt": "a", "max_tokens": -1}',
    b'{"prompt": "a", "temperature": "hot"}',
    b'{"prompt": "a", "model": "other"}',
    b'{"prompt": "' + b"word " * 20_000 + b'"}',
    b'{"prompt": ' + b"[" * 100_000,
    b'{"prompt": "' + b"a" * (3 << 20),
)


def post(port: int, body: bytes) -> int:
    """The status of a completion."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/v1/completions", body)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    except (BrokenPipeError, ConnectionResetError):  # The server has answered before it has read all.
        return connection.getresponse().status
    finally:
        connection.close()


def measure(ask: Callable[[int], int], clients: int, requests: int) -> dict[str, float]:
    """Sends requests, by their numbers, from a number of clients."""

    def timed(number: int) -> float:
        begun = time.perf_counter()
        status = ask(number)
        assert status == 200, f"request {number} got {status}"
        return time.perf_counter() - begun

    begun = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        seconds = sorted(pool.map(timed, range(requests)))
    whole = time.perf_counter() - begun
    return {
        "clients": clients,
        "requests/s": requests / whole,
        "p50 ms": 1000 * seconds[requests // 2],
        "p95 ms": 1000 * seconds[requests * 95 // 100],
    }


def resident_mb(process: int) -> float:
    """The memory of a process, on Linux."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's directory or one checkpoint")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=320, help="for each number of clients")
    parser.add_argument("--max_tokens", type=int, default=32)
    parser.add_argument("--serve_flags", default="", help="of `limba serve`, such as '--max_batch 1'")
    flags = parser.parse_args(argv)
    command = [sys.executable, "-m", "limba.cli", "serve", flags.run, "--port", "0", *flags.serve_flags.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().partition("http://")[2].partition("/")[0].rpartition(":")[2])

            def ask(number: int) -> int:
                body = {"prompt": f"{number} {_TEXTS[number % len(_TEXTS)]}", "max_tokens": flags.max_tokens}
                return post(port, json.dumps(body).encode())

            measure(ask, max(flags.clients), 2 * max(flags.clients))  # so that all is compiled
            for clients in flags.clients:
                row = measure(ask, clients, flags.requests)
                print("  ".join(f"{name} {value:.1f}" for name, value in row.items()), flush=True)
            before = resident_mb(server.pid)
            statuses = collections.Counter(post(port, _WRONG[number % len(_WRONG)]) for number in range(1000))
            print("1,000 bad requests:", ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items())))
            print(f"memory before {before:.0f} MB, after {resident_mb(server.pid):.0f} MB")
            assert ask(0) == 200
            server.send_signal(signal.SIGTERM)
            print("exit code after SIGTERM:", server.wait(60))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
