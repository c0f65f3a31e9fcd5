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

import numpy as np
import sentencepiece
import seqio
import tensorflow as tf
from google.protobuf.message import DecodeError
from tqdm import tqdm

from tasks import objectives, sources

NUM_SENTINELS = 100
# Embedding tables are cut into tiles of 128 rows on a TPU.
_MULTIPLE = 128
# SentencePiece skips sentences of more bytes than this.
_MAX_SENTENCE_BYTES = 4192
# Pieces that a user cannot define: T5's special tokens, sentinels, and the bytes of the fallback.
_RESERVED = re.compile(r"<(pad|unk|/?s|extra_id_\d+|0x[0-9A-F]{2})>")


def num_sentinels(vocabulary: seqio.Vocabulary) -> int:
    """How many of the last ids are sentinels: `extra_ids`, or those that the SentencePiece model itself contains."""
    if vocabulary.extra_ids or not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return vocabulary.extra_ids
    model = vocabulary.tokenizer
    size = model.get_piece_size()
    count = 0
    while count < size and re.fullmatch(rf"▁?<extra_id_{count}>", model.id_to_piece(size - 1 - count)):
        count += 1
    return count


def ids_of(vocabulary: seqio.Vocabulary) -> objectives.VocabularyIds:
    """What objectives need to know of it."""
    return objectives.VocabularyIds(vocabulary.vocab_size, num_sentinels(vocabulary), vocabulary.eos_id)


def check_vocabulary(vocabulary: seqio.Vocabulary) -> None:
    """Checks that a vocabulary can serve span corruption.

    Raises:
      FileNotFoundError: if its SentencePiece model is missing.
      ValueError: if it has no sentinels or no EOS, or if padding is not 0.
    """
    check_file(vocabulary)
    if not num_sentinels(vocabulary):
        raise ValueError(
            f"{_what(vocabulary)} has extra_ids={vocabulary.extra_ids} and no sentinels of its own, so its last pieces "
            f"would be taken for sentinels; open it with extra_ids={NUM_SENTINELS}."
        )


def check_file(vocabulary: seqio.Vocabulary) -> None:
    """Checks that a vocabulary can be opened and has T5's ids; its sentinels aside.

    Raises:
      FileNotFoundError: if its SentencePiece model is missing.
      ValueError: if the model cannot be opened, has no EOS, or if padding is not 0.
    """
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        file = vocabulary.sentencepiece_model_file
        if "://" not in file and not pathlib.Path(file).exists():
            raise FileNotFoundError(
                f"There is no SentencePiece model {file!r} (working directory "
                f"{str(pathlib.Path.cwd())!r}). Build one with `limba vocab build --out {file}`."
            )
        try:
            model = vocabulary.tokenizer
        except (tf.errors.OpError, DecodeError, RuntimeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            if "<extra_id_" in reason and "already defined" in reason:
                raise ValueError(
                    f"{_what(vocabulary)} has sentinels of its own and cannot be opened with "
                    f"extra_ids={vocabulary.extra_ids}, which adds them again; open it with extra_ids=0."
                ) from error
            raise ValueError(
                f"{_what(vocabulary)} cannot be opened ({reason}). Is it a SentencePiece model, and can this machine "
                "reach it? A bucket that is mounted as a folder is named by --buckets=DIR."
            ) from error
        if model.pad_id() != 0:
            raise ValueError(f"{_what(vocabulary)} has padding id {model.pad_id()}; T5 needs 0. Train it anew.")
    if vocabulary.eos_id is None or vocabulary.eos_id < 0:
        raise ValueError(f"{_what(vocabulary)} has no end-of-sequence id; T5 needs one (id 1). Train it anew.")


def _what(vocabulary: seqio.Vocabulary) -> str:
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return f"The vocabulary {vocabulary.sentencepiece_model_file!r}"
    return type(vocabulary).__name__


def train_vocabulary(
    source: sources.ShardedSource,
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
) -> pathlib.Path:
    """Trains a unigram SentencePiece model with T5's ids: padding 0, EOS 1, unknown 2, no BOS.

    The file has no sentinels: `seqio.SentencePieceVocabulary(out, extra_ids=100)` and Hugging Face's T5 tokenizers add
    them behind its last piece, which makes `vocab_size` ids.

    Args:
      source: the text.
      out: the file to write, appears only when complete.
      vocab_size: size with the 100 sentinels, a multiple of 128.
      split: the split of the source.
      text_column: the column of the source.
      num_sentences: SentencePiece is given so many lines, a random sample of all, in their order. It keeps them in
        memory.
      max_documents: read no more, from all shards in turn; None reads the whole split.
      sample_seed: of the sample, which depends on nothing else but the corpus.
      byte_fallback: spell characters that are not in the vocabulary as bytes, instead of as unknown.
      user_symbols: pieces that are never split, such as mode tokens; they get the ids from 3 on.
      character_coverage: share of characters that get a piece of their own; 1.0 for small alphabets.

    Raises:
      ValueError: for a size that is not a multiple of 128, a number that makes no sense or a symbol that cannot be; or
        if the corpus is too small for the size.
      OSError: if the corpus cannot be read, or `out` not be written.
    """
    if vocab_size % _MULTIPLE or vocab_size <= _MULTIPLE:
        raise ValueError(
            f"vocab_size is {vocab_size}; it must be a multiple of {_MULTIPLE}, sentinels included: "
            f"{max(_round_up(vocab_size), 2 * _MULTIPLE)}."
        )
    for name, number in (("num_sentences", num_sentences), ("max_documents", max_documents)):
        if number is not None and number < 1:
            raise ValueError(f"{name} is {number}; it is at least 1.")
    if not 0 < character_coverage <= 1:
        raise ValueError(f"character_coverage is {character_coverage}; it is a share, such as 0.9995 or 1.0.")
    _check_symbols(user_symbols)
    out = pathlib.Path(out)
    if out.is_dir():
        raise ValueError(f"{out} is a directory; name the file to write, such as {out / 'spiece.model'}.")
    source.check(split)
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = _sample(_sentences(source, split, text_column, max_documents), num_sentences, sample_seed)
    if not lines:
        raise ValueError(
            f"Split {split!r} has documents, and no text in the column {text_column!r}: all lines are blank."
        )
    print(f"training SentencePiece on {len(lines):,} lines", file=sys.stderr)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - NUM_SENTINELS,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            byte_fallback=byte_fallback,
            user_defined_symbols=list(user_symbols),
            character_coverage=character_coverage,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explain(error, vocab_size, split) from error
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(model.getvalue())
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return out


def _explain(error: RuntimeError, vocab_size: int, split: str) -> Exception:
    """SentencePiece's complaint about the size, in terms of `vocab_size`."""
    if largest := re.search(r"value <= (\d+)", str(error)):
        possible = (int(largest.group(1)) + NUM_SENTINELS) // _MULTIPLE * _MULTIPLE
        remedy = f"the largest possible vocab_size is {possible}" if possible > _MULTIPLE else "give it more text"
        return ValueError(f"Split {split!r} is too small for a vocabulary of {vocab_size}; {remedy}.")
    if characters := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
        needed = _round_up(int(characters.group(1)) + NUM_SENTINELS)
        return ValueError(
            f"A vocabulary of {vocab_size} has no room for the characters of split {split!r}; set vocab_size to "
            f"{needed} or more, or lower character_coverage."
        )
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


def _sentences(source: sources.ShardedSource, split: str, text_column: str, max_documents: int | None) -> Iterator[str]:
    """Lines of the corpus, from all shards in turn, long ones cut between words."""
    with tqdm(desc="reading", unit=" documents", unit_scale=True, total=max_documents, file=sys.stderr) as progress:
        for documents in source.documents(split):
            for document in documents[: None if max_documents is None else max_documents - progress.n]:
                for line in (document[text_column] or "").splitlines():
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


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="limba vocab", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    build = commands.add_parser("build", help="train a vocabulary on a corpus")
    text = build.add_mutually_exclusive_group(required=True)
    text.add_argument("--data_files", nargs="+", metavar="F", help="files, patterns or URLs, the training text")
    text.add_argument("--dataset", metavar="ORG/NAME", help="a data set on the Hugging Face hub")
    build.add_argument("--config", metavar="NAME", help="its configuration")
    build.add_argument("--revision", default="main", help="its branch, tag or commit (main)")
    build.add_argument("--split", default="train", help="its split (train)")
    build.add_argument("--out", required=True, help="the model file to write, such as vocab/spiece.model")
    build.add_argument("--vocab_size", type=int, default=32128, help="with 100 sentinels, a multiple of 128 (32128)")
    build.add_argument("--text_column", default="text", help="the column with the text (text)")
    build.add_argument("--num_sentences", type=int, default=1_000_000, help="lines to sample from all (1000000)")
    build.add_argument("--max_documents", type=int, metavar="N", help="read no more, from all files in turn (all)")
    build.add_argument("--sample_seed", type=int, default=0, help="of the sample of lines (0)")
    build.add_argument("--byte_fallback", action="store_true", help="spell unknown characters as bytes")
    build.add_argument("--user_symbols", nargs="+", default=[], metavar="S", help="pieces that are never split")
    build.add_argument("--character_coverage", type=float, default=0.9995, help="share of characters kept (0.9995)")
    args = parser.parse_args(argv)
    source: sources.ShardedSource
    if args.dataset:
        source = sources.HubSource(args.dataset, args.config, [args.text_column], revision=args.revision)
    else:
        source = sources.HuggingFaceSource({args.split: args.data_files}, [args.text_column])
    try:
        out = train_vocabulary(
            source,
            args.out,
            vocab_size=args.vocab_size,
            split=args.split,
            text_column=args.text_column,
            num_sentences=args.num_sentences,
            max_documents=args.max_documents,
            sample_seed=args.sample_seed,
            user_symbols=args.user_symbols,
            byte_fallback=args.byte_fallback,
            character_coverage=args.character_coverage,
        )
    except (ValueError, OSError, RuntimeError) as error:  # A shard that stays broken is a RuntimeError.
        sys.exit(f"error: {error}")
    print(f"{out}: {args.vocab_size} ids, {NUM_SENTINELS} of them sentinels")


if __name__ == "__main__":
    main()
