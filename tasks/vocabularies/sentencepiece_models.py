"""SentencePiece vocabularies with T5's special tokens: opening them, and checking that they fit a model."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from limba.data import sentinels
from limba.files import missing_vocabulary
from limba.tasks import objectives
from limba.tasks.vocabularies.tokenizer_files import T5TokenizerVocabulary, TokenizerVocabulary
from limba.tasks.vocabularies.vocabulary import (
    LabelVocabulary,
    NumberVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
    without_tensorflow,
)

NUM_SENTINELS = 100


def open_vocabulary(vocabulary: Any) -> Any:
    """The SentencePiece model at a path, with 100 sentinels, or the tokenizer.json there, a T5's if it has sentinels; a
    vocabulary is itself, one of SeqIO's is ours (`without_tensorflow`). The file is opened when it is used.

    Raises:
      ValueError: if it is neither a vocabulary nor a path.
    """
    if hasattr(vocabulary, "encode") and not isinstance(vocabulary, str):
        return without_tensorflow(vocabulary)
    if not isinstance(vocabulary, str | os.PathLike):
        raise ValueError(
            f"The vocabulary is {vocabulary!r}; give the path of a spiece.model or tokenizer.json, or a vocabulary."
        )
    if (file := os.fspath(vocabulary)).endswith(".json"):
        return T5TokenizerVocabulary(file) if _has_sentinels(file) else TokenizerVocabulary(file)
    return SentencePieceVocabulary(os.fspath(vocabulary), extra_ids=NUM_SENTINELS)


def _has_sentinels(file: str) -> bool:
    """Whether a tokenizer.json on this machine names the first sentinel; it is not parsed."""
    path = pathlib.Path(file)
    content = path.read_bytes() if path.is_file() else b""
    return any(name in content for name in (b'"<extra_id_0>"', b'"[MASK_1]"'))


def num_sentinels(vocabulary: Vocabulary) -> int:
    """How many sentinels there are: `extra_ids`, or those that the vocabulary's file itself contains."""
    return len(sentinel_ids(vocabulary))


def sentinel_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids of `<extra_id_0>`, `<extra_id_1>` …: the last `extra_ids`, which count down, or those of the file."""
    return sentinels.of_vocabulary(without_tensorflow(vocabulary))


def ids_of(vocabulary: Any) -> objectives.VocabularyIds:
    """The facts about a vocabulary that objectives need."""
    its_sentinels = sentinel_ids(vocabulary)
    is_framed = isinstance(vocabulary, TokenizerVocabulary)
    has_frame = is_framed or isinstance(vocabulary, T5TokenizerVocabulary)
    before, behind = map(tuple, vocabulary.frame[:2]) if has_frame else (None, None)
    return objectives.VocabularyIds(
        vocabulary.vocab_size,
        len(its_sentinels),
        vocabulary.eos_id,
        cls_id=vocabulary.bos_id if is_framed else getattr(vocabulary, "cls_id", None),
        sep_id=vocabulary.eos_id if is_framed else getattr(vocabulary, "sep_id", None),
        mask_id=getattr(vocabulary, "mask_id", None),
        special_ids=getattr(vocabulary, "special_ids", (0,)),
        continues_word=_continues_word(vocabulary),
        sentinel_ids=None if sentinels.counts_down(its_sentinels, vocabulary.vocab_size) else its_sentinels,
        before=before,
        behind=behind,
    )


def _continues_word(vocabulary: Any) -> np.ndarray | None:
    try:
        return getattr(vocabulary, "continues_word", None)
    except ValueError:  # Its file does not say; who needs it refuses the vocabulary.
        return None


def check_vocabulary(vocabulary: Vocabulary) -> None:
    """Checks that a vocabulary can serve span corruption.

    Raises:
      FileNotFoundError: if its file is missing.
      ValueError: if it has no sentinels or no EOS, or if padding is not 0.
    """
    vocabulary = without_tensorflow(vocabulary)
    check_file(vocabulary)
    if isinstance(vocabulary, TokenizerVocabulary):
        raise ValueError(
            f"{_title(vocabulary)} is a TokenizerVocabulary, which has no sentinels for masked spans: it serves masked "
            "language models. Use a SentencePieceVocabulary (`limba vocab build --kind sentencepiece`), a "
            f"ByteVocabulary with extra_ids={NUM_SENTINELS}, or a T5TokenizerVocabulary if the file is a T5's."
        )
    if isinstance(vocabulary, T5TokenizerVocabulary) and not num_sentinels(vocabulary):
        raise ValueError(
            f"{_title(vocabulary)} has no token <extra_id_0>, and masked spans need sentinels. Add {NUM_SENTINELS} "
            "with the library tokenizers, add_special_tokens(['<extra_id_0>', '<extra_id_1>', …]), and give the "
            "embedding as many rows more."
        )
    if not num_sentinels(vocabulary):
        raise ValueError(
            f"{_title(vocabulary)} has extra_ids={vocabulary.extra_ids} and no sentinels of its own: its last pieces "
            f"would be taken for sentinels; open it with extra_ids={NUM_SENTINELS}."
        )


def check_special_tokens(vocabulary: Vocabulary, names: Sequence[str]) -> None:
    """Checks that a vocabulary can serve an objective with special tokens, such as `("cls", "sep", "mask")`.

    Raises:
      FileNotFoundError, ValueError: as `check_file`; if it lacks one of them.
    """
    check_file(vocabulary)
    if missing := [name for name in names if getattr(vocabulary, f"{name}_id", None) is None]:
        raise ValueError(
            f"{_title(vocabulary)} has no {', '.join(f'[{name.upper()}]' for name in missing)}, which masked language "
            "modelling needs; build one with `limba vocab build --kind wordpiece`, and open it with "
            "vocabularies.TokenizerVocabulary."
        )
    if vocabulary.pad_id != 0:
        raise ValueError(
            f"{_title(vocabulary)} has padding id {vocabulary.pad_id}, and batches are padded with 0. Train it again."
        )


def check_file(vocabulary: Vocabulary) -> None:
    """Checks that a vocabulary can be opened and has T5's ids; its sentinels aside.

    Raises:
      FileNotFoundError: if its file is missing.
      ValueError: if the file cannot be opened, has no EOS, or if a SentencePiece model's padding is not 0.
    """
    vocabulary = without_tensorflow(vocabulary)
    if isinstance(vocabulary, LabelVocabulary | NumberVocabulary):
        return  # It has no file, and labels and numbers have no end.
    if isinstance(vocabulary, TokenizerVocabulary):
        _ = vocabulary.tokenizer, vocabulary.pad_id, vocabulary.sep_id
        return
    if isinstance(vocabulary, T5TokenizerVocabulary) and vocabulary.pad_id != 0:
        raise ValueError(f"{_title(vocabulary)} has padding id {vocabulary.pad_id}; T5 needs 0. Give another.")
    if isinstance(vocabulary, SentencePieceVocabulary):
        file = vocabulary.sentencepiece_model_file
        if "://" not in file and not pathlib.Path(file).exists():
            raise FileNotFoundError(
                f"There is no SentencePiece model {file!r} (working directory "
                f"{str(pathlib.Path.cwd())!r}). Build one with `{missing_vocabulary.build_command(file)}`."
            )
        try:
            model = vocabulary.tokenizer
        except (OSError, ValueError, DecodeError, RuntimeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            if "<extra_id_" in reason and "already defined" in reason:
                raise ValueError(
                    f"{_title(vocabulary)} has sentinels of its own and cannot be opened with "
                    f"extra_ids={vocabulary.extra_ids}, which adds them again; open it with extra_ids=0."
                ) from error
            raise ValueError(
                f"{_title(vocabulary)} cannot be opened ({reason}). Is it a SentencePiece model, and can this machine "
                "reach it? A bucket that is mounted as a folder is named by --buckets=DIR."
            ) from error
        if model.pad_id() != 0:
            raise ValueError(f"{_title(vocabulary)} has padding id {model.pad_id()}; T5 needs 0. Train it again.")
    if vocabulary.eos_id is None or vocabulary.eos_id < 0:
        raise ValueError(f"{_title(vocabulary)} has no end-of-sequence id; T5 needs one (id 1). Train it again.")


def _title(vocabulary: Vocabulary) -> str:
    if isinstance(vocabulary, SentencePieceVocabulary):
        return f"The vocabulary {vocabulary.sentencepiece_model_file!r}"
    if isinstance(vocabulary, TokenizerVocabulary | T5TokenizerVocabulary):
        return f"The vocabulary {vocabulary.tokenizer_file!r}"
    return type(vocabulary).__name__
