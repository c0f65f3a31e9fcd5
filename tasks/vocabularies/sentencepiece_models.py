"""SentencePiece vocabularies with T5's special tokens: training them, and checking that they fit a model.

limba vocab build --data_files 'corpus/train-*.jsonl' --vocab_size 8192 --out vocab/spiece.model
"""

import argparse
import io
import itertools
import math
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import sentencepiece
from google.protobuf.message import DecodeError
from tqdm import tqdm

from limba.data.sentinels import count_sentinels
from limba.machine import local_paths, os_errors
from tasks import objectives
from tasks.sources import corpora
from tasks.vocabularies.vocabulary import SentencePieceVocabulary, Vocabulary, without_tensorflow

NUM_SENTINELS = 100
# Embedding tables are cut into tiles of 128 rows on a TPU.
_MULTIPLE = 128
# SentencePiece's ids are int32; no vocabulary of words or pieces comes near it.
_MOST_IDS = 2**24
# SentencePiece skips sentences of more bytes than this.
_MAX_SENTENCE_BYTES = 4192
# Pieces that a user cannot define: T5's special tokens, sentinels, and the bytes of the fallback.
_RESERVED = re.compile(r"<(pad|unk|/?s|extra_id_\d+|0x[0-9A-F]{2})>")


def open_vocabulary(vocabulary: Any) -> Any:
    """The SentencePiece model at a path, with 100 sentinels; a vocabulary is itself, one of SeqIO's
    is ours (`without_tensorflow`). The file is read when it is used.

    Raises:
      ValueError: if it is neither a vocabulary nor a path.
    """
    if hasattr(vocabulary, "encode") and not isinstance(vocabulary, str):
        return without_tensorflow(vocabulary)
    if not isinstance(vocabulary, str | os.PathLike):
        raise ValueError(f"The vocabulary is {vocabulary!r}; give the path of a spiece.model, or a vocabulary.")
    return SentencePieceVocabulary(os.fspath(vocabulary), extra_ids=NUM_SENTINELS)


def num_sentinels(vocabulary: Vocabulary) -> int:
    """How many of the last ids are sentinels: `extra_ids`, or those that the SentencePiece model itself contains."""
    vocabulary = without_tensorflow(vocabulary)
    if vocabulary.extra_ids or not isinstance(vocabulary, SentencePieceVocabulary):
        return vocabulary.extra_ids
    model = vocabulary.tokenizer
    return count_sentinels(map(model.id_to_piece, reversed(range(model.get_piece_size()))))


def ids_of(vocabulary: Any) -> objectives.VocabularyIds:
    """The facts about a vocabulary that objectives need."""
    return objectives.VocabularyIds(
        vocabulary.vocab_size,
        num_sentinels(vocabulary),
        vocabulary.eos_id,
        cls_id=getattr(vocabulary, "cls_id", None),
        sep_id=getattr(vocabulary, "sep_id", None),
        mask_id=getattr(vocabulary, "mask_id", None),
        special_ids=getattr(vocabulary, "special_ids", (0,)),
        continues_word=getattr(vocabulary, "continues_word", None),
    )


def check_vocabulary(vocabulary: Vocabulary) -> None:
    """Checks that a vocabulary can serve span corruption.

    Raises:
      FileNotFoundError: if its SentencePiece model is missing.
      ValueError: if it has no sentinels or no EOS, or if padding is not 0.
    """
    vocabulary = without_tensorflow(vocabulary)
    check_file(vocabulary)
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
      FileNotFoundError: if its SentencePiece model is missing.
      ValueError: if the model cannot be opened, has no EOS, or if padding is not 0.
    """
    vocabulary = without_tensorflow(vocabulary)
    if isinstance(vocabulary, SentencePieceVocabulary):
        file = vocabulary.sentencepiece_model_file
        if "://" not in file and not pathlib.Path(file).exists():
            raise FileNotFoundError(
                f"There is no SentencePiece model {file!r} (working directory "
                f"{str(pathlib.Path.cwd())!r}). Build one with `limba vocab build --out {file}`."
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
    character_coverage: float = 0.9995,
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
      character_coverage: share of characters that get a piece of their own; 1.0 for small alphabets.
      overwrite: replace a file that is there; runs that were trained with it cannot resume without it.

    Raises:
      FileExistsError: if `out` is there, without `overwrite`.
      ValueError: for a size that is not a multiple of 128, a number that makes no sense or a symbol that cannot be; or
        if the corpus is too small for the size.
      OSError: if the corpus cannot be read, or `out` not be written.
    """
    _check_numbers(vocab_size, num_sentences, max_documents, character_coverage)
    _check_symbols(user_symbols)
    out = local_paths.local_path(out)
    if out.is_dir():
        raise ValueError(f"{out} is a directory; name the file to write, such as {out / 'spiece.model'}.")
    if out.exists() and not overwrite:
        raise FileExistsError(
            f"{out} exists, and runs that were trained with it cannot resume without it. Choose another --out, or give "
            "--overwrite."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    source.check(split)
    lines = _sample(_sentences(source, split, text_column, max_documents), num_sentences, sample_seed)
    if not lines:
        raise ValueError(
            f"Split {split!r} has documents, and no text in the column {text_column!r}: all lines are blank."
        )
    print(f"training SentencePiece on {len(lines):,} lines", file=sys.stderr)
    try:
        model = _train(
            lines,
            vocab_size - NUM_SENTINELS,
            byte_fallback=byte_fallback,
            user_defined_symbols=list(user_symbols),
            character_coverage=character_coverage,
        )
    except RuntimeError as error:
        raise _explain(error, vocab_size, split) from error
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(model)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return out


def _train(lines: Sequence[str], num_pieces: int, **options: Any) -> bytes:
    """The SentencePiece model of these lines; RuntimeError if they do not suffice for the number of pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="unigram",
        vocab_size=num_pieces,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        max_sentence_length=_MAX_SENTENCE_BYTES,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def _explain(error: RuntimeError, vocab_size: int, split: str) -> Exception:
    """SentencePiece's complaint about the size, in terms of `vocab_size`."""
    if largest := re.search(r"value <= (\d+)", str(error)):
        possible = (int(largest.group(1)) + NUM_SENTINELS) // _MULTIPLE * _MULTIPLE
        remedy = f"the largest possible vocab_size is {possible}" if possible > _MULTIPLE else "give it more text"
        return ValueError(f"The corpus (split {split!r}) is too small for a vocabulary of {vocab_size}; {remedy}.")
    if characters := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
        needed = _round_up(int(characters.group(1)) + NUM_SENTINELS)
        return ValueError(
            f"A vocabulary of {vocab_size} has no room for the characters of split {split!r}; set vocab_size to "
            f"{needed} or more, or lower character_coverage."
        )
    return error


def _check_numbers(vocab_size: int, num_sentences: int, max_documents: int | None, character_coverage: float) -> None:
    if vocab_size % _MULTIPLE or vocab_size <= _MULTIPLE:
        raise ValueError(
            f"vocab_size is {vocab_size}; it must be a multiple of {_MULTIPLE}, sentinels included: "
            f"{max(_round_up(vocab_size), 2 * _MULTIPLE)}."
        )
    for name, number in (("num_sentences", num_sentences), ("max_documents", max_documents)):
        if number is not None and number < 1:
            raise ValueError(f"{name} is {number}; it is at least 1.")
    if vocab_size > _MOST_IDS:
        raise ValueError(f"vocab_size is {vocab_size}; it is at most {_MOST_IDS:,}. T5 has 32,128, mT5 250,112.")
    if not 0 < character_coverage <= 1:
        raise ValueError(f"character_coverage is {character_coverage}; it is a share, such as 0.9995 or 1.0.")


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


def _sentences(source: corpora.ShardedSource, split: str, text_column: str, max_documents: int | None) -> Iterator[str]:
    """Lines of the corpus, from all shards in turn, long ones cut between words."""
    with tqdm(desc="reading", unit=" documents", unit_scale=True, total=max_documents, file=sys.stderr) as progress:
        for documents in source.documents(split):
            for document in documents[: None if max_documents is None else max_documents - progress.n]:
                text = document[text_column] or ""
                if not isinstance(text, str):
                    raise ValueError(
                        f"Column {text_column!r} of split {split!r} has {text!r}, which is not text; --text_column "
                        "names the column with the text."
                    )
                for line in text.splitlines():
                    yield from _cut(line.strip())
                progress.update()
            if progress.n == max_documents:
                return


def _sample(lines: Iterator[str], size: int, seed: int) -> list[str]:
    """Up to `size` lines, each as likely as any other, in their order: Li's algorithm L (1994), which draws seldom."""
    rng = np.random.default_rng(seed)
    kept = list(enumerate(itertools.islice(lines, size)))
    weight = 1.0
    number = len(kept) - 1
    while True:
        weight *= rng.random() ** (1 / size)
        # 1 - random() is never 0; a weight below float64's resolution skips more lines than there are.
        skipped = math.log(1 - rng.random()) / math.log1p(-weight) if 0 < weight < 1 else math.inf
        if skipped >= sys.maxsize:
            return [line for _, line in sorted(kept)]
        number += int(skipped) + 1
        line = next(itertools.islice(lines, int(skipped), None), None)
        if line is None:
            return [line for _, line in sorted(kept)]
        kept[rng.integers(size)] = (number, line)


def _cut(line: str) -> Iterator[str]:
    # A character is at most 4 bytes.
    size = _MAX_SENTENCE_BYTES // 4
    while len(line) > size:
        end = line.rfind(" ", 1, size)
        end = end if end > 0 else size
        yield line[:end]
        line = line[end:].lstrip()
    if line:
        yield line


def _round_up(size: int) -> int:
    return -(-size // _MULTIPLE) * _MULTIPLE


def main(argv: Sequence[str]) -> None:
    """Trains a vocabulary as the flags say."""
    parser = argparse.ArgumentParser(prog="limba vocab build", description=__doc__.partition("\n")[0])
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--data_files", nargs="+", metavar="F", help="files, patterns or URLs, the training text")
    text.add_argument("--dataset", metavar="ORG/NAME", help="a data set on the Hugging Face hub")
    parser.add_argument("--config", metavar="NAME", help="its configuration")
    parser.add_argument("--revision", default="main", help="its branch, tag or commit (main)")
    parser.add_argument("--split", default="train", help="its split (train)")
    parser.add_argument("--out", required=True, help="the model file to write, such as vocab/spiece.model")
    parser.add_argument("--vocab_size", type=int, default=32128, help="with 100 sentinels, a multiple of 128 (32128)")
    parser.add_argument("--text_column", default="text", help="the column with the text (text)")
    parser.add_argument("--num_sentences", type=int, default=1_000_000, help="lines to sample from all (1000000)")
    parser.add_argument("--max_documents", type=int, metavar="N", help="read no more, from all files in turn (all)")
    parser.add_argument("--sample_seed", type=int, default=0, help="of the sample of lines (0)")
    parser.add_argument("--byte_fallback", action="store_true", help="spell unknown characters as bytes")
    parser.add_argument("--user_symbols", nargs="+", default=[], metavar="S", help="pieces that are never split")
    parser.add_argument("--character_coverage", type=float, default=0.9995, help="share of characters kept (0.9995)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file at OUT")
    options = vars(parser.parse_args(argv))
    data_files, dataset, config, revision = map(options.pop, ("data_files", "dataset", "config", "revision"))
    source: corpora.ShardedSource
    if dataset:
        whole = {
            options["split"]: options["split"]
        }  # The documents that are held out for evaluations are read as well.
        source = corpora.HubSource(dataset, config, [options["text_column"]], revision=revision, splits=whole)
    else:
        source = corpora.HuggingFaceSource({options["split"]: data_files}, [options["text_column"]])
    try:
        out = train_vocabulary(source, **options)
    except (ValueError, OSError, RuntimeError) as error:  # A shard that stays broken is a RuntimeError.
        sys.exit(f"error: {os_errors.describe(error) or error}")
    print(f"{out}: {options['vocab_size']} ids, {NUM_SENTINELS} of them sentinels")
