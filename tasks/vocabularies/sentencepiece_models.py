"""SentencePiece vocabularies with T5's special tokens: training them, and checking that they fit a model."""

import functools
import io
import os
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece
from google.protobuf.message import DecodeError

from limba.data import sentinels
from limba.files import missing_vocabulary, written_files
from limba.tasks import objectives
from limba.tasks.sources import corpora
from limba.tasks.vocabularies import alphabets, training_text, word_breaks
from limba.tasks.vocabularies import normalization as normalizations
from limba.tasks.vocabularies.tokenizer_files import T5TokenizerVocabulary, TokenizerVocabulary
from limba.tasks.vocabularies.vocabulary import (
    LabelVocabulary,
    NumberVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
    without_tensorflow,
)

NUM_SENTINELS = 100
# Pieces that a user cannot define: T5's special tokens, sentinels, and the bytes of the fallback.
_RESERVED = re.compile(r"<(pad|unk|/?s|extra_id_\d+|0x[0-9A-F]{2})>")


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


def train_vocabulary(
    source: corpora.ShardedSource,
    out: str | os.PathLike[str],
    *,
    vocab_size: int = 32128,
    split: str = "train",
    text_column: str = "text",
    num_sentences: int = 1_000_000,
    max_documents: int | None = None,
    sample_seed: int = 0,
    byte_fallback: bool = False,
    user_symbols: Sequence[str] = (),
    character_coverage: float | None = None,
    normalization: str = "nfkc",
    overwrite: bool = False,
) -> pathlib.Path:
    """Trains a unigram SentencePiece model with T5's ids: padding 0, EOS 1, unknown 2, no BOS.

    The file has no sentinels: `SentencePieceVocabulary(out, extra_ids=100)` and Hugging Face's T5 tokenizers add
    them behind its last piece, which makes `vocab_size` ids.

    Args:
      source, split, text_column: where the text is.
      out: the file to write, appears only when complete.
      vocab_size: size with the 100 sentinels, a multiple of 128.
      num_sentences: size of the random sample of lines that SentencePiece learns from; it keeps them in memory.
      max_documents: documents to read, from all shards in turn; None reads the whole split.
      sample_seed: of the sample; the sample depends on this seed and the corpus only.
      byte_fallback: spell characters that are not in the vocabulary as bytes, instead of as unknown.
      user_symbols: pieces that are never split, such as mode tokens; they get the ids from 3 on.
      character_coverage: share of characters that get a piece of their own; None gives one to all letters, accents,
        numbers and punctuation, and of large scripts, emoji and symbols to the frequent ones.
      normalization: "nfkc", as T5's and mT5's, which reads full-width `，` as `,`; or "none", which keeps characters.
      overwrite: replace a file that is there; runs that were trained with it cannot resume without it.

    Raises:
      FileExistsError: if `out` is there, without `overwrite`.
      ValueError: for a size that is not a multiple of 128, a number that makes no sense or a symbol that cannot be; or
        if the corpus is too small for the size.
      OSError: if the corpus cannot be read, or `out` not be written.
    """
    training_text.check_size(vocab_size, "sentinels")
    training_text.check_coverage(character_coverage)
    normalizations.check(normalization)
    _check_symbols(user_symbols)
    text = training_text.TrainingText(source, split, text_column, num_sentences, max_documents, sample_seed)
    out = training_text.choose_file(out, "spiece.model", overwrite)
    read = normalizations.NORMALIZATIONS[normalization]
    characters, before = alphabets.Characters(read), alphabets.Characters(normalizations.composed_as(read))
    lines = text.lines(characters, before)
    print(f"training SentencePiece on {len(lines):,} lines", file=sys.stderr)
    letters: dict[str, Any] = {"character_coverage": character_coverage}
    if character_coverage is None:
        required = alphabets.alphabet(characters.counts, None)
        letters = {"character_coverage": alphabets.FREQUENT, "required_chars": "".join(required)}
    try:
        model = _train(
            lines,
            vocab_size - NUM_SENTINELS,
            byte_fallback=byte_fallback,
            user_defined_symbols=list(user_symbols),
            normalization=normalization,
            **letters,
        )
    except RuntimeError as error:
        raise _explain(error, vocab_size, split) from error
    with written_files.writing(out) as temporary:
        temporary.write_bytes(model)
    opened = sentencepiece.SentencePieceProcessor(model_proto=model)
    _say_normalized(opened, before)
    alphabets.say_left_out(opened.encode, opened.unk_id(), before, "--byte_fallback spells them as bytes.")
    if normalization == "none":
        remedy = "--normalization nfkc reads a blank in its place."
        word_breaks.say_kept(lambda texts: opened.encode(list(texts), out_type=str), lines, remedy)
    return out


def _say_normalized(opened: Any, characters: alphabets.Characters) -> None:
    """Prints how many characters of its training text a vocabulary reads as others."""
    counts = characters.counts
    changed = normalizations.changed(functools.partial(normalizations.by_sentencepiece, opened), counts)
    if said := normalizations.describe(changed, counts):
        print(f"normalized: {said}; T5's and mT5's do so too (--normalization none keeps all)", file=sys.stderr)


def _train(lines: Sequence[str], num_pieces: int, normalization: str, **options: Any) -> bytes:
    """The SentencePiece model of these lines; RuntimeError if they do not suffice for the number of pieces."""
    model = io.BytesIO()
    with normalizations.rule(normalization) as rule:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=num_pieces,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            max_sentence_length=training_text.MAX_SENTENCE_BYTES,
            minloglevel=2,
            **rule,
            **options,
        )
    return normalizations.without_path(model.getvalue())


def _explain(error: RuntimeError, vocab_size: int, split: str) -> Exception:
    """SentencePiece's complaint about the size, in terms of `vocab_size`."""
    if largest := re.search(r"value <= (\d+)", str(error)):
        return training_text.too_small(split, vocab_size, int(largest.group(1)) + NUM_SENTINELS)
    if characters := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
        return training_text.no_room(split, vocab_size, int(characters.group(1)) + NUM_SENTINELS)
    return error


def _check_symbols(symbols: Sequence[str]) -> None:
    for symbol in symbols:
        if not symbol or re.search(r"[\s▁]", symbol):
            raise ValueError(f"The user symbol {symbol!r} is empty or has a space in it; SentencePiece would split it.")
        if _RESERVED.fullmatch(symbol):
            raise ValueError(
                f"The user symbol {symbol!r} has a meaning of its own: T5's special tokens are there, and the "
                "sentinels are added behind the last piece when the model is opened. Leave it out."
            )
    if doubled := sorted({symbol for symbol in symbols if list(symbols).count(symbol) > 1}):
        raise ValueError(f"The user symbol {doubled[0]!r} is given twice; once is enough.")
