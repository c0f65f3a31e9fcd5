"""URLs with signatures and passwords: they are used, they are renewed, and nothing that is kept or said has them."""

import http.server
import json
import re
import threading

import numpy as np
import pytest

from limba.data import contract
from limba.files import redaction
from tasks import pretraining
from tasks.pipeline import task_batches
from tasks.registry import TaskRegistry
from tasks.sources import corpora, hub_datasets
from tasks.sources.remote_files import http_files, http_retries
from tasks.vocabularies import ByteVocabulary

SECRET = "pl4nted"


@pytest.fixture
def server():
    """Serves `/…/x.jsonl` to whoever has the signature of now; `file=` chooses one of several."""

    class Handler(http.server.BaseHTTPRequestHandler):
        disable_nagle_algorithm = True  # else small answers take 40 ms
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            signed = f"X-Amz-Signature={server.signature}" in self.path or "Authorization" in self.headers
            file = (re.findall(r"file=([^&]*)", self.path) or ["one"])[0]
            lines = [json.dumps({"text": f"{file} {number}"}) for number in range(64)]
            content = "\n".join(lines).encode() if signed else b""
            first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()
            part = content[int(first) : int(last) + 1]
            self.send_response(206 if signed else 403)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.signature = f"{SECRET}-1"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def _url(server, signature, query="", user=""):
    port = server.server_port
    return f"http://{user}127.0.0.1:{port}/{SECRET}/a.jsonl?{query}X-Amz-Date=7&X-Amz-Signature={signature}"


def test_a_renewed_signature_is_the_same_data(server):
    urls = [_url(server, f"{SECRET}-1", f"file={name}%2Fx&") for name in "ab"]
    source = corpora.HuggingFaceSource({"train": urls})
    fingerprint = source.fingerprint("train")
    assert list(fingerprint["files"]) == ["a.jsonl?file=a%2Fx", "a.jsonl?file=b%2Fx"]  # two files
    texts = [document["text"] for batch in source.documents("train") for document in batch]
    assert {text.split()[0] for text in texts} == {"a%2Fx", "b%2Fx"} and len(texts) == 128
    server.signature = f"{SECRET}-2"
    renewed = corpora.HuggingFaceSource({"train": [_url(server, f"{SECRET}-2", f"file={x}%2Fx&") for x in "ab"]})
    assert renewed.fingerprint("train") == fingerprint
    assert f"{SECRET}-" not in repr(renewed) + repr(renewed.list_shards("train"))


def _batches(urls):
    if "signed" in TaskRegistry.names():
        TaskRegistry.remove("signed")
    pretraining.register_pretraining_task(
        "signed", data_files={"train": urls}, vocabulary=ByteVocabulary(extra_ids=100), shuffle_buffer_size=16
    )
    lengths = {"inputs": 32, "targets": 16}
    return task_batches.get_train_batches(contract.DatasetConfig("signed", lengths, "train", 4, seed=1, num_readers=1))


def test_a_run_resumes_after_its_signature_was_renewed(server):
    before = _batches([_url(server, f"{SECRET}-1")])
    next(before)
    state = before.save_state()
    expected = next(before)["decoder_target_tokens"]
    assert SECRET + "-" not in str(state) and b'"a.jsonl": ' in next(iter(state.values()))
    # As versions before wrote it, with the signature.
    old = {
        name: content.replace(b"a.jsonl", b"a.jsonl?X-Amz-Date=6&X-Amz-Signature=9") for name, content in state.items()
    }
    server.signature = f"{SECRET}-2"
    for kept in (state, old):
        resumed = _batches([_url(server, f"{SECRET}-2")])
        resumed.restore_state(kept)
        np.testing.assert_array_equal(next(resumed)["decoder_target_tokens"], expected)
    other = _batches([_url(server, f"{SECRET}-2", "file=b&")])
    with pytest.raises(ValueError, match=r"files.a.jsonl is missing; .*files.a.jsonl\?file=b is new"):
        other.restore_state(state)


def test_errors_show_no_credentials(server, monkeypatch, caplog):
    monkeypatch.setattr(http_retries.time, "sleep", lambda seconds: None)
    expired = corpora.HuggingFaceSource({"train": _url(server, f"{SECRET}-9")})
    with pytest.raises(
        FileNotFoundError, match=r"a.jsonl\?X-Amz-Date=\*\*\*&X-Amz-Signature=\*\*\* answers with .* 403"
    ) as refused:
        expired.check("train")
    source = corpora.HuggingFaceSource({"train": _url(server, "no", user=f"me:{SECRET}-1@")})
    source.check("train")  # requests sends the password
    server.shutdown()
    server.server_close()
    with pytest.raises(http_files.BrokenFileError, match="stays unreadable") as broken:
        list(source.documents("train"))
    with pytest.raises(http_files.BrokenFileError, match="Max retries exceeded") as unreachable:
        corpora.HuggingFaceSource({"train": _url(server, f"{SECRET}-1", user=f"me:{SECRET}-2@")}).check("train")
    for error in (refused, broken, unreachable):
        assert f"{SECRET}-" not in str(error.value)
    assert f"{SECRET}-" not in caplog.text and "X-Amz-Signature=***" in caplog.text


def test_a_url_of_a_record_is_refused_with_its_remedy(server, monkeypatch):
    recorded = redaction.redact(_url(server, f"{SECRET}-1"))
    with pytest.raises(ValueError, match=r"is a URL as a run records it, .*Give the whole URL again"):
        corpora.HuggingFaceSource({"train": recorded}).check("train")
    monkeypatch.setattr(hub_datasets.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ValueError, match=r"is a token as a run records it, .* Set HF_TOKEN"):
        corpora.HubSource("org/x", token="***").check("train")
