"""What gin's errors mean: where in which file, in one line, with the nearest names and the import that is missing."""

import contextlib
import difflib
import inspect
import re
import sys
import tokenize
from pathlib import Path

from limba import import_errors, t5x_compat, t5x_gin_files
from limba.rooms import REPOSITORY

_LOCATION = re.compile(r'\n\s*In (?:file "(?P<file>[^"]*)",|bindings string) line (?P<line>\d+)\n')

# How gin says that a name is not there.
_UNKNOWN_NAME = re.compile(
    r"has no attribute '?(\w+)|parameter named '(\w+)'|No configurable matching (?:reference )?'([@\w./()]+)'"
)
_UNIMPORTED = re.compile(r"'(\w+)' was not provided by an import statement")
_ABSENT_FILE = re.compile(r"Unable to open file: (\S+)\. ")
_UNKNOWN_ALIASED_NAME = re.compile(r"<module '(t5x?[\w.]*)'.*has no attribute '?(\w+)")


def places(error: BaseException) -> list[tuple[str, int]]:
    """The gin files and lines that an error of the parser comes from, the innermost of nested includes first."""
    if isinstance(error, tokenize.TokenError):
        return []  # It knows the line, but not the file.
    if isinstance(error, SyntaxError):
        return [(error.filename, error.lineno)] if error.filename and error.lineno else []
    return [(place["file"], int(place["line"])) for place in _LOCATION.finditer(str(error)) if place["file"]]


def explanation(error: BaseException) -> str:
    """What an error of gin's parser says, on one line and without the place, and the nearest names."""
    message = " ".join(_LOCATION.split(str(error))[0].split())
    if isinstance(error, tokenize.TokenError):
        return "the file ends inside a bracket or a string."
    if in_module := import_errors.describe(error):
        return " ".join(_LOCATION.split(in_module)[0].split())
    if absent := _ABSENT_FILE.match(message):
        return f"There is no gin file {absent[1]}.{nearest_gin_file(absent[1])}{_not_standing_in(absent[1])}"
    if aliased := _UNKNOWN_ALIASED_NAME.search(message):
        return t5x_compat.missing_name(*aliased.groups())
    if unimported := _UNIMPORTED.match(message):
        line = imports_for(unimported[1])
        return f"{unimported[1]!r} is not imported in this file." + (f" Add `{line}`." if line else "")
    if unknown := _UNKNOWN_NAME.search(message):
        name = next(filter(None, unknown.groups())).strip("@()").rpartition("/")[2].rpartition(".")[2]
        known = _known_names()
        nearest = [] if name in known else difflib.get_close_matches(name, known, n=3)
        message += f" Did you mean {', '.join(nearest)}?" if nearest else ""
        if unknown[3]:
            message += " Import its module, or read this file after one that does."
    elif isinstance(error, SyntaxError):
        message = f"cannot read `{(error.text or '').strip()}`. Strings need quotes of their own: \"'value'\"."
    return message


def _known_names() -> set[str]:
    """What gin files of ours can name: the public classes and functions of the engine, and their parameters."""
    names: set[str] = set()
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in ("limba", "tasks"):
            continue
        for name, value in vars(module).items():
            if callable(value) and not name.startswith("_"):
                names.add(name)
                with contextlib.suppress(ValueError, TypeError):
                    names.update(inspect.signature(value).parameters)
    return names


def nearest_gin_file(file: str) -> str:
    ours = (path.relative_to(REPOSITORY) for path in (REPOSITORY / "gin").rglob("*.gin"))
    known = [str(path) for path in ours if "t5x" not in path.parts]
    nearest = difflib.get_close_matches(file, [*known, *t5x_gin_files.names(REPOSITORY)], n=3, cutoff=0.5)
    return f" Did you mean {', '.join(nearest)}?" if nearest else ""


def _not_standing_in(name: str) -> str:
    if not name.startswith("t5x/"):
        return ""
    return " Limba has none in its place; give a checkout of T5X by --gin_search_paths to read T5X's own."


# In the value of a binding; scopes may come before the module.
_REFERENCE = re.compile(r"@([\w/]+\.\w+)")


def imports_for(binding: str) -> str:
    """Imports that make the names in `utils.DatasetConfig.seed = 1` or `X.decode_fn = @decoding.beam_search` known."""
    name, _, value = binding.partition("=")
    names = [name.strip(), *_REFERENCE.findall(value)]
    modules = dict.fromkeys(name.rpartition("/")[2].partition(".")[0] for name in names)
    return "\n".join(filter(None, map(_import_of, modules)))


def _import_of(module: str) -> str:
    if module in ("train_script", "eval_script", "infer_script"):
        return f"import __main__ as {module}"
    for alias in (f"t5x.{module}", f"t5x.examples.t5.{module}"):
        if t5x_compat.MODULES.get(alias):
            return f"from {alias.rpartition('.')[0]} import {module}"
    return f"from limba import {module}" if (Path(__file__).parent / f"{module}.py").is_file() else ""
