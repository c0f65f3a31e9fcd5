"""Finds, reads and checks gin files; and T5X's functions of `gin_utils`, which gin files bind.

The commands' flags for gin files are in `limba/command_line.py`.
"""

import copy
import io
import logging
import os
import re
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

try:
    import gin
    from gin import config as gin_config
except ImportError as error:
    # This repository's own folder gin/ imports as an empty namespace package.
    raise ImportError("gin-config is not installed; run `pip install -e .` or launch/quickstart.sh first.") from error

from limba.devices import native_logs
from limba.files import redaction, repository, storage, untrusted_files
from limba.files.repository import REPOSITORY
from limba.gin_config import (
    closed_list,
    gin_names,
    import_errors,
    importing,
    macros,
    messages,
    methods,
    model_file,
    operative_text,
    other_files,
    recipe,
    references,
    run_folders,
    t5x_files,
    t5x_names,
    value_types,
)
from limba.gin_config.messages import GinError

logger = logging.getLogger(__name__)

# Of a gin file. The largest, operative configurations, have some 10 kB.
_MOST_BYTES = 4 * 2**20
# Files that one file includes, and those that they do: thirty, each of which includes the next twice, are a billion.
_MOST_INCLUDES = 500
# Of all of these together: names are compared with each other. Limba's own files have 4,900.
_MOST_LINES = 5000
# What no file and no terminal takes: a null byte, and half of a character.
_UNREADABLE = re.compile(r"\0|\\u[dD][89a-fA-F][\da-fA-F]{2}")

# TensorFlow, which tasks import, reports missing GPUs from C++, where Python's loggers cannot stop it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


# ----------------------------------------------------- finding files --------------------------------------------------

# Those of the user, and the others.
_search_paths: list[Path] = []
_usual_paths: list[Path] = []


def set_search_paths(search_paths: str) -> None:
    """Sets the folders of files and includes: these, then the working directory, then this repository.

    Includes of T5X's own files, `t5x/…`, are also searched there first; Limba's replacements come last. Limba's own
    files, `gin/…`, come before those of the working directory.
    """
    _search_paths[:] = [Path(path).expanduser() for path in search_paths.split(",") if path]
    _usual_paths[:] = [Path()]
    if t5x_names.uses_installed_t5x() and (folder := t5x_names.installed("t5x")):
        _usual_paths.append(folder.parent)
    _usual_paths.append(REPOSITORY)
    # Gin would look in the working directory first, then take the folders of an include path for Python packages, and
    # fail at folders without __init__.py. It has no public way to replace its readers.
    gin_config._FILE_READERS[:] = [(_open_gin_file, _is_found)]


def _folders(name: str) -> list[Path]:
    """Where a file is looked for, the first first.

    A folder that somebody downloaded may have files of Limba's names, which its commands and the user's recipes read.
    So Limba's own come before the working directory's, as installed modules do. A run's configuration has no others.
    """
    if run_folders.reads_run():
        return [REPOSITORY]
    is_ours = name.startswith("gin/") and (REPOSITORY / name).is_file()
    return [*_search_paths, *([REPOSITORY] if is_ours else []), *_usual_paths]


def _warn_of_hidden(name: str, found: Path) -> None:
    """Names a file of the working directory that Limba's own hides."""
    if found == REPOSITORY / name and Path(name).is_file() and not found.samefile(name):
        logger.warning("%s is Limba's own file, and not the one of this folder: for that write ./%s.", name, name)


def _locate(name: str) -> Path | str | None:
    """The file of this name, or the text of Limba's replacement for one of T5X's; None if there is neither."""
    if storage.is_remote(name):
        return _remote(name)
    for folder in _folders(name):
        # A FIFO or a link to nothing is found too: opening it says what it is.
        if os.path.lexists(folder / name) and not (folder / name).is_dir():
            return folder / name
    return None if t5x_names.uses_installed_t5x() else t5x_files.replacement(name, REPOSITORY)


def _remote(url: str) -> str | None:
    try:
        path = storage.as_path(url)
    except ValueError as error:
        raise GinError(str(error)) from None
    return untrusted_files.decode(storage.read_bytes(path), url) if storage.is_file(path) else None


def _is_found(name: str) -> bool:
    closed_list.check_include(name)
    return _locate(name) is not None


def _open_gin_file(name: str) -> IO[str]:
    found = _locate(name)
    if isinstance(found, Path):
        _warn_of_hidden(name, found)
        if what := other_files.named(name):
            raise GinError(f"{name} is no gin file: {what}")
        text = _GinText(str(found), untrusted_files.read_text(found, _MOST_BYTES))
    else:
        text = _GinText(name, found or "")
    # A message about a line shows it, so no other file is taken for one of gin's because a file includes it.
    if run_folders.open_files and not name.endswith(".gin"):
        raise GinError(f"include {name!r}: the name of a gin file ends with .gin.")
    return text


class _GinText(io.StringIO):
    """The text of a file while gin reads it, which it does until the files that it includes are read.

    An error gets the place where reading stopped, as `limba_place`: not all of gin's errors have one.
    """

    _open: ClassVar[list[str]] = run_folders.open_files
    # A file whose modules of tasks are not imported.
    without_tasks: ClassVar[str] = ""
    # All that were read since `parse_files` began, by name.
    texts: ClassVar[dict[str, str]] = {}
    # Of the file that is read now.
    num_includes: ClassVar[int] = 0
    num_lines: ClassVar[int] = 0

    def __init__(self, name: str, text: str):
        used = operative_text.without_unused_imports(text) if name == self.without_tasks else text
        super().__init__(operative_text.without_macro_scopes(used))
        self.name = name
        self.texts[name] = text
        if unreadable := _UNREADABLE.search(text):
            what = "a null byte" if unreadable[0] == "\0" else f"half of a character, {unreadable[0]}"
            raise GinError(f"the line has {what}.", [(name, text.count("\n", 0, unreadable.start()) + 1)])
        if what := other_files.described(name, text):
            raise GinError(f"{name} is no gin file: {what}")
        _GinText.num_includes = self.num_includes + 1 if self._open else 0
        if self.num_includes > _MOST_INCLUDES:
            raise GinError(f"{self._open[0]} includes more than {_MOST_INCLUDES} files, those of its includes counted.")
        _GinText.num_lines = len([*filter(str.strip, text.split("\n"))]) + (self.num_lines if self._open else 0)
        if self.num_lines > _MOST_LINES:
            raise GinError(
                f"{[*self._open, name][0]} has more than {_MOST_LINES:,} lines, those of its includes counted."
            )
        if name in self._open:
            first, *chain = [*self._open[self._open.index(name) :], name]
            raise GinError(f"{first} includes {', which includes '.join(chain)}. Remove one of these lines.")

    def __enter__(self) -> "_GinText":
        run_folders.open_file(self.name)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._open.remove(self.name)
        if error is not None and not hasattr(error, "limba_place"):
            error.limba_place = self.name, self.getvalue().count("\n", 0, self.tell()) + 1
        self.close()


# -------------------------------------------------------- parsing -----------------------------------------------------

# Gin's errors for files that do not parse, or that use names that do not exist.
PARSE_ERRORS = (
    *(ValueError, TypeError, AttributeError, NameError, ImportError, OSError, SyntaxError, RuntimeError, MemoryError),
    tokenize.TokenError,
)


def parse_gin_flags(
    files: Sequence[str], bindings: Sequence[str], search_paths: str = "", without_tasks: str = ""
) -> None:
    """Reads files, then bindings, into gin's configuration.

    `without_tasks` is one of the files, whose modules are imported only if its bindings name them.

    Raises:
      GinError: for a missing file, an unknown name, a value that does not parse, or a macro that is used and not bound.
    """
    _GinText.without_tasks = without_tasks
    parse_files(files, search_paths)
    parse_bindings(bindings)
    _take_module_of_flag()
    _find_moved_vocabulary()
    check_names(bindings)
    macros.check_bound()


def _take_module_of_flag() -> None:
    """Binds MIXTURE_OR_TASK_MODULE, where the files leave it None, to the module of `--module`: it may register the
    task, and the run's configuration then says so."""
    name, module = "MIXTURE_OR_TASK_MODULE", closed_list.module_of_flag()
    try:
        if module is None or gin.query_parameter(f"%{name}") is not None:
            return
    except ValueError:
        return  # No file has it.
    gin.parse_config(f"{name} = {module!r}")


def _find_moved_vocabulary() -> None:
    """Binds VOCABULARY_FILE to the file of its name beside the gin file that binds it, where its own path is not there:
    a folder that was moved or copied to another machine holds both."""
    name = "VOCABULARY_FILE"
    try:
        named = gin.query_parameter(f"%{name}")
    except ValueError:
        return
    if not isinstance(named, str) or storage.is_remote(named) or os.path.lexists(Path(named).expanduser()):
        return
    for file, text in reversed(list(_GinText.texts.items())):
        beside = Path(file).parent / Path(named).name
        if beside.is_file() and recipe.Recipe.parse(text, file).macros.get(name) == named:
            gin.parse_config(f"{name} = {str(beside)!r}")
            logger.info("%s names %s, which is not there; the vocabulary beside it, %s, is taken.", file, named, beside)
            return


def parse_files(files: Sequence[str], search_paths: str = "") -> None:
    """Reads files into gin's configuration; macros may still be unbound.

    Raises:
      GinError: for a missing file, an unknown name, or a value that does not parse.
    """
    importing.prepare()
    methods.install()
    references.install()
    closed_list.install()
    repository.warn_of_hidden_modules()
    set_search_paths(search_paths)
    _GinText.texts.clear()
    for file in files:
        if _locate(file) is None:
            folders = ", ".join(dict.fromkeys(str(folder.absolute()) for folder in _folders(file)))
            searched = "" if Path(file).is_dir() else f" Limba searched {folders}."
            raise GinError(f"{messages.missing_file(file)}{searched}")
        try:
            with native_logs.filtered():  # Task modules that the files import may import TensorFlow.
                gin.parse_config_file(file)
        except Exception as error:  # A module that a file imports may raise anything.
            if import_errors.describe(error) is None and not isinstance(error, PARSE_ERRORS):
                raise
            raise GinError(messages.explanation(error), messages.places(error)) from error
        macros.check_cycles(file)


def parse_bindings(bindings: Sequence[str]) -> None:
    """Binds values of the command line, after the files are read."""
    for binding in bindings:
        _parse_binding(binding)
        closed_list.give_modules(closed_list.modules_in(recipe.Recipe.parse(binding).bindings))
        macros.check_cycles(f"--gin.{binding}")
        _warn_of_scopes(binding)


def _parse_binding(binding: str) -> None:
    """Binds one value of the command line; its name may be T5X's or Limba's."""
    shown = f"--gin.{binding.replace(' = ', '=', 1)}"
    try:
        gin.parse_config(binding)
    except PARSE_ERRORS as error:
        # Gin knows a function only by the name under which a file imported it.
        text = gin_names.with_imports(binding)
        if not text or "No configurable matching" not in str(error):
            raise GinError(f"{shown}: {messages.explanation(error)}") from error
        try:
            gin.parse_config(text)
        except PARSE_ERRORS as again:
            raise GinError(f"{shown}: {messages.explanation(again)}") from again


def _warn_of_scopes(binding: str) -> None:
    """Warns if a binding without a scope has no effect: a binding of the same value in a scope takes precedence."""
    name = binding.partition("=")[0].strip()
    selector, _, parameter = name.rpartition(".")
    config = gin_config._CONFIG
    bound = [reference for x in config.values() for value in x.values() for reference in references.references(value)]
    in_use = {reference.config_key for reference in bound}
    for (scope, full), values in config.items():
        same = full.rpartition(".")[2] == selector.rpartition(".")[2]
        given = config.get(("", full), {}).get(parameter)
        is_hidden = (scope, full) in in_use and parameter in values and values[parameter] != given
        if scope and "/" not in name and same and is_hidden:
            logger.warning(
                "--gin.%s has no effect on %s/%s, which is bound to %r; give --gin.%s/%s=… for that.",
                name,
                scope,
                name,
                values[parameter],
                scope,
                name,
            )


def configurable(function: Callable[..., Any], module: str) -> Callable[..., Any]:
    """The function as gin calls it. Registers it, unless a gin file has done so by importing it."""
    try:
        return gin.get_configurable(function)
    except ValueError:
        return gin.external_configurable(function, module=module)


def registered_name(function: Callable[..., Any]) -> str:
    """The whole name under which gin knows a configurable function, such as `limba.train.train`."""
    return gin_config._INVERSE_REGISTRY[function].selector


# --------------------------------------------------------- checks -----------------------------------------------------


def check_names(bindings: Sequence[str], beside: Sequence[str] = (), is_part: bool = False) -> None:
    """`macros.check_names` and `value_types.check` of the files that were parsed; no name is of a class of PyTorch's.

    Raises:
      GinError: as these two, or for a class that no run can train.
    """
    macros.check_names(_GinText.texts, bindings, beside, is_part)
    value_types.check(_GinText.texts, bindings)
    for (scope, selector), values in gin_config._CONFIG.items():
        for parameter, value in values.items():
            for reference in references.references(value):
                made = reference.configurable.wrapped
                if isinstance(made, type) and any(base.__module__.startswith("torch.nn.") for base in made.__mro__):
                    name = scope if selector == "gin.macro" else f"{selector.rpartition('.')[2]}.{parameter}"
                    raise GinError(
                        f"{name} is {made.__module__}.{made.__qualname__}, a class of PyTorch; networks and models are "
                        "written for Flax here (docs/networks.md), and `limba convert from-hf` takes over weights."
                    )


def require_bindings(**examples: str) -> None:
    """Raises GinError that names the macros in use that are still `%gin.REQUIRED`, with an example value for each."""
    if missing := macros.required():
        what = "{0} is required: add --gin.{0}={1} or bind it in a gin file."
        raise GinError(" ".join(what.format(name, examples.get(name, "…")) for name in missing))


def require_training_bindings() -> None:
    """`require_bindings` with example values for the macros of a training run.

    The last step need not be bound where the steps or epochs after the initial checkpoint are, which win over it.
    """
    if value_of("%TRAIN_STEPS") is gin.REQUIRED and any(
        value_of(f"%{name}") not in (None, gin.REQUIRED) for name in ("TRAIN_STEPS_RELATIVE", "TRAIN_EPOCHS")
    ):
        gin.bind_parameter("%TRAIN_STEPS", 0)
    require_bindings(
        MODEL_DIR="\"'runs/my_run'\"",
        MIXTURE_OR_TASK_NAME="\"'my_task'\"",
        TASK_FEATURE_LENGTHS="\"{'inputs': 512, 'targets': 114}\"",
        TRAIN_STEPS="100000",
        DROPOUT_RATE="0.0",
        INITIAL_CHECKPOINT_PATH="\"'runs/pretrained'\"",
    )
    bound = macros.bound()
    for name, what, example in (
        ("MODEL_DIR", "a folder", "runs/my_run"),
        ("MIXTURE_OR_TASK_NAME", "a name", "my_task"),
    ):
        value = value_of(f"%{name}") if name in bound else example
        # T5X takes a task in place of its name as well.
        is_text = isinstance(value, str) and value.strip()
        if not is_text and (name == "MODEL_DIR" or isinstance(value, str | int | float | list | tuple | dict | None)):
            raise GinError(
                f"{name} is {untrusted_files.shown(value)}; it is {what}, as a text in quotes: "
                f"--gin.{name}=\"'{example}'\"."
            )


def require_a_run(configured: Callable[..., Any], files: Sequence[str], remedy: str) -> None:
    """Raises GinError, with the remedy, if these files bind no model to the function."""
    if "model" not in gin.get_bindings(configured, resolve_references=False):
        name = configured.__name__
        raise GinError(f"{', '.join(map(untrusted_files.cut, files))}: nothing binds {name}.model; {remedy}.")


def operative_config(max_line_length: int = 80) -> str:
    """The bindings that the run used, as a gin file without credentials; see `limba.files.redaction`.

    Those of what it has not called yet are there, too, such as of a `decode_fn` before the first evaluation.
    """
    used = dict(gin_config._OPERATIVE_CONFIG)
    called = {selector for _, selector in used if selector != "gin.macro"}
    others = {key: values for key, values in gin_config._CONFIG.items() if key[1] not in called}
    bound = [value for values in used.values() for value in values.values()]
    named = model_file.reached_by(others, [x for value in bound for x in references.references(value)])
    named |= {key for key in others if key[1].rpartition(".")[0] in called}  # methods
    used |= {key: others[key] for key in named - used.keys()}
    return redaction.redact(gin_config._config_str(used, max_line_length))


def value_of(name: str) -> Any:
    """The value that a parameter such as `train.eval_steps` is bound to; None if nothing binds it."""
    try:
        bound = gin.query_parameter(name)
    except ValueError:
        return None
    return copy.deepcopy(bound)  # Gin builds a reference when it is copied, which may raise what its function raises.


def is_bound(name: str) -> bool:
    """Whether something, None too, is bound to a parameter such as `train.eval_steps`."""
    try:
        gin.query_parameter(name)
    except ValueError:
        return False
    return True


def imported_modules() -> list[str]:
    """The Python modules that the gin files import."""
    return [statement.module for statement in gin.config._IMPORTS]


def get_gin_config_str(show_provenance: bool = False) -> str:
    """All bindings, without credentials. `show_provenance` (the file of each binding) is not supported."""
    if show_provenance:
        raise ValueError("get_gin_config_str.show_provenance is True, but gin-config keeps no provenance; set False.")
    return redaction.redact(gin.config_str())


def summarize_gin_config(model_dir: str, summary_writer: Any, step: int) -> None:
    """Writes the operative configuration as `<model_dir>/config.gin` and as TensorBoard's text `config`.

    Creates `model_dir` if needed. `summary_writer` has clu's `write_texts`, as `writers.SummaryWriter` has, or is None.
    """
    config = operative_config()
    Path(model_dir).mkdir(parents=True, exist_ok=True)
    storage.replace_text(Path(model_dir) / "config.gin", config)
    if summary_writer is not None:
        summary_writer.write_texts(step, {"config": config})


# T5X's functions for arithmetic inside gin files.


def sum_fn(var1: Any, var2: Any) -> Any:
    return var1 + var2


def bool_fn(var1: Any) -> bool:
    return bool(var1)


def string_split_fn(text: str, separator: str, maxsplit: int = -1, index: int | None = None) -> list[str] | str:
    """`text.split(separator, maxsplit)`, or one piece of it."""
    pieces = text.split(separator, maxsplit)
    return pieces if index is None else pieces[index]
