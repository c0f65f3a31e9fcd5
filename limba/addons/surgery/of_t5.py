"""A T5 and its SentencePiece model, for the commands of `limba vocab`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons.surgery import changed_model, learned_pieces, trimmed_logits
from limba.convert.families import heads
from limba.convert.model_files import any_format, trimmed_model
from limba.convert.model_files.hf import hf_tokenizer
from limba.convert.model_files.hf.hf_tokenizer import Tokenizer
from limba.convert.model_files.hf.special_tokens import OF_T5
from limba.convert.model_files.hf.tokenizer_json import OtherThanSentencePiece
from limba.convert.model_files.model import ModelHints, T5Model
from limba.files.untrusted_files import shown_list


class SentencePieces:
    """A `trimmed_pieces.Encoder`: the pieces, and the tokenizer with its sentinels."""

    def __init__(self, tokenizer: Tokenizer):
        from limba.addons.surgery import trimmed_pieces

        assert tokenizer.model is not None
        self.tokenizer, self.pieces = tokenizer, trimmed_pieces.Pieces(tokenizer.model)
        self.unk_id, self.in_bytes, self.encode = self.pieces.unk_id, self.pieces.in_bytes, self.pieces.encode

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def num_ids(self) -> int:
        """With sentinels behind the pieces."""
        return self.tokenizer.vocab_size


class T5:
    """See `OpenedModel`."""

    def __init__(self, path: Path, ignored: tuple[str, ...]):
        self.path = path
        self.model, tokenizer = _open(path, ModelHints(ignore_config_keys=ignored))
        self.before = SentencePieces(tokenizer)

    def difference(self, new: T5Model, rows: np.ndarray, texts: Sequence[np.ndarray]) -> float:
        return trimmed_logits.difference(self.model, new, rows, texts)

    # ------------------------------------------------- fewer pieces -------------------------------------------------

    def check_can_change(self) -> None:
        trainer = self.before.pieces.proto.trainer_spec
        if trainer.model_type != trainer.UNIGRAM:
            raise ValueError(
                f"The SentencePiece model of {self.path} is of kind {trainer.ModelType.Name(trainer.model_type)}, "
                "whose pieces are made of each other; only UNIGRAM can get fewer or more."
            )

    def choose(self, counts: np.ndarray, min_count: int, size: int | None) -> np.ndarray:
        from limba.addons.surgery import trimmed_pieces

        pieces, tokenizer = self.before.pieces, self.before.tokenizer
        return trimmed_pieces.choose(pieces, counts, tokenizer.own_sentinels, tokenizer.extra_ids, min_count, size)

    def trimmed(self, kept: np.ndarray) -> SentencePieces:
        from limba.addons.surgery import trimmed_pieces

        return self._with_pieces(trimmed_pieces.trimmed(self.before.pieces, kept))

    def with_trimmed(self, after: SentencePieces, kept: np.ndarray) -> tuple[T5Model, np.ndarray]:
        # T5's padding of rows is left out.
        rows = np.concatenate([kept, len(self.before) + np.arange(self.before.tokenizer.extra_ids)])
        return trimmed_model.trimmed(self.model, rows, after.tokenizer.vocabulary), rows

    # --------------------------------------------- more pieces, or others -------------------------------------------

    def extended(self, corpus: Sequence[str], text_column: str, pieces: int) -> SentencePieces:
        from limba.addons.surgery import replaced_pieces

        own = self.before.tokenizer.own_sentinels
        known = {piece.piece for piece in self.before.pieces.proto.pieces}
        new = learned_pieces.likeliest(changed_model.source(corpus, text_column), text_column, known, pieces)
        return self._with_pieces(replaced_pieces.extended(self.before.pieces, new, min(own) if own else None))

    def given(self, vocab: str) -> SentencePieces:
        place = Path(vocab).expanduser()
        file = place / hf_tokenizer.SPIECE if place.is_dir() else place
        if file.suffix == ".json":
            raise ValueError(
                f"--vocab {vocab} is no SentencePiece model, and {self.path} is a T5: give a spiece.model, such as "
                "`limba vocab build` writes. A tokenizer.json is for encoders."
            )
        new, old = hf_tokenizer.from_file(file, None), self.before.tokenizer
        if not new.own_sentinels:  # as many behind its pieces as the old one has
            new = dataclasses.replace(new, extra_ids=len(old.sentinels))
        if new.model == old.model:
            raise ValueError(f"--vocab {vocab} is the vocabulary that {self.path} has; there is nothing to replace.")
        return SentencePieces(new)

    def origins(self, after: SentencePieces) -> Any:
        from limba.addons.surgery import replaced_pieces

        sentinels = self.before.tokenizer.sentinels, after.tokenizer.sentinels
        return replaced_pieces.origins(self.before.pieces, after.pieces, sentinels, after.num_ids)

    def with_replaced(self, after: SentencePieces, origins: Any, num_rows: int) -> T5Model:
        vocabulary = after.tokenizer.vocabulary
        return trimmed_model.replaced(self.model, self.before.num_ids, origins.ids, num_rows, vocabulary)

    def _with_pieces(self, pieces: Any) -> SentencePieces:
        file = hf_tokenizer.temporary_file(pieces.model)
        return SentencePieces(hf_tokenizer.from_file(file, self.before.tokenizer.extra_ids))


def _open(path: Path, hints: ModelHints) -> tuple[T5Model, Tokenizer]:
    """The model and its SentencePiece model. Raises ValueError if it has none."""
    try:
        model: Any = any_format.open_model(path, hints)
        vocabulary = any_format.known_vocabulary(model)
    except (hf_tokenizer.NoVocabularyError, OtherThanSentencePiece) as error:
        raise FileNotFoundError(
            f"{path} has no SentencePiece model: copy the one that the model was trained with there, as spiece.model."
        ) from error
    if model.head != heads.OF_T5:
        raise ValueError(f"{path} is a classifier, which has no logits of pieces; take the T5 that it was made of.")
    tokenizer = hf_tokenizer.from_vocabulary(vocabulary)
    if tokenizer.special != OF_T5 or model.pad_id != OF_T5.pad.id:
        raise ValueError(
            f"{path} has other special tokens than T5's <pad> 0, </s> 1 and <unk> 2: its first tokens are "
            f"{shown_list([*tokenizer.special.by_id.values()])}. Only vocabularies with T5's can be changed."
        )
    if tokenizer.model_file is None:
        raise ValueError(
            f"{path} reads bytes (byT5): its vocabulary has {tokenizer.vocab_size} ids, and none of them is a piece."
        )
    if tokenizer.model is None:
        raise ValueError(
            f"{path} has a tokenizer.json that no SentencePiece model equals ({tokenizer.model_file}); only "
            "vocabularies of a SentencePiece model can be changed."
        )
    return model, tokenizer
