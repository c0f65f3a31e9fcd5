"""From a run or a Hugging Face folder to one of sentence-transformers: the encoder, and how its vectors are pooled.

    limba convert to-sentence-transformers runs/my_bert exports/my_vectors

Neither torch nor sentence-transformers is needed. The folder appears when everything in it is written and has been read
back.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from limba.addons import table
from limba.addons.vectors import sentence_folder
from limba.addons.vectors.sentence_folder import POOLINGS
from limba.convert import from_hf
from limba.convert.compare import auto_tokenizer, comparison_rows
from limba.convert.families import heads
from limba.convert.model_files import any_format
from limba.convert.model_files.model import NO_HINTS, Model, ModelHints
from limba.convert.to_hf import write_json
from limba.files import disk, json_text
from limba.files.output_folder import REPORT, choose_out, complete_or_absent, fingerprint, previous, sealed
from limba.files.version import VERSION
from limba.reports import markdown, writers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a run or a checkpoint, a folder of transformers, or ORG/NAME on the hub")
    parser.add_argument("out", help="the folder to write")
    pooling = "of the vectors of a text's tokens; first is [CLS]'s (as trained, else mean)"
    parser.add_argument("--pooling", choices=POOLINGS, help=pooling)
    unit = "divide each vector by its length (as trained, else not)"
    parser.add_argument("--normalize", action=argparse.BooleanOptionalAction, help=unit)
    parser.add_argument(
        "--max_seq_length",
        type=int,
        metavar="N",
        help=f"tokens of a text; more are cut (as trained, else {sentence_folder.USUAL_LENGTH}, or the positions)",
    )
    parser.add_argument("--dtype", choices=sentence_folder.DTYPES, default="float32", help="of the weights (float32)")
    parser.add_argument("--average", action="store_true", help="the average of the parameters that the run kept")
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing")
    parser.add_argument("--overwrite", action="store_true", help="replace another conversion at OUT")
    any_format.add_ignore_argument(parser)
    any_format.add_hint_arguments(parser)


def run(args: argparse.Namespace) -> None:
    to_sentence_transformers(
        args.model,
        args.out,
        args.pooling,
        has_unit_length=args.normalize,
        max_length=args.max_seq_length,
        dtype=args.dtype,
        hints=dataclasses.replace(any_format.hints_of(args), average=args.average),
        verify=not args.no_check,
        overwrite=args.overwrite,
    )


def to_sentence_transformers(
    model: str | Path,
    out: str | Path,
    pooling: str | None = None,
    *,
    has_unit_length: bool | None = None,
    max_length: int | None = None,
    dtype: str = "float32",
    hints: ModelHints = NO_HINTS,
    verify: bool = True,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes the folder, prints what came out, and returns the content of `conversion_report.json`.

    Args:
      model: a run or checkpoint of Limba or T5X, a Hugging Face folder, or a name on the hub.
      out: the folder to write. If it holds the same conversion already, nothing is written.
      pooling, has_unit_length, max_length: as of `sentence_folder.of_model`.
      dtype: "float32" or "bfloat16".
      verify: read the files back, compare tensors and settings.
      overwrite: replace another conversion at `out`.

    Raises:
      FileNotFoundError: if there is no model or no vocabulary.
      ValueError: if sentence-transformers cannot load such a model, `out` is in use, or the check fails.
    """
    # ----------------------------------------------------- request ---------------------------------------------------
    opened = any_format.open_model(from_hf.find(str(model), with_runs=True), hints, takes_vectors=True)
    out = choose_out(out, opened.path)
    written = sentence_folder.of_model(opened, pooling, has_unit_length, max_length)
    for warning in written.export.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    request = {
        "checkpoint": opened.path.name,
        "fingerprint": fingerprint(opened.path, written.export.vocabulary_file),
        "family": opened.family.name,
        "pooling": written.pooling,
        "normalize": written.has_unit_length,
        "max_seq_length": written.max_length,
        "dtype": dtype,
        "average": hints.average or None,
        "checked": verify,
    }
    if report := previous(out, request, overwrite):
        print(f"{out} holds this conversion of {opened.path.name} already.")
        return report
    disk.require(out, written.num_bytes(dtype))

    # ------------------------------------------------------ files ----------------------------------------------------
    with complete_or_absent(out, request) as folder:
        written.write(folder, dtype)
        _write_card(folder, out.name, opened, written.pooling, written.has_unit_length, written.max_length)
        rows = [*auto_tokenizer.row(auto_tokenizer.check(folder)), *written.compare(folder)] if verify else []
        comparison_rows.require(rows, "What was written is not the model's encoder, nothing was kept")
        report = {
            **request,
            "limba_version": VERSION,
            "step": opened.step,
            "formats": ["safetensors"],
            "comparisons": {"safetensors": comparison_rows.as_json(rows)},
        }
        report = sealed(folder, report, sentence_folder.files(folder))
        write_json(folder / REPORT, report)
    print(f"{opened.path} is converted to {out} ({written.model_class}, {written.pooling} of the tokens, {dtype}).")
    print(comparison_rows.table(rows) if verify else "The folder was not checked (--no-check).")
    return report


_TEXTS = ["A first text.", "A second one."]


def _write_card(folder: Path, name: str, model: Model, pooling: str, has_unit_length: bool, max_length: int) -> None:
    """Writes README.md; `name` is that of the folder to be, the rest is as of `SentenceFolder`."""
    metadata = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "feature-extraction", model.family.name, "limba"],
    }
    program = (
        "from sentence_transformers import SentenceTransformer\n\n"
        'model = SentenceTransformer(".")  # the folder of this file, or the name of its repository\n'
        f"print(model.encode({_TEXTS!r}).shape)"
    )
    pooled = {"mean": "the mean of", "max": "the largest numbers of", "first": "the first of"}[pooling]
    unit = ", divided by its length" if has_unit_length else ""
    parts = [
        "---\n" + "\n".join(f"{key}: {json_text.dumps(value)}" for key, value in metadata.items()) + "\n---",
        f"# {markdown.plain(name)}",
        markdown.python_block(program),
        f"A text becomes {model.config.emb_dim} numbers: {pooled} the vectors of its tokens{unit}. They are those of "
        f"the encoder of a {model.family.title}, step {model.step:,}, as `limba embed` gives them. Texts of more than "
        f"{max_length:,} tokens are cut.",
        *_training(model),
        "A pooler that transformers reports as new is not used.",
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", "utf-8")


def _training(model: Model) -> Iterator[str]:
    """Whether it was trained to compare texts, and how well it does."""
    if model.head.kind != heads.VECTORS:
        yield (
            "Unless it was trained for that elsewhere, the encoder does not compare sentences well: train it on pairs "
            "of sentences before you rely on distances."
        )
        return
    yield (
        "It was trained with Limba on pairs of texts that belong together, with the other pairs of a batch as "
        "negatives: compare vectors by their cosine."
    )
    metrics = [line for line in writers.read_metrics(model.path.parent) if line["step"] <= model.step]
    for part in table.parts("card"):
        if rows := list(part.results_of(metrics, "accuracy among the pairs of a batch")):
            yield markdown.table(rows, ("data", "metric", "value", "step"))
