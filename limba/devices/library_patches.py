"""Limba's changes to other libraries, and why. Each is applied when the library is imported.

- `jax` keeps what it compiles (`limba/devices/compilation_cache.py`).
- `datasets.load_dataset` accepts `use_auth_token=…`, which `datasets` 3 removed and old task modules pass.
- `datasets` does not import PyTorch for streams, unless the process has imported it: that would take seconds and
  hundreds of megabytes, only to make streams a subclass for DataLoader. `with_format("torch")` still works.
- a library that would import PyTorch only for tensors that Limba never gives it is imported as if there were none
  (`without_torch`).
- `pandas` does not warn of the types of a column that is read: the error says it.
- `seqio.SentencePieceVocabulary` reads its file from a bucket that `--buckets` mounts: task modules contain the
  bucket's URL.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from limba.devices import compilation_cache


def install() -> None:
    """Applies the changes: now if the library is imported, else when it is. Does nothing the second time."""
    for name, patch in _PATCHES.items():
        if patch not in _waiting.get(name, ()):
            when_imported(name, patch)


def when_imported(name: str, act: Callable[[types.ModuleType], Any]) -> None:
    """Calls `act` with a library: now if it is imported, else as soon as it is."""
    _insert_finder()
    _waiting.setdefault(name, []).append(act)
    if name in sys.modules:
        act(sys.modules[name])


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Imports of PyTorch fail in this thread, unless the process has it; other threads import it as ever."""
    _insert_finder()
    before = getattr(_of_thread, "hides_torch", False)
    _of_thread.hides_torch = True
    try:
        yield
    finally:
        _of_thread.hides_torch = before


def _insert_finder() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _patch_pandas(pandas: types.ModuleType) -> None:
    warnings.simplefilter("ignore", pandas.errors.DtypeWarning)


def _patch_datasets(datasets: types.ModuleType) -> None:
    datasets.config.TORCH_AVAILABLE &= "torch" in sys.modules
    original = datasets.load_dataset

    @functools.wraps(original)
    def load_dataset(*args: Any, use_auth_token: Any = None, **kwargs: Any) -> Any:
        if use_auth_token is not None:
            kwargs.setdefault("token", use_auth_token)
        return original(*args, **kwargs)

    datasets.load_dataset = load_dataset  # type: ignore[attr-defined]


def _open_mounted_vocabularies(seqio: types.ModuleType) -> None:
    from limba.files import storage  # here: TensorStore is a large library, and `import limba` reads this file

    original = seqio.SentencePieceVocabulary.__init__

    @functools.wraps(original)
    def __init__(self: Any, sentencepiece_model_file: str, *args: Any, **kwargs: Any) -> None:
        original(self, storage.mounted(sentencepiece_model_file), *args, **kwargs)

    seqio.SentencePieceVocabulary.__init__ = __init__


_PATCHES: dict[str, Callable[[types.ModuleType], None]] = {
    "datasets": _patch_datasets,
    "jax": compilation_cache.use,
    "pandas": _patch_pandas,
    "seqio": _open_mounted_vocabularies,
}


# By the name of the library: what waits for its import.
_waiting: dict[str, list[Callable[[types.ModuleType], Any]]] = {}
_of_thread = threading.local()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the libraries as Python does, and acts after their import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "torch" and getattr(_of_thread, "hides_torch", False):
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target) if fullname in _waiting else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            for act in _waiting[fullname]:
                act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
