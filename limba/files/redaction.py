"""Secrets in what is written down: URLs are stored without their credentials, and messages show `***` in their place.

A signed URL carries its key in the query, a URL with a user the password. They expire or are renewed while the file
stays the same. So the identity of a remote file is its address without them (`without_credentials`). Text that people
or other programs read goes through `redact`: messages, tracebacks, and the configuration that a run records.

Only the standard library: `launch/stamp_lines.py` loads this file alone.
"""

import contextlib
import functools
import os
import re
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HIDDEN = "***"

# Names of a query's parameters that are or name a credential: of Amazon, Google, Alibaba, Tencent, Huawei and
# CloudFront, and those that services of their own have.
_CLOUD = r"(?:x-(?:amz|goog|oss|cos|obs|tos|ms)-|q-)[a-z-]+"
_NAMED = (
    r"(?:[a-z0-9]+[_-])*(?:token|signature|sig|secret|password|passwd|credentials?|api[_-]?key|hmac|jwt)"
    r"|(?:[a-z]+)?(?:access[_-]?key(?:[_-]?id)?|accessid)|key-pair-id|authorization|auth|user:pass"
)
_CREDENTIAL = re.compile(rf"(?:{_CLOUD}|{_NAMED})", re.I)
# What goes with a signature, and means other things without one: a policy, times, and the fields of Azure's.
_WITH_SIGNATURE = frozenset(
    [
        *("expires", "policy", "sv", "ss", "srt", "sp", "se", "st", "spr", "sip", "sr", "si", "sdd"),
        *("skoid", "sktid", "skt", "ske", "sks", "skv", "saoid", "suoid", "scid"),
    ]
)

# In a text: the user of a URL; parameters by name, also where they stand in a URL that is itself encoded; a header; a
# quoted value with the name of a credential; and tokens that are known by their form (Hugging Face, GitHub and GitLab,
# OpenAI, Slack, Amazon, Google, JSON web tokens). Lookaheads have limits, or a text of many
# beginnings of tokens would take minutes.
_USER = re.compile(r"(?<=://)[^\s/?#'\"<>\\]+@")
_PARAMETER = re.compile(rf"((?:[?&;]|%3[fF]|%26)(?:{_CLOUD}|{_NAMED})(?:=|%3[dD]))(?:(?!%26)[^\s&;#'\"<>()\\,])+", re.I)
_HEADER = re.compile(r"(\b(?:bearer|basic)\s+)[\w+/.=~-]{8,}", re.I)
_QUOTED = re.compile(
    r"((?:\b|_)(?:token|api_?key|access_?key|secret(?:_access)?(?:_?key)?|password|passwd|authorization)"
    r"[\"']?\s*[=:]\s*)([\"'])(?!<)[^\"'\s]{6,}\2",
    re.I,
)
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|(?:gh[a-z]|github_pat)_\w{16,}|(?:glpat|xox[a-z])-[\w-]{16,}"
    r"|sk-(?=[\w-]{0,200}\d)[\w-]{20,}|AKIA[0-9A-Z]{16}|AIza[\w-]{35}"
    r"|(?:(?<!-)eyJ[\w-]{10,}+|eyJ[\w-]{10,500}+)\.[\w-]{10,}+\.[\w-]*)"
)
# Variables of the environment whose values are secrets.
_SECRET_VARIABLE = re.compile(r"(?:^|_)(?:TOKEN|KEY|APIKEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|PAT|CREDENTIALS?)$", re.I)
_SHORTEST = 8


def without_credentials(url: str) -> str:
    """A URL, or the end of one, without its user, password, signature and fragment; any other text as it is.

    Parameters that are not credentials stay: `…/download?file=a` and `?file=b` are two files.
    """
    address, question, query = url.partition("?")
    scheme, mark, place = address.rpartition("://")
    if mark:
        host, slash, path = place.partition("/")
        address = f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path.partition('#')[0]}"
        query = query.partition("#")[0]
    names = {field: urllib.parse.unquote_plus(field.partition("=")[0]) for field in query.split("&")}
    if any(_CREDENTIAL.fullmatch(name) for name in names.values()):
        kept = [x for x, name in names.items() if not (_CREDENTIAL.fullmatch(name) or name.lower() in _WITH_SIGNATURE)]
        query, question = "&".join(kept), question if kept else ""
    return f"{address}{question}{query}"


def redact(text: str) -> str:
    """The text with `***` for every credential: in URLs, headers and quoted values, and those that this process has.

    The latter are the values of variables such as HF_TOKEN and WANDB_API_KEY, and what `hf auth login` stored.
    """
    for secret in _own_secrets():
        text = text.replace(secret, HIDDEN)
    text = _USER.sub(f"{HIDDEN}@", text)
    text = _PARAMETER.sub(rf"\g<1>{HIDDEN}", text)
    text = _HEADER.sub(rf"\g<1>{HIDDEN}", text)
    text = _QUOTED.sub(rf"\g<1>\g<2>{HIDDEN}\g<2>", text)
    return _TOKEN.sub(HIDDEN, text)


@contextlib.contextmanager
def redacted_stderr() -> Iterator[None]:
    """Redacts what this process writes to standard error: messages, warnings, tracebacks of its threads.

    Standard output is left alone: it has results, which nothing may change.
    """
    from limba.files.changed_stream import ChangedStream  # here: the file is loaded alone, too

    before: Any = sys.stderr
    sys.stderr = ChangedStream(before, redact)
    try:
        yield
    finally:
        sys.stderr = before


def _own_secrets() -> list[str]:
    """What this process was given in confidence, the longest first: one may contain another."""
    found = {value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name) and not _is_path(value)}
    home = os.environ.get("HF_HOME") or str(Path("~/.cache/huggingface").expanduser())
    found.add(_stored(os.environ.get("HF_TOKEN_PATH") or f"{home}/token"))
    return sorted((secret for secret in found if len(secret) >= _SHORTEST), key=len, reverse=True)


def _is_path(value: str) -> bool:
    return value.startswith(("/", "~", "./"))


@functools.lru_cache(maxsize=8)
def _stored(file: str) -> str:
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, ValueError):
        return ""


# ------------------------------------------- URLs whose record is read again -----------------------------------------

_full_urls: dict[str, str] = {}


def hide(url: str) -> str:
    """The URL as it may be recorded; `reveal` gives this process the whole one back."""
    hidden = redact(url)
    if hidden != url:
        _full_urls[hidden] = url
    return hidden


def reveal(url: str) -> str:
    """The whole URL of one that this process has hidden; any other as it is."""
    return _full_urls.get(url, url)


def require_whole(value: str, kind: str, remedy: str) -> None:
    """Raises ValueError for a URL or a token that was read from a record, with the remedy."""
    if HIDDEN in value:
        raise ValueError(f"{value} is a {kind} as a run records it, without what Limba does not store. {remedy}")
