"""A model with the settings of another config.json, as transformers' `from_pretrained(FOLDER, config=…)` takes them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.convert.families import heads, networks
from limba.convert.families.config_files import new_network, t5_config
from limba.convert.families.networks import Network
from limba.convert.families.t5_family import T5Family
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hf_tokenizer
from limba.convert.model_files.model import Model, ModelHints
from limba.files import json_text, untrusted_json

# Keys that say which head the weights have: those of the model's own config.json.
_OF_HEADS = ("architectures", "id2label", "label2id", "num_labels", "problem_type")
# Fields of a run that a config.json says, too.
_OF_FILES = ("dropout_rate", "attention_dropout_rate", "initializer_range")


def open_folder(own: Model, config_file: Path, hints: ModelHints) -> tuple[Model, ModelHints]:
    """A folder of transformers, which is opened, with another config.json; and the hints that open it so again.

    All settings are those of `config_file`, as in transformers; the head is that of the weights.

    Raises:
      ValueError: if `config_file` is of another type, or of a network whose weights have other shapes.
    """
    content, of_model = (untrusted_json.read_object(file) for file in (config_file, Path(own.path) / "config.json"))
    if content.get("model_type") != of_model.get("model_type"):
        raise ValueError(
            f"model_type is {of_model.get('model_type')!r} in {own.path}, and {content.get('model_type')!r} by "
            f"config_name, {config_file}. A model has its own type: leave config_name out."
        )
    _check_shapes(own, _network(own, config_file, hints), config_file)
    if content["model_type"] == "t5":
        content = t5_config.read(config_file, hints.ignore_config_keys)
    if _hides_output(own, content):
        content["scale_decoder_outputs"] = False
    content = {key: x for key, x in content.items() if key not in _OF_HEADS}
    content |= {key: of_model[key] for key in _OF_HEADS if key in of_model}
    file = hf_tokenizer.temporary_file(json_text.dumps(content).encode(), "config.json")
    hints = dataclasses.replace(hints, config_file=file)
    return any_format.open_model(own.path, hints), hints


def of_checkpoint(own: Model, config_file: Path, hints: ModelHints) -> Model:
    """A checkpoint of Limba with the rates of dropout of a config.json, whose network must be the same."""
    given = _network(own, config_file, hints)
    fields, others = (vars(networks.plain(network)) for network in (own.config, given))
    for name in dict.fromkeys((*fields, *others)):
        if fields.get(name) != others.get(name):
            raise _other_network(own, config_file, {name: (fields.get(name), others.get(name))})
    of_files = {name: getattr(given, name) for name in _OF_FILES if hasattr(given, name)}
    return dataclasses.replace(own, config=dataclasses.replace(own.config, **of_files))


def _network(own: Model, file: Path, hints: ModelHints) -> Network:
    if any_format.has_decoder(file) != own.family.has_decoder:
        kinds = ("a T5", "an encoder") if own.family.has_decoder else ("an encoder", "a T5")
        raise ValueError(f"{own.path} is {kinds[0]}, and config_name, {file}, {kinds[1]}: leave config_name out.")
    if not isinstance(own.family, T5Family):
        return new_network.read_network(file, hints.ignore_config_keys).config
    content = t5_config.read(file, hints.ignore_config_keys)
    if _hides_output(own, content):
        content["scale_decoder_outputs"] = False
    return t5_config.network_config(file, content)


def _hides_output(own: Model, content: Mapping[str, Any]) -> bool:
    """Whether version 5 of transformers wrote of an output of its own that it is the embedding."""
    is_t5 = isinstance(own.family, T5Family) and own.head == heads.OF_T5
    return is_t5 and not own.config.logits_via_embedding and t5_config.hides_its_output(content)


def _check_shapes(own: Model, given: Network, config_file: Path) -> None:
    """Raises ValueError, which names all sizes, if the weights of a network have other shapes than a model's."""
    if networks.shapes(given, own.head) == networks.shapes(own.config, own.head):
        return
    fields, others = (vars(networks.plain(network)) for network in (own.config, given))
    differ = {name: (fields[name], others[name]) for name in fields if fields[name] != others[name]}
    of_shapes = {name: both for name, both in differ.items() if _changes_shapes(own, name, both[1])}
    raise _other_network(own, config_file, of_shapes or differ)


def _changes_shapes(own: Model, name: str, value: Any) -> bool:
    try:
        changed = dataclasses.replace(own.config, **{name: value})
        return networks.shapes(changed, own.head) != networks.shapes(own.config, own.head)
    except ValueError:  # The value needs that of another field.
        return True


def _other_network(own: Model, config_file: Path, differ: Mapping[str, tuple[Any, Any]]) -> ValueError:
    plain = {name: [[*x] if isinstance(x, tuple) else x for x in both] for name, both in differ.items()}
    one = ", ".join(f"{name} {both[0]!r}" for name, both in plain.items())
    other = ", ".join(f"{name} {both[1]!r}" for name, both in plain.items())
    return ValueError(
        f"{own.path} has {one}; config_name, {config_file}, has {other}. These belong to the weights: correct them in "
        "config_name, or leave it out."
    )
