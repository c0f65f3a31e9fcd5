"""`limba recipes`: the gin files that Limba comes with, and copies of them to change.

limba recipes                                 # all recipes, each with what it trains
limba recipes show quickstart
limba recipes copy quickstart my.gin          # a file of your own, for limba train --gin_file=my.gin
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from limba.files import named_flags
from limba.files.repository import REPOSITORY

FOLDER = REPOSITORY / "gin/recipes"


def main(argv: Sequence[str]) -> int:
    """Lists, shows or copies; returns the exit code."""
    parser = named_flags.Parser(
        prog="limba recipes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", nargs="?", choices=("list", "show", "copy"), default="list", help=argparse.SUPPRESS)
    parser.add_argument("name", nargs="?", metavar="NAME", help="of a recipe, such as quickstart")
    parser.add_argument("file", nargs="?", metavar="FILE", help="to write; NAME.gin here, unless given")
    flags = parser.parse_args(argv)
    if flags.action == "list":
        if flags.name is not None:
            parser.error(f"{flags.name} is one word too many; `limba recipes show {flags.name}` prints a recipe.")
        _list()
        return 0
    if flags.name is None:
        parser.error(f"give the name of a recipe: limba recipes {flags.action} quickstart")
    try:
        recipe = find(flags.name)
        if flags.action == "show":
            sys.stdout.write(recipe.read_text("utf-8"))
        else:
            _copy(recipe, Path(flags.file or recipe.name))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def find(name: str) -> Path:
    """The file of a recipe. Raises ValueError, with all names, if there is none of this name."""
    files = _all()
    if name.removesuffix(".gin") not in files:
        raise ValueError(f"there is no recipe {name!r}; there are {', '.join(files)}.")
    return files[name.removesuffix(".gin")]


def _all() -> dict[str, Path]:
    return {file.stem: file for file in sorted(FOLDER.glob("*.gin"))}


def _list() -> None:
    files = _all()
    width = max(map(len, files))
    for name, file in files.items():
        print(f"  {name:{width}}  {_first_sentence(file)}")
    print("\n`limba recipes copy NAME FILE` makes a copy to change. `limba train --gin_file=FILE` trains it.")


def _first_sentence(file: Path) -> str:
    """Of the comment that a recipe begins with."""
    lines = []
    for line in file.read_text("utf-8").splitlines():
        if not line.startswith("# "):
            break
        lines.append(line.removeprefix("# "))
    return " ".join(lines).partition(". ")[0].rstrip(".:") + "."


def _copy(recipe: Path, target: Path) -> None:
    """Raises FileExistsError for a file that is there."""
    with target.open("x", encoding="utf-8") as file, recipe.open(encoding="utf-8") as source:
        shutil.copyfileobj(source, file)
    print(f"{target} is a copy of gin/recipes/{recipe.name}. `limba train --gin_file={target}` trains it.")
