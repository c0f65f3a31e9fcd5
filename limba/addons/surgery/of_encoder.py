"""An encoder and its tokenizer.json, for the commands of `limba vocab`."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons.surgery import (
    changed_model,
    extended_tokenizer,
    learned_pieces,
    token_origins,
    trimmed_logits,
    trimmed_tokenizer,
)
from limba.addons.surgery.tokens import UNIGRAM, Tokens
from limba.convert.model_files import any_format, encoder_vocabularies, trimmed_model
from limba.convert.model_files.hf import tokenizer_folder, tokenizer_settings
from limba.convert.model_files.hf.tokenizer_folder import FILE
from limba.convert.model_files.hf.tokenizer_settings import Settings
from limba.convert.model_files.model import EncoderModel, ModelHints
from limba.files import json_text, untrusted_json
from limba.tasks.vocabularies import TokenizerVocabulary


class Encoder:
    """See `OpenedModel`."""

    def __init__(self, path: Path, ignored: tuple[str, ...]):
        self.path, self.ignored = path, ignored
        hints = ModelHints(ignore_config_keys=ignored)
        self.model: EncoderModel = any_format.open_model(path, hints)  # type: ignore[assignment]
        file = any_format.known_vocabulary(self.model)["tokenizer_file"]
        self.before = _open(file, str(path), self.model.tokenizer_settings)

    def difference(self, new: EncoderModel, rows: np.ndarray, texts: Sequence[np.ndarray]) -> float:
        return trimmed_logits.encoder_difference(self.model, new, rows, texts)

    # ------------------------------------------------- fewer pieces -------------------------------------------------

    def check_can_change(self) -> None:
        """What cannot is refused when it is opened."""

    def choose(self, counts: np.ndarray, min_count: int, size: int | None) -> np.ndarray:
        return trimmed_tokenizer.choose(self.before, counts, min_count, size)

    def trimmed(self, kept: np.ndarray) -> Tokens:
        return trimmed_tokenizer.trimmed(self.before, kept)

    def with_trimmed(self, after: Tokens, kept: np.ndarray) -> tuple[EncoderModel, np.ndarray]:
        model, pad_id = self.model, self.model.pad_id
        if pad_id >= len(kept) or kept[pad_id] != pad_id:  # An export exchanges it with 0, which is Limba's.
            settings = dataclasses.replace(model.tokenizer_settings, pad_id=0)
            model = dataclasses.replace(model, tokenizer_settings=settings)
        return trimmed_model.trimmed(model, kept, _record(after)), kept

    # --------------------------------------------- more pieces, or others -------------------------------------------

    def extended(self, corpus: Sequence[str], text_column: str, pieces: int) -> Tokens:
        from limba.tasks.vocabularies import training_text

        before = self.before
        before.check_kind()
        source = changed_model.source(corpus, text_column)
        if before.kind == UNIGRAM:
            is_usable = functools.partial(extended_tokenizer.is_usable, before)
            new = learned_pieces.likeliest(source, text_column, before.ids, pieces, is_usable)
            return extended_tokenizer.with_tokens(before, [x.piece for x in new], scores=[x.score for x in new])
        lines = training_text.TrainingText(source, text_column=text_column).lines()
        return extended_tokenizer.extended(before, lines, pieces)

    def given(self, vocab: str) -> Tokens:
        self.before.check_kind()
        place = Path(vocab).expanduser()
        if not place.exists():
            raise FileNotFoundError(f"There is no --vocab {vocab} (working directory {str(Path.cwd())!r}).")
        if place.is_file() and place.suffix != ".json":
            raise ValueError(
                f"--vocab {vocab} is no {FILE}, and {self.path} is an encoder: give the file or folder of a WordPiece, "
                "Unigram or BPE tokenizer, such as `limba vocab build --kind wordpiece` writes. SentencePiece models "
                "are for T5s."
            )
        if place.name == FILE and (place.parent / tokenizer_settings.CONFIG).is_file():
            place = place.parent
        if (found := encoder_vocabularies.file_in(place)).is_file():
            tokenizer_folder.describe(found)  # Raises ValueError for a special token that it lacks.
        file, pad_id = encoder_vocabularies.given(place, self.ignored)
        if tokenizer_folder.same(file, self.model.vocabulary_file or ""):
            raise ValueError(f"--vocab {vocab} is the vocabulary that {self.path} has; there is nothing to replace.")
        if self.model.family.first_position(pad_id):  # Positions begin behind it, as config.json has them.
            pad_id = self.model.pad_id
        beside = tokenizer_settings.of_folder(place) if place.is_dir() else tokenizer_settings.NONE
        if not any(TokenizerVocabulary(str(file)).frame[:2]):  # The encoder was trained with [CLS] and [SEP].
            unframed = {**untrusted_json.read_object(Path(file)), "post_processor": None}
            file = tokenizer_folder.temporary_file(json_text.dumps(unframed, ensure_ascii=False).encode())
        new = _open(file, vocab, dataclasses.replace(beside, pad_id=pad_id))
        new.check_kind()
        return new

    def origins(self, after: Tokens) -> Any:
        return token_origins.origins(self.before, after)

    def with_replaced(self, after: Tokens, origins: Any, num_rows: int) -> EncoderModel:
        model = dataclasses.replace(self.model, tokenizer_settings=after.settings)
        return trimmed_model.replaced(model, len(self.before), origins.ids, num_rows, _record(after))


def _open(file: str | Path, where: str, settings: Settings) -> Tokens:
    return Tokens(untrusted_json.read_object(Path(file)), tokenizer_folder.special_ids(file), where, settings)


def _record(tokens: Tokens) -> dict[str, Any]:
    text = json_text.dumps(tokens.content, ensure_ascii=False)
    return encoder_vocabularies.record(tokenizer_folder.temporary_file(text.encode()))
