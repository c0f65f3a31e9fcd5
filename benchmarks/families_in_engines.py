"""Every family in every engine: converted and checked by the engine, or the message with which it is refused.

    python -m benchmarks.families_in_engines

The models are those of `benchmarks/families_beside_transformers.py`, small and random. Each is converted by `limba
convert to-ct2`, `to-onnx` and `to-gguf`, whose checks compare the engine with Limba and with NumPy. A line has a
family, an engine, and "yes" or the message.
"""

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax

from benchmarks import families_beside_transformers as beside
from convert import __main__ as convert_main

ENGINES = ("to-ct2", "to-onnx", "to-gguf")


def tried(engine: str, case: beside.Case) -> str:
    """What becomes of a conversion: "yes", or the message."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = convert_main.main([engine, str(case.home / "run"), str(case.home / engine)])
    if not code:
        return "yes"
    last = errors.getvalue().strip().splitlines()[-1].removeprefix("error: ")
    return last.replace(str(case.home / "run/checkpoint_0"), "RUN").replace(str(case.home / "run"), "RUN")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.families_in_engines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [*beside.T5S, *beside.GEMMAS, *beside.ENCODERS]
    parser.add_argument("--families", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    flags = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as home:
        cases = [beside.Case(name, 0, Path(home, name.replace(" ", "_"))) for name in flags.families]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            beside.make(cases, beside.run_script)
        for case in cases:
            for engine in flags.engines:
                print(" | ".join((case.family, engine, tried(engine, case))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
