"""Pieces that SentencePiece learns from a corpus, and a vocabulary does not have."""

import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any


def likeliest(
    source: Any,
    text_column: str,
    known: Collection[str],
    most: int,
    is_usable: Callable[[str], bool] = lambda piece: True,
) -> Sequence[Any]:
    """The likeliest `most` pieces of a unigram model of the corpus that are not known.

    The smallest model that has so many, among those of twice the size each: in a larger one each piece is used less.

    Raises:
      ValueError: if the corpus is too small for it.
    """
    from limba.addons.surgery import replaced_pieces, trimmed_pieces
    from limba.tasks.vocabularies import sentencepiece_training, training_text

    size = 2 * most + 512
    with tempfile.TemporaryDirectory(prefix="limba-vocabulary-") as folder:
        while True:
            options: dict[str, Any] = {"vocab_size": training_text.round_up(size), "text_column": text_column}
            try:
                file = sentencepiece_training.train_vocabulary(source, Path(folder) / f"{size}.model", **options)
            except ValueError as error:
                raise ValueError(
                    f"--pieces is {most}, and these texts do not give so many new ones: {error}"
                ) from error
            found = replaced_pieces.not_in(known, trimmed_pieces.Pieces(file.read_bytes()))
            new = [x for x in found if is_usable(x.piece)]
            if len(new) >= most:
                return new[:most]
            size *= 2
