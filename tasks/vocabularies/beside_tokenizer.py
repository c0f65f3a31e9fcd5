"""What transformers' fast classes change in a tokenizer.json by the files beside it: tokens, flags, whether byte-level
BPE reads a blank before a text, and how a row is made: the side of the cut, the longest row, token types, and that
there are no special tokens where the file puts none."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from limba.files import json_text, untrusted_json
from limba.tasks.vocabularies import framed_rows

_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Where the files of a tokenizer have tokens and ids: readers go through them before a library has judged.
_VALUES: untrusted_json.Values = {
    **{f"{role}_token": (lambda x: x is None or _is_token(x), "a text or an object with one") for role in _ROLES},
    "additional_special_tokens": (lambda x: x is None or _are(x, _is_token), "a list of tokens"),
    "extra_special_tokens": (lambda x: not isinstance(x, list) or _are(x, _is_token), "a list of tokens"),
    "added_tokens": (lambda x: x is None or _are(x, _has_id), "a list of objects with the content and id of a token"),
    "added_tokens_decoder": (lambda x: x is None or _is_decoder(x), "an object of tokens by their ids"),
    "model": (lambda x: not isinstance(x, dict) or _has_ids(x.get("vocab")), "a model whose vocab gives tokens ids"),
}
# One of them makes a folder one of Hugging Face.
_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# Classes, and values of model_type, whose mask takes in the blank before it where no file says another.
_MASK_WITH_BLANK = ("roberta", "xlm-roberta", "xlmroberta", "camembert", "mpnet")
# Those whose networks have no token types.
_WITHOUT_TYPES = (*_MASK_WITH_BLANK, "distilbert", "t5", "mt5", "umt5")
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

    if not any((folder / file).is_file() for file in _FILES):
        return text
    config, content = settings(folder), untrusted_json.parse_object(text, f"{folder}/tokenizer.json")
    check(content, f"{folder}/tokenizer.json")
    there = {token["content"]: {key: token[key] for key in _FLAGS} for token in content.get("added_tokens") or ()}
    ids, wanted = _tokens(folder, config, there)
    new = {token: flags for token, flags in wanted.items() if there.get(token) != flags}
    changes = [_set_space(content, config), _set_cut(content, config, folder), _set_template(content, config, folder)]
    if not any(changes) and not new:
        return text
    changed = json_text.dumps(content, ensure_ascii=False)
    if not new:
        return changed
    tokenizer = Tokenizer.from_str(changed)
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
    return check(untrusted_json.read_object(file) if file.is_file() else {}, str(file))


def check(content: dict[str, Any], where: str) -> dict[str, Any]:
    """The content of a tokenizer's file. Raises ValueError, which names `where`, for tokens or ids that are none."""
    if wrong := untrusted_json.wrong_value(content, _VALUES):
        raise ValueError(f"{where} is damaged: {wrong}.")
    return content


def _is_token(value: object) -> bool:
    return isinstance(value.get("content") if isinstance(value, dict) else value, str)


def _is_decoder(value: object) -> bool:
    return isinstance(value, dict) and all(x.isdecimal() and len(x) < 11 and _has_id(value[x], int(x)) for x in value)


def _has_id(value: object, id_: object = None) -> bool:
    return isinstance(value, dict) and _is_token(value) and _is_id(value.get("id") if id_ is None else id_)


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _are(values: object, is_right: Callable[[object], bool]) -> bool:
    return isinstance(values, list) and all(map(is_right, values))


def _has_ids(vocab: object) -> bool:
    if isinstance(vocab, list):
        return all(isinstance(x, list) and len(x) == 2 and isinstance(x[0], str) for x in vocab)
    return vocab is None or (isinstance(vocab, dict) and all(map(_is_id, vocab.values())))


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


def _set_cut(content: dict[str, Any], config: Mapping[str, Any], folder: Path) -> bool:
    """Sets on which side a row that is too long is cut, and its length; whether that changes something.

    The length is `model_max_length`, where it is less than the network reads. That of the file itself is of the last
    call before it was saved, and transformers does not go by it.
    """
    before = content.get("truncation") or {}
    side = str(config.get("truncation_side") or before.get("direction") or "right").capitalize()
    length = config.get("model_max_length", config.get("max_len"))
    if not isinstance(length, int | float) or not 0 < length < _longest_of_network(folder):
        length = framed_rows.NO_LENGTH
    after = {"direction": side, "max_length": int(length), "strategy": "LongestFirst", "stride": 0}
    if after == before or (side == "Right" and length == framed_rows.NO_LENGTH and not before):
        return False
    content["truncation"] = None if side == "Right" and length == framed_rows.NO_LENGTH else after
    return True


def _longest_of_network(folder: Path) -> int:
    """The tokens that the network beside a tokenizer reads; 512 where it reads any number, or is not there."""
    config = read(folder / "config.json")
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return 512
    # The positions of RoBERTa and its relatives begin behind the one of padding.
    begins = config.get("pad_token_id", 1) + 1 if class_of(folder).lower().startswith(_MASK_WITH_BLANK) else 0
    return positions - begins


def _set_template(content: dict[str, Any], config: Mapping[str, Any], folder: Path) -> bool:
    """Writes down that a row has no special tokens, where the file has no template, and no token types, where the
    network gets none; whether that changes something."""
    step = content.get("post_processor")
    if not framed_rows.has_template(content):
        # Another program would put the usual ones.
        template = {"single": _parts("A"), "pair": _parts("AB"), "special_tokens": {}, "type": "TemplateProcessing"}
        content["post_processor"] = template if step is None else _sequence([step, template])
    if _has_types(config, folder) or not _reads_types(folder):
        return content["post_processor"] != step
    content["post_processor"] = _without_types(content["post_processor"])
    return content["post_processor"] != step


def _parts(texts: str) -> list[dict[str, Any]]:
    return [{"Sequence": {"id": text, "type_id": i}} for i, text in enumerate(texts)]


def _sequence(steps: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", "processors": steps}


def _has_types(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether transformers gives the network token types, by `model_input_names` or what is usual for the class."""
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    kind = class_of(folder)
    if kind in _GENERAL:
        # Where no key says it, version 5 gives none.
        return not str(read(folder / "config.json").get("transformers_version", "")).startswith("5.")
    return not kind.lower().startswith(_WITHOUT_TYPES)


def _reads_types(folder: Path) -> bool:
    """Whether a network beside the tokenizer has token types; that it may have some, where there is no network."""
    config = read(folder / "config.json")
    usual = 1 if config.get("model_type") in ("modernbert", "mpnet", "distilbert", "eurobert") else 2
    return config.get("type_vocab_size", usual) > 1


def _without_types(step: dict[str, Any]) -> dict[str, Any]:
    """A post-processor whose tokens all have the type 0."""
    if step.get("type") == "Sequence":
        return _sequence([_without_types(inner) for inner in step["processors"]])
    if step.get("type") == "BertProcessing":
        (cls, cls_id), (sep, sep_id) = step["cls"], step["sep"]
        begin, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in (cls, sep))
        first, second = _parts("AB")
        tokens = {
            token: {"id": token, "ids": [id_], "tokens": [token]} for token, id_ in ((cls, cls_id), (sep, sep_id))
        }
        pair = [begin, first, end, second, end]
        step = {"type": "TemplateProcessing", "single": [begin, first, end], "pair": pair, "special_tokens": tokens}
    if step.get("type") != "TemplateProcessing":
        return step
    zero = {
        name: [{kind: {**part, "type_id": 0} for kind, part in piece.items()} for piece in step[name]]
        for name in ("single", "pair")
    }
    return {**step, **zero}
