"""`limba convert check MODEL --dtype float16`, as the core's check asks for it.

limba convert check exports/base --dtype float16 --lines texts.txt --rescale exports/base_for_float16
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from limba.convert.model_files.model import Model

RECORD = "rescale.json"
_MOST_TEXTS = 64
# Of the largest logit: the norms' epsilon sees that the sum of residuals is smaller.
_ALLOWED = 1e-4


def add_flags(parser: argparse.ArgumentParser) -> None:
    numbers = parser.add_argument_group("numbers of 16 bits (A alone)")
    numbers.add_argument(
        "--dtype", choices=("float16", "bfloat16"), help="name the layers that overflow with activations of this type"
    )
    numbers.add_argument("--lines", metavar="FILE", help=f"texts, one a line; the first {_MOST_TEXTS} (--text)")
    numbers.add_argument("--rescale", metavar="OUT", help="write a T5 that holds, and computes the same")


def check_flags(args: argparse.Namespace) -> None:
    """Raises ValueError for flags that exclude each other."""
    if args.b is not None and args.dtype is not None:
        raise ValueError("Give B, to compare A with it, or --dtype, to see whether A holds in this type.")
    if args.dtype is None and (args.lines or args.rescale):
        raise ValueError("--lines and --rescale belong to --dtype.")


def is_asked(args: argparse.Namespace) -> bool:
    return args.dtype is not None


def run(model: Model, args: argparse.Namespace) -> None:
    """Prints what overflows. Raises ValueError if something does, unless a model that holds is written."""
    from limba.addons.half_precision import half_precision
    from limba.convert import written_model

    out = written_model.choose_empty(args.rescale, model.path) if args.rescale else None
    batch = half_precision.batch_of(model, _texts(args))
    found = half_precision.measure(model, batch, args.dtype)
    print(found.report())
    if out is not None:
        _rescale(model, found, batch, out)
    elif found.too_large:
        remedy = (
            "" if not model.family.has_decoder else " --rescale OUT writes a model that holds, with the same function."
        )
        raise ValueError(f"{model.path} does not hold in {args.dtype}.{remedy}")


def _rescale(model: Model, found: Any, batch: dict[str, np.ndarray], out: Path) -> None:
    from limba.addons.half_precision import half_precision, rescaled_model
    from limba.convert import written_model
    from limba.files.output_folder import fingerprint

    if not found.too_large:
        raise ValueError(f"{model.path} holds in {found.dtype}: there is nothing to rescale.")
    if not model.family.has_decoder:
        raise ValueError(f"{model.path} is {model.family.title}; only T5s, whose norms allow it, are rescaled.")
    largest = [(layer.path, layer.side, layer.largest) for layer in found.layers]
    new = rescaled_model.rescaled(model, largest, found.limit)
    after = half_precision.measure(new, batch, found.dtype)
    print(f"Rescaled:\n{after.report()}")
    if after.too_large:
        raise ValueError(f"Rescaled, {model.path} still overflows; nothing is written.")
    difference = half_precision.difference(model, new, batch)
    if not difference <= _ALLOWED * found.logits:
        raise ValueError(f"Rescaled, the logits of {model.path} differ by {difference:.2e}; nothing is written.")
    record = {
        "source": str(model.path),
        "fingerprint": fingerprint(model.path),
        "dtype": found.dtype,
        "largest_before": max(layer.largest for layer in found.layers),
        "largest_after": max(layer.largest for layer in after.layers),
        "largest_difference_of_logits": difference,
    }
    written = written_model.write(new, Path(model.path), out, RECORD, record, verify=True)
    print(f"{written} holds in {found.dtype}; in float32 its logits differ by {difference:.2e} of {found.logits:.4g}.")


def _texts(args: argparse.Namespace) -> list[str]:
    if args.lines is None:
        return [args.text]
    texts = [line.strip() for line in Path(args.lines).read_text("utf-8").splitlines() if line.strip()]
    if not texts:
        raise ValueError(f"{args.lines} has no line with text.")
    return texts[:_MOST_TEXTS]
