"""The tokenizer files of a T5's folder, as copies in which padding has the id 0, which it has in Limba.

MADLAD-400 pads with `<s>`, 1. The two tokens are exchanged, in the vocabulary as in the embedding and the output. The
tokenizer of Pile-T5, which is Llama's, names no padding, and config.json says 0: the copy names it.
"""

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from limba.convert.model_files.hf import older_tokenizers, tokenizer_folder, tokenizer_settings
from limba.convert.model_files.hf.special_tokens import OF_T5, PAD_ID, exchanged_model
from limba.files import json_text, untrusted_files, untrusted_json

_SPIECE, _ADDED = "spiece.model", "added_tokens.json"
# Names of padding that need nothing beside them.
_USUAL = (b'"<pad>"', b'"[PAD]"')
# Version 4 of transformers sets the special tokens around a text by these keys, whatever tokenizer.json says.
_OF_LLAMA = {"add_bos_token": True, "add_eos_token": False}


def pad_id(folder: Path, named: str | None, of_config: int | None) -> int:
    """The id of padding in a folder: that of the token which its tokenizer names, else that of config.json, else 0.

    Args:
      named: `pad_token` of tokenizer_config.json.
      of_config: `pad_token_id` of config.json.

    Raises:
      ValueError: if the vocabulary does not have the token.
    """
    ids, name = _ids(folder), named or OF_T5.pad.name
    if name == OF_T5.pad.name:
        return ids.get(name, of_config or PAD_ID)
    if name == OF_T5.eos.name:
        raise ValueError(
            f"{folder}/{tokenizer_settings.CONFIG}: pad_token is {name!r}, the end of a text too, which training would "
            "not see. Write the token that the model was trained with, or give --ignore_config_keys pad_token for that "
            "of config.json."
        )
    if name not in ids:
        raise ValueError(
            f"{folder}/{tokenizer_settings.CONFIG}: pad_token is {name!r}, which the vocabulary does not have. Write "
            "the token that the model was trained with, or give --ignore_config_keys pad_token for that of config.json."
        )
    return ids[name]


def folder_with(folder: Path, pad: int) -> Path:
    """The folder, or one with copies of its tokenizer files, as long as the process lives, in which padding has the
    id 0, and tokenizer.json says which token it is. Older files of byte-level BPE become a tokenizer.json there.

    Raises:
      ValueError: if a file is damaged, or the ids cannot be exchanged in it.
    """
    from limba.tasks.vocabularies import beside_tokenizer

    file, has_pieces = folder / tokenizer_folder.FILE, (folder / _SPIECE).is_file()
    text = ""
    if file.is_file():
        content = untrusted_files.read_bytes(file)
        text = untrusted_files.decode(content, str(file))
        is_usual = pad == PAD_ID and any(name in content for name in _USUAL)
        if is_usual or "model" not in untrusted_json.parse_object(text, str(file)):
            return folder  # One that is damaged has its reader, who names it.
    elif not has_pieces and older_tokenizers.has_files(folder):
        text = older_tokenizers.content(folder).decode()
    elif pad == PAD_ID:
        return folder
    copy = tokenizer_folder.temporary_file(b"").parent
    (copy / tokenizer_folder.FILE).unlink()
    for name in ("config.json", tokenizer_settings.CONFIG, tokenizer_settings.SPECIAL_TOKENS_MAP, _ADDED):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, copy / name)
    if text:
        written = _json_with_padding(json.loads(beside_tokenizer.applied(folder, text)), pad, folder)
        (copy / tokenizer_folder.FILE).write_text(json_text.dumps(written, ensure_ascii=False), "utf-8")
    if has_pieces:
        (copy / _SPIECE).write_bytes(exchanged_model(untrusted_files.read_bytes(folder / _SPIECE), PAD_ID, pad))
    other = {PAD_ID: pad, pad: PAD_ID}
    if (copy / _ADDED).is_file():
        added = {token: other.get(id_, id_) for token, id_ in untrusted_json.read_object(copy / _ADDED).items()}
        (copy / _ADDED).write_text(json_text.dumps(added), "utf-8")
    if (copy / tokenizer_settings.CONFIG).is_file():
        config = untrusted_json.read_object(copy / tokenizer_settings.CONFIG)
        decoder = config.get("added_tokens_decoder")
        if isinstance(decoder, dict):
            config["added_tokens_decoder"] = {str(other.get(int(id_), id_)): token for id_, token in decoder.items()}
        (copy / tokenizer_settings.CONFIG).write_text(json_text.dumps(config), "utf-8")
    return copy


def file_with(file: Path, pad: int) -> Path:
    """A SentencePiece model or tokenizer.json, as `folder_with` has the folder's; itself if its padding is 0."""
    content = untrusted_files.read_bytes(file)
    is_json = file.suffix == ".json"
    if pad == PAD_ID and (not is_json or any(name in content for name in _USUAL)):
        return file
    if (_pad_of_json if is_json else _pad_of_model)(file, content) == PAD_ID:
        return file
    if is_json:
        written = _json_with_padding(untrusted_json.parse_object(content, str(file)), pad, file.parent)
        return tokenizer_folder.temporary_file(json_text.dumps(written, ensure_ascii=False).encode())
    copy = tokenizer_folder.temporary_file(exchanged_model(content, PAD_ID, pad))
    return copy.rename(copy.with_name(_SPIECE))


def _pad_of_json(file: Path, content: bytes) -> int | None:
    parsed = untrusted_json.parse_object(content, str(file))
    padding, ids = parsed.get("padding"), ids_of(parsed)
    return padding.get("pad_id") if isinstance(padding, Mapping) else ids.get(OF_T5.pad.name)


def _pad_of_model(file: Path, content: bytes) -> int:
    return sentencepiece.SentencePieceProcessor(model_proto=content).pad_id()


def _json_with_padding(content: dict[str, Any], pad: int, folder: Path) -> dict[str, Any]:
    """A tokenizer.json in which the token with the id `pad` has the id 0, and is named as padding."""
    from limba.tasks.vocabularies import beside_tokenizer

    config = beside_tokenizer.settings(folder)
    if beside_tokenizer.class_of(folder) == "LlamaTokenizer":
        _set_frame_of_llama(content, {key: config.get(key, usual) for key, usual in _OF_LLAMA.items()})
    content = tokenizer_folder.with_exchanged_ids(content, PAD_ID, pad, f"{folder}/{tokenizer_folder.FILE}")
    names = {id_: token for token, id_ in ids_of(content).items()}
    if PAD_ID not in names:
        raise ValueError(f"{folder}: the vocabulary has no token with the id {pad}, which is padding by config.json.")
    side = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_type_id": 0}
    return content | {"padding": {**side, "pad_id": PAD_ID, "pad_token": names[PAD_ID]}}


def _set_frame_of_llama(content: dict[str, Any], keys: Mapping[str, Any]) -> None:
    ids = ids_of(content)
    before = ["<s>"] if keys["add_bos_token"] else []
    behind = ["</s>"] if keys["add_eos_token"] else []

    def parts(texts: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for text in texts:
            found += [{"SpecialToken": {"id": token, "type_id": 0}} for token in before]
            found.append({"Sequence": {"id": text, "type_id": 0}})
            found += [{"SpecialToken": {"id": token, "type_id": 0}} for token in behind]
        return found

    special = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (*before, *behind)}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": parts("A"),
        "pair": parts("AB"),
        "special_tokens": special,
    }


def ids_of(content: Mapping[str, Any]) -> dict[str, int]:
    """The ids of a tokenizer.json by token."""
    vocab = content["model"]["vocab"]
    ids = {entry[0]: id_ for id_, entry in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
    return ids | {token["content"]: token["id"] for token in content.get("added_tokens") or ()}


def _ids(folder: Path) -> dict[str, int]:
    """The ids of a folder's tokens, by the first file that has them, and of its added tokens."""
    found: dict[str, int] = {}
    if (folder / tokenizer_folder.FILE).is_file():
        found = ids_of(untrusted_json.read_object(folder / tokenizer_folder.FILE))
    elif (folder / _SPIECE).is_file():
        with contextlib.suppress(DecodeError):  # The reader of a damaged one names it.
            proto = sentencepiece_pb2.ModelProto.FromString(untrusted_files.read_bytes(folder / _SPIECE))
            found = {piece.piece: id_ for id_, piece in enumerate(proto.pieces)}
    elif older_tokenizers.has_files(folder):
        found = ids_of(json.loads(older_tokenizers.content(folder)))
    if (folder / _ADDED).is_file():
        found |= untrusted_json.read_object(folder / _ADDED)
    config = folder / tokenizer_settings.CONFIG
    decoder = untrusted_json.read_object(config).get("added_tokens_decoder") if config.is_file() else None
    return found | {token["content"]: int(id_) for id_, token in (decoder or {}).items()}
