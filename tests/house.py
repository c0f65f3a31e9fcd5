"""The house: which rooms there are, on which floor, and what imports what. `python -m tests.house` prints it.

A room is a package, or a module that lies beside the packages (a command, a ready task). It may import rooms on lower
floors, and itself. Imports inside functions count like the others.
"""

import ast
import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("limba", "tasks", "convert")

# Lowest first.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("limba.files", "limba.data", "tasks.metrics", "tasks.objectives"),
    ("limba.devices", "limba.checkpoint_files", "tasks.sources"),
    (
        "limba.workers",
        "limba.gin_config",
        "limba.optimizers",
        "limba.partitioning",
        "tasks.vocabularies",
        "convert.tensors",
    ),
    ("limba.network", "limba.reports", "tasks.registry"),
    ("limba.models", "tasks.pretraining", "tasks.supervised", "tasks.diacritics", "tasks.t5", "convert.families"),
    ("limba.checkpoints", "tasks.pipeline", "tasks.examples", "convert.model_files"),
    ("limba.inference", "tasks.lint", "convert.compare"),
    ("limba.training", "convert.exports", "convert.t5x"),
    ("limba", "convert"),
    ("limba.plan", "limba.hf_script", "limba.sweep", "tasks"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


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


def modules() -> dict[str, Path]:
    """All modules of the house by name, faces of rooms (`limba.models`) included."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    return {name: file for name, file in names.items() if name not in PACKAGES}


def room_of(module: str) -> str:
    """`limba.network` of `limba.network.attention`; `limba` of `limba.train`: modules beside the rooms are one room."""
    package, name, *inside = module.split(".")
    is_beside = not inside and (ROOT / package / f"{name}.py").is_file()
    return package if is_beside else f"{package}.{name}"


def imports(module: str, file: Path, known: dict[str, Path]) -> Iterator[Import]:
    """What a module imports: other modules of the house by their full names, everything else by its package."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    at_the_top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in inside]
        else:
            continue
        for name in dict.fromkeys(names):
            # `python -m` runs a second copy of a module, which imports the first.
            if name not in (module, *PACKAGES):
                yield Import(module, name, id(node) not in at_the_top)


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


def lines_of(room: str) -> tuple[int, int]:
    """Files and lines of a room, its folders included."""
    files = [file for module, file in modules().items() if room_of(module) == room]
    return len(files), sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def folders() -> dict[str, tuple[int, int]]:
    """Folders with modules: `limba/network/kernels`, its files and their lines."""
    found: dict[str, list[int]] = collections.defaultdict(list)
    for file in modules().values():
        found[str(file.parent.relative_to(ROOT))].append(len(file.read_text(encoding="utf-8").splitlines()))
    return {folder: (len(lines), sum(lines)) for folder, lines in found.items()}


def main() -> None:
    between = arrows(all_imports())
    print("floor  room                       files   lines  imports")
    for room, floor in FLOOR.items():
        files, lines = lines_of(room)
        below = ", ".join(sorted(b for a, b in between if a == room))
        print(f"{floor:5}  {room:25} {files:6} {lines:7}  {below}")
    for package in PACKAGES:
        total = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in (ROOT / package).rglob("*.py"))
        print(f"{package}: {total:,} lines")


if __name__ == "__main__":
    main()
