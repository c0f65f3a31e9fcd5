"""Servers that fail by a schedule: the batches and the checkpoints are those of a server that does not.

A schedule is drawn from a seed. The suite runs a few of each kind, `pytest --exhaustive` 200.
"""

import gzip
import http.server
import io
import json
import os
import random
import re
import socket
import struct
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from limba.data import contract
from tasks import pretraining
from tasks.pipeline import task_batches
from tasks.registry import TaskRegistry
from tasks.sources import corpora
from tasks.sources.remote_files import http_retries
from tasks.vocabularies import ByteVocabulary

SHORT, LONG = 3, 200
BATCHES = 24
# Fewer in a row than a reader forgives before a run (`http_retries.MAX_FAILURES_AT_START`).
MOST_IN_A_ROW = 4


class Schedule:
    """What goes wrong with the n-th request: a pure function of the seed, and never too often in a row."""

    def __init__(self, seed: int, faults: tuple, shares: tuple = (0.1, 0.3, 0.6)):
        self._random, self._faults, self._in_a_row = random.Random(seed), faults, 0
        self._share = self._random.choice(shares)
        self._lock = threading.Lock()
        self.count = 0

    def draw(self):
        with self._lock:
            if self._random.random() > self._share or self._in_a_row == MOST_IN_A_ROW:
                self._in_a_row = 0
                return None
            self._in_a_row += 1
            self.count += 1
            return self._random.choice(self._faults)


class Server:
    """Serves files in ranges, and fails by `schedule`."""

    def __init__(self, files: dict[str, bytes]):
        self.schedule: Schedule | None = None
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_GET(self):
                content = files[self.path.lstrip("/")]
                first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
                part = content[first : last + 1]
                fault = server.schedule.draw() if server.schedule else None
                if isinstance(fault, int):
                    self.send_response(fault)
                    for name, value in {"Retry-After": "0", "Content-Length": "0"}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    return
                if fault in ("cut", "reset"):
                    self.close_connection = True
                    if fault == "reset":
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        self.connection.close()
                    return
                if fault == "late":
                    threading.Event().wait(0.02)
                elsewhere = first + 1 if fault == "elsewhere" else first
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {elsewhere}-{last}/{len(content)}")
                self.send_header("Content-Length", str(len(part)))
                self.end_headers()
                if fault == "truncated":
                    part, self.close_connection = part[: len(part) // 2], True
                self.wfile.write(part)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # The client closes connections too.
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


FAULTS = (500, 502, 503, 429, 408, "cut", "reset", "late", "truncated", "elsewhere")


@pytest.fixture(scope="module")
def server():
    """Three shards of each format, whose rows are all different."""
    files = {}
    for shard in range(3):
        rows = [{"text": f"shard {shard} row {row} " + "words " * (row % 7)} for row in range(90 + 20 * shard)]
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        files |= {f"{shard}.jsonl": lines, f"{shard}.jsonl.gz": gzip.compress(lines)}
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), buffer, row_group_size=30)
        files[f"{shard}.parquet"] = buffer.getvalue()
    server = Server(files)
    yield server
    server.close()


def _read(server, suffix):
    """Batches over more than an epoch; the stream is saved and opened again on the way."""
    if "faults" in TaskRegistry.names():
        TaskRegistry.remove("faults")
    urls = [f"{server.url}/{shard}{suffix}" for shard in range(3)]
    source = corpora.HuggingFaceSource({"train": urls}, chunk_documents=16)
    pretraining.register_pretraining_task(
        "faults", data_files=source, vocabulary=ByteVocabulary(extra_ids=100), shuffle_buffer_size=32
    )
    config = contract.DatasetConfig("faults", {"inputs": 64, "targets": 14}, "train", 16, seed=3, num_readers=2)
    stream = task_batches.get_train_batches(config)
    read = [next(stream)["decoder_target_tokens"] for _ in range(BATCHES // 2)]
    again = task_batches.get_train_batches(config)
    again.restore_state(stream.save_state())
    return np.stack(read + [next(again)["decoder_target_tokens"] for _ in range(BATCHES // 2)])


def test_a_corpus_behind_a_server_that_fails(server, monkeypatch, request):
    expected = {suffix: _read(server, suffix) for suffix in (".jsonl", ".jsonl.gz", ".parquet")}
    monkeypatch.setattr(http_retries, "FIRST_WAIT_SECONDS", 1e-4)
    monkeypatch.setattr(http_retries, "LONGEST_WAIT_SECONDS", 1e-3)
    faults = 0
    for seed in range(LONG if request.config.getoption("--exhaustive") else SHORT):
        suffix = list(expected)[seed % 3]
        server.schedule = Schedule(seed, FAULTS)
        np.testing.assert_array_equal(_read(server, suffix), expected[suffix], f"seed {seed}, {suffix}")
        faults += server.schedule.count
        server.schedule = None
    print(f"{faults} faults")
    assert faults > SHORT


# TensorStore reads the server's address once in a process, so this runs in one of its own.
_BUCKET = """
import os, sys
from tests.limba.fake_gcs import FakeGcs

gcs = FakeGcs()
os.environ["TENSORSTORE_GCS_HTTP_URL"] = gcs.url
import jax, jax.numpy as jnp, numpy as np
from limba.checkpoints import checkpointing
from limba.checkpoints.train_state import TrainState
from limba.files import storage
from tests.test_faults import Schedule

faults = 0
for seed in range(int(sys.argv[1])):
    run = f"gs://my-bucket/{seed}"
    rng = np.random.default_rng(seed)
    params = {name: jnp.asarray(rng.normal(size=(40, 30)), jnp.float32) for name in "ab"}
    state = TrainState(step=jnp.int32(0), params=params, opt_state={})
    storage.list_names(storage.as_path(run))  # The first look at a bucket is short, whether faults come or not.
    # TensorStore waits seconds after a fault: few are enough.
    schedule = Schedule(seed, (429, 500, 503, "cut", "lost"), (0.03, 0.1))
    gcs.fault = lambda method: schedule.draw()
    checkpointer = checkpointing.SaveCheckpointConfig(keep=2).make_checkpointer(run)
    for step in (1, 2, 3):
        checkpointer.save(state.replace(step=jnp.int32(step)), {"reader-0": b"%d" % step}, {"run.json": b"{}"})
    checkpointer.close()
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    restored, data = checkpointer.restore_latest(shapes)
    gcs.fault = lambda method: None
    assert checkpointing.checkpoint_steps(run) == [2, 3], (seed, checkpointing.checkpoint_steps(run))
    assert int(restored.step) == 3 and data == {"reader-0": b"3"}, seed
    for name, value in params.items():
        np.testing.assert_array_equal(restored.params[name], value, f"seed {seed}")
    faults += schedule.count
print(faults)
"""


@pytest.mark.slow
def test_checkpoints_in_a_bucket_that_fails(request, forks):
    schedules = LONG if request.config.getoption("--exhaustive") else 1
    done = forks.run(["-c", _BUCKET, str(schedules)], dict(os.environ), timeout=60 * max(schedules, 5))
    assert done.returncode == 0, done.stderr[-5000:]
    print(f"{done.stdout.split()[-1]} faults")
    assert int(done.stdout.split()[-1]) > 0
