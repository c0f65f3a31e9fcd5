"""Macros of gin files, `NAME = value` and `%NAME`: which are bound, which are read, and mistakes in their names.

gin ignores a macro that nothing reads: `TRAIN_STPES = 10` would change nothing and say nothing. Here that is an error
where the name is near to one that is read, else a warning: projects of T5X bind names that none of their files reads.
A name counts as read if any line of the run reads it, also a line that a later one overrides. A name that only other
runs read is right, and noted: a recipe sets TRAIN_STEPS, and `limba eval` takes the recipe too. Other runs are those of
Limba's gin files, of T5X's, and of the gin files that lie beside the one that sets the name.
"""

import contextlib
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
from gin import config as gin_config

from limba.files import untrusted_files
from limba.files.repository import PACKAGE, REPOSITORY
from limba.files.untrusted_files import cut, some
from limba.gin_config import importing, t5x_files, t5x_names
from limba.gin_config.messages import GinError
from limba.gin_config.recipe import Recipe
from limba.gin_config.references import references

logger = logging.getLogger(__name__)

# In gin/runs/t5x_names.gin: it mentions classes, and is for nothing to read.
_MENTIONS = "T5X_NAMES"
# As near to a known name as only a misspelling of it is: TRAIN_STPES to TRAIN_STEPS has 0.91.
_MISSPELLED = 0.82
_MOST_UNREAD, _MOST_IN_A_CHAIN = 50, 200
_MACRO = re.compile(r"%([A-Za-z_][\w/]*)")

# ------------------------------------------------------ names in texts -----------------------------------------------


def check_names(
    texts: Mapping[str, str], bindings: Sequence[str], beside: Iterable[str] = (), is_part: bool = False
) -> None:
    """Checks the names of macros after gin has parsed them; notes those that only other runs read.

    Args:
      texts: of the files, by name.
      bindings: of the command line.
      beside: other gin files, whose names are known.
      is_part: of a run, whose other files may read any name: what is not near to a known one passes.

    Raises:
      GinError: for a binding of a macro that no file has, or a macro that nothing reads, of a name near to one that is
        read.
    """
    bound: dict[str, tuple[str, int]] = {}  # with file and line of the last value
    given = Recipe.parse("\n".join(bindings))
    read = {_MENTIONS, *given.macros_read}
    for file, text in texts.items():
        recipe = Recipe.parse(text, file)
        bound |= {x.name: (file, x.line) for x in recipe.bindings if not x.function}
        read |= recipe.macros_read
    overridden = [name for name in given.macros if name not in read | bound.keys()]
    unread = {name: place for name, place in bound.items() if name not in read}
    by_modules = _read_by_modules() if unread else set()
    if unread:
        unread = {name: place for name, place in unread.items() if name not in by_modules}
    if not overridden and not unread:
        return
    elsewhere = _read_elsewhere([*beside, *texts])
    for name in overridden:
        if not (is_part and name in elsewhere):
            known = read | bound.keys() | (elsewhere.keys() if is_part else set())
            used = ", ".join(sorted(known - {"gin.REQUIRED", _MENTIONS}))
            hint = _did_you_mean(name, known, 0.6) or (f" The files use {used}." if used else " They use none.")
            raise GinError(f"--gin.{name} overrides a name that no gin file uses.{hint}")
    if len(lost := [name for name in unread if name not in elsewhere]) > _MOST_UNREAD:
        raise GinError(
            f"nothing reads {cut(lost[0])} and {len(lost) - 1:,} other names. Take them out.", [unread[lost[0]]]
        )
    wrong, notes = [], []
    known = read | by_modules | elsewhere.keys() - set(t5x_files.MACROS)
    for name, (file, line) in unread.items():
        if name in elsewhere or t5x_files.is_of_t5x(file):
            notes.append(f"{name} of {file}:{line} ({elsewhere.get(name, 'as T5X has it')})")
        elif any(_did_you_mean(x, known, _MISSPELLED) for x in (name, name.rpartition("/")[2])):
            hint = _did_you_mean(name, known, 0.6)
            wrong.append(((file, line), f"nothing reads {name}, so it has no effect.{hint}"))
        elif not is_part:
            logger.warning("%s:%d: nothing reads %s, so it has no effect. Take the line out.", file, line, name)
    if wrong:
        others = "".join(f" {file}:{line}: {what}" for (file, line), what in wrong[1:])
        raise GinError(wrong[0][1] + others, [wrong[0][0]])
    if notes and not is_part:
        logger.info("This run does not read %s.", some(notes, 20))


def _did_you_mean(name: str, known: Iterable[str], cutoff: float) -> str:
    """The nearest names, also of one that is written in small letters."""
    return t5x_names.did_you_mean(name, known, cutoff) or t5x_names.did_you_mean(name.upper(), known, cutoff)


def _read_by_modules() -> set[str]:
    """The names that modules of the user's mention, which may ask `gin.query_parameter("%NAME")`."""
    imported = [getattr(sys.modules.get(module), "__file__", None) for module in importing.of_gin_files()]
    files = [Path(file) for file in imported if file and file.endswith(".py")]
    return {name for file in files if not {REPOSITORY, PACKAGE} & {*file.parents} for name in _names_in(file)}


def _read_elsewhere(files: Iterable[str]) -> dict[str, str]:
    """The names that gin files of Limba and T5X read, and files beside these ones; and who reads each."""
    found = dict.fromkeys(t5x_files.MACROS, "T5X's runs do")
    folders = {Path(file).parent for file in files if Path(file).is_file()}
    beside = [path for folder in folders for path in folder.glob("*.gin") if path.is_file()]
    for path in [*beside, *_of_limba()]:
        with contextlib.suppress(OSError, ValueError):  # A neighbour that cannot be read is no file of this run.
            for name in _names_in(path):
                found[name] = f"{path.relative_to(REPOSITORY) if REPOSITORY in path.parents else path} does"
    return found


def _of_limba() -> list[Path]:
    """All gin files of this repository but those in place of flaxformer's, whose macros no other file reads."""
    return sorted(file for file in (REPOSITORY / "gin").rglob("*.gin") if "flaxformer" not in file.parts)


def _names_in(path: Path) -> set[str]:
    """The names that a file reads, as far as one can say without parsing it."""
    lines = untrusted_files.read_bytes(path).decode("utf-8", "replace").splitlines()
    return {name for line in lines for name in _MACRO.findall(line.partition("#")[0])}


def names_of_limba() -> set[str]:
    """The names that this repository's gin files read, such as TRAIN_STEPS."""
    return {name for path in _of_limba() for name in _names_in(path)}


# --------------------------------------------------- names in the configuration -------------------------------------


def in_use() -> set[str]:
    """The macros that the configuration reads."""
    return {name for values in gin_config._CONFIG.values() for value in values.values() for name in _macros_of(value)}


def bound() -> set[str]:
    """The macros that the configuration binds."""
    return {scope for scope, kind in gin_config._CONFIG if kind == "gin.macro"}


def required() -> list[str]:
    """The macros in use that are still `%gin.REQUIRED`."""
    values = {name: gin.query_parameter(f"%{name}") for name in sorted(bound() & in_use())}
    return [name for name, value in values.items() if value is gin.REQUIRED or "gin.REQUIRED" in str(value)]


def check_bound() -> None:
    """Raises GinError for a macro that is used and not bound."""
    for name in sorted(in_use()):
        try:
            gin.query_parameter(f"%{name}")
        except ValueError:
            if name == "MIXTURE_OR_TASK_MODULE":
                # A run may leave it out. A gin file that is read after the run's would override the run's binding.
                gin.bind_parameter(f"%{name}", None)
                continue
            hint = "include a file of gin/models/ before the run's" if name == "MODEL" else f"add --gin.{name}=…"
            raise GinError(f"{name} is used in the gin files and not bound anywhere: {hint}.") from None


def check_cycles(where: str) -> None:
    """Raises GinError for macros that stand for each other, whose value gin would look for without end."""
    macros = {name: values.get("value") for (name, kind), values in gin_config._CONFIG.items() if kind == "gin.macro"}
    after = {name: [used for used in _macros_of(value) if used in macros] for name, value in macros.items()}
    done: dict[str, int] = {}  # with the number of macros up to a value
    for name in sorted(after):
        path = [name]
        while path and name not in done:
            following = next((used for used in after[path[-1]] if used not in done), None)
            if following in path:
                chain = [*path[path.index(following) :], following]
                raise GinError(
                    f"{where}: the macros {' = %'.join(chain)} stand for each other; give one of them a value."
                )
            depth = 1 + max([done.get(used, 0) for used in after[path[-1]]], default=0)
            if max(depth, len(path)) > _MOST_IN_A_CHAIN:
                raise GinError(f"{where}: {cut(path[0])} stands for more than {_MOST_IN_A_CHAIN} macros in turn.")
            if following is None:
                done[path.pop()] = depth
            else:
                path.append(following)


def resolved(value: Any) -> tuple[list[str], Any]:
    """The macros that a bound value stands for, each read by the one before, and what the last of them is."""
    names: list[str] = []
    while isinstance(value, gin_config.ConfigurableReference) and (read := list(_macros_of(value))):
        names.append(read[0])
        value = gin_config._CONFIG.get((read[0], "gin.macro"), {}).get("value")
    return names, value


def _macros_of(value: Any) -> Iterator[str]:
    """The macros in a bound value."""
    for reference in references(value):
        scope, _, kind = reference.scoped_selector.rpartition("/")
        if kind == "gin.macro":
            yield scope
