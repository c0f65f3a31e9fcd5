"""`limba vocab replace`: another vocabulary for a trained T5 or encoder.

    limba vocab replace google/mt5-small exports/mt5_uk --vocab vocab/spiece.model --corpus 'corpus/train-*.jsonl'
    limba vocab replace FacebookAI/roberta-base exports/roberta_uk --vocab vocab/tokenizer.json

SOURCE is a run of Limba, a Hugging Face folder, or ORG/NAME on the hub. OUT becomes the same: a run without optimizer
state, for INITIAL_CHECKPOINT_PATH, or a folder that transformers loads. Pieces of both vocabularies keep their rows;
that of another one is the mean of those that its text had. docs/vocabularies.md says more.
"""

import argparse
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons.surgery import changed_model, opened_model
from limba.addons.surgery.opened_model import OpenedModel
from limba.convert import from_hf, written_model
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hf_folder
from limba.files import disk, named_flags
from limba.files.output_folder import fingerprint

RECORD = "replace.json"
_TEXTS, _LENGTH = 3, 48


def replace(
    source: str,
    out: str,
    vocab: str,
    corpus: Sequence[str] = (),
    *,
    text_column: str = "text",
    ignore_config_keys: Sequence[str] = (),
    verify: bool = True,
) -> Path:
    """Writes the model with another vocabulary, prints the report, and returns the folder or the checkpoint.

    Args:
      source: a run of Limba, a Hugging Face folder, or a name on the hub.
      vocab: the new vocabulary: of a T5 a SentencePiece model, of an encoder a tokenizer.json, or a folder with one.
      corpus: files, patterns or URLs, for the report alone.
      ignore_config_keys: of JSON files of the source and the vocabulary, those that have no effect.
      verify: read back what was written, and compare it.

    Raises:
      FileNotFoundError: if there is no source, vocabulary or corpus.
      ValueError: if a vocabulary cannot be used, OUT is in use, or the disk is too small.
    """
    path = from_hf.find(source, with_runs=True)
    folder = written_model.choose_empty(out, path)
    opened = opened_model.open_model(path, ignore_config_keys)
    return write(path, folder, opened, opened.given(vocab), corpus, text_column, RECORD, verify)


def write(
    path: Path,
    folder: Path,
    opened: OpenedModel,
    after: Any,
    corpus: Sequence[str],
    text_column: str,
    name: str,
    verify: bool,
) -> Path:
    """Writes the model of `path` with another vocabulary, and returns where.

    Args:
      path, folder: SOURCE and OUT.
      after: the vocabulary, of `opened.extended` or `opened.given`.
      name: of the record in OUT.

    Raises:
      ValueError: as `replace`.
    """
    from limba.tasks.vocabularies import training_text

    model, before = opened.model, opened.before
    usages = [_usage(pieces, corpus, text_column) for pieces in (before, after)]
    found = opened.origins(after)
    num_rows = training_text.round_up(after.num_ids)
    changed = opened.with_replaced(after, found, num_rows)
    bytes_each = model.dtype.itemsize if hf_folder.is_folder(path) else 4
    disk.require(folder, changed.num_parameters * bytes_each)
    rows = np.pad(found.shared, (0, num_rows - after.num_ids), constant_values=-1)
    worst = opened.difference(changed, rows, _texts(rows))
    if not worst == 0:
        raise ValueError(
            f"Logits of pieces in both vocabularies differ by {worst:g} from those of {path}; nothing is written."
        )
    both = zip((model, changed), usages, (before, after), strict=True)
    sizes = [changed_model.sizes(m, usage, len(pieces), bytes_each) for m, usage, pieces in both]
    kept, unknown = int((found.shared >= 0).sum()), found.num_unknown
    record = {
        "source": str(model.path),
        "fingerprint": fingerprint(model.path),
        "corpus": list(corpus),
        "same_pieces": kept,
        "means_of_pieces": after.num_ids - kept - unknown,
        "means_of_all": unknown,
        "largest_difference_of_logits": worst,
        "before": dataclasses.asdict(sizes[0]),
        "after": dataclasses.asdict(sizes[1]),
    }
    written = written_model.write(changed, path, folder, name, record, verify)
    print(f"{path} is written to {written} with another vocabulary.\n{changed_model.report(*sizes)}")
    print(
        f"Of {after.num_ids:,} ids {kept:,} are in both vocabularies: their rows are kept, and their logits differ "
        f"by {worst:g}. {record['means_of_pieces']:,} have the mean of the rows that their text had; {unknown:,}, "
        "with characters that the old vocabulary does not know, have the mean of all."
    )
    return written


def _usage(pieces: Any, corpus: Sequence[str], text_column: str) -> Any:
    """The tokens of the corpus; none without one."""
    from limba.addons.surgery import trimmed_pieces

    if not corpus:
        return trimmed_pieces.usage(pieces, [])
    lines = changed_model.lines(corpus, text_column, "counting tokens")
    used = trimmed_pieces.usage(pieces, map(pieces.encode, trimmed_pieces.batches(lines)))
    if not used.lines:
        raise ValueError(f"The corpus {' '.join(corpus)} has no text in the column {text_column!r}: nothing to count.")
    return used


def _texts(rows: np.ndarray) -> list[np.ndarray]:
    """Old ids that are new ones too, drawn for the comparison of logits."""
    return [*np.random.default_rng(0).choice(rows[rows >= 0], (_TEXTS, _LENGTH))]


def main(argv: Sequence[str]) -> int:
    """Parses flags, and replaces."""
    flags_of = parser("limba vocab replace", __doc__)
    what = "the new vocabulary, or its folder: a spiece.model for a T5, a tokenizer.json for an encoder"
    flags_of.add_argument("--vocab", required=True, metavar="FILE", help=what)
    add_corpus(flags_of, "files, patterns or URLs with the texts whose tokens the report counts (none)", False)
    flags = flags_of.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Nothing here needs an accelerator.
    replace(flags.source, flags.out, flags.vocab, flags.corpus or (), **options(flags))
    return 0


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Of a command that writes SOURCE to OUT."""
    made = named_flags.Parser(prog=name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("source", metavar="SOURCE", help="a run of Limba, a Hugging Face folder, or ORG/NAME on the hub")
    made.add_argument("out", metavar="OUT", help="the run's directory or the folder to write")
    return made


def add_corpus(parser: argparse.ArgumentParser, what: str, required: bool) -> None:
    """The flags of a corpus, and of the check."""
    parser.add_argument("--corpus", nargs="+", action="extend", required=required, metavar="F", help=what)
    parser.add_argument("--text_column", default="text", help="the column with the text (text)")
    any_format.add_ignore_argument(parser)
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing")


def options(flags: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the functions from what `add_corpus` added."""
    return {
        "text_column": flags.text_column,
        "ignore_config_keys": flags.ignore_config_keys,
        "verify": not flags.no_check,
    }
