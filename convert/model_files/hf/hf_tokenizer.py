"""The tokenizer files of a Hugging Face T5, mT5, umT5 or ByT5, written without transformers; `folder_tokenizer` reads.

A vocabulary is SeqIO's: a SentencePiece model or bytes, and `extra_ids` sentinels behind them. `<extra_id_0>` is the
last id, `<extra_id_1>` the one before. mT5's SentencePiece model holds its sentinels as its last pieces. If no
SentencePiece model tokenizes like a tokenizer.json, or its sentinels stand elsewhere, that file is the vocabulary.

What is written loads as a fast tokenizer, from tokenizer.json; `spiece.model` is for other readers.
transformers' ByT5Tokenizer counts sentinels upward from 259 unless `added_tokens_decoder` says otherwise.
"""

import atexit
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from limba.checkpoint_files import run_folder
from limba.convert.model_files.hf import special_tokens, tokenizer_folder, tokenizer_json, tokenizer_settings
from limba.convert.model_files.hf.special_tokens import OF_T5, PAD_ID, SpecialToken, SpecialTokens
from limba.convert.model_files.hf.tokenizer_settings import Settings
from limba.data.sentinels import NAME, find_sentinels
from limba.files import json_text, untrusted_files, untrusted_json

# Hugging Face's name of the SentencePiece model.
SPIECE = "spiece.model"
SPECIAL_TOKENS = tuple(OF_T5.by_id.values())
# Padding, EOS, unknown, and 256 bytes.
NUM_BYTE_IDS = 3 + 256
# What transformers and T5's own tasks take where nothing is said.
DEFAULT_EXTRA_IDS = 100
T5_CLASSES = ("T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast")
_GENERAL_CLASS = "PreTrainedTokenizerFast"


class NoVocabularyError(FileNotFoundError):
    """Nothing tells a model's vocabulary. Converters take it with --vocab."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary of a T5: padding is 0, and sentinels are usually at the end.

    Attributes:
      model: the SentencePiece model, serialized; None for `seqio.ByteVocabulary` and a tokenizer.json.
      num_pieces: ids before the `extra_ids`.
      extra_ids: sentinels behind them.
      own_sentinels: the ids of the pieces that are sentinels, `<extra_id_0>` first.
      sentinel_names: of `own_sentinels`, where they are not `<extra_id_0>`, `<extra_id_1>` …
      model_file: where the model or tokenizer.json is; None for bytes.
      special: its special tokens.
      warnings: what a user of an export should know, in whole sentences.
    """

    model: bytes | None
    num_pieces: int
    extra_ids: int
    own_sentinels: tuple[int, ...] = ()
    sentinel_names: tuple[str, ...] = ()
    model_file: Path | None = None
    special: SpecialTokens = OF_T5
    warnings: tuple[str, ...] = ()

    @property
    def is_json(self) -> bool:
        """Whether the vocabulary is a tokenizer.json."""
        return self.model_file is not None and self.model is None

    @property
    def vocab_size(self) -> int:
        return self.num_pieces + self.extra_ids

    @property
    def sentinels(self) -> tuple[int, ...]:
        """The ids of `<extra_id_0>`, `<extra_id_1>` …"""
        behind = tuple(self.vocab_size - 1 - i for i in range(self.extra_ids))
        return behind or self.own_sentinels

    @property
    def special_tokens(self) -> dict[int, str]:
        """Special tokens by id, sentinels included."""
        return self.special.by_id | dict(zip(self.sentinels, self.names_of_sentinels, strict=True))

    @property
    def names_of_sentinels(self) -> list[str]:
        """Those of `sentinels`."""
        return list(self.sentinel_names) or [f"<extra_id_{i}>" for i in range(len(self.sentinels))]

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
            f"{where} has only {embedding_rows} rows; they do not belong together. Give the model's own vocabulary. If "
            "tokens were added to its tokenizer, take them out, or give the model rows for them in transformers: "
            "model.resize_token_embeddings(len(tokenizer))."
        )


# ------------------------------------------------------- of a run -----------------------------------------------------


def from_vocabulary(vocabulary: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a run whose `run.json` has this vocabulary.

    Raises:
      FileNotFoundError: if the SentencePiece model is missing.
      ValueError: for another kind of vocabulary, one whose padding is not 0, or of another size than in the run.
    """
    kind = vocabulary["class"]
    if kind == run_folder.BYTES:
        tokenizer = Tokenizer(None, NUM_BYTE_IDS, vocabulary["extra_ids"])
        what = f"A ByteVocabulary has {NUM_BYTE_IDS} ids"
    elif kind == run_folder.SENTENCEPIECE:
        tokenizer = from_file(vocabulary["sentencepiece_model_file"], vocabulary["extra_ids"])
        what = f"The vocabulary {str(tokenizer.model_file)!r} has {tokenizer.num_pieces} pieces"
    elif kind == run_folder.T5_TOKENIZERS:
        tokenizer = from_json(vocabulary["tokenizer_file"])
        what = f"The vocabulary {str(tokenizer.model_file)!r} has {tokenizer.num_pieces} tokens"
    else:
        raise ValueError(
            f"The run's vocabulary is a {untrusted_files.cut(kind)}; only a SentencePieceVocabulary, a ByteVocabulary "
            "or a T5TokenizerVocabulary can be converted."
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
      ValueError: if it is neither, or its padding is not 0, or it has no end.
    """
    if str(model_file).endswith(".json"):
        return from_json(model_file).vocabulary
    return from_file(model_file, extra_ids).vocabulary


def from_json(file: str | Path) -> Tokenizer:
    """A T5's tokenizer.json as a vocabulary; the errors are those of `describe`."""
    from limba.tasks.vocabularies import T5TokenizerVocabulary, sentencepiece_models

    path = Path(file).expanduser()
    opened = T5TokenizerVocabulary(str(path))
    ids = {"pad": opened.pad_id, "eos": -1 if opened.eos_id is None else opened.eos_id, "unk": opened.unk_id}
    special = _special(repr(str(path)), ids, opened.tokenizer.id_to_token)
    has_bytes = bool(untrusted_json.read_object(Path(opened.tokenizer_file))["model"].get("byte_fallback"))
    if special.unk and special.unk.id == PAD_ID and not has_bytes:
        raise ValueError(
            f"The vocabulary {str(path)!r} has {special.pad.name!r} for padding and for unknown characters, which a "
            "network would not see. Give a tokenizer whose padding is a token of its own."
        )
    ids_of_sentinels = sentencepiece_models.sentinel_ids(opened)
    names = [opened.tokenizer.id_to_token(id_) for id_ in ids_of_sentinels]
    others = () if any(map(NAME.fullmatch, names)) else tuple(names)
    return Tokenizer(None, opened.vocab_size, 0, ids_of_sentinels, others, path, special)


def from_file(model_file: str | Path, extra_ids: int | None) -> Tokenizer:
    """As `open_model`, with its special tokens; raises ValueError if its padding is not 0, or it has no end."""
    tokenizer = open_model(model_file, extra_ids)
    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    ids = {"pad": model.pad_id(), "eos": model.eos_id(), "unk": model.unk_id()}
    return dataclasses.replace(tokenizer, special=_special(repr(str(tokenizer.model_file)), ids, model.id_to_piece))


def _special(where: str, ids: Mapping[str, int | None], name_of: Callable[[int], str]) -> SpecialTokens:
    """The special tokens with these ids, -1 for one that is not there. Raises ValueError for those of no T5 of ours."""
    if ids["pad"] != PAD_ID or ids["eos"] in (PAD_ID, -1):
        raise ValueError(
            f"The vocabulary {where} has the special ids {dict(ids)}; a T5 needs the padding 0, and an end of its own, "
            "</s>. `limba convert from-hf FOLDER` takes another padding, if the tokenizer or config.json names it."
        )
    return SpecialTokens(*(None if id_ is None else SpecialToken(id_, name_of(id_)) for id_ in ids.values()))  # type: ignore[arg-type]


def open_model(model_file: str | Path, extra_ids: int | None) -> Tokenizer:
    """Any SentencePiece model, whatever its special ids are; the arguments and other errors are those of `describe`."""
    path = Path(model_file).expanduser()
    if not path.is_file():
        raise NoVocabularyError(
            f"There is no SentencePiece model {str(path)!r} (working directory {str(Path.cwd())!r}); "
            "say where it is with --vocab FILE."
        )
    serialized, where = untrusted_files.read_bytes(path), repr(str(path))
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=serialized)
    except RuntimeError as error:
        raise ValueError(f"{where} is not a SentencePiece model.") from error
    proto = sentencepiece_pb2.ModelProto.FromString(serialized)
    if (num_pieces := len(proto.pieces)) == 0:
        raise ValueError(f"{where} is not a SentencePiece model: it has no pieces.")
    own = find_sentinels(lambda piece: _id_of(processor, piece), num_pieces)
    if extra_ids is None:
        extra_ids = 0 if own else DEFAULT_EXTRA_IDS
    unusual = " and ".join(_unusual(proto, own))
    warning = f"The vocabulary {where} {unusual}: transformers' tokenizers give other ids for some texts."
    warnings = (warning,) if unusual else ()
    return Tokenizer(serialized, num_pieces, extra_ids, own, model_file=path, warnings=warnings)


def _id_of(model: sentencepiece.SentencePieceProcessor, piece: str) -> int | None:
    id_ = model.piece_to_id(piece)
    return id_ if model.id_to_piece(id_) == piece else None


def _unusual(proto: sentencepiece_pb2.ModelProto, sentinels: Sequence[int]) -> Iterator[str]:
    """What transformers does in another way."""
    if proto.trainer_spec.model_type != sentencepiece_pb2.TrainerSpec.UNIGRAM:
        yield "is not a unigram model"
    if not proto.normalizer_spec.remove_extra_whitespaces:
        yield "keeps repeated spaces"
    if not proto.normalizer_spec.add_dummy_prefix:
        yield "puts no space before a text"
    others = [piece for id_, piece in enumerate(proto.pieces) if id_ > 2 and id_ not in sentinels]
    user_defined = [piece.piece for piece in others if piece.type == tokenizer_json.Piece.USER_DEFINED]
    if user_defined:
        yield f"has symbols defined by its user ({', '.join(map(repr, user_defined[:3]))})"


# -------------------------------------------------------- writing -----------------------------------------------------


def write(
    tokenizer: Tokenizer,
    folder: Path,
    settings: Settings = tokenizer_settings.NONE,
    *,
    model_type: str = "t5",
    inputs_length: int | None = None,
) -> None:
    """Writes tokenizer_config.json, special_tokens_map.json and, unless of bytes, `spiece.model` and tokenizer.json.

    Args:
      settings: what the folder had from which the model came; its `pad_id` is that of the new folder.
      model_type: of the config.json beside it.
      inputs_length: of the run; None takes the `model_max_length` of the settings.
    """
    content = _write_vocabulary(tokenizer, folder, settings.pad_id)
    special_names = tokenizer.special._asdict().items()
    named = {f"{role}_token": token.name for role, token in special_names if token is not None}
    sentinels = tokenizer.names_of_sentinels
    in_bytes = tokenizer.model_file is None
    others = () if in_bytes else [token for token in settings.special_tokens if token not in named.values()]
    # The names of roles that a T5 does not have, such as a cls_token, are kept as they are.
    roles = {key: x for key, x in settings.others.items() if key.endswith("_token") and x}
    special = {**roles, **named, "additional_special_tokens": list(dict.fromkeys([*sentinels, *others]))}
    other = {PAD_ID: settings.pad_id, settings.pad_id: PAD_ID}
    ids = {other.get(id_, id_): token for id_, token in tokenizer.special_tokens.items()}
    added = {id_: {"id": id_, "content": token, **tokenizer_json.FLAGS} for id_, token in ids.items()}
    added |= {token["id"]: token for token in content.get("added_tokens", ())}
    config = {
        "tokenizer_class": "ByT5Tokenizer" if in_bytes else _class_of(tokenizer, content, settings, model_type),
        "legacy": False,
        "extra_ids": len(sentinels) if tokenizer.is_json else tokenizer.extra_ids,
        # The general class would add token_type_ids, which T5's generate refuses.
        "model_input_names": ["input_ids", "attention_mask"],
        "added_tokens_decoder": tokenizer_settings.added_tokens_decoder(list(added.values())),
        "clean_up_tokenization_spaces": settings.others.get("clean_up_tokenization_spaces", False),
        **({} if inputs_length is None else {"model_max_length": inputs_length}),
        **special,
    }
    tokenizer_settings.write(folder, config, special, _loadable(settings, config["tokenizer_class"], content))


def name_mask(folder: Path) -> None:
    """Names the first sentinel of a written tokenizer as mask token, and padding, which decoders begin with, as BOS.

    Texts keep their ids, because no token is new.

    Raises:
      ValueError: if the tokenizer has a mask token, or no `<extra_id_0>`.
    """
    names = ("tokenizer_config.json", "special_tokens_map.json")
    contents = {name: read_json(folder / name) for name in names if (folder / name).is_file()}
    if found := [content["mask_token"] for content in contents.values() if "mask_token" in content]:
        raise ValueError(f"--mask_token is for T5s, and this tokenizer has the mask token {found[0]!r}: leave it out.")
    first = "<extra_id_0>"
    if not any(first in content.get("additional_special_tokens", ()) for content in contents.values()):
        raise ValueError(f"--mask_token: the tokenizer has no {first}, which would be the mask token. Leave it out.")
    for name, content in contents.items():
        named = {**content, "mask_token": first, "bos_token": content["pad_token"]}
        (folder / name).write_text(json_text.dumps(named, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _loadable(settings: Settings, tokenizer_class: str, content: Mapping[str, Any]) -> Settings:
    """Without `add_prefix_space`, for which version 4's fast T5 classes want spiece.model in place of tokenizer.json.

    True, the only value that a T5's folder may have, is what they do anyway.
    """
    if not content or tokenizer_class not in T5_CLASSES:
        return settings
    kept = {key: x for key, x in settings.config.items() if key != "add_prefix_space"}
    return dataclasses.replace(settings, config=kept)


def _write_vocabulary(tokenizer: Tokenizer, folder: Path, pad_id: int) -> Mapping[str, Any]:
    """Writes the files of the pieces, with the padding `pad_id`; returns the content of tokenizer.json, empty without
    one."""
    if tokenizer.is_json:
        assert tokenizer.model_file is not None
        content = read_json(tokenizer.model_file)
        if content.get("truncation") is None and pad_id == PAD_ID:
            (folder / "tokenizer.json").write_bytes(tokenizer.model_file.read_bytes())
        else:  # tokenizer_config.json has the side and the length.
            content = tokenizer_folder.with_exchanged_ids(content, PAD_ID, pad_id, str(tokenizer.model_file))
            content["truncation"] = None
            (folder / "tokenizer.json").write_text(json_text.dumps(content, ensure_ascii=False), "utf-8")
        return content
    if tokenizer.model is None:
        return {}
    (folder / SPIECE).write_bytes(special_tokens.exchanged_model(tokenizer.model, pad_id))
    proto = sentencepiece_pb2.ModelProto.FromString(tokenizer.model)
    if proto.trainer_spec.model_type != sentencepiece_pb2.TrainerSpec.UNIGRAM:
        return {}
    content = tokenizer_folder.with_exchanged_ids(json_of(tokenizer), PAD_ID, pad_id, str(tokenizer.model_file))
    (folder / "tokenizer.json").write_text(json_text.dumps(content, ensure_ascii=False), "utf-8")
    return content


def _class_of(tokenizer: Tokenizer, content: Mapping[str, Any], settings: Settings, model_type: str) -> str:
    """T5's class, or that of the settings, if it gives a text without sentinels the tokens of tokenizer.json.

    In version 4 it always does. Version 5 takes the pieces alone from tokenizer.json for T5's class, whose rows end
    with </s>, but all of it for the general class, and for that of umT5.
    """
    if not content:
        return "T5Tokenizer"
    wanted = settings.tokenizer_class or (_GENERAL_CLASS if tokenizer.is_json else "T5TokenizerFast")
    if tokenizer.special != OF_T5 or wanted not in T5_CLASSES or not tokenizer_json.ends_with_eos(content):
        return _GENERAL_CLASS
    if tokenizer.model is None:
        is_alike = tokenizer_json.is_of_t5s_class(content, tokenizer.sentinels)
    else:
        model = sentencepiece_pb2.ModelProto.FromString(tokenizer.model)
        is_alike = model_type == "umt5" or tokenizer_json.is_as_t5s(model, tokenizer.sentinels)
    return wanted if is_alike else _GENERAL_CLASS


def json_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of tokenizer.json for a SentencePiece model."""
    assert tokenizer.model is not None
    proto = sentencepiece_pb2.ModelProto.FromString(tokenizer.model)
    return tokenizer_json.from_model(proto, tokenizer.extra_ids, tokenizer.special_tokens, tokenizer.special.eos.id)


# -------------------------------------------------------- files -------------------------------------------------------


def temporary_file(content: bytes, name: str = SPIECE) -> Path:
    """A vocabulary in a file of that name, for as long as the process lives."""
    folder = Path(tempfile.mkdtemp(prefix="limba-vocabulary-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / name).write_bytes(content)
    return folder / name


def read_json(path: Path) -> dict[str, Any]:
    """The content, empty if there is no such file.

    Raises:
      ValueError: if it is damaged.
    """
    from limba.tasks.vocabularies import beside_tokenizer

    return beside_tokenizer.check(untrusted_json.read_object(path), str(path)) if os.path.lexists(path) else {}
