"""A Google Cloud Storage on the loopback: the part of its JSON API that TensorStore asks for."""

import http.server
import json
import threading
import urllib.parse
from collections.abc import Callable


class FakeGcs:
    """Serves and keeps the objects of buckets. `url` is what TENSORSTORE_GCS_HTTP_URL must be before the first use.

    `fault` says what goes wrong with a request, of the method: None, the status of an answer, "cut" for no answer, or
    "lost" for one that is done and not answered.
    """

    def __init__(self):
        self.objects: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.generation = 0
        self.fault: Callable[[str], int | str | None] = lambda method: None
        gcs = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # An answer in one packet: the second of two would wait 40 ms for the other side's word on the first.
            wbufsize = -1
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def parse_request(self) -> bool:
                """Also draws the fault, before the request is handled."""
                if not super().parse_request():
                    return False
                self.fault = gcs.fault(self.command)
                if self.fault is None or self.fault == "lost":
                    return True
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if isinstance(self.fault, int):
                    self.answer(self.fault)
                    self.wfile.flush()  # Nobody else does, because no method of this handler is called.
                else:
                    self.close_connection = True
                return False

            def answer(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None):
                if self.fault == "lost":
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def parts(self) -> tuple[str, str, dict[str, str]]:
                url = urllib.parse.urlsplit(self.path)
                query = dict(urllib.parse.parse_qsl(url.query))
                bucket, _, name = url.path.split("/b/", 1)[1].partition("/o")
                return bucket, urllib.parse.unquote(name.removeprefix("/")), query

            def do_GET(self):
                bucket, name, query = self.parts()
                if not name:
                    self.answer(200, json.dumps(gcs.listing(bucket, query)).encode())
                    return
                stored = gcs.objects.get((bucket, name))
                if stored is None:
                    self.answer(404)
                    return
                content, generation = stored
                headers = {"x-goog-generation": str(generation)}
                if wanted := self.headers.get("Range"):
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    start, end = int(first), min(int(last or len(content) - 1), len(content) - 1)
                    headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
                    self.answer(206, content[start : end + 1], headers)
                else:
                    self.answer(200, content, headers)

            def do_POST(self):
                bucket, _, query = self.parts()
                content = self.rfile.read(int(self.headers["Content-Length"]))
                gcs.put(bucket, query["name"], content)
                self.answer(200, json.dumps(gcs.metadata(bucket, query["name"])).encode())

            def do_DELETE(self):
                bucket, name, _ = self.parts()
                gcs.objects.pop((bucket, name), None)
                self.answer(204)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def put(self, bucket: str, name: str, content: bytes) -> None:
        self.generation += 1
        self.objects[bucket, name] = (content, self.generation)

    def upload(self, bucket: str, prefix: str, folder) -> None:
        """Puts the files of a local folder below a prefix."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.put(bucket, f"{prefix}/{file.relative_to(folder).as_posix()}", file.read_bytes())

    def listing(self, bucket: str, query: dict[str, str]) -> dict:
        names = sorted(name for where, name in self.objects if where == bucket)
        names = [name for name in names if name.startswith(query.get("prefix", ""))]
        names = [name for name in names if query.get("startOffset", "") <= name]
        if "endOffset" in query:
            names = [name for name in names if name < query["endOffset"]]
        return {"items": [self.metadata(bucket, name) for name in names]}

    def metadata(self, bucket: str, name: str) -> dict[str, str]:
        content, generation = self.objects[bucket, name]
        return {"name": name, "size": str(len(content)), "generation": str(generation)}

    def close(self) -> None:
        self._server.shutdown()
