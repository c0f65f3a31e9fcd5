"""Models on the Hugging Face hub, through huggingface_hub, which only the commands that go there need.

The hub, the token and the cache are where that library has them: HF_ENDPOINT, HF_TOKEN or `hf auth login`, HF_HOME.
"""

import contextlib
import fnmatch
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from convert.tensors import weight_files

TOKEN_REMEDY = "set HF_TOKEN, or run `hf auth login`"


def is_name(text: str) -> bool:
    """Whether a text can be the name of a model on the hub, NAME or ORG/NAME."""
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", text) is not None


def client() -> ModuleType:
    """The library huggingface_hub."""
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors

    return huggingface_hub


def unreachable(hf: ModuleType) -> tuple[type[BaseException], ...]:
    """What the library raises when no answer comes."""
    # Its HTTP library was requests, is httpx, and changes its name. The base of all that this one raises comes before
    # OSError among the bases of the library's own errors.
    bases = hf.errors.HfHubHTTPError.__mro__
    return hf.errors.OfflineModeIsEnabled, bases[bases.index(OSError) - 1]


@contextlib.contextmanager
def plain_errors(hf: ModuleType, name: str) -> Iterator[None]:
    """Errors of the hub become an OSError that names the remedy."""
    endpoint = hf.constants.ENDPOINT
    token = "this token may not see it" if hf.get_token() else f"there is no token: {TOKEN_REMEDY}"
    try:
        yield
    except hf.errors.GatedRepoError as error:
        raise PermissionError(
            f"{endpoint}/{name} is for those who agreed to its conditions. Do that on its page, and {TOKEN_REMEDY}."
        ) from error
    except hf.errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(f"{name} is not on {endpoint}, or it is private and {token}.") from error
    except hf.errors.OfflineModeIsEnabled as error:
        raise ConnectionError(f"HF_HUB_OFFLINE is set, so {endpoint} is not asked for {name}; unset it.") from error
    except hf.errors.HfHubHTTPError as error:
        raise OSError(f"{endpoint} does not do it: {' '.join(str(error).split())}") from error
    except unreachable(hf) as error:
        raise ConnectionError(f"{endpoint} cannot be reached ({error}).") from error


def download(name: str) -> Path:
    """The folder in the cache with a model's configuration, tokenizer and weights, in one format.

    Without a connection the copy that the cache has is taken, and that is said.

    Raises:
      OSError: if there is no such model, or none that this user may read, or the hub cannot be reached.
      ValueError: if this is no name of a model.
    """
    hf = client()
    with plain_errors(hf, name):
        try:
            there = [file.rfilename for file in hf.HfApi().model_info(name).siblings or ()]
        except hf.errors.HfHubHTTPError:
            raise
        except unreachable(hf) as error:
            return _cached(hf, name, error)
        return Path(hf.snapshot_download(name, allow_patterns=wanted(there)))


def _cached(hf: ModuleType, name: str, error: BaseException) -> Path:
    endpoint, cache = hf.constants.ENDPOINT, hf.constants.HF_HUB_CACHE
    try:
        # Newer versions look whether the files are all there, and do not know which weights were wanted.
        folder = hf.snapshot_download(name, local_files_only=True, allow_patterns=["config.json"])
    except hf.errors.LocalEntryNotFoundError:
        nowhere = f"{endpoint} cannot be reached, and {name} is not in the cache, {cache}"
        raise ConnectionError(f"{nowhere} ({error}).") from error
    print(f"{endpoint} cannot be reached: {name} is taken from the cache, {folder}.", file=sys.stderr)
    return Path(folder)


def wanted(there: Iterable[str]) -> list[str]:
    """Of a model's files those that are needed: configuration, tokenizer, and the weights in the preferred format."""
    names = [name for name in there if "/" not in name]
    chosen = [name for name in names if name.endswith((".json", ".model"))]
    for format_ in weight_files.formats(names)[:1]:
        file = Path(weight_files.FILES[format_])
        single = file.name in names
        chosen += fnmatch.filter(names, file.name if single else f"{file.stem}-*-of-*{file.suffix}")
    return chosen
