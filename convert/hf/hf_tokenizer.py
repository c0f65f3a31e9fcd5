"""The tokenizer files of a Hugging Face T5, mT5, umT5 or ByT5, written and read without transformers.

A vocabulary is SeqIO's: a SentencePiece model or bytes, and `extra_ids` sentinels behind them. `<extra_id_0>` is the
last id, `<extra_id_1>` the one before. mT5's SentencePiece model holds its sentinels as its last pieces. If no
SentencePiece model tokenizes like a tokenizer.json, that file is the vocabulary, sentinels included.

What is written loads as a fast tokenizer, from tokenizer.json; `spiece.model` is for other readers.
transformers' ByT5Tokenizer counts sentinels upward from 259 unless `added_tokens_decoder` says otherwise.
"""

import atexit
import dataclasses
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from convert.hf import tokenizer_json
from limba.checkpoint_files import run_folder
from limba.machine import json_text, untrusted_json

# Hugging Face's name of the SentencePiece model.
SPIECE = "spiece.model"
SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")
_SENTINEL = re.compile(r"▁?<extra_id_(\d+)>")
# Padding, EOS, unknown, and 256 bytes.
NUM_BYTE_IDS = 3 + 256
# What transformers and T5's own tasks take where nothing is said.
_DEFAULT_EXTRA_IDS = 100


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary in T5's layout: padding 0, EOS 1, unknown 2, and sentinels at the end.

    Attributes:
      model: the SentencePiece model, serialized; None for `seqio.ByteVocabulary` and a tokenizer.json.
      num_pieces: ids before the `extra_ids`.
      extra_ids: sentinels behind them.
      own_sentinels: how many of the last pieces are sentinels.
      model_file: where the model or tokenizer.json is; None for bytes.
      warnings: what a user of an export should know, in whole sentences.
    """

    model: bytes | None
    num_pieces: int
    extra_ids: int
    own_sentinels: int = 0
    model_file: Path | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_json(self) -> bool:
        """Whether the vocabulary is a tokenizer.json."""
        return self.model_file is not None and self.model is None

    @property
    def vocab_size(self) -> int:
        return self.num_pieces + self.extra_ids

    @property
    def special_tokens(self) -> dict[int, str]:
        """Special tokens by id, sentinels included."""
        sentinels = {self.vocab_size - 1 - i: f"<extra_id_{i}>" for i in range(self.extra_ids or self.own_sentinels)}
        return dict(enumerate(SPECIAL_TOKENS)) | sentinels

    @property
    def vocabulary(self) -> dict[str, Any]:
        """The description in `run.json`."""
        if self.is_json:
            return run_folder.tokenizer_record(str(self.model_file), self.vocab_size, run_folder.T5_TOKENIZERS)
        kind = run_folder.SENTENCEPIECE if self.model_file else run_folder.BYTES
        file = str(self.model_file.absolute()) if self.model_file else None
        return run_folder.vocabulary_record(kind, file, self.extra_ids, self.vocab_size)


def check_sizes(vocabulary: Mapping[str, Any], embedding_rows: int, where: str) -> None:
    """Raises ValueError if the vocabulary, as `run.json` describes it, has more ids than the embedding has rows."""
    if vocabulary["vocab_size"] > embedding_rows:
        name = run_folder.vocabulary_file(vocabulary) or vocabulary["class"]
        raise ValueError(
            f"The vocabulary {name!r} has {vocabulary['vocab_size']} ids, sentinels included, and the embedding of "
            f"{where} has only {embedding_rows} rows; they do not belong together."
        )


# ------------------------------------------------------- of a run -----------------------------------------------------


def from_vocabulary(vocabulary: Mapping[str, Any], model_file: str | None = None) -> Tokenizer:
    """The tokenizer of a run whose `run.json` has this vocabulary; `model_file` says where it is, if it was moved.

    Raises:
      FileNotFoundError: if the SentencePiece model is missing.
      ValueError: for another kind of vocabulary, one without T5's special ids, or of another size than in the run.
    """
    kind = vocabulary["class"]
    if kind == run_folder.BYTES:
        tokenizer = Tokenizer(None, NUM_BYTE_IDS, vocabulary["extra_ids"])
        what = f"A ByteVocabulary has {NUM_BYTE_IDS} ids"
    elif kind == run_folder.SENTENCEPIECE:
        tokenizer = _from_file(model_file or vocabulary["sentencepiece_model_file"], vocabulary["extra_ids"])
        what = f"The vocabulary {str(tokenizer.model_file)!r} has {tokenizer.num_pieces} pieces"
    elif kind == run_folder.T5_TOKENIZERS:
        tokenizer = _from_json(model_file or vocabulary["tokenizer_file"])
        what = f"The vocabulary {str(tokenizer.model_file)!r} has {tokenizer.num_pieces} tokens"
    else:
        raise ValueError(
            f"The run's vocabulary is a {kind}; only a SentencePieceVocabulary, a ByteVocabulary or a "
            "T5TokenizerVocabulary can be converted."
        )
    if tokenizer.vocab_size != vocabulary["vocab_size"]:
        raise ValueError(
            f"{what} and {tokenizer.extra_ids} sentinels, {tokenizer.vocab_size} ids; the run had "
            f"{vocabulary['vocab_size']}. It is another vocabulary than in training."
        )
    return tokenizer


def describe(model_file: str | Path, extra_ids: int | None = None) -> dict[str, Any]:
    """What `run.json` would say of a SentencePiece model, or of the tokenizer.json of a T5.

    `extra_ids` are the sentinels behind its pieces; None for 0 if it holds sentinels of its own, else 100. A
    tokenizer.json holds its own.

    Raises:
      FileNotFoundError: if it is missing.
      ValueError: if it is neither, or without T5's special ids.
    """
    if str(model_file).endswith(".json"):
        return _from_json(model_file).vocabulary
    return _from_file(model_file, extra_ids).vocabulary


def _from_json(file: str | Path) -> Tokenizer:
    """A T5's tokenizer.json as a vocabulary; the errors are those of `describe`."""
    from tasks.vocabularies import T5TokenizerVocabulary, sentencepiece_models

    path = Path(file).expanduser()
    opened = T5TokenizerVocabulary(str(path))
    token = opened.tokenizer.id_to_token
    if (names := tuple(map(token, range(3)))) != SPECIAL_TOKENS:
        raise ValueError(f"The first tokens of {str(path)!r} are {names}; a T5 tokenizer has {SPECIAL_TOKENS}.")
    return Tokenizer(None, opened.vocab_size, 0, sentencepiece_models.num_sentinels(opened), path)


def _from_file(model_file: str | Path, extra_ids: int | None) -> Tokenizer:
    """As `open_model`; raises ValueError for other special ids than T5's."""
    tokenizer = open_model(model_file, extra_ids)
    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    where, ids = repr(str(tokenizer.model_file)), {"pad": model.pad_id(), "eos": model.eos_id(), "unk": model.unk_id()}
    if ids != {"pad": 0, "eos": 1, "unk": 2}:
        raise ValueError(f"The vocabulary {where} has the special ids {ids}; a T5 tokenizer needs pad 0, eos 1, unk 2.")
    names = tuple(model.id_to_piece(id_) for id_ in range(3))
    if names != SPECIAL_TOKENS:
        raise ValueError(f"The vocabulary {where} calls its special tokens {names}; T5 calls them {SPECIAL_TOKENS}.")
    return tokenizer


def open_model(model_file: str | Path, extra_ids: int | None) -> Tokenizer:
    """Any SentencePiece model, whatever its special ids are; the arguments and other errors are those of `describe`."""
    path = Path(model_file).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no SentencePiece model {str(path)!r} (working directory {str(Path.cwd())!r}); "
            "say where it is with --vocab FILE."
        )
    serialized, where = path.read_bytes(), repr(str(path))
    try:
        sentencepiece.SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise ValueError(f"{where} is not a SentencePiece model.") from error
    proto = sentencepiece_pb2.ModelProto.FromString(serialized)
    num_pieces = len(proto.pieces)
    own = 0
    while proto.pieces[num_pieces - 1 - own].piece in (f"▁<extra_id_{own}>", f"<extra_id_{own}>"):
        own += 1
    if extra_ids is None:
        extra_ids = 0 if own else _DEFAULT_EXTRA_IDS
    unusual = " and ".join(_unusual(proto, num_pieces - own))
    warning = f"The vocabulary {where} {unusual}: transformers' tokenizers give other ids for some texts."
    return Tokenizer(serialized, num_pieces, extra_ids, own, path, (warning,) if unusual else ())


def _unusual(proto: sentencepiece_pb2.ModelProto, num_pieces: int) -> Iterator[str]:
    """What transformers does in another way."""
    if proto.trainer_spec.model_type != sentencepiece_pb2.TrainerSpec.UNIGRAM:
        yield "is not a unigram model"
    if not proto.normalizer_spec.remove_extra_whitespaces:
        yield "keeps repeated spaces"
    if not proto.normalizer_spec.add_dummy_prefix:
        yield "puts no space before a text"
    user_defined = [p.piece for p in proto.pieces[3:num_pieces] if p.type == tokenizer_json.Piece.USER_DEFINED]
    if user_defined:
        yield f"has symbols defined by its user ({', '.join(map(repr, user_defined[:3]))})"


# -------------------------------------------------------- writing -----------------------------------------------------


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer_config.json, special_tokens_map.json and, unless of bytes, `spiece.model` and tokenizer.json."""
    named = dict(zip(("pad_token", "eos_token", "unk_token"), SPECIAL_TOKENS, strict=True))
    special_tokens = tokenizer.special_tokens
    sentinels = [special_tokens[id_] for id_ in sorted(special_tokens, reverse=True) if id_ > 2]
    tokenizer_class = "ByT5Tokenizer"
    if tokenizer.is_json:
        assert tokenizer.model_file is not None
        tokenizer_class = "PreTrainedTokenizerFast"
        (folder / "tokenizer.json").write_bytes(tokenizer.model_file.read_bytes())
    if tokenizer.model is not None:
        (folder / SPIECE).write_bytes(tokenizer.model)
        proto = sentencepiece_pb2.ModelProto.FromString(tokenizer.model)
        tokenizer_class = "T5Tokenizer"
        if proto.trainer_spec.model_type == sentencepiece_pb2.TrainerSpec.UNIGRAM:
            # Version 5 takes the pieces only from tokenizer.json for a T5Tokenizer, but all of it for this class.
            tokenizer_class = "PreTrainedTokenizerFast"
            content = json_text.dumps(_json_of(tokenizer), ensure_ascii=False)
            (folder / "tokenizer.json").write_text(content, "utf-8")
    config = {
        "tokenizer_class": tokenizer_class,
        "legacy": False,
        "extra_ids": tokenizer.extra_ids,
        # The general class would add token_type_ids, which T5's generate refuses.
        "model_input_names": ["input_ids", "attention_mask"],
        "additional_special_tokens": sentinels,
        "added_tokens_decoder": {
            str(id_): {"content": special_tokens[id_], **tokenizer_json.FLAGS} for id_ in sorted(special_tokens)
        },
        "clean_up_tokenization_spaces": False,
        **named,
    }
    special_tokens_map = {**named, "additional_special_tokens": sentinels}
    (folder / "tokenizer_config.json").write_text(json_text.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    (folder / "special_tokens_map.json").write_text(json_text.dumps(special_tokens_map, indent=2) + "\n", "utf-8")


def _json_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of tokenizer.json for a SentencePiece model."""
    assert tokenizer.model is not None
    proto = sentencepiece_pb2.ModelProto.FromString(tokenizer.model)
    return tokenizer_json.from_model(proto, tokenizer.extra_ids, tokenizer.special_tokens)


# -------------------------------------------------------- reading -----------------------------------------------------


def temporary_file(content: bytes, name: str = SPIECE) -> Path:
    """A vocabulary in a file of that name, for as long as the process lives."""
    folder = Path(tempfile.mkdtemp(prefix="limba-vocabulary-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / name).write_bytes(content)
    return folder / name


def read(folder: Path) -> dict[str, Any]:
    """The vocabulary of a Hugging Face folder of T5's families, as `run.json` would describe it.

    Of two files that tokenize differently it is tokenizer.json, which transformers reads, and a warning says so. What
    tokenizer.json says is a SentencePiece model, for as long as the process lives, if one gives the same tokens.

    Raises:
      FileNotFoundError: if there is no SentencePiece model and no tokenizer.json.
      ValueError: if no vocabulary of SeqIO's gives the folder's ids; the tokens are named. Or if a file is damaged.
    """
    try:
        return _read(folder)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder}: a file of the tokenizer is damaged ({type(error).__name__}: {error}). Download it again, or "
            "give the SentencePiece model with --vocab FILE."
        ) from error


def _read(folder: Path) -> dict[str, Any]:
    from tasks.vocabularies import tokenizer_texts

    config = read_json(folder / "tokenizer_config.json")
    classes = (config.get("tokenizer_class"), read_json(folder / "config.json").get("tokenizer_class"))
    if "ByT5Tokenizer" in classes:
        return _read_bytes(folder, config)
    fast = read_json(folder / "tokenizer.json")
    model_file = folder / SPIECE
    if not model_file.is_file():
        if not fast:
            raise FileNotFoundError(
                f"{folder} has no spiece.model and no tokenizer.json; give the SentencePiece model with --vocab FILE."
            )
        return _of_json(folder, config, fast)
    tokenizer = _with_model(folder, model_file, config, fast)
    # What `write` makes of the SentencePiece model that a run had needs no comparison.
    if (
        not fast
        or fast == _json_of(tokenizer)
        or not (differences := tokenizer_texts.differences_of_files(tokenizer.vocabulary, folder))
    ):
        return tokenizer.vocabulary
    found = _of_json(folder, config, fast)
    print(
        f"warning: {folder} has two tokenizers: {differences.describe('tokenizer.json', SPIECE)}. The run takes "
        f"tokenizer.json, as transformers does; --vocab {model_file} takes the other.",
        file=sys.stderr,
    )
    return found


def _of_json(folder: Path, config: Mapping[str, Any], fast: Mapping[str, Any]) -> dict[str, Any]:
    """What a folder's tokenizer.json says: a SentencePiece model if one gives the same tokens, else the file itself."""
    from tasks.vocabularies import tokenizer_texts

    file = folder / "tokenizer.json"
    try:
        model = tokenizer_json.to_model(fast, _num_sentinels(fast), str(file))
    except tokenizer_json.OtherThanSentencePiece:
        return _from_json(file).vocabulary
    tokenizer = _with_model(folder, temporary_file(model.SerializeToString()), config, fast)
    return (
        _from_json(file).vocabulary
        if tokenizer_texts.differences_of_files(tokenizer.vocabulary, folder)
        else tokenizer.vocabulary
    )


def _with_model(folder: Path, model_file: Path, config: Mapping[str, Any], fast: Mapping[str, Any]) -> Tokenizer:
    """The folder's vocabulary with this SentencePiece model. The errors are those of `read`."""
    try:
        tokenizer = _from_file(model_file, None)
    except ValueError as error:
        raise ValueError(f"{folder} has a damaged tokenizer: {error}") from error
    assert tokenizer.model is not None
    pieces = [piece.piece for piece in sentencepiece_pb2.ModelProto.FromString(tokenizer.model).pieces]
    for id_, (entry, piece) in enumerate(zip(_entries(fast), pieces, strict=False)):
        if entry != piece and not (_SENTINEL.fullmatch(entry) and entry == piece.removeprefix("▁")):
            raise ValueError(
                f"{folder} holds two vocabularies: id {id_} is {piece!r} in spiece.model and {entry!r} in "
                "tokenizer.json. Give the right SentencePiece model with --vocab FILE."
            )
    added = _added_tokens(folder, config, fast)
    named = [token for token in added if _SENTINEL.fullmatch(token)]
    behind = sum(1 for token in named if added[token] >= tokenizer.num_pieces)
    extra_ids = behind if named else config.get("extra_ids", tokenizer.extra_ids)
    tokenizer = dataclasses.replace(tokenizer, extra_ids=extra_ids)
    _check_added_tokens(added, tokenizer, pieces, folder)
    return tokenizer


def _num_sentinels(fast: Mapping[str, Any]) -> int:
    """How many of the last entries of tokenizer.json are sentinels; a piece of SentencePiece's begins with "▁"."""
    entries = _entries(fast)
    count = 0
    while count < len(entries) and entries[-1 - count] == f"<extra_id_{count}>":
        count += 1
    return count


def _entries(fast: Mapping[str, Any]) -> list[str]:
    """The tokens of a unigram tokenizer.json, empty for another one."""
    vocab = fast.get("model", {}).get("vocab")
    return [entry[0] for entry in vocab] if isinstance(vocab, list) else []


def _read_bytes(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    added = _added_tokens(folder, config, {})
    sentinels = {int(match[1]): id_ for token, id_ in added.items() if (match := _SENTINEL.fullmatch(token))}
    # Without ids transformers numbers them, 125 if nothing is said, upward.
    count = len(sentinels) or config.get("extra_ids", 125)
    upward = {i: NUM_BYTE_IDS + i for i in range(count)}
    downward = {i: NUM_BYTE_IDS + count - 1 - i for i in range(count)}
    sentinels = sentinels or upward
    if sentinels == downward:
        return Tokenizer(None, NUM_BYTE_IDS, count).vocabulary
    if sentinels != upward:
        raise ValueError(
            f"{folder} gives its sentinels the ids {_some(sentinels)}; a ByteVocabulary of SeqIO's with {count} gives "
            f"them {_some(downward)}."
        )
    print(
        f"warning: {folder} numbers its {count} sentinels upward from {NUM_BYTE_IDS}, as transformers does for every "
        "ByT5; SeqIO counts down from the last id. Google's ByT5 knows none of them: it was trained with extra_ids=0, "
        "where 258, 257, … stand for masked spans. The vocabulary is taken with extra_ids=0; for a model that was "
        f"trained otherwise bind seqio.ByteVocabulary.extra_ids = {count}.",
        file=sys.stderr,
    )
    return Tokenizer(None, NUM_BYTE_IDS, 0).vocabulary


def _added_tokens(folder: Path, config: Mapping[str, Any], fast: Mapping[str, Any]) -> dict[str, int]:
    """All tokens that the folder's files give an id, other than through the SentencePiece model.

    Raises:
      ValueError: if two files give one token two ids.
    """
    decoder = config.get("added_tokens_decoder", {})
    found = [
        ("tokenizer.json", {token["content"]: token["id"] for token in fast.get("added_tokens", ())}),
        ("tokenizer.json", {token: i for i, token in enumerate(_entries(fast)) if token.startswith("<extra_id_")}),
        ("tokenizer_config.json", {token["content"]: int(id_) for id_, token in decoder.items()}),
        ("added_tokens.json", read_json(folder / "added_tokens.json")),
    ]
    added: dict[str, tuple[int, str]] = {}
    for file, tokens in found:
        for token, id_ in tokens.items():
            before, other = added.setdefault(token, (id_, file))
            if before != id_:
                raise ValueError(f"In {folder}, {other} gives {token!r} the id {before}, and {file} gives it {id_}.")
    return {token: id_ for token, (id_, _) in added.items()}


def _check_added_tokens(added: Mapping[str, int], tokenizer: Tokenizer, pieces: list[str], folder: Path) -> None:
    """Raises ValueError if a token of the folder has another id in SeqIO's vocabulary, or none."""
    ours = {token: id_ for id_, token in tokenizer.special_tokens.items()}
    ours |= {piece: id_ for id_, piece in enumerate(pieces)}
    wrong = {token: id_ for token, id_ in added.items() if ours.get(token) != id_}
    if wrong:
        seqio = {token: ours[token] for token in wrong if token in ours}
        raise ValueError(
            f"{folder} gives {len(wrong)} tokens ids that SeqIO's SentencePieceVocabulary with {tokenizer.extra_ids} "
            f"sentinels does not give them: {_some(wrong)}; there "
            f"{f'they are {_some(seqio)}' if seqio else 'they have none'}. Take them out of the folder's tokenizer "
            "files if the data never contain them, or give a SentencePiece model that has them with --vocab FILE."
        )


def _some(ids: Mapping[Any, int]) -> str:
    shown = [f"{x if isinstance(x, str) else f'<extra_id_{x}>'} {ids[x]}" for x in [*ids][:3]]
    return ", ".join(shown) + (", …" if len(ids) > 3 else "")


def read_json(path: Path) -> dict[str, Any]:
    """The content, empty if there is no such file.

    Raises:
      ValueError: if it is damaged.
    """
    return untrusted_json.read_object(path) if os.path.lexists(path) else {}
