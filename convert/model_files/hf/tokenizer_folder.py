"""The tokenizer of an encoder's folder: a tokenizer.json, and what transformers reads beside it."""

import atexit
import copy
import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.checkpoint_files import run_folder
from limba.convert.families.config_keys import tokenizer_keys
from limba.convert.model_files.hf import tokenizer_settings
from limba.convert.model_files.hf.tokenizer_settings import Settings
from limba.files import json_text, rust_panics, untrusted_json
from limba.files.untrusted_files import shown

FILE = run_folder.TOKENIZER
ROLES = ("pad", "unk", "cls", "sep", "mask")
# Version 5's class of this name has a normalizer of its own, whatever tokenizer.json says: it would split texts
# otherwise than training and version 4 do.
_OF_OTHER_TEXTS = ("DebertaV2Tokenizer",)
# Model types whose positions count from the beginning of the row, whatever is padding. RoBERTa's leave it out.
_COUNT_PADDING = ("bert", "distilbert", "electra")
# Classes of transformers that write these keys of tokenizer_config.json into the normalizer.
_OF_BERT = ("BertTokenizer", "MPNetTokenizer", "RoFormerTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_NORMALIZER = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}


def describe(file: str | Path) -> dict[str, Any]:
    """What `run.json` says of a tokenizer.json.

    Raises:
      FileNotFoundError: if it is missing.
      ValueError: if it cannot be read, or lacks a token that masked language models need.
    """
    vocabulary = _open(file)
    for role in ("pad", "cls", "sep", "mask"):
        getattr(vocabulary, f"{role}_id")  # Raises ValueError with the remedy.
    return run_folder.tokenizer_record(vocabulary.tokenizer_file, vocabulary.vocab_size)


def special_ids(file: str | Path) -> dict[str, int]:
    """Ids by role, of those that there are."""
    vocabulary = _open(file)
    found = {role: getattr(vocabulary, f"{role}_id") for role in ROLES}
    return {role: id_ for role, id_ in found.items() if id_ is not None}


def special_tokens(file: str | Path) -> dict[str, str]:
    """The special tokens by role."""
    names = {id_: token for token, id_ in _open(file).tokenizer.get_vocab(with_added_tokens=True).items()}
    return {role: names[id_] for role, id_ in special_ids(file).items()}


def check_settings(folder: Path, ignored: Collection[str]) -> None:
    """Compares tokenizer_config.json with the tokenizer.json beside it, which is the one that Limba reads.

    transformers' BertTokenizer and its relatives set the normalizer of tokenizer.json anew.

    Raises:
      ValueError: if the two differ, or for an unknown key.
    """
    config = tokenizer_keys.read(folder, tokenizer_keys.ENCODER, ignored)
    if not config:
        return
    remedy = "Save it with transformers, AutoTokenizer.from_pretrained(IN).save_pretrained(OUT): then they agree."
    named = special_tokens(folder / FILE)
    for role in ROLES:
        token = config.get(f"{role}_token")
        if token is not None and named.get(role, token) != token:
            raise ValueError(
                f"{folder / tokenizer_keys.FILE}: {role}_token is {shown(token)}, and in {FILE} it is {named[role]!r}. "
                f"{remedy}"
            )
    network = folder / "config.json"
    kind = untrusted_json.read_object(network).get("model_type") if network.is_file() else None
    if config.get("padding_side") == "left" and kind in _COUNT_PADDING:
        raise ValueError(
            f"{folder / tokenizer_keys.FILE}: padding_side is 'left', and the learned positions of a {kind} count the "
            "padding in transformers; Limba pads at the right, as such models are pre-trained. Set it to 'right': then "
            "they agree. To leave it so give --ignore_config_keys padding_side."
        )
    normalizer = untrusted_json.read_object(folder / FILE).get("normalizer")
    # A BERT's, where the file names none.
    tokenizer_class = str(config.get("tokenizer_class") or "BertTokenizer")
    if (
        tokenizer_class.removesuffix("Fast") not in _OF_BERT
        or not isinstance(normalizer, dict)
        or normalizer.get("type") != "BertNormalizer"
    ):
        return
    for key, (name, default) in _NORMALIZER.items():
        value, own = config.get(key, default), normalizer.get(name)
        if name == "strip_accents":  # None is what is done with capitals.
            value, own = (normalizer.get("lowercase") if x is None else x for x in (value, own))
        if value != own:
            raise ValueError(
                f"{folder / tokenizer_keys.FILE}: {key} is {shown(value)}, which {tokenizer_class} of "
                f"transformers goes by, and {name} is {shown(own)} in {FILE}, which Limba reads. {remedy}"
            )


def encode(file: str | Path, text: str) -> list[int]:
    """The ids of a text with the special tokens around it."""
    return _open(file).rows([text])[0].ids


def highest_type(file: str | Path) -> int:
    """The highest token type that the template gives the tokens of a pair."""
    (row,) = _open(file).rows([("a", "b")])
    return max(row.types, default=0)


def decode(file: str | Path, ids: Sequence[int]) -> str:
    """The text of ids."""
    return _open(file).decode(list(ids))


def same(a: str | Path, b: str | Path) -> bool:
    """Whether two files give texts the same ids."""
    from limba.tasks.vocabularies import same_vocabulary

    return same_vocabulary(_open(a), _open(b))


def temporary_file(content: bytes) -> Path:
    """A tokenizer.json in a file, for as long as the process lives."""
    folder = Path(tempfile.mkdtemp(prefix="limba-vocabulary-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / FILE).write_bytes(content)
    return folder / FILE


def _open(file: str | Path) -> Any:
    from limba.tasks.vocabularies import TokenizerVocabulary

    return TokenizerVocabulary(str(file))


def with_exchanged_ids(content: Mapping[str, Any], a: int, b: int, where: str) -> dict[str, Any]:
    """A tokenizer.json in which the tokens with the ids `a` and `b` have each other's.

    Raises:
      ValueError: if the library reads other ids in it than that.
    """
    if a == b:
        return dict(content)
    result = copy.deepcopy(dict(content))
    other = {a: b, b: a}
    model = result["model"]
    if isinstance(model["vocab"], list):
        model["vocab"][a], model["vocab"][b] = model["vocab"][b], model["vocab"][a]
        model["unk_id"] = other.get(model.get("unk_id"), model.get("unk_id"))
    else:
        # Tokens that were added to the vocabulary get a place in it, so that none depends on the order of the others.
        ids = {token["content"]: token["id"] for token in result.get("added_tokens") or ()}
        model["vocab"] = {token: other.get(id_, id_) for token, id_ in {**model["vocab"], **ids}.items()}
    renumber(result, lambda id_: other.get(id_, id_))
    with rust_panics.of_file(where):
        _check_exchanged(content, result, other, where)
    return result


def renumber(content: dict[str, Any], number: Callable[[int], int]) -> None:
    """Changes the ids in a tokenizer.json outside of its model: of added tokens, padding, and the frame of a text."""
    for token in content.get("added_tokens") or ():
        token["id"] = int(number(token["id"]))
    content["added_tokens"] = sorted(content.get("added_tokens") or (), key=lambda token: token["id"])
    if content.get("padding"):
        content["padding"]["pad_id"] = int(number(content["padding"]["pad_id"]))
    for processor in processors(content.get("post_processor")):
        for name in ("cls", "sep"):
            if isinstance(processor.get(name), list):
                processor[name][1] = int(number(processor[name][1]))
        tokens = processor.get("special_tokens")
        for token in tokens.values() if isinstance(tokens, dict) else ():
            token["ids"] = [int(number(id_)) for id_ in token["ids"]]


def processors(processor: Any) -> Iterator[dict[str, Any]]:
    if isinstance(processor, dict):
        yield processor
        for inner in processor.get("processors") or ():
            yield from processors(inner)


def _check_exchanged(before: Mapping[str, Any], after: Mapping[str, Any], other: Mapping[int, int], where: str) -> None:
    import tokenizers

    old, new = (
        tokenizers.Tokenizer.from_str(json_text.dumps(content)).get_vocab(with_added_tokens=True)
        for content in (before, after)
    )
    if new != {token: other.get(id_, id_) for token, id_ in old.items()}:
        a, b = other
        raise ValueError(
            f"{where}: the ids {a} and {b} cannot be exchanged in it. Give a tokenizer.json whose padding has the id 0 "
            "with --vocab FILE."
        )


def write(
    file: str | Path,
    folder: Path,
    pad_id: int,
    most_tokens: int,
    has_pairs: bool,
    settings: Settings = tokenizer_settings.NONE,
) -> dict[str, int]:
    """Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json; returns the ids by role.

    Args:
      file: the run's tokenizer.json.
      pad_id: of the folder; the token that has this id gets the one of padding.
      most_tokens: the longest row that transformers makes, with `truncation=True`.
      has_pairs: whether the network tells the segments of a pair apart.
      settings: what else the folder had from which the model came.

    Raises:
      ValueError: as `describe` and `with_exchanged_ids`.
    """

    import tokenizers

    from limba.tasks.vocabularies import framed_rows

    ids = special_ids(file)
    content = untrusted_json.read_object(Path(file))
    tokens = special_tokens(file)
    if not framed_rows.has_template(content):
        tokenizer = tokenizers.Tokenizer.from_str(json_text.dumps(content))
        content = {**content, "post_processor": json.loads(framed(tokenizer, tokens, 1, 1))["post_processor"]}
    content = with_exchanged_ids(content, ids["pad"], pad_id, str(file))
    # tokenizer_config.json has the side and the length.
    content["truncation"] = None
    kind = settings.tokenizer_class
    if kind is None or kind.removesuffix("Fast") in _OF_OTHER_TEXTS:
        kind = "PreTrainedTokenizerFast"
    named = {f"{role}_token": token for role, token in tokens.items()}
    named = {key: x for key, x in settings.others.items() if key.endswith("_token") and x} | named
    special = {**named, **({"additional_special_tokens": settings.special_tokens} if settings.special_tokens else {})}
    config = {
        # The classes of the families have normalizers of their own, which agree where the folder names one
        # (`check_settings`); the general class takes all from tokenizer.json.
        "tokenizer_class": kind,
        "model_input_names": settings.config.get("model_input_names")
        or ["input_ids", *(["token_type_ids"] if has_pairs else []), "attention_mask"],
        "model_max_length": most_tokens,
        "clean_up_tokenization_spaces": settings.others.get("clean_up_tokenization_spaces", False),
        "added_tokens_decoder": tokenizer_settings.added_tokens_decoder(content.get("added_tokens") or ()),
        **special,
    }
    (folder / FILE).write_text(json_text.dumps(content, ensure_ascii=False), "utf-8")
    tokenizer_settings.write(folder, config, special, settings)
    other = {ids["pad"]: pad_id, pad_id: ids["pad"]}
    return {role: other.get(id_, id_) for role, id_ in ids.items()}


def framed(tokenizer: Any, named: Mapping[str, str], num_between: int, second_type: int) -> str:
    """The tokenizer.json with special tokens around a text, and between two of them."""
    from tokenizers import processors

    cls, sep = (named[role] for role in ("cls", "sep"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {' '.join([sep] * num_between)} $B:{second_type} {sep}:{second_type}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return tokenizer.to_str()
