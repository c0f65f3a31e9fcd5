"""Models on the Hugging Face hub, through huggingface_hub, which only the commands that go there need.

The hub, the token and the cache are where that library has them: HF_ENDPOINT, HF_TOKEN or `hf auth login`, HF_HOME.
"""

import contextlib
import hashlib
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from concurrent import futures
from pathlib import Path
from types import ModuleType

from limba.convert.model_files.hf import stray_weights
from limba.convert.tensors import weight_files
from limba.files.untrusted_files import cut

TOKEN_REMEDY = "set HF_TOKEN, or run `hf auth login`"
# Of what the hub says about a request that it refuses.
_MOST_CHARACTERS = 300
# What the library raises for an answer that no hub gives.
_ODD_ANSWERS = (AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def is_name(text: str) -> bool:
    """Whether a text can be the name of a model on the hub, NAME or ORG/NAME."""
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", text) is not None


def client() -> ModuleType:
    """The library huggingface_hub."""
    import huggingface_hub
    from huggingface_hub import constants, errors, file_download  # noqa: F401

    file_download._normalize_etag = _name_in_cache
    return huggingface_hub


def _name_in_cache(etag: str | None) -> str | None:
    """Of a file's content, which the library would also write to `../x` and `/x`, if the hub calls it so."""
    name = (etag or "").lstrip("W/").strip('"')
    is_name = etag is None or re.fullmatch(r"(?a)\w[\w.-]{,127}", name)
    return etag and name if is_name else hashlib.sha256(name.encode()).hexdigest()


def unreachable(hf: ModuleType) -> tuple[type[BaseException], ...]:
    """What the library raises when no answer comes."""
    # Its HTTP library was requests, is httpx, and changes its name. The base of all that this one raises comes before
    # OSError among the bases of the library's own errors.
    bases = hf.errors.HfHubHTTPError.__mro__
    return hf.errors.OfflineModeIsEnabled, bases[bases.index(OSError) - 1]


@contextlib.contextmanager
def plain_errors(hf: ModuleType, name: str, writes: bool = False) -> Iterator[None]:
    """Errors of the hub become an OSError with the cause in one sentence and the remedy; see `explain`.

    Raises:
      ValueError: if `name` cannot be one on the hub, or the hub does not answer as one.
    """
    try:
        yield
    except hf.errors.HFValidationError as error:
        raise ValueError(
            f"{name!r} is not a name on the hub: give NAME or ORG/NAME, of letters, digits, '-', '_' and '.'."
        ) from error
    except (hf.errors.LocalEntryNotFoundError, hf.errors.HfHubHTTPError) as error:
        raise explain(hf, name, error, writes) from error
    except _ODD_ANSWERS as error:
        said = cut(f"{type(error).__name__}: {error}")
        raise ValueError(
            f"{hf.constants.ENDPOINT} answers about {name} as no hub does ({said}). Check HF_ENDPOINT."
        ) from error
    except (hf.errors.FileMetadataError, OSError, *unreachable(hf)) as error:
        if type(error).__module__ == "builtins" and (type(error) is not OSError or error.errno):  # of the disk, or ours
            raise
        raise explain(hf, name, error, writes) from error


def explain(hf: ModuleType, name: str, error: BaseException, writes: bool = False) -> OSError:
    """The cause of an error of the hub in one sentence, then the remedy. The library's own text is for its developers.

    Args:
      name: of the repository.
      error: of the library; what it was raised from may know the answer of the hub.
      writes: whether the hub was asked to take something.
    """
    endpoint, has_token = hf.constants.ENDPOINT, bool(hf.get_token())
    if isinstance(error, hf.errors.GatedRepoError):
        return PermissionError(
            f"{name} is only for those who agreed to its conditions. Agree on {endpoint}/{name}, and {TOKEN_REMEDY}."
        )
    if isinstance(error, hf.errors.RepositoryNotFoundError):
        token = "the token may not read it. Check the name and whose token it is"
        why = token if has_token else f"there is no token. Check the name; for a private one {TOKEN_REMEDY}"
        return FileNotFoundError(f"There is no repository {name} on {endpoint}, or it is private and {why}.")
    if isinstance(error, hf.errors.OfflineModeIsEnabled):
        return ConnectionError(f"HF_HUB_OFFLINE is set, so {endpoint} is not asked for {name}. Unset it.")
    answered = next((x for x in _chain(error) if getattr(x, "response", None) is not None), None)
    if answered is None:
        if (silent := next((x for x in _chain(error) if isinstance(x, unreachable(hf))), None)) is not None:
            why = _no_connection(endpoint, silent)
            return ConnectionError(f"{why}, to ask for {name}. Check the network, HF_ENDPOINT and proxies.")
        return OSError(f"huggingface_hub did not finish with {name}. Give the command again, or update that library.")
    status = answered.response.status_code  # type: ignore[attr-defined]
    if status == 401:
        refused = "does not accept this token" if has_token else "wants a token"
        return PermissionError(f"{endpoint} {refused}. Make one at {endpoint}/settings/tokens, and {TOKEN_REMEDY}.")
    if status == 403:
        access = "write" if writes else "read"
        return PermissionError(
            f"The token has no {access} access to {name}. Give one that may {access} there: {TOKEN_REMEDY}."
        )
    if status == 404:
        return FileNotFoundError(f"{endpoint} does not know a file or revision of {name}. Check the name.")
    if status == 429:
        return OSError(f"{endpoint} has had too many requests of this user or address. Wait some minutes.")
    if status >= 500:
        return OSError(f"{endpoint} has an error of its own (status {status}). Give the command again later.")
    said = " ".join(str(getattr(answered, "server_message", None) or "").split())
    reason = f": {said[:_MOST_CHARACTERS]}" if said else ""
    return OSError(f"{endpoint} refuses the request for {name} (status {status}){reason.rstrip('.')}.")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _no_connection(endpoint: str, error: BaseException) -> str:
    """Why no answer came, by the names of the classes, which the HTTP libraries share."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "SSLError" in kinds or "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"The certificate of {endpoint} is not trusted"
    if "ProxyError" in kinds:
        return f"The proxy to {endpoint} does not answer"
    if any("Timeout" in kind for kind in kinds):
        return f"{endpoint} does not answer in time"
    return f"There is no connection to {endpoint}"


def download(name: str, with_weights: bool = True) -> Path:
    """The folder in the cache with a model's configuration, tokenizer and, if asked, weights, in one format.

    Without a connection the copy that the cache has is taken, and that is said.

    Raises:
      OSError: if there is no such model, or none that this user may read, or the hub cannot be reached; see `explain`.
      ValueError: if this is not a name of a model, or its weights are in none of the formats that are read.
    """
    hf = client()
    with plain_errors(hf, name):
        try:
            there = [str(file.rfilename) for file in hf.HfApi().model_info(name).siblings or ()]
        except (hf.errors.HfHubHTTPError, *_ODD_ANSWERS):
            raise
        except unreachable(hf) as error:
            return _cached(hf, name, error)
    if with_weights and not weight_files.formats(there):
        _check_no_others(name, there)
    with plain_errors(hf, name):
        return _folder(hf, name, wanted(there, with_weights) or ["config.json"])


def _folder(hf: ModuleType, name: str, files: list[str], is_offline: bool = False) -> Path:
    """The folder of the cache with files. One by one, the library looks where in its cache the hub wants them."""
    with futures.ThreadPoolExecutor(8) as pool:
        paths = pool.map(lambda file: hf.hf_hub_download(name, file, local_files_only=is_offline), files)
        if len(folders := {Path(path).parent for path in paths}) > 1:
            raise ConnectionError(f"{name} has changed while it was downloaded. Give the command again.")
    return folders.pop()


def _check_no_others(name: str, there: Collection[str]) -> None:
    """Raises ValueError if the weights of a repository are none that are read."""
    try:
        stray_weights.check(Path("DIR"), there)
    except ValueError as error:
        raise ValueError(f"Get {name} with `hf download {name} --local-dir DIR`: {error}") from error


def _cached(hf: ModuleType, name: str, error: BaseException) -> Path:
    endpoint, cache = hf.constants.ENDPOINT, hf.constants.HF_HUB_CACHE
    is_off = isinstance(error, hf.errors.OfflineModeIsEnabled)
    why = "HF_HUB_OFFLINE is set" if is_off else _no_connection(endpoint, error)
    try:
        folder = _folder(hf, name, ["config.json"], is_offline=True)
    except hf.errors.LocalEntryNotFoundError:
        raise ConnectionError(
            f"{why}, and {name} is not in the cache, {cache}. Connect, or give a folder of this machine."
        ) from error
    print(f"{why}: {name} is taken from the cache, {folder}.", file=sys.stderr)
    return folder


def wanted(there: Iterable[str], with_weights: bool = True) -> list[str]:
    """Of a model's files those that are needed: configuration, tokenizer, and the weights in the preferred format."""
    names = [name for name in there if re.fullmatch(r"(?a)\w[\w.-]{,199}", name)]
    chosen = [name for name in names if name.endswith((".json", ".model"))]
    for format_ in weight_files.formats(names)[: int(with_weights)]:
        chosen += weight_files.of_format(names, format_)
    return chosen
