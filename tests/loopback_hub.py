"""A Hugging Face hub on the loopback: the part of its protocol that is spoken for models and data sets."""

import base64
import dataclasses
import hashlib
import http.server
import json
import math
import re
import threading
import urllib.parse
from collections.abc import Callable
from pathlib import Path, PurePosixPath

TOKEN = "hf_loopback"
# Larger files are uploaded in parts of this size.
PART_BYTES = 100_000
_LARGE = (".safetensors", ".msgpack", ".bin", ".model")


@dataclasses.dataclass
class Repo:
    private: bool
    gated: bool = False
    commits: list[dict[str, bytes]] = dataclasses.field(default_factory=lambda: [{}])
    messages: list[str] = dataclasses.field(default_factory=list)
    pinned: dict[str, int] = dataclasses.field(default_factory=dict)  # numbers of commits by other hashes of theirs

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1]

    def sha(self, number: int = -1) -> str:
        return hashlib.sha1(f"commit {number % len(self.commits)}".encode()).hexdigest()

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        shas = {self.sha(i): i for i in range(len(self.commits))} | self.pinned
        if revision == "main":
            return self.sha(), self.files
        return (revision, self.commits[shas[revision]]) if revision in shas else None


class LoopbackHub:
    """Serves and keeps models and data sets. `requests` is what was asked for: "GET /api/models/org/name"."""

    def __init__(self):
        self.repos: dict[str, Repo] = {}
        self.requests: list[str] = []
        self.refuses: dict[str, int] = {}  # from the beginning of a request to the status that it gets
        # What goes wrong with a request: None, the status of an answer, or "drop" for half a body.
        self.fault: Callable[[str], int | str | None] = lambda asked: None
        # Of a stranger: answers to requests, and of a file its ETag, its size and the commit it is of.
        self.says: dict[str, bytes] = {}
        self.etag: Callable[[str], str | None] = lambda path: None
        self.size: Callable[[str], int | None] = lambda path: None
        self.commit: Callable[[str], str | None] = lambda path: None
        self.page_size = 1000  # files of a listing
        self.has_ranges = True
        self.served_bytes = 0
        self.large_files: dict[str, bytes] = {}
        self.is_closed = False
        self._parts: dict[str, dict[int, bytes]] = {}
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, name: str, folder: Path, private: bool = False, gated: bool = False) -> Repo:
        """Puts the files of a local folder into a new repository."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.repos[name] = Repo(private, gated, [files])
        return self.repos[name]

    def close(self) -> None:
        """Ends the service, and connections that are open get no answers."""
        self.is_closed = True
        self._server.shutdown()
        self._server.server_close()

    def use(self, monkeypatch, home: Path, token: str | None = TOKEN) -> None:
        """Makes huggingface_hub in this process go here, with a cache below `home`."""
        from huggingface_hub import constants, file_download
        from huggingface_hub.utils import reset_sessions

        template = self.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", self.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        reset_sessions()

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """The same for another process. Newer versions would upload large files through Xet without asking."""
        settings = {"HF_ENDPOINT": self.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        return settings | ({"HF_TOKEN": token} if token else {})


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _entry(path: str, content: bytes) -> dict:
    entry = {"type": "file", "path": path, "size": len(content), "oid": _blob_id(content)}
    if path.endswith(_LARGE):
        sha = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha, "size": len(content), "pointerSize": 134}
    return entry


def _handler(hub: LoopbackHub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # A body would wait for the acknowledgement of its headers.

        def log_message(self, *_):
            pass

        # ---------------------------------------------- answers ----------------------------------------------

        def answer(self, status: int, content: bytes | dict | list = b"", headers: dict[str, str] | None = None):
            if isinstance(content, dict | list):
                content = json.dumps(content).encode()
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if self.drops:
                content, self.close_connection = content[: len(content) // 2], True
            hub.served_bytes += len(content)
            self.wfile.write(content)

        def refuse(self, status: int, code: str, message: str = "no"):
            self.answer(status, {"error": message}, {"X-Error-Code": code, "X-Error-Message": message})

        def is_known(self) -> bool:
            return self.headers.get("Authorization") == f"Bearer {TOKEN}"

        def repo(self, name: str) -> Repo | None:
            """The repository that is asked for, or None after the answer that it is not there."""
            repo = hub.repos.get(name)
            if repo is None or (repo.private and not self.is_known()):
                self.refuse(404 if self.is_known() else 401, "RepoNotFound", "Repository not found")
                return None
            return repo

        def body(self) -> bytes:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                content = b""
                while length := int(self.rfile.readline(), 16):
                    content += self.rfile.read(length)
                    self.rfile.readline()
                self.rfile.readline()
                return content
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        # ---------------------------------------------- requests ---------------------------------------------

        drops = False

        def do(self):
            url = urllib.parse.urlsplit(self.path)
            path = urllib.parse.unquote(url.path)
            content = self.body()
            if hub.is_closed:
                self.close_connection = True
                return
            asked = f"{self.command} {path}"
            hub.requests.append(asked)
            for begin, status in hub.refuses.items():
                if asked.startswith(begin):
                    self.answer(status, {"error": "You may not do that."})
                    return
            if asked in hub.says:
                self.answer(200, hub.says[asked])
                return
            fault = hub.fault(asked)
            self.drops = fault == "drop"
            if isinstance(fault, int):
                self.answer(fault, {"error": "not now"}, {"Retry-After": "0"} if fault == 429 else None)
                return
            for pattern, action in ROUTES.items():
                if match := re.fullmatch(pattern, asked):
                    action(self, *match.groups(), content)
                    return
            self.answer(404, {"error": f"the loopback hub has no {asked}"})

        do_GET = do_HEAD = do_POST = do_PUT = do

        def create(self, content: bytes):
            request = json.loads(content)
            name = f"{request['organization'] or 'user'}/{request['name']}"
            private = request.get("private", request.get("visibility") == "private")
            answer = {"url": f"{hub.url}/{name}", "name": name}
            if not self.is_known():
                self.answer(401, {"error": "Invalid username or password."})
            elif name in hub.repos:
                self.answer(409, answer | {"error": "You already created this model repo"})
            else:
                hub.repos[name] = Repo(private)
                self.answer(200, answer)

        def validate(self, content: bytes):
            del content
            self.answer(200, {"errors": [], "warnings": []})

        def info(self, name: str, revision: str | None, content: bytes):
            del content
            if not (repo := self.repo(name)):
                return
            if not (found := repo.at(revision or "main")):
                self.refuse(404, "RevisionNotFound")
                return
            sha, files = found
            siblings = [{"rfilename": path} for path in files]
            self.answer(200, {"id": name, "sha": sha, "private": repo.private, "siblings": siblings, "tags": []})

        def tree(self, name: str, revision: str, directory: str | None, content: bytes):
            del content
            if not (repo := self.repo(name)) or not (found := repo.at(revision)):
                return
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            is_recursive = query.get("recursive", ["false"])[0].lower() == "true"
            begin = int(query.get("cursor", ["0"])[0])
            root = f"{directory}/" if directory else ""
            files = {path: content for path, content in found[1].items() if path.startswith(root)}
            parents = {str(parent) for path in files for parent in PurePosixPath(path).parents if len(str(parent)) > 1}
            entries = [{"type": "directory", "path": path, "size": 0, "oid": _blob_id(b"")} for path in sorted(parents)]
            entries += [_entry(path, content) for path, content in files.items()]
            if not is_recursive:
                entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(root)]
            url = f"{hub.url}{self.path.partition('&cursor')[0]}&cursor={begin + hub.page_size}"
            more = {"Link": f'<{url}>; rel="next"'} if begin + hub.page_size < len(entries) else {}
            self.answer(200, entries[begin : begin + hub.page_size], more)

        def preupload(self, name: str, content: bytes):
            if not (repo := self.repo(name)):
                return
            files = []
            for file in json.loads(content)["files"]:
                entry = _entry(file["path"], repo.files[file["path"]]) if file["path"] in repo.files else {}
                mode = "lfs" if file["path"].endswith(_LARGE) or file["size"] > 10_000_000 else "regular"
                oid = entry.get("lfs", entry).get("oid")
                files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
            self.answer(200, {"files": files})

        def batch(self, name: str, content: bytes):
            if not self.repo(name):
                return
            objects = []
            for wanted in json.loads(content)["objects"]:
                oid, size = wanted["oid"], wanted["size"]
                answer = {"oid": oid, "size": size}
                href = f"{hub.url}/large/{oid}"
                if oid in hub.large_files:
                    pass  # Without an action the client knows that the hub has it.
                elif size <= PART_BYTES:
                    answer["actions"] = {"upload": {"href": href}}
                else:
                    parts = {str(i + 1): f"{href}/{i + 1}" for i in range(math.ceil(size / PART_BYTES))}
                    header = {"chunk_size": str(PART_BYTES)} | parts
                    answer["actions"] = {"upload": {"href": href, "header": header}}
                objects.append(answer)
            self.answer(200, {"transfer": "basic", "objects": objects})

        def keep(self, oid: str, content: bytes):
            if hashlib.sha256(content).hexdigest() != oid:
                self.answer(400, {"error": f"these bytes are not {oid}"})
                return
            hub.large_files[oid] = content
            self.answer(200, {})

        def keep_part(self, oid: str, number: str, content: bytes):
            hub._parts.setdefault(oid, {})[int(number)] = content
            self.answer(200, {}, {"ETag": f"part-{number}"})

        def complete(self, oid: str, content: bytes):
            numbers = [part["partNumber"] for part in json.loads(content)["parts"]]
            self.keep(oid, b"".join(hub._parts[oid][number] for number in numbers))

        def commit(self, name: str, content: bytes):
            if not (repo := self.repo(name)):
                return
            files = dict(repo.files)
            for line in content.splitlines():
                key, value = json.loads(line).values()
                if key == "header":
                    repo.messages.append(value["summary"])
                elif key == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif key == "lfsFile":
                    files[value["path"]] = hub.large_files[value["oid"]]
                else:
                    assert key == "deletedFile", key
                    del files[value["path"]]
            repo.commits.append(files)
            url = f"{hub.url}/{name}/commit/{repo.sha()}"
            self.answer(200, {"success": True, "commitOid": repo.sha(), "commitUrl": url})

        def resolve(self, name: str, revision: str, path: str, content: bytes):
            del content
            if not (repo := self.repo(name)):
                return
            if repo.gated:
                self.refuse(403, "GatedRepo", "Access to this model is restricted")
                return
            sha, files = repo.at(revision) or (None, {})
            if path not in files:
                self.refuse(404, "EntryNotFound")
                return
            data, entry = files[path], _entry(path, files[path])
            etag, size = hub.etag(path), hub.size(path)
            headers = {
                "X-Repo-Commit": hub.commit(path) or sha or "",
                "ETag": f'"{entry.get("lfs", entry)["oid"] if etag is None else etag}"',
                "Accept-Ranges": "bytes",
                "X-Linked-Size": str(len(data) if size is None else size),
            }
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if wanted and hub.has_ranges:
                first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
                self.answer(206, data[first : last + 1], headers)
            else:
                self.answer(200, data, headers)

    name = r"([^/]+/[^/]+)"
    ROUTES = {
        r"POST /api/repos/create": Handler.create,
        r"POST /api/validate-yaml": Handler.validate,
        rf"GET /api/(?:models|datasets)/{name}(?:/revision/([^/]+))?": Handler.info,
        rf"GET /api/(?:models|datasets)/{name}/tree/([^/]+)(?:/(.+))?": Handler.tree,
        rf"POST /api/models/{name}/preupload/main": Handler.preupload,
        rf"POST /{name}\.git/info/lfs/objects/batch": Handler.batch,
        r"PUT /large/(\w+)": Handler.keep,
        r"PUT /large/(\w+)/(\d+)": Handler.keep_part,
        r"POST /large/(\w+)": Handler.complete,
        rf"POST /api/models/{name}/commit/main": Handler.commit,
        rf"(?:GET|HEAD) (?:/datasets)?/{name}/resolve/([^/]+)/(.+)": Handler.resolve,
    }
    return Handler
