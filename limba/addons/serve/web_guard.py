"""What a page of Limba's accepts from a browser, whatever library draws it: an ASGI middleware around the application.

A browser sends requests to this machine for any site that is open in it. By DNS rebinding a foreign site's name becomes
this machine's address; then only the `Host` header tells the site from ours. So a request is answered only if its host
is one of the page's own, and if its `Origin`, where it has one, is the page itself. Where a browser says for which site
it asks (`Sec-Fetch-Site`), another site may only lead to the page: it can show no picture of it, and no frame.
"""

import ipaddress
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Any

from limba.files import untrusted_json

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

# A name or an address, and a port: all else that a URL may have, such as a user before @, is no host.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::\d{1,5})?")
# Of a request: a text for the model, never a file.
_MOST_BYTES = 1 << 20


class Guard:
    """Answers 403 to what the page has no use for, and passes the rest on.

    Args:
      app: the application.
      hosts: names under which the page may be asked for, besides those of the loopback.
      posts: paths that take a POST. No other method that sends something is accepted, so nothing can be uploaded. None
        leaves it to an application that knows all of its paths.
      gets: the other paths that are answered; what ends in "/" has further ones below it, but for "/" itself.
    """

    def __init__(self, app: App, hosts: Iterable[str], posts: Collection[str] | None, gets: Iterable[str] = ()):
        self._app = app
        self._hosts = {host.strip("[]").lower() for host in hosts}
        self._posts = None if posts is None else frozenset(posts)
        self._gets = frozenset(gets)
        self._folders = tuple(path for path in self._gets if path.endswith("/") and path != "/")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif (problem := self._problem(scope)) is None:
            await self._app(scope, _limited(receive), send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": problem})
        else:
            await _refuse(send, 403, problem)

    def _problem(self, scope: Message) -> str | None:
        """Why a request is refused; None if it is not."""
        values: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts, origins = values.get("host", []), values.get("origin", [])
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return f"The host {', '.join(hosts)!r} is not this page's; start it with --allowed_hosts to allow more."
        if any(_netloc(origin) != hosts[0].lower() for origin in origins):
            return f"The page answers no other site, and this request is from {', '.join(origins)!r}."
        sites, aims = values.get("sec-fetch-site", []), values.get("sec-fetch-dest", [])
        if any(site not in ("same-origin", "none") for site in sites) and aims != ["document"]:
            return f"The page answers no other site, and this request is {', '.join(sites)}."
        if scope["type"] == "websocket" or self._posts is None:
            return None
        method, path = scope["method"], scope["path"]
        if method not in ("GET", "HEAD"):
            return None if method == "POST" and path in self._posts else f"The page takes no {method} at {path!r}."
        if path not in self._gets and not path.startswith(self._folders):
            return f"The page serves nothing at {path!r}."
        return None

    def _is_ours(self, host: str) -> bool:
        if (found := _HOST.fullmatch(host)) is None:
            return False
        name = found[1].strip("[]").lower()
        return name in self._hosts or is_loopback(name)


class CheckedBodies:
    """Passes a request's body on if it is an object of JSON in which nothing is wrong; else it is answered with 422.

    Args:
      find_problem: of the object, what is wrong in it; "" if nothing is.
    """

    def __init__(self, app: App, find_problem: Callable[[Mapping[str, Any]], str]):
        self._app, self._find_problem = app, find_problem

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, message = b"", await receive()
        while message["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
            message = await receive()
        else:  # The client has gone, or `Guard` has cut its body.
            await _refuse(send, 413, f"The body is too long; at most {_MOST_BYTES:,} bytes are taken.")
            return
        try:
            problem = self._find_problem(untrusted_json.parse_object(body, "The body"))
        except ValueError as error:
            problem = str(error)
        if problem:
            await _refuse(send, 422, problem)
        else:
            await self._app(scope, _replayed(body, receive), send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


async def _refuse(send: Send, status: int, problem: str) -> None:
    content = f"{problem}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _netloc(origin: str) -> str | None:
    """The host and port of an origin; None of what is no origin."""
    try:
        return urllib.parse.urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def is_loopback(name: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _limited(receive: Receive) -> Receive:
    """Ends a request whose body is longer than any question as if the browser had gone."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        return message if received <= _MOST_BYTES else {"type": "http.disconnect"}

    return limited
