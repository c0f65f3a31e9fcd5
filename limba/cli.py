"""`limba COMMAND …`: finds the room where a command lives and goes there. Starts fast: imports nothing before it.

A new command is a module with `main(argv)` and a row of `COMMANDS`; one of an add-on is in the add-on's row
(`limba/addons/table.py`). An installed package adds commands of its own by entry points of the group
`limba.commands`: `hello = my_package.hello` makes `limba hello` of that module.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from limba.addons import table

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Command, of one word or two: (module with main(argv), what it does).
COMMANDS = {
    "train": ("limba.train", "pre-train or resume a training, from gin files"),
    "eval": ("limba.eval", "loss and metrics of one, several or all checkpoints of a run, as a table"),
    "infer": ("limba.infer", "let a checkpoint fill blanks or answer"),
    "precompile": ("limba.precompile", "compile the training step without data, and show what it takes"),
    "convert": ("limba.convert.__main__", "between Limba, T5X and Hugging Face, both ways"),
    "preview": ("limba.tasks.preview", "show examples of a task as text"),
    "recipes": ("limba.recipes", "list the gin files of ready trainings, and copy one to change it"),
    "launch": ("limba.launch", "run or print a launcher: one worker, SLURM, the quickstart"),
    "env": ("limba.environment", "versions, devices and settings without secrets, for a bug report"),
    **{name: row for addon in table.ADDONS.values() for name, row in addon.commands.items()},
}


def _take_run_mode() -> str:
    """The command in `--run_mode=train`, as T5X's own main has it; takes it out of `sys.argv`."""
    for i, argument in enumerate(sys.argv):
        if argument.startswith("--run_mode"):
            _, equals, mode = argument.partition("=")
            if not equals and i + 1 < len(sys.argv):
                mode = sys.argv.pop(i + 1)
            del sys.argv[i]
            sys.argv.insert(1, mode)
            return mode
    return sys.argv[1]


def _from_other_packages() -> list[EntryPoint]:
    """The commands of installed packages, by name; Limba's own names come before theirs."""
    from importlib import metadata

    found = metadata.entry_points(group="limba.commands")
    return sorted(entry for entry in found if entry.name not in COMMANDS)


def _list_commands(first_word: str = "") -> None:
    print(f"usage: limba {first_word}COMMAND [options]\n")
    for name, (_, what) in COMMANDS.items():
        if name.startswith(first_word):
            print(f"  {name:12} {what}")
    others = [entry for entry in _from_other_packages() if entry.name.startswith(first_word)]
    if others:
        print("\nfrom other packages:\n")
    for entry in others:
        print(f"  {entry.name:12} {_package(entry)} ({entry.value})")
    print("\n`limba COMMAND --help` says more.")


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.module


def _find_command() -> str:
    """The command of `sys.argv`, Limba's own or another package's; ends the process where there is none."""
    if sys.argv[1:2] and sys.argv[1].startswith("--local"):
        from limba.workers import launchers

        sys.argv[1:] = launchers.without_local_rank(sys.argv[1:])
    asks = ("-h", "--help")
    if sys.argv[1:2] == ["--version"]:
        from importlib import metadata

        print(f"limba {metadata.version('limba')}")
        sys.exit(0)
    if len(sys.argv) < 2 or sys.argv[1] in asks:
        _list_commands()
        sys.exit(0 if len(sys.argv) > 1 else 2)
    word = sys.argv[1] if not sys.argv[1].startswith("-") else _take_run_mode()
    both_words = " ".join([word, *sys.argv[2:3]])
    names = list(COMMANDS)
    if not {word, both_words} & COMMANDS.keys():
        names += [entry.name for entry in _from_other_packages()]
    for name in (word, both_words):
        if name in names:
            return name
    if any(name.startswith(f"{word} ") for name in names):
        if len(sys.argv) < 3 or sys.argv[2] in asks:
            _list_commands(f"{word} ")
            sys.exit(0 if len(sys.argv) > 2 else 2)
        word = both_words
    import difflib

    nearest = difflib.get_close_matches(word, names, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    print(f"error: limba has no command {word!r}.{hint} Commands: {', '.join(names)}.", file=sys.stderr)
    sys.exit(2)


def _load(command: str) -> Any:
    """The module of a command, with `main(argv)`."""
    if command in COMMANDS:
        return importlib.import_module(COMMANDS[command][0])
    entries = [entry for entry in _from_other_packages() if entry.name == command]
    if len(entries) > 1:
        packages = " and ".join(_package(entry) for entry in entries)
        sys.exit(f"error: {packages} all have a command {command!r}; uninstall all but one.")
    module = entries[0].load()
    if not hasattr(module, "main"):
        sys.exit(
            f"error: the entry point {command!r} of {_package(entries[0])} is {entries[0].value!r}, which has no "
            "main(argv); let it name a module that has one."
        )
    return module


@contextlib.contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """A context in which Ctrl-C ends the process at once: for imports, which have nothing to save.

    Libraries in C++ turn Python's KeyboardInterrupt into errors of their own, or crash. A Ctrl-C before this context,
    while Python itself starts, gets Python's own traceback.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # `nohup limba … &`
        yield
        return
    terminal = os.dup(2)  # `native_logs` redirects 2 itself

    def end(*_: object) -> None:
        os.write(terminal, b"\ninterrupted\n")
        os._exit(130)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(terminal)


@contextlib.contextmanager
def _without_garbage() -> Iterator[None]:
    """A context of imports: what they make stays, and is never searched for garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main() -> None:
    """Dispatches `sys.argv`."""
    # Imports and traces make millions of objects that stay. Python searches for garbage after every 700 new ones, which
    # takes a tenth and more of the time to the first step or answer.
    gc.set_threshold(20_000, 10, 10)
    with _ended_by_interrupt():
        from limba import closed_pipes
        from limba.devices import accelerators, native_logs
        from limba.files import python_path

        python_path.install()
        with closed_pipes.ending_silently():
            command = _find_command()
        accelerators.forget_absent_tpu(os.environ)
        with native_logs.filtered(), _without_garbage():
            module = _load(command)
            from limba.command_line import run_command

    run_command(module.main, sys.argv[1 + len(command.split()) :])


if __name__ == "__main__":
    main()
