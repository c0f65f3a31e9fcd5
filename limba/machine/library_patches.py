"""What Limba changes in other libraries, and why. Each change is made when the library is imported, and only then.

- `datasets.load_dataset` takes `use_auth_token=…` again, which `datasets` 3 dropped and old task modules pass.
- `datasets` does not import PyTorch for every stream, unless the process has done so itself: it would be seconds and
  hundreds of megabytes, to make streams a subclass of what a DataLoader takes. `with_format("torch")` works on.
- `seqio.SentencePieceVocabulary` finds its file in a mounted bucket, where `--buckets` names one: task modules have the
  bucket's URL in their text.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence

from limba import storage


def install() -> None:
    """Makes the changes, at once where the library is imported already. Does nothing the second time."""
    if any(isinstance(finder, _Patcher) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Patcher())
    for name, patch in _PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])


def _patch_datasets(datasets: types.ModuleType) -> None:
    datasets.config.TORCH_AVAILABLE &= "torch" in sys.modules
    original = datasets.load_dataset

    @functools.wraps(original)
    def load_dataset(*args, use_auth_token=None, **kwargs):
        if use_auth_token is not None:
            kwargs.setdefault("token", use_auth_token)
        return original(*args, **kwargs)

    datasets.load_dataset = load_dataset  # type: ignore[attr-defined]


def _open_mounted_vocabularies(seqio: types.ModuleType) -> None:
    original = seqio.SentencePieceVocabulary.__init__

    @functools.wraps(original)
    def __init__(self, sentencepiece_model_file, *args, **kwargs):
        original(self, storage.mounted(sentencepiece_model_file), *args, **kwargs)

    seqio.SentencePieceVocabulary.__init__ = __init__


_PATCHES: dict[str, Callable[[types.ModuleType], None]] = {
    "datasets": _patch_datasets,
    "seqio": _open_mounted_vocabularies,
}


class _Patcher(importlib.abc.MetaPathFinder):
    """Finds the libraries as Python does, and patches them once they have run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target) if fullname in _PATCHES else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            _PATCHES[fullname](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
