"""What `limba vocab trim` asks of a model and its vocabulary: a T5 with a SentencePiece model, or an encoder."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from convert.compare import trimmed_logits
from convert.model_files import any_format, encoder_vocabularies, trimmed_model
from convert.model_files.hf import hf_tokenizer, tokenizer_folder
from convert.model_files.model import EncoderModel, Model, T5Model
from convert.vocabulary import changed_model, trimmed_tokenizer
from limba.files import json_text, untrusted_json


class Trimmable(Protocol):
    """A model with its vocabulary.

    Attributes:
      before: the vocabulary.
    """

    @property
    def model(self) -> Model[Any, Any]: ...

    @property
    def before(self) -> Any: ...

    def choose(self, counts: np.ndarray, min_count: int, size: int | None) -> np.ndarray:
        """The ids that are kept, ascending; arguments and errors are those of `trimmed_pieces.choose`."""

    def trimmed(self, kept: np.ndarray) -> Any:
        """The vocabulary with these ids."""

    def with_vocabulary(self, after: Any, kept: np.ndarray) -> tuple[Model[Any, Any], np.ndarray]:
        """The model with that vocabulary, and the old id of each of its rows."""

    def difference(self, new: Any, rows: np.ndarray, texts: Sequence[np.ndarray]) -> float:
        """The largest difference of a logit; see `trimmed_logits`."""


def open_trimmable(path: Path) -> Trimmable:
    """Raises ValueError or FileNotFoundError if the vocabulary cannot be trimmed."""
    return T5(path) if any_format.has_decoder(path) else Encoder(path)


class T5:
    """See `Trimmable`."""

    def __init__(self, path: Path):
        self.model, self.tokenizer = changed_model.open_model(path)
        changed_model.check_is_unigram(path, self.tokenizer)
        from tasks.vocabularies import trimmed_pieces

        assert self.tokenizer.model is not None
        self.before = trimmed_pieces.Pieces(self.tokenizer.model)

    def choose(self, counts: np.ndarray, min_count: int, size: int | None) -> np.ndarray:
        from tasks.vocabularies import trimmed_pieces

        tokenizer = self.tokenizer
        return trimmed_pieces.choose(self.before, counts, tokenizer.own_sentinels, tokenizer.extra_ids, min_count, size)

    def trimmed(self, kept: np.ndarray) -> Any:
        from tasks.vocabularies import trimmed_pieces

        return trimmed_pieces.trimmed(self.before, kept)

    def with_vocabulary(self, after: Any, kept: np.ndarray) -> tuple[T5Model, np.ndarray]:
        extra_ids = self.tokenizer.extra_ids
        rows = np.concatenate([kept, len(self.before) + np.arange(extra_ids)])  # T5's padding of rows is left out
        record = hf_tokenizer.describe(hf_tokenizer.temporary_file(after.model), extra_ids)
        return trimmed_model.trimmed(self.model, rows, record), rows

    def difference(self, new: T5Model, rows: np.ndarray, texts: Sequence[np.ndarray]) -> float:
        return trimmed_logits.difference(self.model, new, rows, texts)


class Encoder:
    """See `Trimmable`."""

    def __init__(self, path: Path):
        self.model: EncoderModel = any_format.open_model(path)  # type: ignore[assignment]
        file = any_format.known_vocabulary(self.model)["tokenizer_file"]
        special = tokenizer_folder.special_ids(file).values()
        self.before = trimmed_tokenizer.Tokens(untrusted_json.read_object(Path(file)), [*special], str(path))

    def choose(self, counts: np.ndarray, min_count: int, size: int | None) -> np.ndarray:
        return trimmed_tokenizer.choose(self.before, counts, min_count, size)

    def trimmed(self, kept: np.ndarray) -> trimmed_tokenizer.Tokens:
        return trimmed_tokenizer.trimmed(self.before, kept)

    def with_vocabulary(self, after: trimmed_tokenizer.Tokens, kept: np.ndarray) -> tuple[EncoderModel, np.ndarray]:
        text = json_text.dumps(after.content, ensure_ascii=False)
        record = encoder_vocabularies.record(tokenizer_folder.temporary_file(text.encode()))
        settings, pad_id = self.model.tokenizer_settings, self.model.pad_id
        if pad_id >= len(kept) or kept[pad_id] != pad_id:  # An export exchanges it with 0, which is Limba's.
            settings = dataclasses.replace(settings, pad_id=0)
        model = dataclasses.replace(self.model, tokenizer_settings=settings)
        return trimmed_model.trimmed(model, kept, record), kept

    def difference(self, new: EncoderModel, rows: np.ndarray, texts: Sequence[np.ndarray]) -> float:
        return trimmed_logits.encoder_difference(self.model, new, rows, texts)
