"""`limba vocab extend`: more pieces for the SentencePiece model of a trained T5, learned from a corpus.

    limba vocab extend runs/mine runs/mine_extended --corpus 'corpus/train-*.jsonl' --pieces 4096

SOURCE is a run of Limba, a Hugging Face folder, or ORG/NAME on the hub; OUT becomes the same. All pieces keep their
rows; that of a new one is the mean of those that its text had. docs/vocabularies.md says more.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convert import from_hf, written_model
from convert.model_files.hf import hf_tokenizer
from convert.vocabulary import changed_model, replace

RECORD = "extend.json"


def extend(
    source: str, out: str, corpus: Sequence[str], pieces: int, *, text_column: str = "text", verify: bool = True
) -> Path:
    """Writes the model with `pieces` more pieces, which are learned from a corpus; otherwise as `replace`.

    Raises:
      ValueError: also if the corpus gives fewer new pieces.
    """
    from tasks.vocabularies import replaced_pieces, trimmed_pieces

    if pieces < 1:
        raise ValueError(f"--pieces is {pieces}; it is at least 1.")
    path = from_hf.find(source, with_runs=True)
    folder = written_model.choose_empty(out, path)
    model, old = changed_model.open_model(path)
    changed_model.check_is_unigram(path, old)
    assert old.model is not None
    before = trimmed_pieces.Pieces(old.model)
    first = min(old.own_sentinels) if old.own_sentinels else None
    more = replaced_pieces.extended(before, _learn(corpus, text_column, before, pieces), first)
    new = hf_tokenizer.from_file(hf_tokenizer.temporary_file(more.model), old.extra_ids)
    return replace.write(path, folder, model, (old, new), corpus, text_column, RECORD, verify)


def _learn(corpus: Sequence[str], text_column: str, before: Any, most: int) -> Sequence[Any]:
    """The likeliest `most` pieces of a vocabulary of the corpus that `before` does not have.

    The smallest vocabulary that has so many, among those of twice the size each: in a larger one each piece is used
    less. Raises ValueError if the corpus is too small for it.
    """
    from tasks.sources import corpora
    from tasks.vocabularies import replaced_pieces, sentencepiece_models, training_text, trimmed_pieces

    source, size = corpora.HuggingFaceSource({"train": list(corpus)}, [text_column]), 2 * most + 512
    with tempfile.TemporaryDirectory() as folder:
        while True:
            options: dict[str, Any] = {"vocab_size": training_text.round_up(size), "text_column": text_column}
            try:
                file = sentencepiece_models.train_vocabulary(source, Path(folder) / f"{size}.model", **options)
            except ValueError as error:
                raise ValueError(
                    f"--pieces is {most}, and these texts do not give so many new ones: {error}"
                ) from error
            new = replaced_pieces.not_in(before, trimmed_pieces.Pieces(file.read_bytes()))
            if len(new) >= most:
                return new[:most]
            size *= 2


def main(argv: Sequence[str]) -> int:
    """Parses flags, and extends."""
    parser = replace.parser("limba vocab extend", __doc__)
    parser.add_argument("--pieces", type=int, required=True, metavar="N", help="how many to add")
    what = "files, patterns or URLs with the texts that the pieces are learned from"
    replace.add_corpus(parser, what, True)
    flags = parser.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Nothing here needs an accelerator.
    values = {"text_column": flags.text_column, "verify": not flags.no_check}
    extend(flags.source, flags.out, flags.corpus, flags.pieces, **values)
    return 0
