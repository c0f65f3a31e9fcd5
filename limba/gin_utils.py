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
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import gin
except ImportError as error:
    # This repository's own folder gin/ imports as an empty namespace package.
    raise ImportError("gin-config is not installed; run `pip install -e .` or launch/quickstart.sh first.") from error

from limba import native_logs

# TensorFlow, which tasks bring in, reports missing GPUs from C++, where no logger of Python's can stop it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# The folder that holds gin/, so that `gin/runs/pretrain.gin` is found from anywhere.
REPOSITORY = Path(__file__).resolve().parent.parent


class GinError(ValueError):
    """A gin file or binding that cannot be used; the message names it and the remedy."""


def argument_parser(command: str, description: str) -> argparse.ArgumentParser:
    """A parser with the gin flags; commands add their own."""
    parser = argparse.ArgumentParser(
        prog=f"limba {command}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every value of a gin file can be overridden: --gin.TRAIN_STEPS=1000 --gin.MODEL_DIR=\"'runs/x'\"",
    )
    parser.add_argument("--gin_file", action="append", default=[], metavar="PATH", help="a gin file; repeatable")
    parser.add_argument(
        "--gin_bindings", action="append", default=[], metavar="'NAME = VALUE'", help="a binding; repeatable"
    )
    parser.add_argument(
        "--gin_search_paths", default="", metavar="A,B", help="folders in which gin files and includes are looked for"
    )
    return parser


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


def parse_gin_flags(files: Sequence[str], bindings: Sequence[str], search_paths: str = "") -> None:
    """Reads files, then bindings, into gin's configuration.

    Raises:
      GinError: for a file that is not there, a name that does not exist, a value that does not parse.
    """
    paths = [path for path in search_paths.split(",") if path] + [str(Path.cwd()), str(REPOSITORY)]
    for path in reversed(paths):  # Gin searches what was added last first.
        gin.add_config_file_search_path(path)
    for file in files:
        if not any((Path(path) / file).is_file() for path in paths):
            raise GinError(f"--gin_file={file} does not exist below {', '.join(paths)}.{_nearest_gin_file(file)}")
    try:
        with native_logs.filtered():  # Task modules named in the files bring TensorFlow in.
            gin.parse_config_files_and_bindings(list(files), list(bindings), finalize_config=False)
    except (ValueError, TypeError, AttributeError, ImportError, OSError, SyntaxError, RuntimeError) as error:
        raise GinError(_explain(error)) from error
    used = _macros_in(gin.config_str())
    _check_overrides(bindings, used)
    _check_bound(used)


def _nearest_gin_file(file: str) -> str:
    known = [str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "gin").rglob("*.gin")]
    nearest = difflib.get_close_matches(file, known, n=3, cutoff=0.5)
    return f" Did you mean {', '.join(nearest)}?" if nearest else ""


# How gin says that a name is not there.
_UNKNOWN_NAME = re.compile(r"has no attribute '?(\w+)|parameter named '(\w+)'|No configurable matching '([\w./]+)'")


def _explain(error: Exception) -> str:
    """Gin's own message, on one line, with the nearest names where a name is unknown."""
    message = " ".join(str(error).split())
    if unknown := _UNKNOWN_NAME.search(message):
        name = next(filter(None, unknown.groups())).rpartition(".")[2]
        nearest = difflib.get_close_matches(name, _known_names(), n=3)
        message += f" Did you mean {', '.join(nearest)}?" if nearest else ""
    elif isinstance(error, SyntaxError):
        message += " Strings need quotes of their own: --gin.NAME=\"'value'\"."
    return f"{type(error).__name__}: {message}"


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


def _check_bound(used: set[str]) -> None:
    for name in sorted(name for name in used if "." not in name):  # with a dot it is a constant, not a macro
        try:
            gin.query_parameter(f"%{name}")
        except ValueError:
            hint = "include a file of gin/models/ before the run's" if name == "MODEL" else f"add --gin.{name}=…"
            raise GinError(f"{name} is used in the gin files and not bound anywhere: {hint}.") from None


def _check_overrides(bindings: Sequence[str], used: set[str]) -> None:
    """An override of a macro that no file uses is a typing error: gin itself would ignore it in silence."""
    for binding in bindings:
        name = binding.partition("=")[0].strip()
        if "." in name or "/" in name or not name.isupper():
            continue
        if name not in used:
            nearest = difflib.get_close_matches(name, sorted(used), n=3)
            hint = f" Did you mean {', '.join(nearest)}?" if nearest else f" The files use {', '.join(sorted(used))}."
            raise GinError(f"--gin.{name} overrides a name that no gin file uses.{hint}")


def _macros_in(config: str) -> set[str]:
    return {piece.strip(" ,)]}\n").split()[0] for piece in config.split("%")[1:] if piece.strip()}


def require_bindings(**macros: str) -> None:
    """Raises GinError for the first of these macros that is still `%gin.REQUIRED`; values say what to give."""
    for name, example in macros.items():
        try:
            value = gin.query_parameter(f"%{name}")
        except ValueError:
            continue  # Files that do not use the macro do not need it.
        if value is gin.REQUIRED or "gin.REQUIRED" in str(value):
            raise GinError(f"{name} is required: add --gin.{name}={example} or bind it in a gin file.")


def operative_config() -> str:
    """The bindings in use, as a gin file that repeats the run."""
    return gin.operative_config_str()


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


def run_command(main: Any, argv: Sequence[str] | None = None) -> None:
    """Runs a command's main; what the user can mend is one message and exit code 1, without a traceback.

    `LIMBA_TRACEBACK=1` shows the traceback too.
    """
    _set_up_logging()
    try:
        code = main(list(sys.argv[1:] if argv is None else argv))
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        if os.environ.get("LIMBA_TRACEBACK"):
            raise
        print(f"error: {_without_gin_trailer(error)}", file=sys.stderr)
        code = 1
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


def _without_gin_trailer(error: Exception) -> str:
    """Gin appends where in the configuration a call came from; the message proper comes first."""
    message = str(error)
    for marker in ("\n  In call to configurable", "\n\nIn call to configurable"):
        message = message.partition(marker)[0]
    return message.strip() or type(error).__name__
