"""The house: which rooms there are, on which floor, and what imports what. `python -m tests.house` prints it.

A room is a folder of a package, with the folders in it; the modules beside the rooms (the commands) are one room, too.
It may import rooms on lower floors, and itself. Imports inside functions count like the others.
"""

import ast
import collections
import dataclasses
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from limba import cli
from limba.addons import table
from limba.convert import __main__ as convert_commands

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("limba", "tasks", "convert")

# Of the core, lowest first.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("limba.files", "limba.addons", "tasks.metrics", "tasks.objectives"),
    ("limba.data", "limba.devices", "limba.checkpoint_files", "tasks.sources"),
    (
        "limba.workers",
        "limba.gin_config",
        "limba.optimizers",
        "limba.partitioning",
        "tasks.vocabularies",
        "convert.tensors",
    ),
    ("limba.network", "limba.reports", "tasks.registry", "tasks.ngrams"),
    ("limba.models", "tasks.pretraining", "tasks.supervised", "convert.families"),
    ("limba.checkpoints", "tasks.pipeline", "tasks.t5", "convert.model_files"),
    ("limba.inference", "convert.compare"),
    ("limba.training", "convert.exports", "convert.t5x"),
    ("limba",),
    ("convert", "tasks"),
)
# Above the core: each imports the core and no other of them, and the core imports none.
ADDONS_FOLDER = "limba.addons"
# Packages whose names users write in modules of tasks and in gin files.
FACES = ("tasks.registry", "tasks.sources", "tasks.supervised", "tasks.t5")
# What the commands of the core import, all in all. It was 62,400 when the border was drawn; new features are add-ons.
# Special tokens as data, which MADLAD-400 and CodeT5 need, took 500 lines in readers that are the core's.
# Several labels and numbers of a row, ELECTRA and DeBERTa-v3 took 1,500 lines of networks, losses and converters.
# Starts that keep their counts and fits, and fit in processes of their own, took 370.
# Looks at what strangers write (metadata of tensors, records of runs, folders of TensorFlow Datasets) took 210.
# DeBERTa-v3's spm.model, read as transformers reads it, took 70.
# Gemma's layers in a T5 took 250, merged attention with its cache 120; T5Gemma's families are an add-on.
# The remedies for a tasks.py of one's own and for datasets 5 beside transformers 4 took 40.
# Families of add-ons, a start and an end that a decoder has for itself, and sentinels of other names took 180.
# A bias of BART that is zeros, its kinds of modules and its tokenizers took 20; `--module` of all commands 30.
# Limits of what sizes in a config.json, and rows of small files of Parquet and Arrow, may stand for took 45.
# Layers that differ in their MLP, stacks of tensors in tables of names, and losses of a network took 50.
# What decoders of add-ons share with T5's, their start and their places, took 10.
# LongT5, block-sparse attention, seven families of encoders, SpacTor, the tasks of `limba run` and checks of numbers of
# 16 bits left it: 3,700.
# Names of T5X that an add-on has, a further block of a layer, and losses of a model took 15.
# Limits of rows that a reader holds together, and of what is decoded at once of Parquet and csv, took 110; a look at
# the values of evaluations and model cards of others 25.
# Experts that weights cannot have, kept arrays that Python cannot parse, and links out of a run took 30.
# Holes in a run's records, digits that are none, cells for spreadsheets, and holes in texts took 70.
# Model cards and `limba cache` left it: 2,000.
# Models with which SentencePiece ends the process, and baselines and seeds of others, took 70.
# `convert all` and `push` left it: 290; ModernBERT: 320; what needs SeqIO: 980;
# instructions: 390; transformers' classes in checks: 340; readers in processes: 355;
# kernels for accelerators: 300; counts of `limba run`: 90.
# Flags in files of tokenizers and of networks that are none took 30.
# `limba vocab build` left it: 790; n-grams beside evaluations: 650; PyTorch's files: 560; the choice of kernels: 370;
# words with labels: 430; spikes of the loss: 240.
MOST_LINES_OF_THE_CORE = 55_960
MOST_FLOORS, MOST_ROOMS_OF_A_PACKAGE = 10, 15
# Above these numbers, look whether a file or folder has one subject. They are no budget: a subject is not cut to fit.
MOST_FILES_OF_A_FOLDER, MOST_LINES_OF_A_FOLDER, MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 24, 4000, 700, 80
# Longer functions, and why.
LONG_FUNCTIONS = {
    ("limba.train", "train"): "T5X's gin files bind its arguments by name, and the docstring describes each"
}
# Files that a reader opens on a walk of docs/architecture.md: the most that there may be.
WALKS = {
    "A document, from its file to the loss": 14,
    "A gin binding, from its file to its use": 4,
    "A checkpoint, to a Hugging Face folder": 15,
    "The check at the end of an export": 10,
}
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
FLOOR |= {f"{ADDONS_FOLDER}.{name}": len(FLOORS) for name in table.ADDONS}


@dataclasses.dataclass(frozen=True)
class Import:
    """One module of the house imports another, or something foreign.

    Attributes:
      module: that imports.
      imported: what it imports, as far as it is a module.
      lazy: inside a function.
    """

    module: str
    imported: str
    lazy: bool


@functools.cache
def modules() -> dict[str, Path]:
    """All modules of the house by name, faces of rooms (`limba.models`) included."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    return {name: file for name, file in names.items() if name not in PACKAGES}


def room_of(module: str) -> str:
    """`limba.network` of `limba.network.attention`; `limba` of `limba.train`: modules beside the rooms are one room.

    Each add-on is one room: `limba.addons.run` of `limba.addons.run.keys.request`.
    """
    if is_addon(module):
        return ".".join(module.split(".")[:3])
    package, name, *inside = module.split(".")
    is_beside = not inside and (ROOT / package / f"{name}.py").is_file()
    return package if is_beside else f"{package}.{name}"


def is_addon(module: str) -> bool:
    return module.startswith(f"{ADDONS_FOLDER}.") and module != f"{ADDONS_FOLDER}.table"


def _short(module: str) -> str:
    """`tasks.objectives` of `limba.tasks.objectives`, by which Limba's own modules import it."""
    return module.removeprefix("limba.") if module.startswith(("limba.tasks", "limba.convert")) else module


def imports(module: str, file: Path, known: dict[str, Path]) -> Iterator[Import]:
    """What a module imports: other modules of the house by their full names, everything else by its package."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    at_the_top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [_short(alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [_short(f"{node.module}.{alias.name}") for alias in node.names]
            names = [name if name in known else _short(node.module) for name in inside]
        else:
            continue
        for name in dict.fromkeys(names):
            # `python -m` runs a second copy of a module, which imports the first.
            if name not in (module, *PACKAGES):
                yield Import(module, name, id(node) not in at_the_top)


@functools.cache
def all_imports() -> list[Import]:
    known = modules()
    return [found for module, file in known.items() for found in imports(module, file, known)]


def arrows(found: list[Import]) -> dict[tuple[str, str], list[Import]]:
    """Imports between rooms of the house, by the two rooms."""
    between: dict[tuple[str, str], list[Import]] = collections.defaultdict(list)
    for one in found:
        if one.imported.partition(".")[0] in PACKAGES:
            between[room_of(one.module), room_of(one.imported)].append(one)
    return {rooms: group for rooms, group in between.items() if len(set(rooms)) == 2}


def circle(found: list[Import]) -> list[str]:
    """Modules that import each other, in a row; empty where there are none."""
    after = collections.defaultdict(list)
    for one in found:
        after[one.module].append(one.imported)
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for imported in after[module]:
            if way := walk(imported, [*path, module]):
                return way
        done.add(module)
        return []

    for module in list(after):
        if way := walk(module, []):
            return way
    return []


def closure_of_the_core() -> set[str]:
    """The modules that the core's own commands import, and those that these import."""
    after: dict[str, set[str]] = collections.defaultdict(set)
    for one in all_imports():
        after[one.module].add(one.imported)
    commands = [*cli.COMMANDS.values(), *convert_commands._COMMANDS.values()]
    begin = [_short(module) for module, _ in commands if not is_addon(module)]
    known, found, waiting = modules(), set(), ["limba.cli", "limba.__main__", *begin, *FACES]
    while waiting:
        module = waiting.pop()
        if module in known and module not in found and not is_addon(module):
            found.add(module)
            above = [module.rsplit(".", number)[0] for number in range(1, module.count(".") + 1)]
            waiting += [*after[module], *above]
    return found


def _lines(names: Iterable[str]) -> int:
    known = modules()
    return sum(len(known[name].read_text(encoding="utf-8").splitlines()) for name in names)


def lines_of(room: str) -> tuple[int, int]:
    """Files and lines of a room, its folders included."""
    files = [file for module, file in modules().items() if room_of(module) == room]
    return len(files), sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


@functools.cache
def folders() -> dict[str, tuple[int, int]]:
    """Folders with modules: `limba/network/kernels`, its files and their lines."""
    found: dict[str, list[int]] = collections.defaultdict(list)
    for file in modules().values():
        found[str(file.parent.relative_to(ROOT))].append(len(file.read_text(encoding="utf-8").splitlines()))
    return {folder: (len(lines), sum(lines)) for folder, lines in found.items()}


def walks() -> dict[str, list[str]]:
    """The files of each walk, as docs/architecture.md lists them; `tests/walks.py` counts them."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    parts = re.split(r"^\*\*(.+?)\*\* \((\d+) files", page.partition("\n## Decisions")[0], flags=re.M)[1:]
    found = {}
    for name, number, text in zip(*[iter(parts)] * 3, strict=True):
        found[name] = re.findall(r"^\d+\. `([\w./]+)`", text, flags=re.M)
        assert len(found[name]) == int(number), f"docs/architecture.md says {number} files: {name}"
    return found


def _rooms_of(package: str) -> int:
    return sum(room.startswith(f"{package}.") for rooms in FLOORS for room in rooms)


def _lines_of_package(package: str) -> int:
    found = [name for name in modules() if name.startswith(f"{package}.")]
    return sum(lines_of(room)[1] for room in {room_of(name) for name in found if not is_addon(name)})


def problems() -> list[str]:
    """What is larger than it may be."""
    too_large = [f"{len(FLOORS)} floors"] if len(FLOORS) > MOST_FLOORS else []
    for package in PACKAGES:
        if (rooms := _rooms_of(package)) > MOST_ROOMS_OF_A_PACKAGE:
            too_large.append(f"the package {package}: {rooms} rooms")
    if (lines := _lines(closure_of_the_core())) > MOST_LINES_OF_THE_CORE:
        too_large.append(f"the core: its commands import {lines:,} lines")
    for folder, (files, lines) in folders().items():
        if files > MOST_FILES_OF_A_FOLDER or lines > MOST_LINES_OF_A_FOLDER:
            too_large.append(f"the folder {folder}: {files} files, {lines} lines")
    for module, file in modules().items():
        text = file.read_text(encoding="utf-8")
        if (lines := len(text.splitlines())) > MOST_LINES_OF_A_FILE:
            too_large.append(f"the file of {module}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and (module, node.name) not in LONG_FUNCTIONS:
                assert node.end_lineno is not None
                if (lines := node.end_lineno - node.lineno) >= MOST_LINES_OF_A_FUNCTION:
                    too_large.append(f"the function {module}.{node.name}: {lines} lines")
    for walk, files in walks().items():
        if len(files) > WALKS[walk]:
            too_large.append(f"the walk {walk!r}: {len(files)} files")
    return too_large


def main() -> int:
    between = arrows(all_imports())
    print("floor  room                     files   lines  imports")
    for room, floor in FLOOR.items():
        files, lines = lines_of(room)
        below = ", ".join(sorted(b for a, b in between if a == room))
        print(f"{floor:5}  {room:23} {files:6} {lines:7}  {below}")
    for package in PACKAGES:
        print(f"{package}: {_rooms_of(package)} rooms beside its commands, {_lines_of_package(package):,} lines")
    closure, addons = closure_of_the_core(), [name for name in modules() if is_addon(name)]
    print(f"the core's commands import {len(closure)} modules with {_lines(closure):,} lines")
    print(f"{len(table.ADDONS)} add-ons: {len(addons)} modules, {_lines(addons):,} lines")
    print(f"all: {_lines(modules()):,} lines")
    largest = sorted(folders().items(), key=lambda folder: folder[1], reverse=True)[:3]
    print("folders with most files:", ", ".join(f"{name} ({files} files, {n} lines)" for name, (files, n) in largest))
    for walk, files in walks().items():
        print(f"{walk}: {len(files)} files of at most {WALKS[walk]}")
    for problem in problems():
        print(f"too large: {problem}")
    return len(problems())


if __name__ == "__main__":
    sys.exit(main())
