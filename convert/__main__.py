"""Converts checkpoints to and from other formats.

python -m convert to-hf CHECKPOINT_OR_RUN_DIR OUT
python -m convert from-hf FOLDER_OR_HUB_NAME OUT
python -m convert to-t5x CHECKPOINT_OR_RUN_DIR OUT --format classic
python -m convert from-t5x CHECKPOINT_OR_MODEL_DIR OUT --vocab FILE
python -m convert to-ct2 RUN_OR_FOLDER OUT --quantization int8
python -m convert to-onnx RUN_OR_FOLDER OUT --quantization int8
python -m convert to-gguf RUN_OR_FOLDER OUT --quantization q8_0
python -m convert all RUN_DIR OUT --watch
python -m convert check A B
python -m convert push OUT ORG/NAME
python -m convert to-peft LORA_RUN_DIR OUT --base FOLDER_OR_HUB_NAME
python -m convert from-peft ADAPTER OUT --base FOLDER_OR_HUB_NAME
python -m convert to-sentence-transformers RUN_OR_FOLDER OUT --pooling mean
"""

import argparse
import errno
import importlib
import os
import sys
from pathlib import Path

from convert.compare import memory
from limba.files import named_flags, os_errors, rust_panics

# The module of a command has `add_arguments(parser)` and `run(args)`. It is imported when its command is given.
_COMMANDS = {
    "to-hf": ("convert.to_hf", "write a Hugging Face folder from a checkpoint of Limba or T5X"),
    "from-hf": ("convert.from_hf", "write a checkpoint and a gin file from a Hugging Face T5 or encoder"),
    "to-t5x": ("convert.to_t5x", "write a checkpoint that T5X resumes from"),
    "from-t5x": ("convert.from_t5x", "write a Limba checkpoint from one of T5X"),
    "to-ct2": ("convert.to_ct2", "write a folder for CTranslate2 from a run or a Hugging Face folder"),
    "to-onnx": ("convert.to_onnx", "write ONNX files for ONNX Runtime and Optimum from a run or a Hugging Face folder"),
    "to-gguf": ("convert.to_gguf", "write a GGUF file for llama.cpp from a T5"),
    "all": ("convert.all_checkpoints", "write a Hugging Face folder of every checkpoint of a run"),
    "check": ("convert.check", "compare two models: parameters, logits, loss and greedy output"),
    "to-peft": ("convert.to_peft", "write an adapter that PEFT loads from a checkpoint of a LoRA"),
    "from-peft": ("convert.from_peft", "write a LoRA checkpoint and its gin files from an adapter of PEFT"),
    "to-sentence-transformers": (
        "convert.to_sentence_transformers",
        "write a folder of sentence-transformers from an encoder, a T5's too",
    ),
    "push": ("convert.push", "upload a converted folder to the Hugging Face hub"),
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
    except OSError as error:
        remedy = " The disk is full: make room, or choose another OUT." if error.errno == errno.ENOSPC else ""
        print(f"error: {os_errors.describe(error) or f'{error}{remedy}'}", file=sys.stderr)
        return 1
    except ValueError as error:
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
