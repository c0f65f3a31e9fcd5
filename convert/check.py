"""`limba convert check A B`: are two models the same?

python -m convert check runs/base exports/base
"""

import argparse
import sys

from convert.compare import comparison, comparison_rows
from convert.model_files import any_format
from convert.model_files.model import Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a checkpoint of Limba or T5X, a run, or a Hugging Face folder")
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument("--text", default=comparison.TEXT, help="is encoded for the second row (a few languages)")
    any_format.add_hint_arguments(parser)
    any_format.add_ignore_argument(parser)


def run(args: argparse.Namespace) -> None:
    hints = any_format.hints_of(args)
    a, b = (any_format.open_model(path, hints) for path in (args.a, args.b))
    print(f"A: {_description(a)}\nB: {_description(b)}")
    for model in (a, b):
        for warning in model.warnings:
            print(f"warning: {warning}", file=sys.stderr)
    rows = comparison.compare(a, b, args.text)
    print(comparison_rows.table(rows))
    comparison_rows.require(rows, "A and B are not the same model")


def _description(model: Model) -> str:
    return f"{model.path} ({model.format}, {model.family.name}, {model.num_parameters:,} parameters)"
