"""Files of tasks in Super-NaturalInstructions' format (arXiv:2204.07705): one JSON object a task, many tasks a folder.

    tasks/task001_names.json          {"Definition": ["Name the thing."], "Positive Examples": […], "Instances": […]}
    splits/default/train_tasks.txt    names of tasks, one a line; test_tasks.txt beside it

Each instance becomes a row: the task's name, its definition, its examples and the outputs as JSON, and the input.
"""

import dataclasses
import fnmatch
import functools
import glob
import json
import logging
import pathlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from limba.files import json_text, number_ranges, untrusted_files, untrusted_json
from limba.files.number_ranges import AT_LEAST_1
from limba.files.untrusted_files import cut
from limba.tasks.sources import arrow_tables
from limba.tasks.sources.arrow_tables import FormatError
from limba.tasks.sources.sharded import ShardedSource, Splits

logger = logging.getLogger(__name__)

COLUMNS = ("input", "outputs", "definition", "positive_examples", "negative_examples", "task")
# The file of names of each split, from the first that is there.
_LISTS = {
    "train": ("train_tasks.txt",),
    "validation": ("dev_tasks.txt", "test_tasks.txt"),
    "test": ("test_tasks.txt",),
}
# As of a line of a data file. The largest of Super-NaturalInstructions' tasks is far smaller.
_MOST_BYTES = 256 * 2**20
_LONGEST_NAME = 200
_INSTANCES, _DEFINITION = "Instances", "Definition"
_EXAMPLES = {"positive_examples": "Positive Examples", "negative_examples": "Negative Examples"}


@dataclasses.dataclass(frozen=True)
class TaskFile:
    """Reads the rows of an open file.

    Attributes:
      most: instances of a task; None is all of them.
      is_drawn: whether these are drawn, by the task's name; else they are the first.
    """

    most: int | None
    is_drawn: bool

    @property
    def __name__(self) -> str:
        return "read_task"

    def __call__(self, file: BinaryIO) -> Iterator[dict[str, str]]:
        """The rows, in the order of the file.

        Raises:
          FormatError: for another format; it names the field.
        """
        task = pathlib.PurePath(str(getattr(file, "name", "task.json"))).name.partition(".json")[0]
        if len(content := file.read(_MOST_BYTES + 1)) > _MOST_BYTES:
            raise FormatError(f"it has more than {_MOST_BYTES:,} bytes, which a file of instances may have")
        fields = _parse(content)
        definition = fields.get(_DEFINITION)
        shared = {"task": task, "definition": _text_of(definition, _DEFINITION)}
        for column, field in _EXAMPLES.items():
            examples = _list_of(fields.get(field, []), field)
            pairs = [_example(example, f"{field}[{number}]") for number, example in enumerate(examples)]
            shared[column] = json_text.dumps(pairs, ensure_ascii=False)
        instances = _list_of(fields.get(_INSTANCES), _INSTANCES)
        if not instances:
            raise FormatError(f"the field {_INSTANCES} is empty; it is a list of objects with 'input' and 'output'")
        for number in self._chosen(task, len(instances)):
            where = f"{_INSTANCES}[{number}]"
            instance = _object(instances[number], where)
            outputs = instance.get("output")
            texts = [
                _text(output, f"{where}['output']") for output in (outputs if isinstance(outputs, list) else [outputs])
            ]
            if not texts:
                raise FormatError(f"the field {where}['output'] is empty; it is a list of right answers")
            answers = json_text.dumps(texts, ensure_ascii=False)
            yield shared | {"input": _text(instance.get("input"), f"{where}['input']"), "outputs": answers}

    def _chosen(self, task: str, count: int) -> Sequence[int]:
        if self.most is None or count <= self.most:
            return range(count)
        return sorted(random.Random(task).sample(range(count), self.most)) if self.is_drawn else range(self.most)


class InstructionSource(ShardedSource):
    """The instances of a folder of tasks. Nothing is read before it is used.

    Args:
      folder: with the folder `tasks/` of JSON files, or with these files themselves.
      tasks: by split names of tasks, or patterns such as "task1*"; or the name of a folder of lists in `splits/`, whose
        `train_tasks.txt` is "train" and whose `test_tasks.txt` is "test" and, without a `dev_tasks.txt`, "validation".
        Without that folder all tasks are "train".
      max_instances: of a task in the split "train", drawn by the task's name: always the same. None takes all.
      max_eval_instances: of a task in other splits, the first ones, which Super-NaturalInstructions is measured on.
      splits: see `ShardedSource`.
      hint: a sentence for the error about a missing folder.
    """

    def __init__(
        self,
        folder: str | pathlib.Path,
        *,
        tasks: str | Mapping[str, Sequence[str]] = "default",
        max_instances: int | None = 100,
        max_eval_instances: int | None = 100,
        splits: Splits | None = None,
        hint: str = "",
    ):
        super().__init__((), COLUMNS, splits, 1024, "stop", hint)
        for name, most in (("max_instances", max_instances), ("max_eval_instances", max_eval_instances)):
            number_ranges.check(name, most, AT_LEAST_1._replace(or_none=True))
        self._folder = pathlib.Path(folder)
        self._tasks = tasks
        self._most = (max_instances, max_eval_instances)
        self._opened: dict[str, arrow_tables.Tables] = {}

    def __repr__(self) -> str:
        return f"InstructionSource({str(self._folder)!r}, tasks={self._tasks!r}, instances={self._most})"

    @property
    def splits(self) -> Sequence[str]:
        """Those of the lists, unless others were given."""
        return self._splits or tuple(self._names())

    def task_names(self, split: str = "train") -> list[str]:
        """The tasks of a split, by their files' names.

        Raises:
          FileNotFoundError, ValueError: as for reading it.
        """
        return [path.name.partition(".json")[0] for path in self._files(self._part(split).split)]

    def fingerprint(self, split: str) -> dict[str, Any]:
        return super().fingerprint(split) | {"instances": self._most[self._part(split).split != "train"]}

    def _tables(self, split: str) -> arrow_tables.Tables:
        files = [arrow_tables.local_shard(path) for path in self._files(split)]
        if split not in self._opened or self._opened[split].shards != tuple(files):
            reader = TaskFile(self._most[split != "train"], is_drawn=split == "train")
            self._opened[split] = arrow_tables.Tables(files, reader, {}, self._columns)
        return self._opened[split]

    def _names(self) -> Mapping[str, Sequence[str]]:
        """Names or patterns by split."""
        if isinstance(self._tasks, Mapping):
            return self._tasks
        lists = self._folder / "splits" / self._tasks
        if not lists.is_dir():
            if self._tasks != "default":
                raise FileNotFoundError(f"There is no folder {str(lists)!r} with lists of tasks. {self._hint}".rstrip())
            return {"train": ["*"]}
        found = {}
        for split, names in _LISTS.items():
            if (file := next((lists / name for name in names if (lists / name).is_file()), None)) is not None:
                found[split] = untrusted_files.read_text(file).split()
        if "test" in found and not (lists / _LISTS["validation"][0]).is_file():
            _log_test_as_validation(str(lists))
        return found

    def _files(self, split: str) -> list[pathlib.Path]:
        folder = self._folder / "tasks" if (self._folder / "tasks").is_dir() else self._folder
        if not folder.is_dir():
            raise FileNotFoundError(
                f"There is no folder {str(folder.absolute())!r} with JSON files of tasks. {self._hint}".rstrip()
            )
        names = self._names()
        if split not in names:
            raise ValueError(f"There is no split {split!r}; {str(self._folder)!r} has {', '.join(map(repr, names))}.")
        if not names[split]:
            raise ValueError(f"The split {split!r} of {str(self._folder)!r} names no task.")
        files: dict[pathlib.Path, None] = {}
        for name in dict.fromkeys(names[split]):
            if "/" in name or len(name) > _LONGEST_NAME:
                raise ValueError(
                    f"{cut(name)!r} is no name of a task (split {split!r} of {str(self._folder)!r}): give the name of "
                    "a file of its folder of tasks, without .json, or a pattern of such names."
                )
            is_pattern = glob.has_magic(name)
            matching = _matching(folder, f"{name}.json") if is_pattern else [folder / f"{name}.json"]
            if not matching or not matching[0].is_file():
                kind = "matches the pattern" if is_pattern else "is called"
                raise FileNotFoundError(
                    f"No task of {str(folder)!r} {kind} {name!r} (split {split!r}). {self._hint}".rstrip()
                )
            files |= dict.fromkeys(path.absolute() for path in matching)
        return list(files)


def _matching(folder: pathlib.Path, pattern: str) -> list[pathlib.Path]:
    return sorted(path for path in folder.iterdir() if fnmatch.fnmatchcase(path.name, pattern))


@functools.cache  # once for a folder, whose lists are read often
def _log_test_as_validation(lists: str) -> None:
    logger.warning(
        "%s has no %s: the tasks of test_tasks.txt are also the split 'validation', as in Super-NaturalInstructions. A "
        "checkpoint that is chosen by it is chosen by the test; give other tasks as tasks={'validation': [...]}.",
        lists,
        _LISTS["validation"][0],
    )


def _parse(content: bytes) -> Mapping[str, Any]:
    """The object of a file. Texts may have half of a character, as tweets that were cut have, and it is replaced."""
    untrusted_json.NestingGuard().feed(content)
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise FormatError(f"it is not UTF-8: byte 0x{content[error.start]:02x} at {error.start}") from error
    except json.JSONDecodeError as error:
        raise FormatError(f"it is not JSON: {error.msg}, line {error.lineno} column {error.colno}") from error
    return _object(value, "the file")


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FormatError(f'{_field(where)} is {_shown(value)}; it is an object, such as {{"input": …}}')
    return value


def _list_of(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(f"{_field(where)} is {_shown(value)}; it is a list of objects with 'input' and 'output'")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{_field(where)} is {_shown(value)}; it is a text")
    return value.encode("utf-8", "replace").decode("utf-8")


def _text_of(value: Any, where: str) -> str:
    """A text, or the first of a list of them."""
    return _text(value[0] if isinstance(value, list) and value else value, where)


def _example(value: Any, where: str) -> dict[str, str]:
    """Input, output and, where there is one, explanation."""
    fields = _object(value, where)
    texts = {name: _text_of(fields.get(name), f"{where}[{name!r}]") for name in ("input", "output")}
    explanation = fields.get("explanation")
    return texts | ({"explanation": _text(explanation, where)} if isinstance(explanation, str) else {})


def _field(where: str) -> str:
    return where if where == "the file" else f"the field {where}"


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]
