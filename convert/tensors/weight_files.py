"""Which files of a Hugging Face folder hold the weights, and the tensors in them.

A model's weights are one file, or several and an index that says in which one each tensor is. A folder may hold them in
several formats; they are the same weights then, and one format is enough.
"""

import fnmatch
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from limba.addons import table
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.tensors import array_files, flax_files, safetensors_files
from limba.files import untrusted_files, untrusted_json
from limba.files.untrusted_files import cut

# In the order of preference: safetensors are read fastest and without a pickle.
FILES = {"safetensors": safetensors_files.FILE, "torch": "pytorch_model.bin", "flax": flax_files.FILE}
# What accelerate calls a whole model that FSDP trained; transformers does not look for it.
_OF_FSDP = "pytorch_model_fsdp.bin"
# What DataParallel, torch.compile and Lightning put before each name of the model that they hold.
_WRAPPERS = ("module.", "_orig_mod.", "model.")
_MODULES: dict[str, Any] = {"safetensors": safetensors_files, "flax": flax_files}


def pickles(file: str) -> Any:
    """The module of an add-on that reads PyTorch's files; ValueError without it, which names the file."""
    return table.part("torch_files", file)


def formats(names: Collection[str]) -> list[str]:
    """The formats of the weights among these names of files, the preferred one first."""
    whole: dict[str, tuple[str, ...]] = {format_: (file, index_name(file)) for format_, file in FILES.items()}
    whole["torch"] += (_OF_FSDP,)
    return [format_ for format_, wanted in whole.items() if not set(wanted).isdisjoint(names)]


def of_format(names: Collection[str], format_: str) -> list[str]:
    """The files among these names that hold a model's weights in a format, without its index."""
    file = Path(FILES[format_])
    if file.name in names:
        return [file.name]
    return fnmatch.filter(names, f"{file.stem}-*-of-*{file.suffix}") or [name for name in names if name == _OF_FSDP]


def index_name(file: str) -> str:
    return f"{file}.index.json"


def find(folder: Path, format_: str | None = None) -> tuple[str, list[Path]]:
    """The format of a folder's weights and their files; `format_` asks for one that is not the preferred one.

    Raises:
      FileNotFoundError: if there are no weights, or not all files of an index, or only a link that leads to nothing.
      ValueError: if an index is damaged, or the weights are not files.
    """
    there = formats([path.name for path in folder.iterdir()])
    if not there:
        hint = ""
        if (folder / "tf_model.h5").is_file():
            hint = " It has tf_model.h5: load the model in transformers 4 with from_tf=True, and save it."
        raise FileNotFoundError(
            f"{folder} has no weights, neither {', '.join(FILES.values())} nor shards of them.{hint}"
        )
    if format_ not in (None, *there):
        raise FileNotFoundError(f"{folder} has no weights in the format {format_}, only in {', '.join(there)}.")
    chosen = format_ or there[0]
    if (single := _single(folder, chosen)) is not None:
        untrusted_files.check_is_file(single)
        return chosen, [single]
    named_by = index_name(FILES[chosen])
    files = sorted({folder / file for file in _weight_map(folder / named_by).values()})
    if missing := [path.name for path in files if not os.path.lexists(path)]:
        more = f" and {len(missing) - 1} more files" if missing[1:] else ""
        raise FileNotFoundError(f"{folder} lacks {cut(missing[0])}{more}, which {named_by} names; copy or download it.")
    return chosen, files


def open_tensors(folder: Path, format_: str | None = None, buffers: str = array_files.NONE) -> dict[str, SavedTensor]:
    """The tensors of a folder's weights, by the names that the format has for them, without those of wrappers.

    `buffers` is a pattern of names that are passed over, whatever their dtype: they are no parameters.

    Raises:
      FileNotFoundError: as `find`.
      ValueError: if a file is damaged, or lacks a tensor that the index says is in it.
    """
    return _unwrapped(_named_by_format(folder, format_, buffers))


def is_wrapped(folder: Path, format_: str | None = None, buffers: str = array_files.NONE) -> bool:
    """Whether the names in a folder's weights begin with that of a wrapper; arguments and errors as above."""
    names = _named_by_format(folder, format_, buffers)
    return _unwrapped(names).keys() != names.keys()


def _named_by_format(folder: Path, format_: str | None, buffers: str) -> dict[str, SavedTensor]:
    chosen, files = find(folder, format_)
    module = pickles(str(files[0])) if chosen == "torch" else _MODULES[chosen]
    tensors = module.open_tensors(files, buffers)
    if _single(folder, chosen) is None:
        index = folder / index_name(FILES[chosen])
        names = {name for name in _weight_map(index) if not re.search(buffers, name)}
        if missing := sorted(names - tensors.keys()):
            raise ValueError(f"{index} names tensors that are in none of its files: {', '.join(map(cut, missing[:3]))}")
    return tensors


def not_in_index(folder: Path, format_: str, buffers: str = array_files.NONE) -> list[str]:
    """The tensors in a folder's shards that the index does not name; arguments and errors as `open_tensors`."""
    named = _weight_map(folder / index_name(FILES[format_]))
    return sorted(_named_by_format(folder, format_, buffers).keys() - named.keys())


def _single(folder: Path, format_: str) -> Path | None:
    """The one file of a folder's weights; None where an index names several."""
    whole, index = folder / FILES[format_], folder / index_name(FILES[format_])
    if os.path.lexists(whole):
        return whole
    return None if index.is_file() else folder / _OF_FSDP


def is_in_shards(folder: Path, format_: str) -> bool:
    """Whether an index says in which files a folder's weights are."""
    return _single(folder, format_) is None


def is_for_transformers(folder: Path, format_: str) -> bool:
    """Whether transformers looks for a folder's weights under the names that they have."""
    return (single := _single(folder, format_)) is None or single.name != _OF_FSDP


def open_file(file: Path, buffers: str = array_files.NONE) -> dict[str, SavedTensor]:
    """The tensors of the model in a file that a PyTorch training script saved; `buffers` and errors as above."""
    return _unwrapped(pickles(str(file)).open_tensors([file], buffers))


def _unwrapped(tensors: dict[str, SavedTensor]) -> dict[str, SavedTensor]:
    """The tensors by the names of the model itself, where all names begin with that of the same wrapper."""
    for wrapper in _WRAPPERS:
        if tensors and all(name.startswith(wrapper) for name in tensors):
            return _unwrapped({name.removeprefix(wrapper): tensor for name, tensor in tensors.items()})
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = untrusted_json.read_object(index).get("weight_map")
    # A file of the folder itself, whatever an index from elsewhere says.
    if (
        isinstance(weight_map, dict)
        and weight_map
        and all(isinstance(file, str) and Path(file).name == file and "\0" not in file for file in weight_map.values())
    ):
        return weight_map
    raise ValueError(f"{index} is damaged: its weight_map does not say which files of the folder hold the tensors.")
