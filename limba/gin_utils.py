"""Gin files and the flags that T5X's users type.

--gin_file=PATH             may be given several times; later files override earlier ones
--gin.NAME=VALUE            one binding, applied after the files; strings need their own quotes
--gin_bindings="NAME = V"   the same
--gin_search_paths=A,B      where gin files and their includes are looked for, before this repository
"""

import argparse
import contextlib
import difflib
import inspect
import io
import logging
import os
import re
import sys
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

try:
    import gin
    from gin import config as gin_config
except ImportError as error:
    # This repository's own folder gin/ imports as an empty namespace package.
    raise ImportError("gin-config is not installed; run `pip install -e .` or launch/quickstart.sh first.") from error

from limba import distributed, handshake, native_logs, patches, peers, rooms, storage, t5x_compat, t5x_gin_files

logger = logging.getLogger(__name__)

# TensorFlow, which tasks bring in, reports missing GPUs from C++, where no logger of Python's can stop it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# The folder that holds gin/, so that `gin/runs/pretrain.gin` is found from anywhere.
REPOSITORY = Path(__file__).resolve().parent.parent


class GinError(ValueError):
    """A gin file or binding that cannot be used; the message names it and the remedy.

    Attributes:
      what: the message without the place.
      places: file and line, the innermost of nested includes first; empty for what is not in a file.
    """

    def __init__(self, what: str, places: Sequence[tuple[str, int]] = ()):
        super().__init__("".join(f"{file}:{line}: " for file, line in places[:1]) + what)
        self.what = what
        self.places = tuple(places)


def argument_parser(command: str, description: str) -> argparse.ArgumentParser:
    """A parser with the gin flags; commands add their own."""
    parser = argparse.ArgumentParser(
        prog=f"limba {command}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every value of a gin file can be overridden: --gin.TRAIN_STEPS=1000 --gin.MODEL_DIR=\"'runs/x'\"",
    )
    add_gin_flags(parser)
    parser.add_argument(
        "--buckets", metavar="DIR", help="where buckets are mounted: gs://NAME/x is read and written as DIR/NAME/x"
    )
    _add_t5x_flags(parser)
    # The other commands are for one machine, also on a worker of a pod.
    parser.set_defaults(joins_cluster=command in ("train", "eval", "infer"))
    return parser


def add_gin_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of gin itself."""
    parser.add_argument("--gin_file", action="append", default=[], metavar="PATH", help="a gin file; repeatable")
    parser.add_argument(
        "--gin_bindings", action="append", default=[], metavar="'NAME = VALUE'", help="a binding; repeatable"
    )
    parser.add_argument(
        "--gin_search_paths", default="", metavar="A,B", help="folders in which gin files and includes are looked for"
    )


def _add_t5x_flags(parser: argparse.ArgumentParser) -> None:
    """What T5X's commands take besides gin's flags."""
    group = parser.add_argument_group("T5X's flags")
    group.add_argument("--dry_run", **_SWITCH, help="parse and check the configuration, print it, and stop")
    group.add_argument("--tfds_data_dir", metavar="DIR", help="where TensorFlow Datasets has its data")
    group.add_argument(
        "--seqio_additional_cache_dirs", default="", metavar="A,B", help="where SeqIO's cached tasks are looked for"
    )
    group.add_argument("--multiprocess_gpu", **_SWITCH, help="join the processes of several hosts into one run")
    distributed.add_flags(group)
    group.add_argument(
        "--verbosity", "-v", type=int, default=0, metavar="N", help="-1 warnings only, 1 more than usual"
    )
    for name in ("--logtostderr", "--alsologtostderr"):
        group.add_argument(name, **_SWITCH, help="accepted: messages go to standard error in any case")


def _true_or_false(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1")


# As absl reads it: --flag, --flag=true, --flag=false.
_SWITCH: dict[str, Any] = {"nargs": "?", "const": True, "default": False, "type": _true_or_false, "metavar": "BOOL"}


def parse_flags(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parses the flags of a command and does what those of T5X ask for, before anything touches a device.

    Raises:
      GinError: for flags that Limba has nothing for, or that lack each other.
    """
    for argument in argv:
        if argument.startswith(("--fdl", "--fiddle")):
            raise GinError(f"{argument}: Limba is configured by gin, not by fiddle; give --gin_file=….")
    flags = parser.parse_args(rewrite_gin_flags(argv))
    logging.getLogger("limba").setLevel(logging.INFO - 10 * flags.verbosity)
    _join_others(flags)
    if flags.buckets:
        storage.mount_buckets(flags.buckets)
    if flags.tfds_data_dir or flags.seqio_additional_cache_dirs:
        from tasks import sources

        sources.set_folders(flags.tfds_data_dir, [d for d in flags.seqio_additional_cache_dirs.split(",") if d])
    return flags


def _join_others(flags: argparse.Namespace) -> None:
    """Joins the other processes of the run, where there are any."""
    given = {name: getattr(flags, name) for name in ("coordinator_address", "process_count", "process_index")}
    given = {name: value for name, value in given.items() if value is not None}
    if given and not flags.multiprocess_gpu:
        raise GinError(
            f"--{next(iter(given))} says how to join several processes; add --multiprocess_gpu to join them."
        )
    timeout = flags.initialization_timeout
    if flags.dry_run:
        return
    place = distributed.find_place(given, flags.multiprocess_gpu, flags.joins_cluster, timeout)
    if place is not None:
        distributed.join(place, timeout)
        peers.start()


def configurable(function: Callable[..., Any], module: str) -> Callable[..., Any]:
    """The function as gin calls it: registered, unless a gin file that was read before did that under its own name."""
    try:
        return gin.get_configurable(function)
    except ValueError:
        return gin.external_configurable(function, module=module)


def start(function: Callable[..., Any], flags: argparse.Namespace, **arguments: Any) -> None:
    """Calls what gin has configured, or with --dry_run prints the configuration instead.

    Where several processes run as one, they first compare their code and configuration.
    """
    if flags.dry_run:
        print(gin.config_str())
        return
    handshake.compare_code(gin.config_str())
    function(**arguments)


def rewrite_gin_flags(argv: Sequence[str]) -> list[str]:
    """Turns `--gin.NAME=VALUE` into `--gin_bindings=NAME = VALUE`."""
    rewritten = []
    for argument in argv:
        if argument.startswith("--gin."):
            name, equals, value = argument.removeprefix("--gin.").partition("=")
            if not equals:
                raise GinError(f"{argument} lacks a value; write --gin.{name}=VALUE.")
            argument = f"--gin_bindings={name} = {value}"
        rewritten.append(argument)
    return rewritten


# ----------------------------------------------------- finding files --------------------------------------------------

_search_paths: list[Path] = []


def set_search_paths(search_paths: str) -> None:
    """Where files and includes are looked for from now on: these folders, the working directory, this repository.

    What T5X's users include from T5X itself, `t5x/…`, is looked for there too; only what is in none of them is ours.
    """
    _search_paths[:] = [Path(path).expanduser() for path in search_paths.split(",") if path]
    _search_paths.append(Path())
    if t5x_compat.uses_installed_t5x() and (folder := t5x_compat.installed("t5x")):
        _search_paths.append(folder.parent)
    _search_paths.append(REPOSITORY)
    # Gin would look in the working directory first, then take the folders of an include path for Python packages, and
    # stumble over those that have no __init__.py. It has no public way to replace its readers.
    gin_config._FILE_READERS[:] = [(_open_gin_file, lambda name: _locate(name) is not None)]


def _locate(name: str) -> Path | str | None:
    """The file that a name of a gin file means, or the text of one of T5X's that this repository stands in for."""
    if storage.is_remote(name):
        return _remote(name)
    for folder in _search_paths:
        if (folder / name).is_file():
            return folder / name
    return None if t5x_compat.uses_installed_t5x() else t5x_gin_files.stand_in(name, REPOSITORY)


def _remote(url: str) -> str | None:
    try:
        path = storage.as_path(url)
    except ValueError as error:
        raise GinError(str(error)) from None
    return storage.read_bytes(path).decode() if storage.is_file(path) else None


def _open_gin_file(name: str) -> IO[str]:
    found = _locate(name)
    if isinstance(found, Path):
        return found.open(encoding="utf-8")
    text = io.StringIO(found)
    text.name = name  # for gin's messages
    return text


# -------------------------------------------------------- parsing -----------------------------------------------------

# What gin raises for files that do not parse or name what is not there.
PARSE_ERRORS = (
    *(ValueError, TypeError, AttributeError, NameError, ImportError, OSError, SyntaxError, RuntimeError),
    tokenize.TokenError,
)


def parse_gin_flags(files: Sequence[str], bindings: Sequence[str], search_paths: str = "") -> None:
    """Reads files, then bindings, into gin's configuration.

    Raises:
      GinError: for a file that is not there, a name that does not exist, a value that does not parse, a macro that is
        used and not bound.
    """
    parse_files(files, search_paths)
    _check_overrides(bindings, _macros_in(gin.config_str()) | _macros_bound_in(gin.config_str()))
    for binding in bindings:
        parse_binding(binding)
        _warn_of_scopes(binding)
    _check_bound(_macros_in(gin.config_str()))


def parse_files(files: Sequence[str], search_paths: str = "") -> None:
    """Reads files into gin's configuration; macros may still be unbound.

    Raises:
      GinError: for a file that is not there, a name that does not exist, a value that does not parse.
    """
    t5x_compat.install()
    patches.install()
    rooms.warn_of_hidden_modules()
    set_search_paths(search_paths)
    for file in files:
        if _locate(file) is None:
            folders = ", ".join(str(folder.absolute()) for folder in _search_paths)
            raise GinError(f"--gin_file={file} does not exist below {folders}.{_nearest_gin_file(file)}")
        try:
            with native_logs.filtered():  # Task modules named in the files bring TensorFlow in.
                gin.parse_config_file(file)
        except PARSE_ERRORS as error:
            raise GinError(explanation(error), _places(error)) from error


def _nearest_gin_file(file: str) -> str:
    ours = (path.relative_to(REPOSITORY) for path in (REPOSITORY / "gin").rglob("*.gin"))
    known = [str(path) for path in ours if "t5x" not in path.parts]
    nearest = difflib.get_close_matches(file, [*known, *t5x_gin_files.names(REPOSITORY)], n=3, cutoff=0.5)
    return f" Did you mean {', '.join(nearest)}?" if nearest else ""


def _not_standing_in(name: str) -> str:
    if not name.startswith("t5x/"):
        return ""
    return " Limba has none in its place; give a checkout of T5X by --gin_search_paths to read T5X's own."


def parse_binding(binding: str) -> None:
    """Binds one value of the command line, whose name may be the one of T5X's gin files or ours."""
    shown = f"--gin.{binding.replace(' = ', '=', 1)}"
    try:
        gin.parse_config(binding)
    except PARSE_ERRORS as error:
        # Gin knows a function by the module that a file imported it from; there may be other names for it.
        imports = _imports_for(binding)
        if not imports or "No configurable matching" not in str(error):
            raise GinError(f"{shown}: {explanation(error)}") from error
        try:
            gin.parse_config(f"from __gin__ import dynamic_registration\n{imports}\n{binding}")
        except PARSE_ERRORS as again:
            raise GinError(f"{shown}: {explanation(again)}") from again


def _warn_of_scopes(binding: str) -> None:
    """Says where a binding without a scope has no effect: a file bound the same value in a scope, which comes first."""
    name = binding.partition("=")[0].strip()
    selector, _, parameter = name.rpartition(".")
    for (scope, full), values in gin.config._CONFIG.items():
        same = full.rpartition(".")[2] == selector.rpartition(".")[2]
        given = gin.config._CONFIG.get(("", full), {}).get(parameter)
        if scope and "/" not in name and same and parameter in values and values[parameter] != given:
            logger.warning(
                "--gin.%s has no effect on %s/%s, which is bound to %r; give --gin.%s/%s=… for that.",
                *(name, scope, name, values[parameter], scope, name),
            )


# In the value of a binding; scopes may come before the module.
_REFERENCE = re.compile(r"@([\w/]+\.\w+)")


def _imports_for(binding: str) -> str:
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


# -------------------------------------------------------- messages ----------------------------------------------------

_LOCATION = re.compile(r'\n\s*In (?:file "(?P<file>[^"]*)",|bindings string) line (?P<line>\d+)\n')

# How gin says that a name is not there.
_UNKNOWN_NAME = re.compile(
    r"has no attribute '?(\w+)|parameter named '(\w+)'|No configurable matching (?:reference )?'([@\w./()]+)'"
)
_UNIMPORTED = re.compile(r"'(\w+)' was not provided by an import statement")
_ABSENT_FILE = re.compile(r"Unable to open file: (\S+)\. ")
_UNKNOWN_ALIASED_NAME = re.compile(r"<module '(t5x?[\w.]*)'.*has no attribute '?(\w+)")


def _places(error: BaseException) -> list[tuple[str, int]]:
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
    if absent := _ABSENT_FILE.match(message):
        return f"There is no gin file {absent[1]}.{_nearest_gin_file(absent[1])}{_not_standing_in(absent[1])}"
    if aliased := _UNKNOWN_ALIASED_NAME.search(message):
        return t5x_compat.missing_name(*aliased.groups())
    if unimported := _UNIMPORTED.match(message):
        line = _imports_for(unimported[1])
        return f"{unimported[1]!r} is not imported in this file." + (f" Add `{line}`." if line else "")
    if unknown := _UNKNOWN_NAME.search(message):
        name = next(filter(None, unknown.groups())).strip("@()").rpartition("/")[2].rpartition(".")[2]
        known = _known_names()
        nearest = [] if name in known else difflib.get_close_matches(name, known, n=3)
        message += f" Did you mean {', '.join(nearest)}?" if nearest else ""
        if unknown[3]:
            message += " Import its module, or read this file after one that does."
    elif isinstance(error, SyntaxError) and str(error.filename).endswith(".py"):
        message = f"the Python module {error.filename}, line {error.lineno}: {error.msg}"
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


# Macros that a run may leave out, and what they are then. A file read after the run's cannot bind them itself: that
# would override the run's.
_DEFAULTS = {"MIXTURE_OR_TASK_MODULE": None}


def _check_bound(used: set[str]) -> None:
    for name in sorted(name for name in used if "." not in name):  # with a dot it is a constant, not a macro
        try:
            gin.query_parameter(f"%{name}")
        except ValueError:
            if name in _DEFAULTS:
                gin.bind_parameter(f"%{name}", _DEFAULTS[name])
                continue
            hint = "include a file of gin/models/ before the run's" if name == "MODEL" else f"add --gin.{name}=…"
            raise GinError(f"{name} is used in the gin files and not bound anywhere: {hint}.") from None


def _check_overrides(bindings: Sequence[str], known: set[str]) -> None:
    """An override of a macro that no file knows is a typing error: gin itself would ignore it in silence."""
    for binding in bindings:
        name = binding.partition("=")[0].strip()
        if "." in name or "/" in name or not name.isupper():
            continue
        if name not in known:
            nearest = difflib.get_close_matches(name, sorted(known), n=3)
            hint = f" Did you mean {', '.join(nearest)}?" if nearest else f" The files use {', '.join(sorted(known))}."
            raise GinError(f"--gin.{name} overrides a name that no gin file uses.{hint}")


def _macros_in(config: str) -> set[str]:
    return {piece.strip(" ,)]}\n").split()[0] for piece in config.split("%")[1:] if piece.strip()}


def _macros_bound_in(config: str) -> set[str]:
    return set(re.findall(r"^(\w+) = ", config, re.MULTILINE))


def require_bindings(**examples: str) -> None:
    """Checks that no macro in use is still `%gin.REQUIRED`.

    Args:
      **examples: what to give for a macro.

    Raises:
      GinError: naming all of them.
    """
    config = gin.config_str()
    used = _macros_in(config)
    missing = []
    for name in sorted(_macros_bound_in(config) & used):
        value = gin.query_parameter(f"%{name}")
        if value is gin.REQUIRED or "gin.REQUIRED" in str(value):
            missing.append(f"{name} is required: add --gin.{name}={examples.get(name, '…')} or bind it in a gin file.")
    if missing:
        raise GinError(" ".join(missing))


def require_training_bindings() -> None:
    """`require_bindings`, with what to give for the macros of a training."""
    require_bindings(
        MODEL_DIR="\"'runs/my_run'\"",
        MIXTURE_OR_TASK_NAME="\"'my_task'\"",
        TASK_FEATURE_LENGTHS="\"{'inputs': 512, 'targets': 114}\"",
        TRAIN_STEPS="100000",
        DROPOUT_RATE="0.0",
        INITIAL_CHECKPOINT_PATH="\"'runs/pretrained'\"",
    )


def operative_config() -> str:
    """The bindings in use, as a gin file that repeats the run."""
    return gin.operative_config_str()


def get_gin_config_str(show_provenance: bool = False) -> str:
    """All bindings. Which file each comes from (`show_provenance`) is not kept."""
    if show_provenance:
        raise ValueError("get_gin_config_str.show_provenance is True, but gin-config keeps no provenance; set False.")
    return gin.config_str()


def summarize_gin_config(model_dir: str, summary_writer: Any, step: int) -> None:
    """Writes the operative configuration as `<model_dir>/config.gin` and as TensorBoard's text `config`.

    Args:
      model_dir: made if needed.
      summary_writer: with clu's `write_texts`, such as `writers.SummaryWriter`; or None.
      step: that the run begins at.
    """
    config = operative_config()
    Path(model_dir).mkdir(parents=True, exist_ok=True)
    (Path(model_dir) / "config.gin").write_text(config, encoding="utf-8")
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


def run_command(main: Any, argv: Sequence[str] | None = None) -> None:
    """Runs a command's main; what the user can mend is one message and exit code 1, without a traceback.

    `LIMBA_TRACEBACK=1` shows the traceback too.
    """
    _set_up_logging()
    with peers.membership():
        try:
            code = main(list(sys.argv[1:] if argv is None else argv))
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            if os.environ.get("LIMBA_TRACEBACK"):
                raise
            print(f"error: {without_gin_trailer(error)}", file=sys.stderr)
            peers.tell_failure(error, without_gin_trailer(error))
            code = 1
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            code = 130
        sys.exit(code)


def _set_up_logging() -> None:
    """Our own messages from INFO on, everybody else's errors only."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s", stream=sys.stderr, force=True)
    # Gin logs every place where a file is not, and then raises the same.
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: not record.getMessage().startswith("Path not found"))
    for ours in ("limba", "tasks", "convert"):
        logging.getLogger(ours).setLevel(logging.INFO)
    for noisy in ("absl", "jax", "orbax"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


def without_gin_trailer(error: Exception) -> str:
    """Gin appends where in the configuration a call came from; the message proper comes first."""
    message = str(error)
    for marker in ("\n  In call to configurable", "\n\nIn call to configurable"):
        message = message.partition(marker)[0]
    return message.strip() or type(error).__name__
