"""`limba vocab check MODEL`: do all libraries that read a model's vocabulary give the same ids?

Compared are SentencePiece itself, SeqIO (with the model's extra_ids: what training sees), Hugging Face's fast and slow
tokenizers (what users of an export see), and the rows of the embedding. MODEL is a SentencePiece model, a checkpoint or
run's directory of Limba or T5X, a Hugging Face folder, or a tokenizer.json, of which transformers' ids are compared.
"""

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from convert.compare import tokenizer_readers, transformers_library
from convert.hf import hf_folder, hf_tokenizer
from convert.model_files import any_format
from limba.machine import native_logs

_SPECIAL_IDS = {token: id_ for id_, token in enumerate(hf_tokenizer.SPECIAL_TOKENS)}
_SENTINELS = (0, 1, 99)
_TEXTS = ("Hello, world! 1234", "Ștefan și-a amintit: „da, mâine”.", "日本語")
_TEXT_WITH_SENTINELS = "a <extra_id_0> of <extra_id_1>"
_SIZE, _SEQIO, _HUGGING_FACE = "ids", "SeqIO", ("HF fast", "HF slow")


@dataclasses.dataclass(frozen=True)
class Implementation:
    """A library that reads the vocabulary: a column of the table.

    Attributes:
      name: of the column.
      ids: by token, and the number of ids under "ids"; tokens that it does not have are left out.
      encode: gives the ids of a text, without EOS; None if it takes no text.
      note: why the library cannot be compared; then there are no ids.
    """

    name: str
    ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    encode: Callable[[str], list[int]] | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class ModelVocabulary:
    """The vocabulary of a model, and what must agree with it; None is not known, or not there."""

    vocabulary: Mapping[str, Any]  # Its record in `run.json`.
    embedding_rows: int | None = None
    folder: Path | None = None  # Of Hugging Face.
    problems: tuple[str, ...] = ()  # What could not be read, in whole sentences with the remedy.


# -------------------------------------------------------- the model --------------------------------------------------


def open_vocabulary(model: str, vocab: str | None = None, extra_ids: int | None = None) -> ModelVocabulary:
    """Finds the vocabulary of a SentencePiece model, a checkpoint, a run's directory, or a Hugging Face folder.

    `vocab` is the SentencePiece model and `extra_ids` the sentinels behind its pieces, where the files do not say it.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it is nothing of these.
    """
    path = Path(model).expanduser()
    if path.is_file():
        return ModelVocabulary(hf_tokenizer.open_model(path, extra_ids).vocabulary)
    hints = any_format.ModelHints(vocab=vocab, extra_ids=extra_ids)
    if path.is_dir() and (hf_folder.is_folder(path) or (path / "tokenizer_config.json").is_file()):
        return _open_folder(path, hints)
    if "://" not in model and not path.exists():
        raise FileNotFoundError(
            f"{model} does not exist (working directory {Path.cwd()}). Give a SentencePiece model, a checkpoint, a "
            "run's directory, or a Hugging Face folder."
        )
    opened = any_format.open_model(model, hints)
    if opened.vocabulary is None:
        raise FileNotFoundError(f"{model} does not say its vocabulary; give the SentencePiece model with --vocab FILE.")
    return ModelVocabulary(opened.vocabulary, opened.config.vocab_size)


def _open_folder(path: Path, hints: any_format.ModelHints) -> ModelVocabulary:
    config = hf_tokenizer.read_json(path / "config.json")
    problems: tuple[str, ...] = ()
    try:
        vocabulary = any_format.vocabulary_of_folder(path, hints)
    except ValueError as error:
        if not (path / hf_tokenizer.SPIECE).is_file():
            raise
        problems = (str(error),)
        vocabulary = hf_tokenizer.open_model(path / hf_tokenizer.SPIECE, hints.extra_ids).vocabulary
    if vocabulary is None:
        raise FileNotFoundError(
            f"{path} has no tokenizer files; give the SentencePiece model with --vocab FILE, or copy them there."
        )
    return ModelVocabulary(vocabulary, config.get("vocab_size"), path, problems)


# ------------------------------------------------------- the readers -------------------------------------------------


def implementations(checked: ModelVocabulary) -> Iterator[Implementation]:
    """The columns of the table, the embedding aside."""
    vocabulary = checked.vocabulary
    file = vocabulary["sentencepiece_model_file"]
    yield _sentencepiece(file) if file else Implementation("SentencePiece", note="bytes need no model")
    yield _seqio(vocabulary)
    if transformers_library.version() is None:
        yield from (Implementation(name, note="transformers is not installed") for name in _HUGGING_FACE)
        return
    with contextlib.ExitStack() as stack:
        folder = checked.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="limba-vocabulary-")))
            try:
                hf_tokenizer.write(hf_tokenizer.from_vocabulary(vocabulary), folder)
            except ValueError as error:
                yield from (Implementation(name, note=f"cannot be written: {error}") for name in _HUGGING_FACE)
                return
        yield from _transformers(folder, is_bytes=not file)


def _sentencepiece(file: str) -> Implementation:
    model = sentencepiece.SentencePieceProcessor(model_file=file)
    ids = {"<pad>": model.pad_id(), "</s>": model.eos_id(), "<unk>": model.unk_id(), _SIZE: model.get_piece_size()}
    for i in _SENTINELS:
        for piece in (f"▁<extra_id_{i}>", f"<extra_id_{i}>"):
            if model.id_to_piece(id_ := model.piece_to_id(piece)) == piece:
                ids[f"<extra_id_{i}>"] = id_
    return Implementation("SentencePiece", ids, model.encode)


def _seqio(vocabulary: Mapping[str, Any]) -> Implementation:
    """SeqIO's ids, by the vocabularies that training uses, whose ids are the same."""
    from tasks.vocabularies import ByteVocabulary, SentencePieceVocabulary, sentencepiece_models

    extra_ids = vocabulary["extra_ids"]
    opened: Any = ByteVocabulary(extra_ids=extra_ids)
    if file := vocabulary["sentencepiece_model_file"]:
        opened = SentencePieceVocabulary(file, extra_ids=extra_ids)
        try:
            _ = opened.tokenizer
        except RuntimeError as error:
            return Implementation(_SEQIO, note=f"does not open it with extra_ids={extra_ids}: {error}")
    size, count = opened.vocab_size, sentencepiece_models.num_sentinels(opened)
    ids = {"<pad>": opened.pad_id, "</s>": opened.eos_id, "<unk>": opened.unk_id, _SIZE: size}
    # What span corruption takes: the last ids, downward.
    ids |= {f"<extra_id_{i}>": size - 1 - i for i in _SENTINELS if i < count}
    return Implementation(f"{_SEQIO}, extra_ids={extra_ids}", ids, lambda text: list(opened.encode(text)))


def _transformers(folder: Path, is_bytes: bool) -> Iterator[Implementation]:
    transformers = transformers_library.load()
    transformers.logging.set_verbosity_error()
    for name, wants_fast in zip(_HUGGING_FACE, (True, False), strict=True):
        try:
            if wants_fast:
                tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), use_fast=True)
            else:
                slow = transformers.ByT5Tokenizer if is_bytes else transformers.T5Tokenizer
                tokenizer = slow.from_pretrained(str(folder))
        except (OSError, ValueError, TypeError, ImportError, AttributeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            yield Implementation(name, note=f"does not load: {reason}")
            continue
        if tokenizer.is_fast != wants_fast:
            yield Implementation(name, note=f"transformers {transformers.__version__} has none for it")
            continue
        ids = {"<pad>": tokenizer.pad_token_id, "</s>": tokenizer.eos_token_id, "<unk>": tokenizer.unk_token_id}
        ids |= {_SIZE: len(tokenizer)}
        known = tokenizer.get_vocab()
        ids |= {token: known[token] for i in _SENTINELS if (token := f"<extra_id_{i}>") in known}
        yield Implementation(name, ids, _encode_of(tokenizer))


def _encode_of(tokenizer: Any) -> Callable[[str], list[int]]:
    return lambda text: tokenizer(text, add_special_tokens=False).input_ids


# -------------------------------------------------------- comparison -------------------------------------------------


def compare(found: Sequence[Implementation], checked: ModelVocabulary) -> Iterator[str]:
    """What disagrees, in whole sentences with the remedy."""
    yield from checked.problems
    plain, seqio_reader, *hugging_face = found
    if seqio_reader.note:
        own = "<extra_id_0>" in plain.ids
        remedy = "It has sentinels of its own: open it with extra_ids=0." if own else "Train a new one."
        yield f"{_SEQIO} {seqio_reader.note}. {remedy}"
        return
    folder = checked.folder
    train = "Train a new one with `limba vocab build`."
    again = f"Write the tokenizer of {folder} again: `limba convert to-hf`." if folder else train
    for token, needed in _SPECIAL_IDS.items():
        for reader in found:
            if not reader.note and reader.ids.get(token) != needed:
                remedy = again if reader in hugging_face else train
                yield f"{token} is {_shown(reader, token)} in {reader.name}, and {needed} in T5. {remedy}"
    if not any(token in seqio_reader.ids for token in map("<extra_id_{}>".format, _SENTINELS)):
        remedy = "Open it with extra_ids=100." if plain.ids else "Google's ByT5 is so; a new one takes extra_ids=100."
        yield f"There are no sentinels with extra_ids={checked.vocabulary['extra_ids']}. {remedy}"
    for token in map("<extra_id_{}>".format, _SENTINELS):
        if token in plain.ids and plain.ids[token] != seqio_reader.ids.get(token):
            yield (
                f"{token} is {plain.ids[token]} in SentencePiece, and {_shown(seqio_reader, token)} in SeqIO with "
                f"extra_ids={checked.vocabulary['extra_ids']}. Its own are not its last pieces in T5's order, "
                "<extra_id_0> last: train it without any, `limba vocab build`."
            )
        for reader in hugging_face:
            if not reader.note and reader.ids.get(token) != seqio_reader.ids.get(token):
                expected_id = _shown(seqio_reader, token)
                yield f"{token} is {_shown(reader, token)} in {reader.name}, and {expected_id} in SeqIO. {again}"
    for reader in hugging_face:
        if not reader.note and reader.ids[_SIZE] != seqio_reader.ids[_SIZE]:
            yield f"{reader.name} has {reader.ids[_SIZE]} ids, and SeqIO {seqio_reader.ids[_SIZE]}. {again}"
    size, rows = seqio_reader.ids[_SIZE], checked.embedding_rows
    if rows is not None and rows < size:
        yield (
            f"The embedding has {rows} rows for {size} ids: the last {size - rows}, the sentinels first of all, are "
            f"lost. Set T5Config.vocab_size to {_rows(size)} or more."
        )
    assert seqio_reader.encode is not None
    for text in texts(found):
        expected = seqio_reader.encode(text)
        for reader in found:
            # SentencePiece alone has no sentinels that SeqIO adds.
            if reader.encode is None or (text == _TEXT_WITH_SENTINELS and reader.name == "SentencePiece"):
                continue
            if (ids := reader.encode(text)) != expected:
                yield f"The text {text!r} is {_some(ids)} in {reader.name}, and {_some(expected)} in SeqIO. {again}"


def texts(found: Sequence[Implementation]) -> list[str]:
    """Texts that all can read: sentinels only where all have them."""
    present = [reader for reader in found[1:] if not reader.note]
    with_sentinels = all("<extra_id_1>" in reader.ids and "<extra_id_0>" in reader.ids for reader in present)
    is_text = bool(found[0].ids)  # SeqIO's bytes know no sentinels in a text.
    return [*_TEXTS, *([_TEXT_WITH_SENTINELS] if with_sentinels and is_text else [])]


def _some(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:8]))}{', …' if len(ids) > 8 else ''}]"


def _shown(reader: Implementation, token: str) -> str:
    return str(reader.ids[token]) if token in reader.ids else "missing"


def _rows(size: int) -> int:
    return -(-size // 128) * 128


def table(found: Sequence[Implementation], checked: ModelVocabulary) -> str:
    """Tokens down, readers across."""
    present = [reader for reader in found if not reader.note]
    rows = [["", *(reader.name for reader in present), "embedding"]]
    tokens = [*_SPECIAL_IDS, *map("<extra_id_{}>".format, _SENTINELS), _SIZE]
    for token in tokens:
        last = str(checked.embedding_rows or "not known") if token == _SIZE else ""
        rows.append([token, *(str(reader.ids.get(token, "-")) for reader in present), last])
    for text in texts(found):
        ids = [str(len(r.encode(text))) if r.encode else "-" for r in present]
        rows.append([f"ids of {text!r}", *ids, ""])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"{reader.name}: {reader.note}" for reader in found if reader.note)])


def main(argv: Sequence[str]) -> int:
    """Prints the table and what disagrees; the exit code is 1 if anything does."""
    parser = argparse.ArgumentParser(
        prog="limba vocab check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--vocab", metavar="FILE", help="the SentencePiece model, where MODEL does not say it")
    sentinels = "sentinels behind its pieces (100; 0 if it has some)"
    parser.add_argument("--extra_ids", type=int, metavar="N", help=sentinels)
    parser.add_argument("--embedding_rows", type=int, metavar="N", help="T5Config.vocab_size, where MODEL has none")
    args = parser.parse_args(argv)
    for name, least in (("extra_ids", 0), ("embedding_rows", 1)):
        number = getattr(args, name)
        if number is not None and number < least:
            parser.error(f"--{name} is {number}; it is at least {least}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Nothing here needs an accelerator.
    if (file := tokenizer_readers.find_file(args.model)) is not None:
        shown, problems = tokenizer_readers.check(file, args.embedding_rows)
        return _report(shown, problems, None if args.embedding_rows else tokenizer_readers.size_of(file))
    checked = open_vocabulary(args.model, args.vocab, args.extra_ids)
    if args.embedding_rows is not None:
        checked = dataclasses.replace(checked, embedding_rows=args.embedding_rows)
    with native_logs.filtered():  # SeqIO brings TensorFlow in.
        found = list(implementations(checked))
    size = None if checked.embedding_rows else found[1].ids.get(_SIZE)
    return _report(table(found, checked), list(compare(found, checked)), size)


def _report(shown: str, problems: Sequence[str], size: int | None) -> int:
    """Prints the result; the exit code. `size` is the number of ids where the embedding is not known."""
    print(shown)
    for problem in dict.fromkeys(problems):
        print(f"DISAGREES: {problem}")
    if problems:
        return 1
    print(f"all agree{f'; T5Config.vocab_size = {_rows(size)} has a row for each' if size else ''}")
    sys.stdout.flush()
    return 0
