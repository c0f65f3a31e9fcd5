"""How many files a reader opens to follow a document to the loss, a gin binding to its use, a checkpoint to a folder.

Counted, not estimated: a small training and a small export run, and at some moments of each walk (a file is opened,
the loss is computed) the stack of calls is written down. The files of a walk are those on the stacks of its moments.

    python -m tests.walks      # a minute; prints each walk's files in the order in which they are called

docs/architecture.md lists the same files, which `tests/test_walks.py` compares.
"""

import dataclasses
import functools
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests import compilation, house, line


@dataclasses.dataclass(frozen=True)
class Moment:
    """A call at which the stack is written down, the first time that it has the right one.

    Attributes:
      function: that is called, as `module:Class.method`.
      through: a file that is on the stack.
      without: no file on the stack has this in its path.
    """

    function: str
    through: str
    without: str = "no such file"


# The function that reads bytes of a checkpoint belongs to a tensor, not to a class.
_READ = "limba.checkpoint_files.saved_tensors:_from_tensorstore"
# The checks at the start of a run read a corpus too, in the thread that trains.
_IN_THE_READING_THREAD = {"through": "tasks/pipeline/readers.py", "without": "limba/train.py"}

WALKS: Mapping[str, tuple[Moment, ...]] = {
    "A document, from its file to the loss": (
        Moment("tasks.sources.arrow_tables:Tables.open", **_IN_THE_READING_THREAD),
        Moment("tasks.vocabularies.vocabulary:SentencePieceVocabulary.encode_batch", **_IN_THE_READING_THREAD),
        Moment("tasks.objectives.span_objectives:SpanCorruption.corrupt", **_IN_THE_READING_THREAD),
        Moment("tasks.pipeline.converters:encoder_decoder", "limba/training/loop.py", without="evaluation"),
        Moment("limba.network.t5:Transformer.__call__", "limba/training/trainer.py", without="evaluation"),
        Moment("limba.models.losses:cross_entropy_with_logits", "limba/training/trainer.py", without="evaluation"),
    ),
    "A gin binding, from its file to its use": (
        Moment("limba.command_line:parse_flags", "limba/train.py"),
        Moment("gin:parse_config_file", "limba/train.py"),
        Moment("limba.partitioning.meshes:PjitPartitioner.__init__", "limba/train.py"),
    ),
    "A checkpoint, to a Hugging Face folder": (
        Moment("limba.checkpoint_files.saved_tensors:open_tensors", "convert/to_hf.py"),
        Moment("convert.tensors.table:table", "convert/exports/export.py"),
        Moment(_READ, "convert/tensors/safetensors_files.py"),
        Moment("convert.families.config_files.t5_config:model_config", "convert/to_hf.py"),
        Moment("convert.model_files.hf.hf_tokenizer:write", "convert/to_hf.py"),
    ),
    "The check at the end of an export": (
        Moment("convert.compare.comparison:compare", "convert/to_hf.py"),
        Moment(_READ, "convert/compare/forward.py"),
        Moment("convert.compare.comparison_rows:require", "convert/to_hf.py"),
    ),
}


def _stack() -> list[str]:
    """The files of Limba on the stack, the outermost first; a file that calls itself through others counts once."""
    files, frame = [], sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(house.ROOT) and path.relative_to(house.ROOT).parts[0] in house.PACKAGES:
            files.append(path.relative_to(house.ROOT).as_posix())
        frame = frame.f_back
    return list(dict.fromkeys(reversed(files)))


def _watch(moments: Iterable[Moment], stacks: dict[Moment, list[str]]) -> None:
    """Puts a function in place of each moment's, which writes the stack down and calls it."""
    for moment in moments:
        module, _, path = moment.function.partition(":")
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        function = getattr(owner, name)
        watched = _reads if moment.function == _READ else _watched
        setattr(owner, name, watched(function, moment, stacks))


def _reads(opened: Any, moment: Moment, stacks: dict[Moment, list[str]]) -> Any:
    def tensor(store):
        saved = opened(store)
        return dataclasses.replace(saved, read=_watched(saved.read, moment, stacks))

    return tensor


def _watched(function: Any, moment: Moment, stacks: dict[Moment, list[str]]) -> Any:
    @functools.wraps(function)
    def call(*args, **kwargs):
        files = _stack()
        if moment.through in files and not any(moment.without in file for file in files):
            stacks.setdefault(moment, [*files, *_file_of(moment)])
        return function(*args, **kwargs)

    return call


def _file_of(moment: Moment) -> list[str]:
    file = house.modules().get(moment.function.partition(":")[0])
    return [file.relative_to(house.ROOT).as_posix()] if file else []


def recorded() -> dict[str, list[str]]:
    """The files of each walk, in the order in which they are first on a stack."""
    stacks: dict[Moment, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ |= {"LIMBA_QUICKSTART_DIR": folder, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": compilation.FAST}
        line.write_corpus(home / "corpus")
        line.write_vocabulary(home / "corpus", home / "vocab/spiece.model")
        from limba import train

        _watch([moment for moments in WALKS.values() for moment in moments], stacks)
        train.main(line.train_arguments(home, home / "run", 2)[1:])
        from convert import __main__ as convert

        convert.main(["to-hf", str(home / "run"), str(home / "out"), "--format=safetensors"])
    missing = [moment for moments in WALKS.values() for moment in moments if moment not in stacks]
    assert not missing, missing
    return {
        walk: list(dict.fromkeys(f for moment in moments for f in stacks[moment])) for walk, moments in WALKS.items()
    }


def main() -> None:
    walks = recorded()
    if sys.argv[1:] == ["--json"]:
        print(json.dumps(walks))
        return
    for walk, files in walks.items():
        print(f"{walk}: {len(files)} files")
        print("".join(f"  {file}\n" for file in files))


if __name__ == "__main__":
    main()
