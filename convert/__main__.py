"""Converts checkpoints to and from other formats.

python -m convert to-hf CHECKPOINT_OR_RUN_DIR OUT
python -m convert to-t5x CHECKPOINT_OR_RUN_DIR OUT --format classic
python -m convert from-t5x CHECKPOINT_OR_MODEL_DIR OUT --vocab FILE
python -m convert push OUT REPO
"""

import argparse
import importlib
import os
import sys

# The module of a command has `add_arguments(parser)` and `run(args)`. It is imported when its command is given.
_COMMANDS = {
    "to-hf": ("convert.to_hf", "write a Hugging Face folder from a Limba checkpoint"),
    "to-t5x": ("convert.to_t5x", "write a checkpoint that T5X goes on from"),
    "from-t5x": ("convert.from_t5x", "write a Limba checkpoint from one of T5X"),
    "push": ("convert.push", "upload what to-hf wrote to the Hugging Face hub"),
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    # Conversion needs no accelerator, and must not take one from a training that is going on.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    listing = "\n".join(f"  {name:8} {description}" for name, (_, description) in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="convert",
        usage="convert COMMAND ...",
        description="Converts checkpoints to and from other formats. `convert COMMAND --help` explains a command.",
        epilog=f"commands:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", choices=_COMMANDS, help=argparse.SUPPRESS)
    command = parser.parse_args(argv[:1]).command

    module, description = _COMMANDS[command]
    implementation = importlib.import_module(module)
    parser = argparse.ArgumentParser(prog=f"convert {command}", description=f"{description.capitalize()}.")
    implementation.add_arguments(parser)
    args = parser.parse_args(argv[1:])
    try:
        implementation.run(args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
