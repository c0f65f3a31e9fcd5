"""adapter_config.json of PEFT: the keys that Limba writes and reads, and those of which it can hold one value alone."""

import dataclasses
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from limba.files import number_ranges, untrusted_json
from limba.files.number_ranges import SHARE
from limba.files.untrusted_files import cut, shown, shown_list

FILE = "adapter_config.json"
REMEDY = (
    "Merge it in PEFT, PeftModel.from_pretrained(BASE, FOLDER).merge_and_unload().save_pretrained(MERGED), and convert "
    "that: limba convert from-hf MERGED OUT."
)

# Read below, or without effect on what an adapter computes. Which modules have factors is in the file of the tensors.
_READ = ("peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "use_rslora", "lora_dropout")
_TARGETS = (
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("rank_pattern", "alpha_pattern", "init_lora_weights"),
)
_NO_EFFECT = (
    *("task_type", "auto_mapping", "peft_version", "inference_mode", "runtime_config", "megatron_core"),
    *("eva_config", "qalora_group_size", "ensure_weight_tying"),
)
# Keys that make another adapter where they say something, and what Limba's LoRA does not have.
_REFUSED = {
    "use_dora": "magnitudes of its own",
    "use_qalora": "pooled inputs",
    "use_bdlora": "blocks of factors",
    "lora_bias": "biases",
    "bias": "biases",
    "fan_in_fan_out": "transposed kernels",
    "modules_to_save": "whole modules that are trained beside the factors",
    "trainable_token_indices": "single rows of the embedding",
    "target_parameters": "factors of parameters that are no kernels",
    "layer_replication": "layers that stand twice",
    "alora_invocation_tokens": "factors that begin at a token",
    "arrow_config": "a choice between adapters",
}
# Beginnings other than these change the base model's own weights when PEFT loads the adapter.
_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")


# Of a word before a layer's number, whose digits are the last group; and of a pattern for ends of names.
_OF_LAYER, _OF_END = r"(?:^|.*?\.){}\.(\d+)\.", r"(.*\.)?({})$"


@dataclasses.dataclass(frozen=True)
class PeftConfig:
    """What an adapter_config.json says of an adapter.

    Attributes:
      base, revision: the model that it changes: a folder or a name on the hub, None if it does not say.
      rank, alpha: of all modules but those of the patterns.
      targets, excluded: the modules that have factors: ends of their names, or one expression for whole names.
      layers: the numbers of the layers that have factors, where targets are ends of names; None is all.
      layer_patterns: expressions for the word before a layer's number; without them it is the first number of a name.
      rank_pattern, alpha_pattern: expressions for ends of names, and their values.
      is_stabilized: rsLoRA (arXiv:2312.03732): products are multiplied by alpha / sqrt(rank), not alpha / rank.
      dropout: of the factors' input while training.
    """

    rank: int
    alpha: float
    targets: str | tuple[str, ...]
    base: str | None = None
    revision: str | None = None
    excluded: str | tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    layer_patterns: tuple[str, ...] = ()
    rank_pattern: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    alpha_pattern: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_stabilized: bool = False
    dropout: float = 0.0

    def targets_module(self, name: str) -> bool:
        """Whether PEFT gives a module factors; of others it drops the tensors of the file without a word."""
        if _chooses(self.excluded, name):
            return False
        if isinstance(self.targets, str):
            return self.targets == "all-linear" or _chooses(self.targets, name)
        return name in self.targets or (_chooses(self.targets, name) and self._has_layer(name))

    def _has_layer(self, name: str) -> bool:
        """Whether the layer of a module has factors."""
        if self.layers is None:
            return True
        words = self.layer_patterns or (r"[^.]*",)
        layer = next((match for word in words if (match := re.match(_OF_LAYER.format(word), name))), None)
        return layer is not None and int(layer[layer.lastindex or 0]) in self.layers

    def rank_of(self, name: str) -> Any:
        return _of_pattern(self.rank_pattern, name, self.rank)

    def alpha_of(self, name: str) -> float:
        """Divided by the rank it is what the product of the module's factors is multiplied by."""
        alpha = float(_of_pattern(self.alpha_pattern, name, self.alpha))
        return alpha * math.sqrt(self.rank_of(name)) if self.is_stabilized else alpha

    def content(self, task: str | None) -> dict[str, Any]:
        """The file; `task` is PEFT's name of the model's use."""
        return {
            "peft_type": "LORA",
            "task_type": task,
            "base_model_name_or_path": self.base,
            "inference_mode": True,
            "r": self.rank,
            "lora_alpha": _whole(self.alpha),
            "lora_dropout": self.dropout,
            "target_modules": list(self.targets),
            "rank_pattern": dict(self.rank_pattern),
            "alpha_pattern": {name: _whole(alpha) for name, alpha in self.alpha_pattern.items()},
            "use_rslora": self.is_stabilized,
            "bias": "none",
            "fan_in_fan_out": False,
            "init_lora_weights": True,
            "modules_to_save": None,
        }


def read(file: Path, ignored: Collection[str] = ()) -> PeftConfig:
    """Reads an adapter_config.json.

    Args:
      ignored: keys that have no effect, as the user knows.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it is damaged, or not of an adapter that Limba's LoRA can be.
    """
    content = {name: value for name, value in untrusted_json.read_object(file).items() if name not in ignored}
    kind = content.get("peft_type")
    if kind != "LORA":
        raise ValueError(f"{file}: peft_type is {shown(kind)}; Limba has LORA alone. {REMEDY}")
    for name, value in content.items():
        says_something = value not in (None, False, "none", [], {})
        if name in _REFUSED and says_something:
            raise ValueError(f"{file}: {name} is {_shown(value)}, and Limba's LoRA has no {_REFUSED[name]}. {REMEDY}")
        if name not in (*_READ, *_TARGETS, *_NO_EFFECT, *_REFUSED) and says_something:
            raise ValueError(
                f"{file}: {cut(name)} is {shown(value)}, a key that Limba does not know; it may change what the "
                f"adapter computes. {REMEDY} If it has no effect, give --ignore_config_keys {cut(name)}."
            )
    begun = content.get("init_lora_weights", True)
    if begun not in _BEGINNINGS:
        raise ValueError(
            f"{file}: init_lora_weights is {shown(begun)}: PEFT changes the base's own weights by it, which the "
            f"factors do not show. {REMEDY}"
        )
    return PeftConfig(
        rank=_number(file, content, "r", 8, int),
        alpha=_number(file, content, "lora_alpha", 8, (int, float)),
        targets=_names(file, content, "target_modules"),
        base=_text(file, content, "base_model_name_or_path"),
        revision=_text(file, content, "revision"),
        excluded=_names(file, content, "exclude_modules"),
        layers=_layers(file, content),
        layer_patterns=_layer_patterns(file, content),
        rank_pattern=_pattern(file, content, "rank_pattern", int),
        alpha_pattern=_pattern(file, content, "alpha_pattern", (int, float)),
        is_stabilized=_flag(file, content, "use_rslora"),
        dropout=_share(file, content, "lora_dropout"),
    )


def _shown(value: Any) -> str:
    return shown_list(value) if isinstance(value, list) else shown(value)


def _chooses(names: str | tuple[str, ...], module: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _of_pattern(pattern: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    found = (value for name, value in pattern.items() if re.match(_OF_END.format(name), module))
    return next(found, otherwise)


def _whole(number: float) -> float:
    """Without a fraction where there is none, as PEFT writes alpha."""
    return int(number) if float(number).is_integer() else number


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and 0 < value < 2**31


def _number(file: Path, content: Mapping[str, Any], key: str, usual: int, kind: Any) -> Any:
    value = content.get(key, usual)
    if not _is_number(value, kind):
        raise ValueError(f"{file}: {key} is {shown(value)}; it is a number above 0 and below 2**31.")
    return value


def _flag(file: Path, content: Mapping[str, Any], key: str) -> bool:
    value = content.get(key) or False
    if value is not True and value is not False:  # PEFT asks whether it is truthy.
        raise ValueError(f"{file}: {key} is {shown(value)}; it is true or false.")
    return value


def _share(file: Path, content: Mapping[str, Any], key: str) -> float:
    value = content.get(key) or 0
    number_ranges.check(f"{file}: {key}", value, SHARE)
    return float(value)


def _text(file: Path, content: Mapping[str, Any], key: str) -> str | None:
    value = content.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{file}: {key} is {shown(value)}; it is a text.")
    return value or None


def _names(file: Path, content: Mapping[str, Any], key: str) -> str | tuple[str, ...]:
    value = content.get(key) or ()
    if isinstance(value, str) and value != "all-linear":
        _check_expression(file, key, value)
    if not isinstance(value, str) and not (
        isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    ):
        raise ValueError(f"{file}: {key} is {shown(value)}; it is a list of names, or an expression.")
    return value if isinstance(value, str) else tuple(value)


def _layers(file: Path, content: Mapping[str, Any]) -> tuple[int, ...] | None:
    value = content.get("layers_to_transform")
    layers = [value] if type(value) is int else [] if value is None else value
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise ValueError(f"{file}: layers_to_transform is {shown(value)}; it is a number, or a list of numbers.")
    return tuple(layers) or None


def _layer_patterns(file: Path, content: Mapping[str, Any]) -> tuple[str, ...]:
    value = content.get("layers_pattern") or []
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{file}: layers_pattern is {shown(value)}; it is an expression, or a list of them.")
    for word in words:
        _check_expression(file, "layers_pattern", word, _OF_LAYER)
    return tuple(words)


def _check_expression(file: Path, key: str, value: str, within: str = "{}") -> None:
    """Raises ValueError for what is no expression in the one that PEFT puts it into."""
    try:
        re.compile(within.format(value))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{file}: {key} has {shown(value)}, which is no expression: {error}.") from error


def _pattern(file: Path, content: Mapping[str, Any], key: str, kind: Any) -> dict[str, Any]:
    value = content.get(key) or {}
    if not isinstance(value, dict) or not all(_is_number(number, kind) for number in value.values()):
        raise ValueError(f"{file}: {key} is {shown(value)}; it has a number, above 0 and below 2**31, for each.")
    for name in value:
        _check_expression(file, key, name, _OF_END)
    return value
