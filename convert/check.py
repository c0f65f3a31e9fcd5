"""`limba convert check A B`: are two models the same?

python -m convert check runs/base exports/base
"""

import argparse
import sys

from convert.compare import comparison, comparison_rows, encoder_comparison
from convert.encoders import encoder_model
from convert.encoders.encoder_model import EncoderModel
from convert.model_files import any_format
from convert.model_files.any_format import Model, ModelHints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a checkpoint of Limba or T5X, a run, or a Hugging Face folder")
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument("--text", default=comparison.TEXT, help="is encoded for the second row (a few languages)")
    any_format.add_hint_arguments(parser)
    any_format.add_ignore_argument(parser)


def run(args: argparse.Namespace) -> None:
    hints = any_format.hints_of(args)
    a, b = _open(args.a, hints), _open(args.b, hints)
    print(f"A: {_description(a)}\nB: {_description(b)}")
    for model in (a, b):
        for warning in model.warnings if isinstance(model, Model) else ():
            print(f"warning: {warning}", file=sys.stderr)
    rows = _compare(a, b, args.text)
    print(comparison_rows.table(rows))
    comparison_rows.require(rows, "A and B are not the same model")


def _open(path: str, hints: ModelHints) -> Model | EncoderModel:
    return (encoder_model if encoder_model.is_encoder(path) else any_format).open_model(path, hints)


def _compare(a: Model | EncoderModel, b: Model | EncoderModel, text: str) -> list[comparison_rows.Comparison]:
    if isinstance(a, EncoderModel) and isinstance(b, EncoderModel):
        return encoder_comparison.compare(a, b, text)
    if isinstance(a, Model) and isinstance(b, Model):
        return comparison.compare(a, b, text)
    raise ValueError(f"A is {a.family.title} and B is {b.family.title}: one is an encoder alone.")


def _description(model: Model | EncoderModel) -> str:
    return f"{model.path} ({model.format}, {model.family.name}, {model.num_parameters:,} parameters)"
