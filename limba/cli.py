"""`limba COMMAND …`: finds the room where a command lives and goes there. Starts fast: imports nothing before it."""

import importlib
import sys
from pathlib import Path

# Command: (module with main(argv), what it does).
_COMMANDS = {
    "train": ("limba.train", "pre-train or go on training, from gin files"),
    "run": ("limba.run", "train with the keys of a Hugging Face script, and export"),
    "sweep": ("limba.sweep", "try many values of gin bindings, and keep the best"),
    "eval": ("limba.eval", "loss and metrics of one, several or all checkpoints of a run, as a table"),
    "infer": ("limba.infer", "let a checkpoint fill blanks or answer"),
    "try": ("limba.try_model", "a prompt in the terminal, or a page in the browser, for trying a model"),
    "lint": ("limba.lint", "say what would hurt in a training, before any accelerator is touched"),
    "plan": ("limba.plan", "say whether a training fits a TPU slice or GPU box, how fast, and with which layout"),
    "precompile": ("limba.precompile", "compile the training step without data, and say what it takes"),
    "gin-check": ("limba.gin_check", "parse gin files and resolve every name in them"),
    "convert": ("convert.__main__", "between Limba, T5X and Hugging Face, both ways"),
    "vocab": ("limba.vocab", "build a SentencePiece vocabulary, or check that one agrees everywhere"),
    "cache": ("tasks.cache", "tokenize a task once, into files that are read without TensorFlow"),
    "preview": ("tasks.preview", "show examples of a task as text"),
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


def main() -> None:
    """Dispatches `sys.argv`."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print("usage: limba COMMAND [options]\n")
        for name, (_, what) in _COMMANDS.items():
            print(f"  {name:10} {what}")
        print("\n`limba COMMAND --help` says more.")
        sys.exit(0 if len(sys.argv) > 1 else 2)
    command = sys.argv[1]
    if command.startswith("-"):
        command = _take_run_mode()
    if command not in _COMMANDS:
        import difflib

        nearest = difflib.get_close_matches(command, _COMMANDS, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        print(f"error: limba has no command {command!r}.{hint} Commands: {', '.join(_COMMANDS)}.", file=sys.stderr)
        sys.exit(2)

    from limba import native_logs

    sys.path.insert(0, str(Path.cwd()))  # Task modules of the user's own, as `python -m` finds them.
    with native_logs.filtered():
        module = importlib.import_module(_COMMANDS[command][0])
    from limba.commands import run_command

    run_command(module.main, sys.argv[2:])


if __name__ == "__main__":
    main()
