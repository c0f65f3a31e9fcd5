"""`limba serve`: many clients at once against one after another, memory, and what bad requests do to the server.

    limba convert to-ct2 runs/mine exports/mine_ct2
    python -m benchmarks.serving runs/mine exports/mine_ct2
    python -m benchmarks.serving runs/mine --generate exports/mine_hf      # beside transformers' generate

For each model it starts a server on this machine, and prints requests a second and the median and 95th percentile of
their times, for each number of clients. Each client sends its next request when it has its answer, which is compared
with the answer that the text got alone. --many prints the memory after 1,000 requests and after that many. Then
it sends 1,000 requests that are wrong in several ways, and ends the server with SIGTERM while all clients wait.

--generate FOLDER, of `limba convert to-hf`, does none of this: the server and transformers' `generate` take turns, and
it prints requests a second and cpu-seconds a request of both, and their ratios. `generate` is called in this process,
without a server, with as many texts at a time as there are clients.
"""

import argparse
import collections
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_TEXTS = (
    "Return the ___ of the list.",
    "The ___ is raised if the file is not ___.",
    "This function takes ___ arguments and returns a new ___.",
    "A class that ___ the value of each key.",
    "See the ___ for more information.",
)
_NUM_TEXTS = 40  # different ones
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


def post(port: int, body: bytes) -> tuple[int, bytes]:
    """The status and the content of a completion."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/v1/completions", body)
        reply = connection.getresponse()
        return reply.status, reply.read()
    except (BrokenPipeError, ConnectionResetError):  # The server has answered before it has read all.
        return connection.getresponse().status, b""
    finally:
        connection.close()


def measure(ask: Callable[[int], str], clients: int, requests: int) -> dict[str, float]:
    """Sends requests, by their numbers, from a number of clients."""

    def timed(number: int) -> float:
        begun = time.perf_counter()
        ask(number)
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


def shown(row: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.1f}" for name, value in row.items())


def text_of(number: int) -> str:
    """The text of a request."""
    return f"{number % _NUM_TEXTS} {_TEXTS[number % len(_TEXTS)]}"


def asker(port: int, max_tokens: int) -> Callable[[int], str]:
    """The answer to a request by its number: an error if it is another than the first to the same text."""
    first: dict[str, str] = {}

    def ask(number: int) -> str:
        text = text_of(number)
        status, content = post(port, json.dumps({"prompt": text, "max_tokens": max_tokens}).encode())
        assert status == 200, f"request {number} got {status}"
        answer = json.loads(content)["choices"][0]["text"]
        assert first.setdefault(text, answer) == answer, f"request {number}: {answer!r}, and first {first[text]!r}"
        return answer

    return ask


def bench(port: int, server: subprocess.Popen, flags: argparse.Namespace) -> None:
    """All measurements of one server, which is ended."""
    ask = asker(port, flags.max_tokens)
    for number in range(_NUM_TEXTS):  # the answers of texts alone
        ask(number)
    measure(ask, max(flags.clients), 2 * max(flags.clients))  # so that all is compiled
    for clients in flags.clients:
        print(shown(measure(ask, clients, flags.requests)), flush=True)
    if flags.many:
        measure(ask, 8, 1000)
        before = resident_mb(server.pid)
        print(shown(measure(ask, 8, flags.many - 1000)))
        print(f"memory after 1,000 requests {before:.1f} MB, after {flags.many:,} {resident_mb(server.pid):.1f} MB")
    before = resident_mb(server.pid)
    statuses = collections.Counter(post(port, _WRONG[number % len(_WRONG)])[0] for number in range(1000))
    print("1,000 bad requests:", ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items())))
    print(f"memory before {before:.1f} MB, after {resident_mb(server.pid):.1f} MB")
    with ThreadPoolExecutor(max(flags.clients)) as pool:
        waiting = [pool.submit(ask, number) for number in range(max(flags.clients))]
        time.sleep(0.1)  # All are sent; few are answered.
        server.send_signal(signal.SIGTERM)
        print(f"answers to {len(waiting)} requests that wait at SIGTERM:", sum(bool(x.result()) for x in waiting))
    print("exit code after SIGTERM:", server.wait(60))


def cpu_seconds(process: int) -> float:
    """Those that a process has taken, on Linux."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def generator(folder: str, max_tokens: int) -> Callable[[Sequence[int]], list[str]]:
    """Greedy answers to requests by their numbers, as one batch of transformers' `generate`."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).float().eval()

    def generate(numbers: Sequence[int]) -> list[str]:
        texts = [text_of(number).replace("___", "<extra_id_0>", 1).replace("___", "<extra_id_1>") for number in numbers]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        with torch.inference_mode():
            found = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False, num_beams=1)
        return tokenizer.batch_decode(found)

    return generate


def compare(
    ask: Callable[[int], str], generate: Callable[[Sequence[int]], list[str]], process: int, clients: int, requests: int
) -> tuple[float, float, float, float]:
    """One round: requests a second of the server and of `generate`, and cpu-seconds of a request of both."""
    before = cpu_seconds(process)
    ours, of_server = measure(ask, clients, requests)["requests/s"], cpu_seconds(process) - before
    begun, before = time.perf_counter(), time.process_time()
    for first in range(0, requests, clients):
        generate(range(first, min(first + clients, requests)))
    theirs, of_generate = requests / (time.perf_counter() - begun), time.process_time() - before
    return ours, theirs, of_server / requests, of_generate / requests


def spread(ratios: Sequence[float]) -> str:
    """The median of the rounds, and their range."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def bench_beside(port: int, server: subprocess.Popen, flags: argparse.Namespace) -> None:
    """Prints the ratios for each number of clients."""
    ask, generate = asker(port, flags.max_tokens), generator(flags.generate, flags.max_tokens)
    for clients in flags.clients:
        measure(ask, clients, 2 * clients)
        generate(range(clients))
        requests = max(clients, flags.requests // clients * clients)
        rounds = [compare(ask, generate, server.pid, clients, requests) for _ in range(flags.rounds)]
        ours, theirs, of_server, of_generate = (statistics.median(x) for x in zip(*rounds, strict=True))
        faster = spread([round_[0] / round_[1] for round_ in rounds])
        cheaper = spread([round_[3] / round_[2] for round_ in rounds])
        print(
            f"clients {clients}  requests/s {ours:.1f}, generate {theirs:.1f}: {faster}  "
            f"cpu ms {1000 * of_server:.1f}, generate {1000 * of_generate:.1f}: {cheaper}",
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="runs, checkpoints, and folders of `limba convert to-ct2`")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 50])
    parser.add_argument("--requests", type=int, default=320, help="for each number of clients")
    parser.add_argument("--many", type=int, default=0, help="requests after which memory is printed (0: it is not)")
    parser.add_argument("--max_tokens", type=int, default=32)
    parser.add_argument("--serve_flags", default="", help="of `limba serve`, such as '--max_batch 1'")
    parser.add_argument("--generate", metavar="FOLDER", help="of `to-hf`: beside transformers' generate of it")
    parser.add_argument("--rounds", type=int, default=5, help="of --generate")
    flags = parser.parse_args(argv)
    for model in flags.models:
        print(f"== {model}", flush=True)
        command = [sys.executable, "-m", "limba.cli", "serve", model, "--port", "0", *flags.serve_flags.split()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline().partition("http://")[2].partition("/")[0].rpartition(":")[2])
                (bench_beside if flags.generate else bench)(port, server, flags)
            finally:
                server.kill()


if __name__ == "__main__":
    main()
