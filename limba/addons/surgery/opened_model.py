"""A model whose vocabulary the commands of `limba vocab` change: a T5 with a SentencePiece model, or an encoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from limba.addons.surgery import of_encoder, of_t5
from limba.convert.model_files import any_format
from limba.convert.model_files.model import Model


class OpenedModel(Protocol):
    """A model with its vocabulary.

    Attributes:
      before: the vocabulary, a `trimmed_pieces.Encoder`; those that the methods return and take are of its class.
    """

    @property
    def model(self) -> Model[Any, Any]: ...

    @property
    def before(self) -> Any: ...

    def difference(self, new: Any, rows: np.ndarray, texts: Sequence[np.ndarray]) -> float:
        """The largest difference of a logit; see `trimmed_logits`."""

    # Fewer pieces.

    def check_can_change(self) -> None:
        """Raises ValueError for a kind of vocabulary that cannot get fewer or more pieces."""

    def choose(self, counts: np.ndarray, min_count: int, size: int | None) -> np.ndarray:
        """The ids that are kept, ascending; arguments and errors are those of `trimmed_pieces.choose`."""

    def trimmed(self, kept: np.ndarray) -> Any:
        """The vocabulary with these ids."""

    def with_trimmed(self, after: Any, kept: np.ndarray) -> tuple[Model[Any, Any], np.ndarray]:
        """The model with that vocabulary, and the old id of each of its rows."""

    # More pieces, or others.

    def extended(self, corpus: Sequence[str], text_column: str, pieces: int) -> Any:
        """The vocabulary with so many pieces more. Raises ValueError if the corpus gives fewer."""

    def given(self, vocab: str) -> Any:
        """The vocabulary of a file or folder.

        Raises:
          FileNotFoundError: if there is none.
          ValueError: if the model cannot have it, or has it already.
        """

    def origins(self, after: Any) -> Any:
        """`replaced_pieces.Origins` of a vocabulary."""

    def with_replaced(self, after: Any, origins: Any, num_rows: int) -> Model[Any, Any]:
        """The model with that vocabulary, and rows of these origins."""


def open_model(path: Path, ignored: Sequence[str] = ()) -> OpenedModel:
    """Opens the model; `ignored` are keys of its JSON files, and of those of a given vocabulary, that have no effect.

    Raises:
      FileNotFoundError, ValueError: if the vocabulary cannot be changed.
    """
    return (of_t5.T5 if any_format.has_decoder(path) else of_encoder.Encoder)(path, tuple(ignored))
