"""The names of a column's numbers where `datasets` keeps them: ClassLabel, and lists of it, in the features of a file,
of a folder or of a card."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from limba.files import untrusted_json

Names = Mapping[str, tuple[str, ...]]
# Of the schema's metadata, in Parquet and in Arrow.
_KEY = b"huggingface"
# Beside the Arrow files of `save_to_disk`.
FILE = "dataset_info.json"


def of_schema(schema: pa.Schema, where: str) -> Names:
    """By column; {} if the file has none.

    Raises:
      ValueError: if the metadata are damaged.
    """
    content = (schema.metadata or {}).get(_KEY)
    if content is None:
        return {}
    info = untrusted_json.parse_object(content, f"the features in {where}").get("info")
    return of_info(info if isinstance(info, Mapping) else {})


def of_info(info: Mapping[str, Any]) -> Names:
    """Of a `DatasetInfo` as JSON has it, of which only `features` counts."""
    features = info.get("features")
    found = {column: _names(feature) for column, feature in features.items()} if isinstance(features, Mapping) else {}
    return {column: names for column, names in found.items() if names}


def check_same(column: str, names: Mapping[str, tuple[str, ...]]) -> None:
    """Raises ValueError unless the numbers of a column mean the same wherever it is.

    Args:
      names: by the place, a file or a split.
    """
    places = list(names)
    for place in places[1:]:
        if names[place] != names[places[0]]:
            raise ValueError(
                f"The numbers of the column {column!r} mean {_listed(names[places[0]])} in {places[0]} and "
                f"{_listed(names[place])} in {place}: give both the same order of names (`cast_column` of `datasets`), "
                "or write the labels as texts."
            )


def check_numbers(column: str, names: tuple[str, ...], meant: Mapping[int, str], where: str) -> None:
    """Raises ValueError if a number of a column is another label than a task takes it for.

    Labels that the data do not know are names of the task's own.

    Args:
      names: of the data, () where they have none.
      meant: the task's labels by number.
      where: the data, for the message.
    """
    for number, name in enumerate(names):
        label = meant.get(number)
        if label is not None and label != name and name in meant.values():
            raise ValueError(
                f"The number {number} of the column {column!r} is {name!r} in {where}, and the labels of the task take "
                f"it for {label!r}: give the labels in the order {_listed(names)}, or write them as texts in the data."
            )


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"{number} {name!r}" for number, name in enumerate(names[:20]))
    return f"{shown} …" if len(names) > 20 else shown


def _names(feature: Any) -> tuple[str, ...]:
    """Of a ClassLabel, or of a list of them, in the forms of all versions of `datasets`."""
    if isinstance(feature, list):
        return _names(feature[0]) if len(feature) == 1 else ()
    if not isinstance(feature, Mapping):
        return ()
    if feature.get("_type") == "ClassLabel":
        names = feature.get("names")
        are_texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
        return tuple(names) if are_texts else ()  # type: ignore[arg-type]
    return _names(feature.get("feature"))
