"""A run with planted secrets, from training to export: nothing that it writes or says has one of them.

The secrets are a token in the environment, one in a file, a key of W&B, a signed URL and a URL with a password, which
the server of the corpus asks for.
"""

import base64
import http.server
import re
import threading
import urllib.parse

import pytest

from tests import forked, line

pytestmark = pytest.mark.slow

PLANTED = "pl4nted5ecret"
TOKEN, STORED, WANDB_KEY = (f"{PLANTED}-{name}-0123456789abcdef" for name in ("environment", "file", "wandb"))
PASSWORD = f"{PLANTED}-password"

GIN = """
from __gin__ import dynamic_registration
import seqio
from limba.network import t5 as network
from tasks.pretraining import masked_text

include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/pretrain.gin'
include 'tests/small_training.gin'
include 'gin/runs/wandb.gin'

MIXTURE_OR_TASK_NAME = @masked_text.task()
masked_text.task.name = 'planted'
masked_text.task.vocabulary = %VOCABULARY
TASK_FEATURE_LENGTHS = {'inputs': 16, 'targets': 8}
seqio.ByteVocabulary.extra_ids = 100
network.T5Config:
  emb_dim = 16
  num_heads = 2
  head_dim = 8
  mlp_dim = 32
EVAL_PERIOD = 1000000
"""


class Server:
    """A hub of files that asks for the token on one name of this machine, and for a password on the other.

    Both ask for the signature of now. The first request of each file fails, and it moves to another address.
    """

    def __init__(self, corpus):
        server, self.signature, self.failed = self, f"{PLANTED}-signature-1", set()

        class Handler(http.server.BaseHTTPRequestHandler):
            disable_nagle_algorithm = True  # else small answers take 40 ms
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                url = urllib.parse.urlsplit(self.path)
                status = server.refuses(self, url)
                if not status and url.path not in server.failed:
                    server.failed.add(url.path)
                    status = 503
                if status or not url.path.startswith("/moved"):
                    self.send_response(status or 302)
                    if not status:
                        self.send_header("Location", f"/moved{self.path}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                content = (corpus / url.path.rpartition("/")[2]).read_bytes()
                first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()
                part = content[int(first) : int(last) + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
                self.send_header("Content-Length", str(len(part)))
                self.end_headers()
                self.wfile.write(part)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def refuses(self, request, url):
        password = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
        is_hub = request.headers["Host"].startswith("127.")
        allowed = {f"Bearer {TOKEN}", f"Bearer {STORED}"} if is_hub else {f"Basic {password}"}
        if request.headers.get("Authorization") not in allowed:
            return 401
        return 0 if f"X-Amz-Signature={self.signature}" in url.query else 403

    def files(self):
        query = f"X-Amz-Algorithm=AWS4&X-Amz-Credential={PLANTED}-id&X-Amz-Signature={self.signature}"
        hub, other = f"http://127.0.0.1:{self.port}", f"http://me:{PASSWORD}@localhost:{self.port}"
        train = [f"{hub}/train-0.jsonl?{query}", f"{other}/train-1.jsonl?{query}"]
        return {"train": train, "validation": [f"{hub}/validation-0.jsonl?{query}"]}

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def forks(server, tmp_path, monkeypatch):
    """Not the session's: huggingface_hub reads its address when it is imported."""
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "secrets"))
    forks = forked.Server(tmp_path, ["datasets", "wandb", "convert.to_hf", "seqio"])
    yield forks
    forks.close()


@pytest.fixture
def server(tmp_path):
    line.write_corpus(tmp_path / "corpus")
    server = Server(tmp_path / "corpus")
    yield server
    server.close()


def test_no_secret_is_written_or_said(server, tmp_path, forks, request):
    pytest.importorskip("wandb")
    run, secrets, said = tmp_path / "outputs/run", tmp_path / "secrets", []
    secrets.mkdir()
    (secrets / "token").write_text(f"{STORED}\n")
    (tmp_path / "my.gin").write_text(GIN)
    extra = {"WANDB_MODE": "offline", "WANDB_API_KEY": WANDB_KEY, "WANDB_SILENT": "true"}

    def call(*arguments, **more):
        result = line.forked(forks, tmp_path / "outputs", *arguments, **extra, **more)
        said.append(result.stdout + result.stderr)
        return result

    def train(steps, **more):
        flags = {"MODEL_DIR": f"'{run}'", "TRAIN_STEPS": steps, "masked_text.task.files": server.files()}
        bindings = [f"--gin.{name}={value}" for name, value in flags.items()]
        return call("limba.train", f"--gin_file={tmp_path / 'my.gin'}", *bindings, **more)

    first = train(2, HF_TOKEN=TOKEN)
    assert first.returncode == 0, first.stderr
    assert "HTTP status 503" in first.stderr  # It was said that a request failed, and of which file.
    if request.config.getoption("--exhaustive"):  # Else tests/tasks/sources/test_signed_urls.py resumes readers alone.
        server.signature = f"{PLANTED}-signature-2"
        again = train(4)  # By the stored token.
        assert again.returncode == 0 and (run / "checkpoint_4").is_dir(), again.stderr
    server.signature = f"{PLANTED}-signature-3"
    files, server.signature = server.files(), "expired"
    flags = (f"--gin.masked_text.task.files={files}", f"--gin.MODEL_DIR='{run}'", "--gin.TRAIN_STEPS=6")
    expired = call("limba.train", f"--gin_file={tmp_path / 'my.gin'}", *flags, LIMBA_TRACEBACK="1")
    assert expired.returncode == 1 and "X-Amz-Signature=*** answers with HTTP status 403" in expired.stderr
    assert "Traceback" in expired.stderr
    exported = call("limba", "convert", "to-hf", str(run), str(tmp_path / "outputs/export"), "--no-check")
    assert exported.returncode == 0, exported.stderr

    written = [file for file in (tmp_path / "outputs").rglob("*") if file.is_file()]
    names = {file.name for file in written}
    assert {"config.gin", "run.json", "metrics.jsonl", "README.md", "wandb.json"} <= names
    assert any(name.startswith("reader-") for name in names) and any(name.endswith(".wandb") for name in names)
    leaking = [str(file) for file in written if PLANTED.encode() in file.read_bytes()]
    assert leaking == []
    assert [text for text in said if PLANTED in text] == []
