"""Which files of a data set are which split: `datasets` decides, for a folder with the same names and no contents.

So its rules hold, those of its cards too, whatever version is installed, and nothing of the data is read.
"""

import dataclasses
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from limba.files import setting_names, untrusted_files, untrusted_json, untrusted_yaml
from limba.tasks.sources import arrow_tables, class_names

# Read by `datasets` to learn configurations and splits; of the other files it needs the names.
_CARDS = ("README.md", ".huggingface.yaml", "dataset_infos.json")
# As huggingface_hub looks for it.
_FRONT_MATTER = re.compile(r"\s*+---[\r\n]([\S\s]*?)[\r\n]---(?:[\r\n]|$)")
# `datasets` finds the front matter by an expression whose time is the cube of the line breaks in a row.
_MANY_BREAKS = re.compile(r"[\r\n]{101}")
# Of `save_to_disk`: `datasets` takes them for data of a folder that it does not load from the disk.
_OF_SAVED = ("state.json", "dataset_dict.json", "dataset_info.json")


@dataclasses.dataclass(frozen=True)
class SplitFiles:
    """The files of a data set's configuration, and how they are read.

    Attributes:
      builder: the loader of `datasets`, such as "parquet".
      load_args: its options, where the data set's card sets any.
      files: paths in the repository or folder by split.
      class_names: the texts of numbers by column, where a card says them.
    """

    builder: str
    load_args: Mapping[str, Any]
    files: Mapping[str, list[str]]
    class_names: class_names.Names


def of_names(
    name: str, paths: Iterable[str], read: Callable[[str], bytes], config: str | None = None, data_files: Any = None
) -> SplitFiles:
    """The files that `datasets.load_dataset(name, config, data_files=data_files)` would read.

    Args:
      name: of the data set.
      paths: of its files, relative to it, with `/`.
      read: the content of a card.

    Raises:
      ValueError: if there is no such configuration, or nothing that can be read.
    """
    import datasets

    paths = sorted(path for path in paths if pathlib.PurePosixPath(path).name not in _OF_SAVED)
    with tempfile.TemporaryDirectory(prefix="limba-names-") as directory:
        root = pathlib.Path(directory).resolve() / name.rstrip("/").rpartition("/")[2]
        root.mkdir()
        for path in paths:
            if not untrusted_files.is_inside(path):
                raise ValueError(f"Data set {name!r} lists the file {untrusted_files.cut(path)}, which is none of it.")
            try:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).touch()
            except OSError as error:  # A name that is too long, or of a file and a folder.
                reason = f"{untrusted_files.cut(path)}: {error.strerror}"
                raise ValueError(f"Data set {name!r} has names that no folder can have: {reason}.") from error
        for path in {*paths} & {*_CARDS}:
            (root / path).write_bytes(_checked_card(path, read(path), f"{path} of {name!r}"))
        try:
            builder = datasets.load_dataset_builder(
                str(root), config, data_files=data_files, cache_dir=f"{directory}/cache"
            )
        except (ValueError, OSError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            reason = " ".join(str(error).replace(str(root), name).strip().splitlines())
            raise ValueError(
                f"Data set {name!r} cannot be read with config={config!r}, data_files={data_files!r}: {reason}. Its "
                f"files are {untrusted_files.some(paths, 8)}."
            ) from error
        files = {
            str(split): [pathlib.Path(file).relative_to(root).as_posix() for file in found]
            for split, found in (builder.config.data_files or {}).items()
        }
        if builder.name not in arrow_tables.BUILDERS:
            raise ValueError(
                f"Data set {name!r} is read by {builder.name!r}, and texts come from "
                f"{', '.join(arrow_tables.BUILDERS)}; name files of these with data_files."
            )
        features = builder.info.features or builder.config.__dict__.get("features")
        names = class_names.of_info({"features": features.to_dict() if features else {}})
        return SplitFiles(builder.name, _options(builder.config), files, names)


def of_folder(folder: pathlib.Path, config: str | None = None, without: pathlib.Path | None = None) -> SplitFiles:
    """Those of a data set's folder on this machine, with absolute paths.

    Args:
      without: a folder whose files are none of the data set's: that of a run's results.

    Raises:
      FileNotFoundError: if the folder has no training file.
      ValueError: as `of_names`.
    """
    paths = [path for path in _files(folder, without) if path in _CARDS or _is_data(path)]
    found = (
        of_names(str(folder), paths, lambda path: untrusted_files.read_bytes(folder / path), config) if paths else None
    )
    if found is None or not found.files:
        raise FileNotFoundError(
            f"{folder} has no file of texts, such as train.jsonl ({', '.join(arrow_tables.SUFFIXES)}); name the files "
            f"with {setting_names.shown('data_files')}."
        )
    files = {split: [str(folder / path) for path in of_split] for split, of_split in found.files.items()}
    return dataclasses.replace(found, files=files)


def _checked_card(name: str, content: bytes, where: str) -> bytes:
    """The part of a card that `datasets` reads.

    It reads whatever a card names: any file of this machine, any URL; and looks through any folder.

    Raises:
      ValueError: for a card that takes more than its size tells, or names data outside of its folder.
    """
    if name.endswith(".json"):
        untrusted_json.parse(content, where)
        return content
    text = untrusted_files.decode(content, where)
    if name.endswith(".md"):
        found = _FRONT_MATTER.match(text)
        text = found[1].strip("\r\n") if found else ""
        content = f"---\n{text}\n---\n".encode() if found else b""
        if _MANY_BREAKS.search(text):
            raise ValueError(f"{where} has more than 100 line breaks in a row; remove some.")
    for key, value in _pairs(untrusted_yaml.check_card(text, where)):
        for path in _texts(value) if key in ("data_files", "data_dir") else ():
            if "://" in path or path.startswith(("/", "~")) or ".." in pathlib.PurePosixPath(path).parts:
                shown = untrusted_files.shown(path)
                raise ValueError(f"{where}: {key} names {shown}, outside of the data set; give the files yourself.")
    return content


def _pairs(node: Any) -> Iterable[tuple[str, Any]]:
    """The keys at the top of a YAML text and in its list of configurations, with the nodes of their values."""
    for key, value in node.value if hasattr(node, "value") and isinstance(node.value, list) else ():
        yield str(key.value), value
        if key.value == "configs" and isinstance(value.value, list):
            for part in value.value:
                yield from _pairs(part)


def _texts(node: Any) -> Iterable[str]:
    """All texts in a node of YAML."""
    if not isinstance(node.value, list):
        yield str(node.value)
        return
    for part in node.value:
        yield from _texts(part[1]) if isinstance(part, tuple) else _texts(part)


def _files(folder: pathlib.Path, without: pathlib.Path | None) -> Iterable[str]:
    for parent, folders, names in os.walk(folder):
        # Hidden ones are no data, as for `datasets`.
        folders[:] = [x for x in folders if not x.startswith(".") and pathlib.Path(parent, x) != without]
        yield from (pathlib.Path(parent, name).relative_to(folder).as_posix() for name in names)


def _is_data(path: str) -> bool:
    try:
        return bool(arrow_tables.builder_of(pathlib.PurePosixPath(path)))
    except ValueError:
        return False


def _options(config: Any) -> dict[str, Any]:
    """The loader's options that a card sets, beyond the names of its files."""
    import datasets

    names = {field.name for field in dataclasses.fields(config)}
    names -= {field.name for field in dataclasses.fields(datasets.BuilderConfig)}
    default = type(config)()
    return {
        name: getattr(config, name)
        for name in sorted(names)
        if name != "features" and getattr(config, name) != getattr(default, name)
    }
