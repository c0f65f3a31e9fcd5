"""`limba vocab extend`: more pieces for the vocabulary of a trained T5 or encoder, learned from a corpus.

    limba vocab extend runs/mine runs/mine_extended --corpus 'corpus/train-*.jsonl' --pieces 4096

SOURCE is a run of Limba, a Hugging Face folder, or ORG/NAME on the hub; OUT becomes the same. All pieces keep their
rows; that of a new one is the mean of those that its text had. docs/vocabularies.md says more.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from limba.addons.surgery import opened_model, replace
from limba.convert import from_hf, written_model

RECORD = "extend.json"


def extend(
    source: str,
    out: str,
    corpus: Sequence[str],
    pieces: int,
    *,
    text_column: str = "text",
    ignore_config_keys: Sequence[str] = (),
    verify: bool = True,
) -> Path:
    """Writes the model with `pieces` more pieces, which are learned from a corpus; otherwise as `replace`.

    Raises:
      ValueError: also if the corpus gives fewer new pieces.
    """
    if pieces < 1:
        raise ValueError(f"--pieces is {pieces}; it is at least 1.")
    path = from_hf.find(source, with_runs=True)
    folder = written_model.choose_empty(out, path)
    opened = opened_model.open_model(path, ignore_config_keys)
    opened.check_can_change()
    after = opened.extended(corpus, text_column, pieces)
    return replace.write(path, folder, opened, after, corpus, text_column, RECORD, verify)


def main(argv: Sequence[str]) -> int:
    """Parses flags, and extends."""
    parser = replace.parser("limba vocab extend", __doc__)
    parser.add_argument("--pieces", type=int, required=True, metavar="N", help="how many to add")
    what = "files, patterns or URLs with the texts that the pieces are learned from"
    replace.add_corpus(parser, what, True)
    flags = parser.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Nothing here needs an accelerator.
    extend(flags.source, flags.out, flags.corpus, flags.pieces, **replace.options(flags))
    return 0
