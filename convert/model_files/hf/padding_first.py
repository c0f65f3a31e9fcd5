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

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from limba.convert.model_files.hf import hf_tokenizer, older_tokenizers, tokenizer_folder, tokenizer_settings
from limba.convert.model_files.hf.special_tokens import OF_T5, PAD_ID, exchanged_model
from limba.files import json_text, rust_panics, untrusted_files, untrusted_json

_SPIECE, _ADDED = "spiece.model", "added_tokens.json"
# Names of padding that need nothing beside them.
_USUAL = (b'"<pad>"', b'"[PAD]"')


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
    if name == OF_T5.eos.name or name not in ids:
        why = "which the vocabulary does not have" if name not in ids else "the end of a text too"
        raise ValueError(
            f"{folder}/{tokenizer_settings.CONFIG}: pad_token is {name!r}, {why}. Write the token that the model was "
            "trained with, or give --ignore_config_keys pad_token for that of config.json."
        )
    return ids[name]


def folder_with(folder: Path, pad: int) -> Path:
    """The folder, or one with copies of its tokenizer files, as long as the process lives, in which padding is 0, and
    tokenizer.json says which token that is. Older files of byte-level BPE become a tokenizer.json there.

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
        with rust_panics.of_file(str(file)):
            written = _json_with_padding(json.loads(beside_tokenizer.applied(folder, text)), pad, folder)
        (copy / tokenizer_folder.FILE).write_text(json_text.dumps(written, ensure_ascii=False), "utf-8")
    if has_pieces:
        (copy / _SPIECE).write_bytes(exchanged_model(untrusted_files.read_bytes(folder / _SPIECE), pad))
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


def _json_with_padding(content: dict[str, Any], pad: int, folder: Path) -> dict[str, Any]:
    """A tokenizer.json in which the token with the id `pad` has the id 0, and is named as padding."""
    from limba.tasks.vocabularies import beside_tokenizer

    if beside_tokenizer.class_of(folder) == "LlamaTokenizer":
        content = _framed_as_llamas(content, beside_tokenizer.settings(folder))
    content = tokenizer_folder.with_exchanged_ids(content, PAD_ID, pad, f"{folder}/{tokenizer_folder.FILE}")
    names = {id_: token for token, id_ in ids_of(content).items()}
    if PAD_ID not in names:
        raise ValueError(f"{folder}: the vocabulary has no token with the id {pad}, which is padding by config.json.")
    side = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_type_id": 0}
    return content | {"padding": {**side, "pad_id": PAD_ID, "pad_token": names[PAD_ID]}}


def _framed_as_llamas(content: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Version 4 of transformers sets the special tokens around a text by keys, whatever tokenizer.json says."""
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_str(json_text.dumps(content))
    before = "<s> " if config.get("add_bos_token", True) else ""
    behind = " </s>" if config.get("add_eos_token", False) else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{before}$A{behind}",
        pair=f"{before}$A{behind} {before}$B{behind}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")],
    )
    return json.loads(tokenizer.to_str())


def ids_of(content: Mapping[str, Any]) -> dict[str, int]:
    """The ids of a tokenizer.json by token."""
    vocab = content["model"]["vocab"]
    ids = {entry[0]: id_ for id_, entry in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
    return ids | {token["content"]: token["id"] for token in content.get("added_tokens") or ()}


def _ids(folder: Path) -> dict[str, int]:
    """The ids of a folder's tokens; of damaged files, which have a reader that names them, perhaps none."""
    found: dict[str, int] = {}
    with contextlib.suppress(AttributeError, DecodeError, KeyError, TypeError):
        if (folder / tokenizer_folder.FILE).is_file():
            found = ids_of(untrusted_json.read_object(folder / tokenizer_folder.FILE))
        elif (folder / _SPIECE).is_file():
            proto = sentencepiece_pb2.ModelProto.FromString(untrusted_files.read_bytes(folder / _SPIECE))
            found = {piece.piece: id_ for id_, piece in enumerate(proto.pieces)}
        elif older_tokenizers.has_files(folder):
            found = ids_of(json.loads(older_tokenizers.content(folder)))
    return found | hf_tokenizer.read_json(folder / _ADDED)
