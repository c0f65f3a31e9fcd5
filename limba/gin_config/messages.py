"""Explains gin's errors in one line: the file and line, the nearest names, and the missing import."""

import ast
import contextlib
import inspect
import re
import sys
import tokenize
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import gin

from limba.files.repository import REPOSITORY
from limba.files.untrusted_files import cut
from limba.gin_config import gin_names, import_errors, t5x_files, t5x_names

_LOCATION = re.compile(r'\n\s*In (?:file "(?P<file>[^"]*)",|bindings string) line (?P<line>\d+)\n')

# Gin's messages for a name that does not exist.
_UNKNOWN_NAME = re.compile(
    r"has no attribute '?(\w+)|parameter named '(\w+)'|No configurable matching (?:reference )?'([@\w./()]+)'"
)
_UNIMPORTED = re.compile(r"'(\w+)' was not provided by an import statement")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")
# Of a file on Linux; the system refuses to look for a longer one.
_LONGEST_NAME = 255
# Of a model on the hub; a gin file has an ending.
_ON_HUB = re.compile(r"[\w-]+/[\w.-]*[\w-](?<!\.gin)", re.ASCII)
_MISSING_FILE = re.compile(r"Unable to open file: (\S+)\. ")
_NAME = re.compile(r"[a-z_]\w*(?:[./][a-z_]\w*)*", re.ASCII | re.IGNORECASE)
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")
_UNKNOWN_ALIASED_NAME = re.compile(r"<module '(t5x?[\w.]*)'.*has no attribute '?(\w+)")
# Python's message for an argument that is only given by name, of a class or function that gin calls by this name.
_UNBOUND = re.compile(
    r"(?P<name>\w+)(?:\.__init__)?\(\) missing \d+ required keyword-only arguments?: (?P<missing>.+)\n"
    r"  In call to configurable '(?P=name)'"
)
_OF_ENCODERS = ", and for a classifier on the encoder of a T5 gin/models/t5_encoder.gin behind gin/runs/classify.gin"


class GinError(ValueError):
    """A gin file or binding that cannot be used; the message names it and the remedy.

    Attributes:
      what: the message without the place.
      places: files and lines, the innermost of nested includes first; empty for a binding of the command line.
    """

    def __init__(self, what: str, places: Sequence[tuple[str, int]] = ()):
        super().__init__("".join(f"{file}:{line}: " for file, line in places[:1]) + what)
        self.what = what
        self.places = tuple(places)


def places(error: BaseException) -> list[tuple[str, int]]:
    """The gin files and lines that an error of the parser comes from, the innermost of nested includes first."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return [(error.filename, error.lineno)]
    found = [(place["file"], int(place["line"])) for place in _LOCATION.finditer(str(error)) if place["file"]]
    own = getattr(error, "places", ())  # of an error of Limba's, which gin may have passed on
    return found or list(own) or ([error.limba_place] if hasattr(error, "limba_place") else [])


def explanation(error: BaseException) -> str:
    """The message of an error of gin's parser on one line, without the place, and with the nearest names."""
    message = " ".join(_LOCATION.split(str(error))[0].split())
    if what := getattr(error, "what", None):  # of an error of Limba's
        return what
    if isinstance(error, RecursionError | MemoryError):
        return "brackets are too deep inside of each other."
    if isinstance(error, tokenize.TokenError):
        return "the file ends inside a bracket or a string."
    if in_module := import_errors.describe(error):
        return " ".join(_LOCATION.split(in_module)[0].split()) + import_errors.describe_hidden(error)
    if needed := import_errors.missing_extra(error):
        return needed
    if isinstance(error, ModuleNotFoundError) and (missing := _MISSING_MODULE.search(message)):
        folders = [*(str(Path(file).parent) for file, _ in places(error)), "."]
        if instead := t5x_names.instead_of(missing[1]):
            return f"{message}. {instead}"
        hint = import_errors.where_it_lies(missing[1], folders)
        hint = hint or import_errors.did_you_mean(missing[1]) + import_errors.where_it_was(missing[1])
        return message + ("." + hint if hint else "")
    if missing := _MISSING_FILE.match(message):
        return missing_file(missing[1])
    if aliased := _UNKNOWN_ALIASED_NAME.search(message):
        return t5x_names.missing_name(*aliased.groups())
    if unimported := _UNIMPORTED.match(message):
        ours = "" if _imports_t5x(error) else gin_names.import_line(unimported[1])
        line = ours or gin_names.imports_for(unimported[1])
        return f"{unimported[1]!r} is not imported in this file." + (f" Add `{line}`." if line else "")
    if unknown := _UNKNOWN_NAME.search(message):
        name = next(filter(None, unknown.groups())).strip("@()").rpartition("/")[2].rpartition(".")[2]
        known = _parameters_of(message) if unknown[2] else _known_names()
        message += "" if name in known else t5x_names.did_you_mean(name, known)
        if unknown[3] and _imports_without_registration(error, unknown[3]):
            message += " Begin this file with `from __gin__ import dynamic_registration`: gin needs it in each file."
        elif unknown[3]:
            message += " Import its module in this file, or read this file after one that imports it."
    elif isinstance(error, SyntaxError):
        message = f"cannot read `{cut((error.text or '').strip())}`. {_remedy_of_value(error.text or '')}"
    return message


def _text_of_file(error: BaseException) -> str:
    """The text of the gin file of an error; "" if there is none."""
    for file, _ in places(error)[:1]:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return Path(file).read_text(encoding="utf-8")
    return ""


def _imports_t5x(error: BaseException) -> bool:
    """Whether the file of an error has T5X's modules, which names of its other lines then mean."""
    return re.search(r"^(?:from|import) t5x\b", _text_of_file(error), re.M) is not None


def _imports_without_registration(error: BaseException, name: str) -> bool:
    """Whether the file of an error imports the module of a name, but not gin's registration of what it imports."""
    text, module = _text_of_file(error), name.strip("@()").rpartition("/")[2].partition(".")[0]
    imported = re.search(rf"^(?:import|from) (?:.*\W)?{re.escape(module)}\s*(?:#|$)", text, re.M)
    return imported is not None and not re.search(r"^from __gin__ import dynamic_registration", text, re.M)


def as_value(text: str) -> str:
    """A word of the command line as a value of gin for a shell: a text gets quotes, and quotes around them."""
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text if text.startswith(("@", "%")) else f"\"'{text}'\""
    return text


def _remedy_of_value(line: str) -> str:
    """What to write in place of a line that gin cannot read."""
    name, equals, value = (part.strip() for part in line.partition("="))
    if foreign := next((c for c in _TEXT.sub("", line.partition("#")[0]) if not c.isascii()), None):
        known_as = unicodedata.name(foreign, "without a name")
        remedy = "names have ASCII letters, and texts stand between ' or \"."
        return f"{foreign!r} ({known_as}) is no letter of a name and no quote: {remedy}"
    if equals and not _NAME.fullmatch(name):
        return f"{name!r} is not a name: a macro is NAME, a parameter module.Class.parameter."
    if equals and not value:
        return "No value stands behind `=`: write one, such as 10000, 'text' or None."
    if value.endswith((";", ",")):
        return f"Leave out the {value[-1]!r} at its end."
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        tree = ast.parse(value, mode="eval").body
        names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        if names and isinstance(tree, ast.Dict | ast.List | ast.Tuple | ast.Set):
            return f"Strings inside of it need quotes: '{names[0]}' in place of {names[0]}."
    return "Strings need quotes of their own: \"'value'\"."


def _known_names() -> set[str]:
    """Names that gin files can use: the public classes and functions of the imported modules, and their parameters."""
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


def _parameters_of(message: str) -> set[str]:
    """The parameters of the function or class whose parameter gin does not know."""
    configurable = re.search(r"Configurable '([\w./]+)'", message)
    try:
        assert configurable is not None
        found = gin.config._REGISTRY.get_match(configurable[1])
        return set(inspect.signature(found.wrapped).parameters) - {"self"}
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
        return _known_names()


def missing_file(name: str) -> str:
    """The message for a gin file that does not exist, with the nearest ones: of its own folder, else of Limba's."""
    message = f"There is no gin file {cut(name)}."
    if len(name) > _LONGEST_NAME:
        return message
    if Path(name).is_dir():
        inside = sorted(str(path) for folder in ("", "run") for path in (Path(name) / folder).glob("*.gin"))
        if not inside and (Path(name) / "config.json").is_file():
            return (
                f"{name} is a Hugging Face folder: make a run of it with `limba convert from-hf {name} runs/NAME`, and "
                "name the gin file runs/NAME/model.gin."
            )
        return f"{name} is a folder; name a gin file{f', such as {inside[0]}' if inside else ''}."
    parent = Path(name).parent
    if _ON_HUB.fullmatch(name) and not (parent.is_dir() or (REPOSITORY / parent).is_dir() or parent.name == "t5x"):
        message += (
            f" A model on the hub becomes a run by `limba convert from-hf {name} runs/NAME`, and its gin file is "
            "runs/NAME/model.gin."
        )
    folder = Path(name).parent
    of_run = folder / "run" / Path(name).name  # in an output folder of `limba run`
    if of_run.is_file():
        return f"{message} Did you mean {of_run}?"
    beside = [str(folder / path.name) for path in folder.glob("*.gin")] if folder.is_dir() else []
    if nearest := t5x_names.did_you_mean(name, beside, cutoff=0.5):
        return message + nearest
    ours = (path.relative_to(REPOSITORY) for path in (REPOSITORY / "gin").rglob("*.gin"))
    known = [str(path) for path in ours if "t5x" not in path.parts]
    message += t5x_names.did_you_mean(name, [*known, *t5x_files.names(REPOSITORY)], cutoff=0.5)
    if name.startswith("t5x/"):
        message += " Limba has no file in its place; to read T5X's own, give a checkout of T5X by --gin_search_paths."
    return message


def unbound(error: BaseException) -> str | None:
    """What the gin files lack a binding for that a function needs; other TypeErrors are programming errors."""
    if not isinstance(error, TypeError):
        return None
    if "No values supplied by Gin or caller for arguments" in str(error):
        return without_gin_trailer(error)
    if (found := _UNBOUND.match(str(error))) is None:
        return None
    name, missing = found["name"], found["missing"].replace("'", "")
    return (
        f"The gin files bind no {name}.{missing}; include a file of gin/models that does"
        f"{_OF_ENCODERS if name == 'EncoderConfig' else ''}, or bind it."
    )


def without_gin_trailer(error: Exception) -> str:
    """The message without gin's trailer, which tells from where in the configuration the call came."""
    message = str(error)
    for marker in ("\n  Gin had values bound for", "\n  In call to configurable", "\n\nIn call to configurable"):
        message = message.partition(marker)[0]
    return message.strip() or type(error).__name__
