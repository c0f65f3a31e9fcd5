"""Converts checkpoints to and from other formats.

    python -m convert to-hf CHECKPOINT_OR_RUN_DIR OUT
    python -m convert from-hf FOLDER_OR_HUB_NAME OUT

`limba convert --help` lists all commands; those of add-ons are in their rows (`limba/addons/table.py`).
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

from limba.addons import table
from limba.convert.compare import memory
from limba.files import named_flags, os_errors, rust_panics

# The module of a command has `add_arguments(parser)` and `run(args)`. It is imported when its command is given.
_COMMANDS = {
    "to-hf": ("limba.convert.to_hf", "write a Hugging Face folder from a checkpoint of Limba or T5X"),
    "from-hf": ("limba.convert.from_hf", "write a checkpoint and a gin file from a Hugging Face T5 or encoder"),
    "to-t5x": ("limba.convert.to_t5x", "write a checkpoint that T5X resumes from"),
    "from-t5x": ("limba.convert.from_t5x", "write a Limba checkpoint from one of T5X"),
    "check": ("limba.convert.check", "compare two models: parameters, logits, loss and greedy output"),
    **{name: row for addon in table.ADDONS.values() for name, row in addon.conversions.items()},
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    # Conversion needs no accelerator, and must not take one from a running training.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    width = max(map(len, _COMMANDS))
    listing = "\n".join(f"  {name:{width}} {description}" for name, (_, description) in _COMMANDS.items())
    parser = named_flags.Parser(
        prog="limba convert",
        usage="limba convert COMMAND ...",
        description="Converts between Limba, T5X and Hugging Face. A run may also stand as --run_dir RUN. "
        "`limba convert COMMAND --help` explains a command.",
        epilog=f"commands:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", choices=_COMMANDS, help=argparse.SUPPRESS)
    if argv and argv[0] not in _COMMANDS and Path(argv[0]).is_dir():
        parser.error(f"{argv[0]} stands where a command belongs. Did you mean: limba convert to-hf {argv[0]} OUT")
    command = parser.parse_args(argv[:1]).command

    memory.return_freed_memory()
    module, description = _COMMANDS[command]
    try:
        implementation = importlib.import_module(module)
        parser = named_flags.Parser(
            prog=f"limba convert {command}", description=f"{description[0].upper()}{description[1:]}."
        )
        implementation.add_arguments(parser)
        implementation.run(parser.parse_args(_with_run_first(argv[1:])))
    except BrokenPipeError:  # `| head`: `limba` ends without a word.
        raise
    except (OSError, ValueError) as error:
        print(f"error: {os_errors.describe(error) or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: the same command resumes there.", file=sys.stderr)
        return 130
    except BaseException as error:
        if not rust_panics.is_panic(error):
            raise
        print(f"error: {rust_panics.describe(error)}", file=sys.stderr)
        return 1
    return 0


def _with_run_first(words: list[str]) -> list[str]:
    """`--run_dir RUN` as the first argument, where all these commands have what they read."""
    for i, word in enumerate(words):
        flag, equals, run = word.partition("=")
        if flag == "--run_dir" and (equals or i + 1 < len(words)):
            return [run, *words[:i], *words[i + 1 :]] if equals else [words[i + 1], *words[:i], *words[i + 2 :]]
    return words


if __name__ == "__main__":
    sys.exit(main())
