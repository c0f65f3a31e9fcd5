"""What the texts of a split depend on, for counts of theirs that outlive a run."""

import dataclasses
import types
from pathlib import Path
from typing import Any

from limba.data.contract import DatasetConfig
from limba.inference import tasks_door

_OURS = "limba."


def of_split(config: DatasetConfig, feature_converter: Any) -> dict[str, Any] | None:
    """Facts that are the same only where the texts are, in the order of their files; None where that is not known.

    It is known of files of this machine and of commits of the hub, with sources, preprocessors and vocabularies of
    Limba's own. A class or a function of somebody else may change and keep its name.

    Args:
      config: of it `shuffle`, readers and the batch size do not count.
      feature_converter: the model's, or its name.
    """
    if config.stages or config.use_cached:
        return None
    tasks = tasks_door.predictions().subtasks(config)
    parts = [[task.source, *task.preprocessors, *_vocabularies(task)] for task in tasks]
    if not _is_own(parts):
        return None
    unshuffled = dataclasses.replace(config, batch_size=1, shuffle=False, num_readers=None, use_memory_cache=False)
    facts: dict[str, Any] = tasks_door.facts(unshuffled)
    for task in tasks:
        texts = _of_source(task.source, config.split)
        has_checksum = not facts[f"vocabulary of {task.name}"].endswith(" 00000000")
        if texts is None and " at commit " not in facts[f"source of {task.name}"]:
            return None
        if not has_checksum and type(_vocabularies(task)[0]).__name__ != "ByteVocabulary":
            return None
        facts[f"texts of {task.name}"] = texts
    return {"converter": getattr(feature_converter, "__name__", feature_converter), **facts}


def _vocabularies(task: Any) -> list[Any]:
    return [feature.vocabulary for feature in task.output_features.values()]


def _of_source(source: Any, split: str) -> list[str] | None:
    """The settings of a source of files of this machine, with their names, sizes and times of change."""
    files = [Path(name) for name in source.list_shards(split)]
    if not all(file.is_file() for file in files):
        return None
    settings = {name: x for name, x in source.__getstate__().items() if not isinstance(x, dict) or x}
    stats = [file.stat() for file in files]
    times = [f"{file} {x.st_size} {x.st_mtime_ns}" for file, x in zip(files, stats, strict=True)]
    return [repr(sorted(settings.items())), *times]


def _is_own(found: Any) -> bool:
    """Whether no class or function of somebody else is in there."""
    if found is None or isinstance(found, str | bytes | int | float):
        return True
    if isinstance(found, list | tuple):
        return all(map(_is_own, found))
    if isinstance(found, dict):
        return _is_own(list(found.values()))
    if isinstance(found, types.FunctionType | type):
        return found.__module__.startswith(_OURS)
    if not type(found).__module__.startswith(_OURS):
        return False
    if dataclasses.is_dataclass(found):
        return _is_own([getattr(found, field.name) for field in dataclasses.fields(found)])
    return _is_own(found.__getstate__()) if hasattr(found, "list_shards") else True
