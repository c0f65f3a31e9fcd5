"""`limba vocab check MODEL`: do all libraries that read a model's vocabulary give the same ids?

Compared are SentencePiece itself, SeqIO (with the model's extra_ids: what training sees), Hugging Face's fast and slow
tokenizers (what users of an export see), and the rows of the embedding, on some thousand texts. MODEL is a
SentencePiece model, a checkpoint or run's directory of Limba or T5X, a Hugging Face folder, or a tokenizer.json.
"""

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from limba.addons.surgery import tokenizer_readers
from limba.addons.surgery.tokenizer_readers import Encode, Outcome
from limba.checkpoint_files import run_folder
from limba.convert.compare import transformers_library
from limba.convert.model_files import any_format, t5_vocabularies
from limba.convert.model_files.hf import hf_folder, hf_tokenizer
from limba.convert.model_files.model import ModelHints
from limba.data.sentinels import counts_down
from limba.devices import native_logs
from limba.files import named_flags
from limba.reports import text_width

_SPECIAL_IDS = {token: id_ for id_, token in enumerate(hf_tokenizer.SPECIAL_TOKENS)}
_SENTINELS = (0, 1, 99)
_NOT_INSTALLED = "transformers is not installed"
_TRAIN = "Train a new one with `limba vocab build`."
# Of the characters or tokens of the user's text; emoji and rare signs of a text of its own language are far below it.
_MOST_UNKNOWN = 0.02
_SIZE, _SEQIO, _HUGGING_FACE = "ids", "SeqIO", ("HF fast", "HF slow")


@dataclasses.dataclass(frozen=True)
class Implementation:
    """A library that reads the vocabulary: a column of the table.

    Attributes:
      name: of the column.
      ids: by token, and the number of ids under "ids"; tokens that it does not have are left out.
      encode: gives the ids of texts, without EOS; None if it takes no text.
      note: why the library cannot be compared; then there are no ids.
      is_compared: False where there should be something to compare, and is not.
    """

    name: str
    ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    encode: Encode | None = None
    note: str = ""
    is_compared: bool = True


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
        if path.suffix == ".json":
            return ModelVocabulary(hf_tokenizer.describe(path))
        return ModelVocabulary(hf_tokenizer.open_model(path, extra_ids).vocabulary)
    hints = ModelHints(vocab=vocab, extra_ids=extra_ids)
    if path.is_dir() and (hf_folder.is_folder(path) or (path / "tokenizer_config.json").is_file()):
        return _open_folder(path, hints)
    if "://" not in model and not path.exists():
        raise FileNotFoundError(
            f"{model} does not exist (working directory {Path.cwd()}). Give a SentencePiece model, a "
            "tokenizer.json, a checkpoint, a run's directory, or a Hugging Face folder."
        )
    opened = any_format.open_model(model, hints)
    if opened.vocabulary is None:
        raise FileNotFoundError(f"{model} does not say its vocabulary; give the SentencePiece model with --vocab FILE.")
    return ModelVocabulary(opened.vocabulary, opened.config.vocab_size)


def _open_folder(path: Path, hints: ModelHints) -> ModelVocabulary:
    from limba.tasks.vocabularies import tokenizer_texts

    config = hf_tokenizer.read_json(path / "config.json")
    problems: tuple[str, ...] = ()
    try:
        vocabulary = t5_vocabularies.of_folder(path, hints)
    except ValueError as error:
        if not (path / hf_tokenizer.SPIECE).is_file():
            raise
        problems = (str(error),)
        vocabulary = hf_tokenizer.open_model(path / hf_tokenizer.SPIECE, hints.extra_ids).vocabulary
    if vocabulary is None:
        raise FileNotFoundError(
            f"{path} has no tokenizer files; give the SentencePiece model with --vocab FILE, or copy them there."
        )
    has_both = all((path / name).is_file() for name in (hf_tokenizer.SPIECE, "tokenizer.json"))
    if vocabulary["class"] == run_folder.T5_TOKENIZERS and has_both:
        found = tokenizer_texts.differences_of_files(
            hf_tokenizer.open_model(path / hf_tokenizer.SPIECE, None).vocabulary, path
        )
        if found:
            described = found.describe("tokenizer.json", hf_tokenizer.SPIECE)
            problems = (f"{described}. transformers reads tokenizer.json.",)
    return ModelVocabulary(vocabulary, config.get("vocab_size"), path, problems)


# ------------------------------------------------------- the readers -------------------------------------------------


def implementations(checked: ModelVocabulary) -> Iterator[Implementation]:
    """The columns of the table, the embedding aside."""
    vocabulary = checked.vocabulary
    file, is_bytes = vocabulary["sentencepiece_model_file"], run_folder.is_bytes(vocabulary)
    note = "bytes need no model" if is_bytes else "the vocabulary is a tokenizer.json"
    yield _sentencepiece(file) if file else Implementation("SentencePiece", note=note)
    yield _seqio(vocabulary)
    if transformers_library.version() is None:
        yield from (Implementation(name, note=_NOT_INSTALLED, is_compared=False) for name in _HUGGING_FACE)
        return
    with contextlib.ExitStack() as stack:
        folder = checked.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="limba-vocabulary-")))
            try:
                hf_tokenizer.write(hf_tokenizer.from_vocabulary(vocabulary), folder)
            except ValueError as error:
                note = f"cannot be written: {error}"
                yield from (Implementation(name, note=note, is_compared=False) for name in _HUGGING_FACE)
                return
        yield from _transformers(folder, is_bytes)


def _sentencepiece(file: str) -> Implementation:
    model = sentencepiece.SentencePieceProcessor(model_file=file)
    ids = {"<pad>": model.pad_id(), "</s>": model.eos_id(), "<unk>": model.unk_id(), _SIZE: model.get_piece_size()}
    for i in _SENTINELS:
        for piece in (f"▁<extra_id_{i}>", f"<extra_id_{i}>"):
            if model.id_to_piece(id_ := model.piece_to_id(piece)) == piece:
                ids[f"<extra_id_{i}>"] = id_
    return Implementation("SentencePiece", ids, lambda texts: model.encode(list(texts)))


def _seqio(vocabulary: Mapping[str, Any]) -> Implementation:
    """SeqIO's ids, by the vocabularies that training uses, whose ids are the same."""
    from limba.tasks.pretraining import masked_text
    from limba.tasks.vocabularies import sentencepiece_models, tokenizer_texts

    extra_ids, opened = vocabulary["extra_ids"], masked_text.open_vocabulary(vocabulary)
    try:
        size = opened.vocab_size
    except RuntimeError as error:
        return Implementation(_SEQIO, note=f"does not open it with extra_ids={extra_ids}: {error}", is_compared=False)
    sentinels = sentencepiece_models.sentinel_ids(opened)
    ids: dict[str, Any] = {"<pad>": opened.pad_id, "</s>": opened.eos_id, "<unk>": opened.unk_id, _SIZE: size}
    # What span corruption takes.
    ids |= {f"<extra_id_{i}>": sentinels[i] for i in _SENTINELS if i < len(sentinels)}
    # SeqIO knows only sentinels that count down from the last id.
    is_seqio = vocabulary["class"] != run_folder.T5_TOKENIZERS and counts_down(sentinels, size)
    name = f"{_SEQIO}, extra_ids={extra_ids}" if is_seqio else "training"
    return Implementation(name, ids, tokenizer_texts.encoder_of(opened))


def _transformers(folder: Path, is_bytes: bool) -> Iterator[Implementation]:
    transformers = transformers_library.load()
    transformers.logging.set_verbosity_error()
    for name, wants_fast in zip(_HUGGING_FACE, (True, False), strict=True):
        if not (wants_fast or is_bytes or (folder / hf_tokenizer.SPIECE).is_file()):
            yield Implementation(name, note=f"has none, as there is no {hf_tokenizer.SPIECE}")
            continue
        try:
            transformers_library.check_named_files(folder)
            if wants_fast:
                tokenizer = transformers.AutoTokenizer.from_pretrained(
                    str(folder), use_fast=True, **transformers_library.NO_CODE
                )
            else:
                slow = transformers.ByT5Tokenizer if is_bytes else transformers.T5Tokenizer
                tokenizer = slow.from_pretrained(str(folder))
            if tokenizer is False:  # The class could not read its file, and has logged why.
                raise ValueError("it cannot read its file")
        except Exception as error:  # The library in Rust raises Exception itself.
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            yield Implementation(name, note=f"does not load: {reason}", is_compared=False)
            continue
        if tokenizer.is_fast != wants_fast:
            yield Implementation(name, note=f"transformers {transformers.__version__} has none for it")
            continue
        ids = {"<pad>": tokenizer.pad_token_id, "</s>": tokenizer.eos_token_id, "<unk>": tokenizer.unk_token_id}
        ids |= {_SIZE: len(tokenizer)}
        known = tokenizer.get_vocab()
        ids |= {token: known[token] for i in _SENTINELS if (token := f"<extra_id_{i}>") in known}
        yield Implementation(name, ids, _encode_of(tokenizer))


def _encode_of(tokenizer: Any) -> Encode:
    return lambda texts: tokenizer(list(texts), add_special_tokens=False).input_ids if texts else []


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
    again = _again(checked)
    ours = seqio_reader.name.partition(",")[0]
    for token, needed in _SPECIAL_IDS.items():
        for reader in found:
            if not reader.note and reader.ids.get(token) != needed:
                remedy = again if reader in hugging_face else _TRAIN
                yield f"{token} is {_shown(reader, token)} in {reader.name}, and {needed} in T5. {remedy}"
    if not any(token in seqio_reader.ids for token in map("<extra_id_{}>".format, _SENTINELS)):
        remedy = "Open it with extra_ids=100." if plain.ids else "Google's ByT5 is so; a new one takes extra_ids=100."
        yield f"There are no sentinels with extra_ids={checked.vocabulary['extra_ids']}. {remedy}"
    for token in map("<extra_id_{}>".format, _SENTINELS):
        if token in plain.ids and plain.ids[token] != seqio_reader.ids.get(token):
            yield (
                f"{token} is {plain.ids[token]} in SentencePiece, and {_shown(seqio_reader, token)} in SeqIO with "
                f"extra_ids={checked.vocabulary['extra_ids']}. It has sentinels of its own: open it with extra_ids=0."
            )
        for reader in hugging_face:
            if not reader.note and reader.ids.get(token) != seqio_reader.ids.get(token):
                expected_id = _shown(seqio_reader, token)
                yield f"{token} is {_shown(reader, token)} in {reader.name}, and {expected_id} in {ours}. {again}"
    for reader in hugging_face:
        if not reader.note and reader.ids[_SIZE] != seqio_reader.ids[_SIZE]:
            yield f"{reader.name} has {reader.ids[_SIZE]} ids, and {ours} {seqio_reader.ids[_SIZE]}. {again}"
    size, rows = seqio_reader.ids[_SIZE], checked.embedding_rows
    if rows is not None and rows < size:
        yield (
            f"The embedding has {rows} rows for {size} ids: the last {size - rows}, the sentinels first of all, are "
            f"lost. Set T5Config.vocab_size to {_rows(size)} or more."
        )


def compare_texts(found: Sequence[Implementation], checked: ModelVocabulary) -> tuple[list[str], list[str]]:
    """What disagrees on texts of every kind, and on those that training does not read as such, in whole sentences."""
    from limba.tasks.pretraining import masked_text
    from limba.tasks.vocabularies import tokenizer_texts

    _, seqio_reader, *hugging_face = found
    if seqio_reader.encode is None:
        return [], []
    vocabulary, encode = masked_text.open_vocabulary(checked.vocabulary), seqio_reader.encode
    texts, is_tie = tokenizer_texts.texts_of(vocabulary), tokenizer_texts.ties_of(vocabulary)
    problems, notes = [], []

    def differences(kind: Sequence[str], reader: Implementation) -> Any:
        return tokenizer_texts.differences(kind, reader.encode or encode, encode, is_tie=is_tie)

    for reader in found:
        plain = differences(texts.plain, reader)
        if plain:
            problems.append(f"{plain.describe(reader.name, seqio_reader.name)}. {_again(checked)}")
        if plain.ties:
            notes.append(f"{plain.describe_ties(reader.name, seqio_reader.name)}. The model knows both.")
    for reader in hugging_face:
        if decomposed := differences(texts.decomposed, reader):
            what = decomposed.describe(reader.name, seqio_reader.name)
            notes.append(f"Of letters apart from their accents, {what}. Put texts into Unicode's form NFC.")
        if "<extra_id_0>" in reader.ids and (beside := differences(texts.with_sentinels, reader)):
            what = beside.describe(reader.name, seqio_reader.name)
            notes.append(f"Beside sentinels, {what}. Training sets sentinels between tokens, so it is not concerned.")
    return problems, notes


def texts_of(vocabulary: Mapping[str, Any]) -> Any:
    """Texts that are made of the vocabulary's pieces."""
    from limba.tasks.pretraining import masked_text
    from limba.tasks.vocabularies import tokenizer_texts

    return tokenizer_texts.texts_of(masked_text.open_vocabulary(vocabulary))


def _again(checked: ModelVocabulary) -> str:
    if checked.folder is None:
        return _TRAIN
    return f"Write the tokenizer of {checked.folder} again: `limba convert to-hf`."


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
    plain = texts_of(checked.vocabulary).plain if found[1].encode else ()
    sums = [f"{sum(map(len, r.encode(plain))):,}" if r.encode else "-" for r in present]
    rows.append([f"ids of {len(plain):,} texts", *sums, ""])
    return "\n".join([*text_width.columns(rows), *(f"{reader.name}: {reader.note}" for reader in found if reader.note)])


def main(argv: Sequence[str]) -> int:
    """Prints the table and what disagrees; the exit code is 1 if anything does, or too much of a text is unknown."""
    parser = named_flags.Parser(
        prog="limba vocab check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--vocab", metavar="FILE", help="the SentencePiece model, where MODEL does not say it")
    sentinels = "sentinels behind its pieces (100; 0 if it has some)"
    parser.add_argument("--extra_ids", type=int, metavar="N", help=sentinels)
    parser.add_argument("--embedding_rows", type=int, metavar="N", help="vocab_size of a network, where MODEL has none")
    own = parser.add_argument_group("how much of a text of your own is unknown")
    own.add_argument("--data_files", nargs="+", action="extend", metavar="F", help="files, patterns or URLs")
    own.add_argument("--text_column", default="text", help="the column with the text (text)")
    own.add_argument("--max_documents", type=int, default=100_000, metavar="N", help="read no more (100000)")
    most = f"share of unknown characters or tokens above which the exit code is 1 ({_MOST_UNKNOWN:g}; 1 allows all)"
    own.add_argument("--max_unknown", type=float, default=_MOST_UNKNOWN, metavar="SHARE", help=most)
    args = parser.parse_args(argv)
    if not 0 <= args.max_unknown <= 1:
        parser.error(f"--max_unknown is {args.max_unknown}; it is a share, such as {_MOST_UNKNOWN:g}; 1 allows all")
    for name, least in (("extra_ids", 0), ("embedding_rows", 1), ("max_documents", 1)):
        number = getattr(args, name)
        if number is not None and number < least:
            parser.error(f"--{name} is {number}; it is at least {least}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Nothing here needs an accelerator.
    if (file := tokenizer_readers.find_file(args.model)) is not None:
        unknown = _measure(run_folder.tokenizer_record(str(file), 0), args)
        place = Path(args.model).expanduser()
        outcome = tokenizer_readers.check(file, args.embedding_rows, place if place.is_dir() else None)
        return _report(outcome, unknown, "EncoderConfig")
    checked = open_vocabulary(args.model, args.vocab, args.extra_ids)
    unknown = _measure(checked.vocabulary, args)
    if args.embedding_rows is not None:
        checked = dataclasses.replace(checked, embedding_rows=args.embedding_rows)
    with native_logs.filtered():  # SeqIO brings TensorFlow in.
        found = list(implementations(checked))
    problems, notes = compare_texts(found, checked)
    missing = [f"{reader.name} ({reader.note})" for reader in found if not reader.is_compared]
    size = None if checked.embedding_rows else found[1].ids.get(_SIZE)
    outcome = Outcome(table(found, checked), [*compare(found, checked), *problems], missing, notes, size)
    return _report(outcome, unknown)


@dataclasses.dataclass(frozen=True)
class _OfText:
    """What a vocabulary does not know of the user's text: the amount in words, and the problem if it is too much."""

    amount: str = ""
    problem: str = ""


def _measure(vocabulary: Mapping[str, Any], args: argparse.Namespace) -> _OfText:
    """Prints how much of the user's text is unknown."""
    if args.data_files is None:
        return _OfText()
    from limba.addons.surgery import text_columns
    from limba.tasks.pretraining import masked_text
    from limba.tasks.vocabularies import known_text

    texts = text_columns.texts_of_files(args.data_files, args.text_column, args.max_documents)
    measure = known_text.measure(masked_text.open_vocabulary(vocabulary), texts)
    for line in measure.describe():
        print(line)
    if not measure.unknown_tokens:
        return _OfText()
    count, what = measure.unknown.number, "character"
    if not count:
        count, what = measure.unknown_tokens, "token"
    amount = f"1 {what} of your text is unknown" if count == 1 else f"{count:,} {what}s of your text are unknown"
    share, of = max((measure.unknown.share, "characters"), (measure.unknown_tokens / measure.tokens, "tokens"))
    if share <= args.max_unknown:
        return _OfText(amount)
    return _OfText(
        amount,
        f"{share:.1%} of the {of} of your text are unknown, more than --max_unknown {args.max_unknown:g}: the model "
        "neither reads nor writes them. Take a vocabulary of this text (`limba vocab build --data_files`, with "
        "--byte_fallback nothing is unknown), or allow it with --max_unknown 1.",
    )


def _report(outcome: Outcome, unknown: _OfText, config: str = "T5Config") -> int:
    """Prints the result; the exit code.

    Args:
      unknown: what is unknown of the user's text.
      config: the network's, for which the vocabulary is.
    """
    print(outcome.table)
    for problem in dict.fromkeys(outcome.problems):
        print(f"DISAGREES: {problem}")
    for note in outcome.notes:
        print(f"differs: {note}")
    for reader in outcome.not_compared:
        print(f"not compared: {reader}")
    if unknown.problem:
        print(f"UNKNOWN: {unknown.problem}")
    if outcome.problems or unknown.problem:
        return 1
    agree = "what was compared agrees" if outcome.not_compared or outcome.notes else "all agree"
    rows = f"; {config}.vocab_size = {_rows(outcome.size)} has a row for each" if outcome.size else ""
    warning = f"; but {unknown.amount}, see above" if unknown.amount else ""
    print(f"{agree}{rows}{warning}")
    sys.stdout.flush()
    return 0
