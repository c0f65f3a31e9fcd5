"""The shared parts of the commands: flags, logging, joining other processes of the run, and errors as one message.

PATH, or --gin_file=PATH    gin files; later ones override earlier ones
--gin.NAME=VALUE            one binding, applied after the files; strings need their own quotes
--gin_bindings="NAME = V"   the same
--gin_search_paths=A,B      folders to search for gin files and their includes, before this repository
"""

import argparse
import atexit
import difflib
import gc
import logging
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NoReturn

from limba import closed_pipes
from limba.devices import compiling, library_patches, out_of_memory
from limba.files import named_flags, os_errors, redaction, rust_panics, storage, terminal
from limba.gin_config import closed_list, import_errors, macros, messages, run_folders
from limba.gin_config.gin_files import GinError, get_gin_config_str
from limba.inference import tasks_door
from limba.workers import distributed, handshake, heartbeats, launchers, preemption


class _Parser(named_flags.Parser):
    """A parser that answers an unknown flag with the nearest flag or gin binding, and not with all flags."""

    def error(self, message: str) -> NoReturn:
        _, unknown, words = message.partition("unrecognized arguments: ")
        if not unknown:
            super().error(message)
        flag, _, value = words.partition(" ")[0].partition("=")
        if not value and flag in sys.argv[:-1]:
            value = sys.argv[sys.argv.index(flag) + 1]
        near = difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=0.75)
        macro = flag.lstrip("-").replace("-", "_").upper()
        shown = "…" if value.startswith("-") or not value else messages.as_value(value)
        near += [f"--gin.{name}={shown}" for name in difflib.get_close_matches(macro, macros.names_of_limba(), 2, 0.6)]
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        binding = "Values of gin files are overridden as --gin.NAME=VALUE."
        self.exit(2, f"error: {self.prog} has no flag {words}.{hint} {binding} `{self.prog} --help` lists the flags.\n")


def argument_parser(
    command: str, description: str, takes_files: bool = True, takes_run: bool = False
) -> argparse.ArgumentParser:
    """A parser with the gin flags, which `--help` lists after those that a command adds.

    Args:
      takes_files: arguments that are not flags are gin files too.
      takes_run: one of them may be a run, as `--run_dir`: the one whose name does not end with `.gin`.
    """
    parser = _Parser(
        prog=f"limba {command}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every value of a gin file can be overridden: --gin.TRAIN_STEPS=1000 --gin.MODEL_DIR=\"'runs/x'\"",
    )
    if takes_run:
        parser.add_argument(
            "--run_dir", metavar="RUN",
            help="a run's directory or one checkpoint, also without the flag; brings its own gin configuration",
        )  # fmt: skip
    if takes_files or takes_run:
        metavar = "RUN|GIN" if takes_files and takes_run else "GIN" if takes_files else "RUN"
        gin = "gin files, read after those of --gin_file" if takes_files else ""
        run = "a run's directory or one checkpoint" if takes_run else ""
        parser.add_argument("files", nargs="*", metavar=metavar, help="; ".join(filter(None, (run, gin))))
    group = parser.add_argument_group("gin and files")
    add_gin_flags(group)
    add_module_flag(group)
    _add_t5x_flags(parser)
    # The other commands use one machine, also on a worker of a pod.
    parser.set_defaults(joins_cluster=command in ("train", "eval", "infer"))
    return parser


def add_gin_flags(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument("--gin_file", action="append", default=[], metavar="PATH", help="a gin file; repeatable")
    parser.add_argument(
        "--gin_bindings", action="append", default=[], metavar="'NAME = VALUE'", help="a binding; repeatable"
    )
    parser.add_argument(
        "--gin_search_paths", default="", metavar="A,B", help="folders to search for gin files and their includes"
    )
    parser.add_argument(
        "--buckets", metavar="DIR", help="folder of mounted buckets: gs://NAME/x is read and written as DIR/NAME/x"
    )
    parser.add_argument(
        "--trust", action="append", default=[], metavar="FILE",
        help="a recipe that may name any Python module and function, as a script does (docs/gin.md); repeatable",
    )  # fmt: skip


def add_module_flag(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--module", action="append", metavar="NAME",
        help="a module that registers the task, or that gin files may name beside those of this folder; repeatable",
    )  # fmt: skip


def take_gin_flags(flags: argparse.Namespace) -> None:
    """Applies those flags of `add_gin_flags` that hold for all that is read from now on."""
    if flags.buckets:
        storage.mount_buckets(flags.buckets)
    closed_list.trust(flags.trust)


def _add_t5x_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("T5X's flags")
    group.add_argument("--dry_run", **_SWITCH, help="parse and check the configuration, print it, and stop")
    group.add_argument("--tfds_data_dir", metavar="DIR", help="folder of TensorFlow Datasets' data")
    group.add_argument(
        "--seqio_additional_cache_dirs", default="", metavar="A,B", help="folders to search for SeqIO's cached tasks"
    )
    group.add_argument("--multiprocess_gpu", **_SWITCH, help="join the processes of several hosts into one run")
    distributed.add_flags(group)
    group.add_argument(
        "--verbosity", "-v", type=int, default=0, metavar="N", help="-1 warnings only, 1 more than usual"
    )
    for name in ("--logtostderr", "--alsologtostderr"):
        group.add_argument(name, **_SWITCH, help="accepted: messages go to standard error in any case")


_TRUTHS = ("true", "false", "1", "0")


def _true_or_false(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1")


# As absl reads it: --flag, --flag=true, --flag=false.
_SWITCH: dict[str, Any] = {"nargs": "?", "const": True, "default": False, "type": _true_or_false, "metavar": "BOOL"}
_SWITCHES = ("--dry_run", "--multiprocess_gpu", "--logtostderr", "--alsologtostderr")


def _close_switches(argv: Sequence[str]) -> list[str]:
    """Writes `=true` behind a switch without a value: else argparse takes a gin file that follows it for the value."""
    following = [*argv[1:], "true"]
    return [
        f"{word}=true" if word in _SWITCHES and next_word.lower() not in _TRUTHS else word
        for word, next_word in zip(argv, following, strict=False)
    ]


def parse_flags(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parses the flags of a command and applies T5X's, before JAX touches a device.

    Raises:
      GinError: for flags that Limba does not support, or that need another flag.
    """
    for argument in argv:
        if argument.startswith(("--fdl", "--fiddle")):
            raise GinError(f"{argument}: Limba is configured by gin, not by fiddle; give --gin_file=….")
    flags = parser.parse_intermixed_args(rewrite_gin_flags(_close_switches(argv)))
    if hasattr(flags, "run_dir"):
        _find_run(flags, parser)
    flags.gin_file = [*flags.gin_file, *getattr(flags, "files", [])]
    logging.getLogger("limba").setLevel(logging.INFO - 10 * flags.verbosity)
    join_others(flags)
    closed_list.give_flags(flags.module or [])
    take_gin_flags(flags)
    if getattr(flags, "run_dir", None):
        run_folders.read_run(flags.run_dir)
    if flags.tfds_data_dir or flags.seqio_additional_cache_dirs:
        tasks_door.set_folders(flags.tfds_data_dir, [d for d in flags.seqio_additional_cache_dirs.split(",") if d])
    return flags


def _find_run(flags: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Takes the run out of `files`."""
    runs = [word for word in flags.files if not word.endswith(".gin")]
    flags.files = [word for word in flags.files if word not in runs]
    if len(given := [*filter(None, [flags.run_dir]), *runs]) > 1:
        parser.error(f"give one run, not {' and '.join(given)}; the names of gin files end with .gin.")
    flags.run_dir = given[0] if given else None


def join_others(flags: argparse.Namespace) -> None:
    """Joins the other processes of the run, if there are any, and unless this was done before."""
    if distributed.store() is not None:
        return
    names = ("coordinator_address", "process_count", "process_index")
    given = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    if given and not flags.multiprocess_gpu:
        first = next(iter(given))
        raise GinError(f"--{first} is for runs with several processes; add --multiprocess_gpu to join them.")
    if flags.dry_run:
        return
    timeout = flags.initialization_timeout
    settings = distributed.find_cluster(given, flags.multiprocess_gpu, flags.joins_cluster, timeout)
    if settings is not None:
        distributed.join(settings, timeout)
        heartbeats.start()


def goes_on(flags: argparse.Namespace) -> bool:
    """Whether a command calls what gin has configured; with --dry_run it prints the configuration instead.

    If the run has several processes, they first compare their code and configuration.
    """
    if flags.dry_run:
        print(get_gin_config_str())
        return False
    handshake.compare_code(get_gin_config_str())
    return True


def rewrite_gin_flags(argv: Sequence[str]) -> list[str]:
    """Turns `--gin.NAME=VALUE` into `--gin_bindings=NAME = VALUE`."""
    rewritten = []
    for argument in argv:
        if argument.startswith("--gin."):
            name, equals, value = argument.removeprefix("--gin.").partition("=")
            if not equals:
                raise GinError(f"{argument} has no value; write --gin.{name}=VALUE.")
            argument = f"--gin_bindings={name} = {value}"
        rewritten.append(argument)
    return rewritten


# --------------------------------------------------- running a command -----------------------------------------------


def run_command(main: Any, argv: Sequence[str] | None = None) -> None:
    """Runs a command's main. Errors that the user can fix are one message without traceback, and exit code 1.

    `LIMBA_TRACEBACK=1` shows the traceback too.
    """
    library_patches.install()
    # Python searches all that a process has imported for garbage once more at its end: a quarter of a short command.
    atexit.register(gc.freeze)
    sys.excepthook = _show_error
    preemption.catch_interrupts()
    ends_silently = closed_pipes.ending_silently()
    with terminal.obeying_colours_alone(), redaction.redacted_stderr(), heartbeats.membership(), ends_silently:
        _set_up_logging()
        if launchers.is_beside_another(os.environ):  # C++ libraries print there too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        try:
            code = main(launchers.without_local_rank(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
        except (ValueError, OSError, RuntimeError, ImportError, TypeError) as error:
            if isinstance(error, BrokenPipeError) and closed_pipes.has_no_reader():
                raise
            if os.environ.get("LIMBA_TRACEBACK") or (isinstance(error, TypeError) and not messages.unbound(error)):
                raise
            message = messages.without_gin_trailer(error)
            message = (
                import_errors.missing_extra(error)
                or import_errors.conflicting_hub(error)
                or os_errors.describe(error, message)
                or messages.unbound(error)
                or message
            )
            message = without_temporary_folders(message)
            if out_of_memory.is_cause(error):
                given = sys.argv[1:] if argv is None else argv
                message = out_of_memory.describe(error, main.__module__, given)
            # Before the processes of a launcher have joined, they all have the same error.
            if distributed.store() is not None or not launchers.is_beside_another(os.environ):
                print(f"error: {message}", file=sys.stderr)
            heartbeats.tell_failure(error, redaction.redact(message))
            code = getattr(error, "exit_code", 1)
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            code = 130
        except BaseException as error:
            if not rust_panics.is_panic(error):
                raise
            print(f"error: {rust_panics.describe(error)}", file=sys.stderr)
            heartbeats.tell_failure(error, rust_panics.describe(error))
            code = 1
        if code != 0 and compiling.is_running():  # Nobody waits for a program that will not run.
            heartbeats.leave_at_once(code)
        sys.exit(code)


def _show_error(*error: Any) -> None:
    """Prints a traceback, without credentials."""
    with redaction.redacted_stderr():
        sys.__excepthook__(*error)


def _set_up_logging() -> None:
    """Shows Limba's messages from INFO on, and the errors of other libraries.

    Of several processes that share a terminal the first shows messages, and the others only errors.
    """
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s", stream=sys.stderr, force=True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_news)
        if launchers.is_beside_another(os.environ):
            handler.setLevel(logging.ERROR)
    for ours in ("limba", "tasks", "convert"):
        logging.getLogger(ours).setLevel(logging.INFO)
    for noisy in ("absl", "jax", "orbax"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


def _is_news(record: logging.LogRecord) -> bool:
    """Not what an error says as well: gin logs each folder in which a file is missing, Orbax what it could not save."""
    text = record.getMessage()
    return not (text.startswith("Path not found") or "in background save thread" in text)


# As the folders of `tempfile` are called that are made here: a prefix and eight characters.
_TEMPORARY_FOLDER = re.compile(rf"{re.escape(tempfile.gettempdir())}/limba-[a-z]+-\w{{8}}/")


def without_temporary_folders(message: str) -> str:
    """A message with `config.json` in place of the path of a file in a temporary folder of Limba's."""
    return _TEMPORARY_FOLDER.sub("", message)
