"""What transformers' fast classes change in an encoder's tokenizer.json by the files beside it: tokens, flags, and
whether byte-level BPE reads a blank before a text."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.files import json_text, untrusted_json

_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# Classes, and values of model_type, whose mask takes in the blank before it where no file says another.
_MASK_WITH_BLANK = ("roberta", "xlm-roberta", "xlmroberta", "camembert", "mpnet")
# Where no key says it, version 5 of transformers leaves them the blank of tokenizer.json.
_GENERAL = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")


def settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json; special_tokens_map.json counts where it has no `added_tokens_decoder`."""
    config = read(folder / "tokenizer_config.json")
    return config if "added_tokens_decoder" in config else config | read(folder / "special_tokens_map.json")


def class_of(folder: Path) -> str:
    """The class of transformers that the folder's files name, and else the `model_type` of its network."""
    config = read(folder / "config.json")
    named = settings(folder).get("tokenizer_class") or config.get("tokenizer_class")
    return str(named or config.get("model_type")).removesuffix("Fast")


def name(token: object) -> str:
    """The text of a token, which may have flags."""
    return str(token["content"] if isinstance(token, Mapping) else token)


def applied(folder: Path, text: str) -> str:
    """A tokenizer.json with what the files beside it say; the text itself where that changes nothing.

    Raises:
      ValueError: if a token would get another id than the files say.
    """
    from tokenizers import AddedToken, Tokenizer

    config, content = settings(folder), untrusted_json.parse_object(text, f"{folder}/tokenizer.json")
    there = {token["content"]: {key: token[key] for key in _FLAGS} for token in content.get("added_tokens") or ()}
    ids, wanted = _tokens(folder, config, there)
    new = {token: flags for token, flags in wanted.items() if there.get(token) != flags}
    if not _set_space(content, config) and not new:
        return text
    tokenizer = Tokenizer.from_str(json_text.dumps(content, ensure_ascii=False))
    tokenizer.add_tokens([AddedToken(token, **flags) for token, flags in new.items()])
    for token, id_ in ids.items():
        if (found := tokenizer.token_to_id(token)) != id_:
            raise ValueError(
                f"{folder}: the files of the tokenizer give {token!r} the id {id_}, and there it is {found}. Save it "
                "with transformers, AutoTokenizer.from_pretrained(IN).save_pretrained(OUT): then they agree."
            )
    return tokenizer.to_str()


def read(file: Path) -> dict[str, Any]:
    """A file's object, empty if there is no such file."""
    return untrusted_json.read_object(file) if file.is_file() else {}


def _tokens(
    folder: Path, config: Mapping[str, Any], there: Mapping[str, dict[str, bool]]
) -> tuple[dict[str, int], dict[str, dict[str, bool]]]:
    """The ids of added tokens that the files say, and the flags of all of them."""
    extra = config.get("extra_special_tokens")
    others = [*(config.get("additional_special_tokens") or ()), *(extra if isinstance(extra, list) else ())]
    special = [token for token in (*(config.get(f"{role}_token") for role in _ROLES), *others) if token]
    if (decoder := config.get("added_tokens_decoder")) is not None:
        ids = {token["content"]: int(id_) for id_, token in decoder.items()}
        wanted = {token["content"]: _flags(token) for token in decoder.values()}
    else:
        ids, names = read(folder / "added_tokens.json"), [name(token) for token in special]
        wanted = {token: _flags({"special": token in names}) for token in ids}
        wanted |= {token["content"]: _flags(token | {"special": True}) for token in special if isinstance(token, dict)}
        if (folder / "tokenizer.json").is_file():
            wanted |= there
    if "mask_token" not in config and class_of(folder).lower().startswith(_MASK_WITH_BLANK) and "<mask>" in there:
        wanted["<mask>"] = _flags({"special": True, "lstrip": True})
    for token in map(name, special):
        wanted.setdefault(token, there.get(token) or _flags({"special": True}))
    return ids, dict(sorted(wanted.items(), key=lambda token: ids.get(token[0], math.inf)))


def _flags(token: Mapping[str, Any]) -> dict[str, bool]:
    """The flags of a token; transformers normalizes one that is not special."""
    is_plain = not token.get("special", False)
    return {key: bool(token.get(key, key == "normalized" and is_plain)) for key in _FLAGS}


def _set_space(content: dict[str, Any], config: Mapping[str, Any]) -> bool:
    """Sets `add_prefix_space` as the class does; whether that changes something."""
    part, space = content.get("pre_tokenizer") or {}, config.get("add_prefix_space")
    if space is None and config.get("tokenizer_class") not in (None, *_GENERAL):
        space = False
    if space is None or part.get("add_prefix_space", space) == space:
        return False
    for step in (part, content.get("post_processor") or {}):
        if "add_prefix_space" in step:
            step["add_prefix_space"] = space
    return True
