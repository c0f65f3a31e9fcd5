"""Which hosts and origins a page of Limba's answers."""

import asyncio

import pytest

from limba.addons.serve.web_guard import Guard


def _status(host: str, origin: str | None = None, **more: str) -> int:
    found = []

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        found.append(message)

    headers = [(b"host", host.encode()), *([] if origin is None else [(b"origin", origin.encode())])]
    headers += [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    asyncio.run(Guard(answer, ["my-machine", "[2001:db8::1]"], None)(scope, None, send))
    return found[0]["status"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]:80", "my-machine")),
        ("[2001:db8::1]:80", 200),
        *((host, 403) for host in ("evil.com", "evil.com@localhost", "127.0.0.1#.evil.com", "localhost/evil.com")),
        *((host, 403) for host in ("localhost?", "localhost:port", "localhost:80:90", "[::1", "", "a b", "localhost ")),
    ],
)
def test_a_host_is_a_name_or_an_address(host, status):
    assert _status(host) == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("http://evil.com", 403),
        ("http://[", 403),
        ("null", 403),
        ("http://a@localhost", 403),
    ],
)
def test_an_origin_is_the_page_itself(origin, status):
    assert _status("localhost", origin) == status


@pytest.mark.parametrize(
    ("site", "aim", "status"),
    [
        ("none", "document", 200),
        ("same-origin", "empty", 200),
        ("cross-site", "document", 200),
        *((site, aim, 403) for site in ("cross-site", "same-site") for aim in ("image", "script", "iframe", "empty")),
    ],
)
def test_another_site_leads_to_the_page_and_shows_nothing_of_it(site, aim, status):
    """A browser sends no `Origin` for pictures, scripts and frames."""
    assert _status("localhost", sec_fetch_site=site, sec_fetch_dest=aim) == status
