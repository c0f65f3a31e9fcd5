"""Data sets on the Hugging Face hub: their files at one commit, and which of them are which split.

The hub's address and the token are those of huggingface_hub: HF_ENDPOINT, HF_TOKEN or `hf auth login`. Requests are
ours, because a run reads for hours and must survive errors of the hub and of the network.
"""

import dataclasses
import logging
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

import fsspec.utils
from huggingface_hub import constants

from limba.files import redaction, untrusted_files, untrusted_json
from limba.files.untrusted_files import cut, shown
from limba.tasks.sources import dataset_layout
from limba.tasks.sources.remote_files import http_files

logger = logging.getLogger(__name__)

# Of the list of files; a page has 1,000.
_MOST_PAGES = 1000
_URL = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)")


@dataclasses.dataclass(frozen=True)
class Repository:
    """A data set's repository at one commit.

    Attributes:
      name: such as "org/corpus".
      revision: the branch, tag or commit that was asked for.
      commit: its hash.
      sizes: bytes of each file by path.
      token: of the user, or None to look in the usual places.
    """

    name: str
    revision: str
    commit: str
    sizes: Mapping[str, int]
    token: str | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def at(cls, name: str, revision: str, token: str | None = None) -> "Repository":
        """The repository at a branch, tag or commit, as it is now.

        Raises:
          FileNotFoundError: if it or the revision does not exist, or is private.
          ValueError: if no data set can have the name, access is restricted, huggingface_hub is offline, or the token
            is one as a run records it.
          BrokenFileError: if the hub does not answer.
        """
        _check_name(name)
        _check_online(name)
        redaction.require_whole(token or "", "token", "Set HF_TOKEN, or give the token again.")
        address = f"{constants.ENDPOINT}/api/datasets/{name}"
        repository = cls(name, revision, "", {}, token)
        url = f"{address}/revision/{urllib.parse.quote(revision, safe='')}"
        info = untrusted_json.parse_object(repository._get(url).content, redaction.redact(url))
        if not re.fullmatch(r"[0-9a-f]{7,64}", commit := str(info.get("sha"))):
            raise ValueError(f"{redaction.redact(url)} has {shown(commit)} for sha, which is no commit.")
        sizes: dict[str, int] = {}
        page = f"{address}/tree/{commit}?recursive=true"
        for _ in range(_MOST_PAGES):
            answer = repository._get(page)
            sizes |= _sizes(untrusted_json.parse(answer.content, redaction.redact(page)), redaction.redact(page))
            if not (page := answer.next_url):
                break
            if not is_on_hub(page):  # The token would go there.
                raise ValueError(f"{constants.ENDPOINT} continues its list of files at {cut(page)}, which is not it.")
        else:
            raise ValueError(f"{constants.ENDPOINT} lists the files of {name!r} on more than {_MOST_PAGES:,} pages.")
        logger.info("%s: revision %s is commit %s, with %d files.", name, revision, commit, len(sizes))
        return dataclasses.replace(repository, commit=commit, sizes=sizes)

    def _get(self, url: str) -> http_files.Document:
        try:
            return http_files.fetch(url, lambda: headers(self.token))
        except http_files.HttpStatusError as error:
            raise _explain(error, self) from error

    def file(self, path: str) -> http_files.RemoteFile:
        address = f"{constants.ENDPOINT}/datasets/{self.name}/resolve/{self.commit}/{urllib.parse.quote(path)}"
        return http_files.RemoteFile(f"{path} of {self.name}", address, self.sizes[path], lambda: headers(self.token))

    def matching(self, pattern: str) -> list[str]:
        """The files of a path or a pattern, sorted.

        Raises:
          FileNotFoundError: if there are none.
        """
        is_meant = re.compile(fsspec.utils.glob_translate(pattern)).match
        if not (found := sorted(path for path in self.sizes if path == pattern or is_meant(path))):
            raise FileNotFoundError(
                f"Data set {self.name!r} has no file {pattern!r} at revision {self.revision!r}; it has "
                f"{untrusted_files.some(sorted(self.sizes), 8)}."
            )
        return found

    def split_files(self, config: str | None = None, data_files: Any = None) -> dataset_layout.SplitFiles:
        """The files that `datasets.load_dataset(name, config, data_files=data_files)` would read.

        Raises:
          ValueError: if there is no such configuration, or nothing that can be read.
        """
        return dataset_layout.of_names(
            self.name, self.sizes, lambda path: self._get(self.file(path).url).content, config, data_files
        )


def _sizes(entries: Any, where: str) -> dict[str, int]:
    """The files of a page of a hub's list; raises ValueError for what no hub lists."""
    sizes: dict[str, Any] = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        path, kind, size = map((entry if isinstance(entry, dict) else {}).get, ("path", "type", "size"))
        if not isinstance(path, str) or (kind == "file" and not (type(size) is int and 0 <= size < 2**63)):
            raise ValueError(f"{where} lists {shown(path)} with {shown(size)} bytes, which is no file.")
        sizes |= {path: size} if kind == "file" else {}
    return sizes


def headers(token: str | None = None) -> dict[str, str]:
    """Of a request to the hub: with the token given, or that of the usual places if there is one."""
    from huggingface_hub.utils import build_hf_headers  # here: local files need no client of HTTP

    return dict(build_hf_headers(token=token))


def parse_url(url: str) -> tuple[str, str, str]:
    """Name, revision and file, or pattern, of `hf://datasets/ORG/NAME[@REVISION]/FILE`."""
    if not (found := _URL.fullmatch(url)):
        raise ValueError(
            f"{url!r} is no file of a data set: hf://datasets/ORG/NAME/FILE, or hf://datasets/ORG/NAME@REVISION/FILE. "
            'For all files of a data set give data_files=sources.HubSource("ORG/NAME").'
        )
    return found[1], urllib.parse.unquote(found[2] or "main"), found[3]


def is_on_hub(url: str) -> bool:
    return url.startswith(f"{constants.ENDPOINT}/")


def _check_name(name: str) -> None:
    """Raises ValueError for a name that would make another address of the hub, to which the token goes."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(
            f"{name!r} is no name of a data set: give NAME or ORG/NAME, of letters, digits, '-', '_' and '.'."
        ) from error


def _check_online(name: str) -> None:
    if constants.HF_HUB_OFFLINE:
        raise ValueError(
            f"Data set {name!r} is streamed from the hub, and HF_HUB_OFFLINE forbids it: unset it, or "
            "download the files and name them: sources.HuggingFaceSource({'train': '…/*.parquet'})."
        )


def _explain(error: http_files.HttpStatusError, repository: Repository) -> Exception:
    name, revision, endpoint = repository.name, repository.revision, constants.ENDPOINT
    if error.code == "RevisionNotFound":
        return FileNotFoundError(
            f"Data set {name!r} has no revision {revision!r}; branches and commits are at "
            f"{endpoint}/datasets/{name}/commits/main."
        )
    if error.code == "GatedRepo" or error.status == 403:
        return ValueError(
            f"Data set {name!r} is restricted ({error}): ask for access at {endpoint}/datasets/{name} with the "
            "account of your token."
        )
    if error.status in (401, 404):
        has_token = "authorization" in headers(repository.token)
        remedy = "your token may not read it" if has_token else "it needs a token: set HF_TOKEN, or run `hf auth login`"
        return FileNotFoundError(f"There is no data set {name!r} at {endpoint}, or it is private and {remedy}.")
    return ValueError(f"Data set {name!r} cannot be read: {error}.")
