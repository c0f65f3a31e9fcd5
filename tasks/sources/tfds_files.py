"""What a folder of TensorFlow Datasets says of its data, looked at before that library reads it.

The library imports the module that `features.json` names for the class of a feature, joins the names of files that
`dataset_info.json` gives to the folder, and parses both without limits.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from limba.files import untrusted_json
from limba.files.untrusted_files import is_inside, shown

_INFO, _FEATURES = "dataset_info.json", "features.json"
# Below the folder of a data set: its configuration, if it has several, and its version.
_PLACES = ("", "*/", "*/*/")
# Keys of a feature's class: today's, and the one of earlier versions.
_CLASS = ("pythonClassName", "type")
_LIBRARY = "tensorflow_datasets"


def check(source: Any) -> None:
    """Returns if the local folders that a source names can be given to the library. Sources of others pass.

    Raises:
      ValueError: if a file is damaged, leads out of its folder, or names a class of a module that is not imported.
    """
    if (loader := getattr(source, "tfds_dataset", None)) is None:  # SeqIO's TfdsDataSource has it.
        return
    for name, place in {loader.get_split_params(split) for split in loader.tfds_splits or (None,)}:
        if place is None or "://" in str(place):
            continue
        folder = Path(place).expanduser() / (name or "").partition(":")[0]
        for below in _PLACES:
            for file in sorted(folder.glob(below + _INFO)):
                _check_info(file)
            for file in sorted(folder.glob(below + _FEATURES)):
                _check_features(file)


def _check_info(file: Path) -> None:
    splits = untrusted_json.read_object(file).get("splits", [])
    for split in splits if isinstance(splits, list) else []:
        template = split.get("filepathTemplate") if isinstance(split, dict) else None
        if template and not is_inside(template):
            raise ValueError(f"{file}: filepathTemplate is {shown(template)}, which leads out of its folder.")


def _check_features(file: Path) -> None:
    for name in _class_names(untrusted_json.read_object(file)):
        module = name.rpartition(".")[0]
        if module and module.partition(".")[0] != _LIBRARY and module not in sys.modules:
            raise ValueError(
                f"{file} has a feature of the class {shown(name)}, and TensorFlow Datasets would import its module. If "
                "you know it, import it in the module of your task."
            )


def _class_names(value: Any) -> Iterator[str]:
    """The names of classes in JSON, whatever lies around them."""
    if isinstance(value, dict):
        yield from (value[key] for key in _CLASS if isinstance(value.get(key), str))
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _class_names(inner)
