"""Credentials are not part of a file's identity, and nothing that is written has them."""

import time
import urllib.parse

import pytest

from limba.files import redaction

HOST = "https://bucket.example/corpus/a.jsonl.gz"
AMAZON = (
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAEXAMPLE%2F20240101&X-Amz-Date=20240101T000000Z"
    "&X-Amz-Expires=600&X-Amz-SignedHeaders=host&X-Amz-Signature={}&X-Amz-Security-Token={}"
)


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        (f"{HOST}?{AMAZON.format('5ec', 'ret')}", HOST),
        (f"{HOST}?X-Goog-Algorithm=GOOG4&X-Goog-Signature=5ec&X-Goog-Expires=1", HOST),
        (f"{HOST}?Expires=17&Signature=5ec~_&Key-Pair-Id=K2", HOST),
        (f"{HOST}?Policy=eyJTdGF0&Signature=5ec&Key-Pair-Id=K2", HOST),
        (f"{HOST}?sv=2022-11-02&st=1&se=2&sr=b&sp=r&sig=5ec%3D", HOST),
        (f"{HOST}?AWSAccessKeyId=AKIA&Signature=5ec&Expires=1", HOST),
        (f"{HOST}?GoogleAccessId=x&Expires=1&Signature=5ec", HOST),
        (f"{HOST}?OSSAccessKeyId=x&Expires=1&Signature=5ec", HOST),
        (f"{HOST}?access_token=5ec", HOST),
        (f"{HOST}?private-token=5ec&api_key=5ec&apikey=5ec", HOST),
        (HOST.replace("://", "://me:5ec@ret@") + "#part", HOST),
        (HOST.replace("://", "://5ec@"), HOST),
        # The query is the identity.
        ("https://h/download?file=a&v=2", "https://h/download?file=a&v=2"),
        ("https://h/download?file=a&token=5ec", "https://h/download?file=a"),
        ("https://h/download?token=5ec&file=b%2Fc", "https://h/download?file=b%2Fc"),
        # Names of Azure's fields, and of CloudFront's, without a signature.
        ("https://h/get?se=norrbotten&sp=1&expires=no", "https://h/get?se=norrbotten&sp=1&expires=no"),
        (
            "https://h/get?key=folder%2Ffile&tokenizer=t5&design=1",
            "https://h/get?key=folder%2Ffile&tokenizer=t5&design=1",
        ),
        ("corpus/a?b&.jsonl#x@y", "corpus/a?b&.jsonl#x@y"),
        # As the files of older runs record it.
        ("a.jsonl?sv=1&part=2&sig=5ec", "a.jsonl?part=2"),
    ],
)
def test_identity(url, identity):
    assert redaction.without_credentials(url) == identity
    if identity != url:
        hidden = redaction.redact(f"GET {url}, failed ({url})")
        assert "5ec" not in hidden and "ret" not in hidden and "***" in hidden


def test_in_messages(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("MY_TOKEN", "short")
    monkeypatch.setenv("TLS_KEY", "/etc/key.pem")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    (tmp_path / "token").write_text("stored-in-a-file\n")
    quoted = urllib.parse.quote(f"{HOST}?{AMAZON.format('5ec', 'ret')}&x=1", safe="")
    for text, shown in {
        "Max retries exceeded with url: /a?X-Amz-Signature=5ec&b=1 (Caused by": "/a?X-Amz-Signature=***&b=1 (Caused",
        "Authorization: Bearer 5ec5ec5ec": "Authorization: Bearer ***",
        'HubSource.token = "hunter22"': 'HubSource.token = "***"',
        "{'hub_token': 'hunter22', 'a': 1}": "{'hub_token': '***', 'a': 1}",
        "the key 0123456789abcdef of short and /etc/key.pem": "the key *** of short and /etc/key.pem",
        "got stored-in-a-file!": "got ***!",
        f"moved to https://h/r?to={quoted}": "X-Amz-Signature%3D***%26",
        "git clone https://oauth2:5ec@host/x.git": "https://***@host/x.git",
    }.items():
        redacted = redaction.redact(text)
        assert shown in redacted, redacted
        assert "5ec" not in redacted and "hunter22" not in redacted


@pytest.mark.parametrize(
    "text",
    [
        '"nats_per_target_token": 5.59, "tokens_per_second": 812.0, "pad_token": "<pad>", "eos_token": "</s>"',
        "denoising.Denoise.noise_density = 0.15\nTOKENIZER_FILE = 'vocab/spiece.model'\nkey = 'inputs_pretokenized'",
        "mixture_or_task_name was 'a' and is 'b'; /data/set@2x/a.jsonl; user@host: see https://h/a?b=c#d",
        "a basic rule: Bearer of news; sk-learn, hf_hub, ghost, hf-internal-testing/tiny-random",
    ],
)
def test_ordinary_text_stays(text):
    assert redaction.redact(text) == text


@pytest.mark.parametrize("beginning", ["sk-", "eyJ-"])
def test_a_text_of_many_beginnings_of_tokens_takes_no_minutes(beginning):
    text = beginning * 40_000
    begun = time.process_time()
    assert redaction.redact(text) == text
    assert time.process_time() - begun < 5


def test_a_hidden_url_is_known_to_the_process_that_hid_it_only():
    whole = f"{HOST}?file=a&X-Amz-Signature=5ec"
    hidden = redaction.hide(whole)
    assert hidden == f"{HOST}?file=a&X-Amz-Signature=***" and redaction.reveal(hidden) == whole
    assert redaction.hide(HOST) == HOST and redaction.reveal(HOST) == HOST
    with pytest.raises(ValueError, match=r"b\?sig=\*\*\* is a URL as a run records it, .* does not store. Again."):
        redaction.require_whole(redaction.reveal("https://h/b?sig=***"), "URL", "Again.")
