"""Weights under names, or in folders, where transformers does not look for them: what they are, and the way to convert
them. Without this a folder of them is taken for one without weights, to train from scratch."""

import collections
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from limba.convert.families.config_files import other_models
from limba.convert.tensors import weight_files
from limba.files.untrusted_files import cut

_PYTORCH = "bin|ckpt|pkl|pt|pth"
_OTHERS = "distcp|gguf|h5|hdf5|msgpack|mlmodel|npz|onnx|ot|pdparams|safetensors|tflite"
_LIKE_WEIGHTS = re.compile(rf"\.({_PYTORCH}|{_OTHERS}|incomplete)\b(?!.*\.(json|md|py|txt)$)")
# A whole model: neither one of several parts nor a download that was cut off.
_WHOLE_PYTORCH = re.compile(rf"(?!.*-of-\d).*\.({_PYTORCH})")
# What training scripts save beside the model; folders of the name, too.
_BESIDE = re.compile(
    r"(optim|scheduler|lr_|scaler|rng_state|random_states|sampler|training_args|dl_state|custom_checkpoint|vocab|merges"
    r"|tokenizer|\.git$)"
)
_MOST_NAMED = 3
_TO_RENAME = (
    "Call a whole file model.safetensors or pytorch_model.bin; copy or download parts with their index, such as "
    "model.safetensors.index.json, and what was not downloaded to its end again."
)


def files_below(folder: Path) -> list[str]:
    """The files in a folder and in its folders, as paths from it with slashes."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _BESIDE.match(name)]
        found += [Path(place, name).relative_to(folder).as_posix() for name in names]
    return found


def named(files: Collection[str]) -> list[str]:
    """Those that look like weights, by their names."""
    is_beside = lambda file: any(map(_BESIDE.match, PurePosixPath(file).parts))  # noqa: E731
    return sorted(file for file in files if _LIKE_WEIGHTS.search(file) and not is_beside(file))


def check(folder: Path, files: Collection[str]) -> None:
    """Raises ValueError if a folder without weights that are read has others, with the way to convert them.

    `files` are its files, as paths from it with slashes.
    """
    found = sorted(_strays(PurePosixPath(folder), files))
    if not found:
        return
    names = [cut(file) for _, file, _ in found]
    more = f" and {len(names) - _MOST_NAMED} more files" if len(names) > _MOST_NAMED else ""
    raise ValueError(
        f"{folder} has {', '.join(names[:_MOST_NAMED])}{more}, and no weights under the names that transformers looks "
        f"for. {found[0][2]} To train from scratch give {folder}/config.json."
    )


def _strays(top: PurePosixPath, files: Collection[str]) -> Iterator[tuple[tuple[int, ...], str, str]]:
    """The files that look like weights: how likely they are the model, the best and latest first; path; remedy."""
    places = collections.defaultdict(list)
    for file in files:
        if not any(map(_BESIDE.match, (path := PurePosixPath(file)).parts)):
            places[path.parent].append(path.name)
    for place, names in places.items():
        here, depth = top / place, len(place.parts)
        steps = re.findall(r"\d+", str(place))
        order = (depth, -int(steps[-1]) if steps else 0)
        if depth and (formats := weight_files.formats(names)):
            [file, *_] = [*weight_files.of_format(names, formats[0]), weight_files.FILES[formats[0]]]
            copied = "" if "config.json" in names else f"Copy the other files of {top} into {here}, and convert that: "
            yield (0, *order), str(place / file), f"{copied or 'Convert it: '}limba convert from-hf {here} OUT."
        elif (kind := other_models.of_folder(names)) is not None and kind.files:
            [file, *_] = kind.found(names)
            yield (1, *order), str(place / file), f"It is {kind.what}. {kind.remedy_in(here, top)}"
        else:
            for name in filter(_LIKE_WEIGHTS.search, sorted(names)):
                remedy = _TO_RENAME
                if _WHOLE_PYTORCH.fullmatch(name):
                    remedy = f"Convert the file: limba convert from-hf {here / name} OUT --config {top}/config.json."
                yield (2, *order), str(place / name), remedy
