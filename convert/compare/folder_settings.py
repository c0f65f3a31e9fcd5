"""The settings in the JSON files of a folder that no network has: of `generate`, of pipelines, and of the tokenizer.

Parameters and logits do not show them. A run has none of its own; `to-hf` writes the usual ones for it.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families.config_keys import keys, t5_keys, tokenizer_keys
from limba.convert.families.t5_family import T5Family
from limba.convert.families.table import of_config
from limba.convert.model_files.hf import hf_tokenizer, tokenizer_settings
from limba.files.untrusted_files import cut, shown, some

_CONFIG, _GENERATION = "config.json", "generation_config.json"
_TOKENIZER, _MAP = tokenizer_settings.CONFIG, tokenizer_settings.SPECIAL_TOKENS_MAP
_START = "decoder_start_token_id"
# What `generate`, pipelines and training read of config.json, with the values that are as good as none.
_OF_CONFIG: dict[str, tuple[Any, ...] | None] = {
    **{key.name: key.values for key in keys.GENERATION},
    "prefix": ("",),
    "task_specific_params": ({},),
    _START: (0,),
    **dict.fromkeys(("dropout_rate", "hidden_dropout_prob", "attention_probs_dropout_prob"), ()),
}
# Of tokenizer_config.json. Those of T5s alone make tokens of words of a text.
_OF_TOKENIZER: dict[str, tuple[Any, ...] | None] = {
    "truncation_side": ("right",),
    "split_special_tokens": (False,),
    "add_bos_token": (False,),
    **{key.name: key.values for key in tokenizer_keys.T5.values() if key.remedy},
}
_ROLES = tuple(f"{role}_token" for role in ("bos", "cls", "sep", "mask", "pad", "eos", "unk"))
_LENGTHS = ("max_length", "max_new_tokens", "model_max_length")
# Of vocabularies of pieces; the sentinels of one of bytes depend on the family.
_OF_PIECES = ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "extra_ids")
_BYTES = "ByT5Tokenizer"
# Lengths above it stand for none: transformers writes 1e30.
_MOST_TOKENS = 10**9

Key = tuple[str, str]  # A file and a key of it.


@dataclasses.dataclass(frozen=True)
class Settings:
    """The contents of a model's files by name, {} for one that is not there.

    Attributes:
      is_run: whether they are those that `to-hf` would write, and not a folder's.
    """

    files: Mapping[str, Mapping[str, Any]]
    is_run: bool = False


def of_folder(folder: Path, is_run: bool = False) -> Settings:
    """Raises ValueError if a file is damaged."""
    names = (_CONFIG, _GENERATION, _TOKENIZER, _MAP)
    files = {name: hf_tokenizer.read_json(folder / name) for name in names}
    family = of_config(files[_CONFIG])
    if isinstance(family, T5Family) and (start := family.usual_start(files[_CONFIG])):
        files |= {name: {_START: start} | files[name] for name in (_CONFIG, _GENERATION)}
    return Settings(files, is_run)


def compare(a: Settings | None, b: Settings | None) -> Iterator[Comparison]:
    """Rows of the settings that differ. Those of two folders are WRONG, those of a run and a folder not compared.

    None are the settings of a model that is not a folder and has no vocabulary.
    """
    for what, find in (("settings of generate", _of_generate), ("settings of the tokenizer", _of_tokenizer)):
        if a is None or b is None:
            if a is not b:
                yield Comparison(what, None, 0, f"not compared: those of {'A' if a is None else 'B'} are not known")
            continue
        of_a, of_b = find(a.files), find(b.files)
        differ = [key for key in sorted({*of_a, *of_b}) if of_a.get(key) != of_b.get(key)]
        if a.is_run or b.is_run:
            # A run has the lengths of its task, if it has one.
            differ = [key for key in differ if key[1] not in _LENGTHS or (key in of_a and key in of_b)]
        if what == "settings of the tokenizer":
            differ = [key for key in differ if _counts(key[1], of_a.get(key), of_b.get(key))]
        named = [
            f"{cut(key)} of {file} is {shown(of_a.get((file, key)))} in A and {shown(of_b.get((file, key)))} in B"
            for file, key in differ
        ]
        note = some(named, 4, "; ")
        if differ and (a.is_run or b.is_run):
            yield Comparison(what, None, 0, f"not compared: {note}; a run has none of its own")
        else:
            yield Comparison(what, len(differ), 0, note or f"of {len(of_a)}")


def contradictions(label: str, settings: Settings) -> Iterator[Comparison]:
    """The row of special tokens of a folder that its two files name otherwise."""
    config, other = settings.files[_TOKENIZER], settings.files[_MAP]
    differ = [key for key in _ROLES if None not in (config.get(key), other.get(key))]
    differ = [key for key in differ if _name(config[key]) != _name(other[key])]
    note = "".join(f": {key} is {shown(_name(config[key]))} and {shown(_name(other[key]))}" for key in differ[:1])
    if config and other:
        yield Comparison(f"special tokens that differ, {label}", len(differ), 0, f"in {_TOKENIZER} and {_MAP}{note}")


def _of_generate(files: Mapping[str, Mapping[str, Any]]) -> dict[Key, Any]:
    """Those that are no default of transformers."""
    known: dict[str, tuple[Any, ...] | None] = {key.name: key.values for key in t5_keys.GENERATION_KEYS.values()}
    found: dict[Key, Any] = {}
    for file, usual, others in ((_CONFIG, _OF_CONFIG, None), (_GENERATION, known | {_START: (0,)}, ())):
        for key, value in files[file].items():
            values = usual.get(key, others)
            if value is not None and values is not None and value not in values:
                found[file, key] = value
    return found


def _of_tokenizer(files: Mapping[str, Mapping[str, Any]]) -> dict[Key, Any]:
    """Special tokens, lengths, and what makes another tokenizer, as far as it is no default."""
    found: dict[Key, Any] = {}
    is_bytes = files[_TOKENIZER].get("tokenizer_class") == _BYTES
    for key, value in files[_TOKENIZER].items():
        if is_bytes and key in _OF_PIECES:
            continue
        if key in _ROLES:
            found[_TOKENIZER, key] = value and _name(value)
        elif key in ("model_max_length", "max_len"):
            found[_TOKENIZER, key] = value if isinstance(value, int | float) and value < _MOST_TOKENS else None
        elif key == "added_tokens_decoder" and isinstance(value, dict):
            found[_TOKENIZER, key] = {id_: _name(token) for id_, token in value.items()}
        elif key in ("additional_special_tokens", "extra_special_tokens") and isinstance(value, list):
            found[_TOKENIZER, key] = sorted(map(_name, value))
        elif key == "extra_ids" or ((usual := _OF_TOKENIZER.get(key)) is not None and value not in usual):
            found[_TOKENIZER, key] = value
    return {key: value for key, value in found.items() if value is not None}


def _counts(key: str, a: Any, b: Any) -> bool:
    """Whether a difference of a tokenizer's setting counts, where one folder may leave it to the class."""
    return None not in (a, b) or key in _OF_TOKENIZER or key in _ROLES[:4] or key == "model_max_length"


def _name(token: Any) -> str:
    return str(token.get("content") if isinstance(token, Mapping) else token)
