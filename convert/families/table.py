"""Which families there are: ours, add-ons', and those of installed packages (entry points of `limba.families`)."""

import functools
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from limba.addons import table as addons
from limba.convert.families import byt5, heads, mt5, t5_1_0, t5_1_1, umt5
from limba.convert.families.encoders import bert, roberta, roberta_prelayernorm
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.families.family import Family
from limba.convert.families.heads import Head
from limba.convert.families.t5_family import T5Family
from limba.files import untrusted_json
from limba.network import own_layers
from limba.network.encoders.config import EncoderConfig
from limba.network.t5 import T5Config

# The order counts: a T5 is of the first family that it fits, and others must be named. mT5 is never the first.
_ROWS: tuple[Family, ...] = (
    *(t5_1_0.FAMILY, t5_1_1.FAMILY, mt5.FAMILY, umt5.FAMILY, byt5.FAMILY),
    *(bert.FAMILY, roberta_prelayernorm.FAMILY),
    *roberta.FAMILIES,
)
_GROUP = "limba.families"

Kind = TypeVar("Kind", bound=Family)


@functools.cache
def all_families() -> Mapping[str, Family]:
    """By name. Add-ons and packages are looked for at the first call.

    Raises:
      ValueError: if a package's entry point is not a `Family`, or its name is taken.
    """
    families = {family.name: family for family in (*_ROWS, *addons.families())}
    for point in importlib.metadata.entry_points(group=_GROUP):
        family = point.load()
        if not isinstance(family, Family) or family.name in families:
            wrong = (
                "has a name that is taken" if isinstance(family, Family) else "is not a convert.families.family.Family"
            )
            raise ValueError(f"{point.value}, an entry point of the group {_GROUP}, {wrong}.")
        families[family.name] = family
    return families


def _of_class(kind: type[Kind]) -> dict[str, Kind]:
    return {name: family for name, family in all_families().items() if isinstance(family, kind)}


def t5_families() -> dict[str, T5Family]:
    """By name."""
    return _of_class(T5Family)


def encoder_families() -> dict[str, EncoderFamily]:
    """By name."""
    return _of_class(EncoderFamily)


def of_model_type(model_type: Any) -> Family | None:
    """The first family that has the `model_type` of a config.json; None if no family has it."""
    return next((family for family in all_families().values() if family.model_type == model_type), None)


def of_config(content: Mapping[str, Any]) -> Family | None:
    """The first family that has the `model_type` of a config.json, or, where it has none, the class that it names."""
    if model_type := content.get("model_type"):  # transformers writes "" for a class of a repository's own.
        return of_model_type(model_type)
    classes = content.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else None
    typeless = (family for family in all_families().values() if family.is_typeless)
    return next((family for family in typeless if family.model_class == name), None)


def of_file(file: Path) -> Family | None:
    """The family of a config.json, see `of_config`. Raises ValueError if the file is damaged."""
    return of_config(untrusted_json.read_object(file))


def t5_config_class(name: str) -> type[T5Config]:
    """The class of a T5's network that `run.json` names; `T5Config` for one that no family has."""
    classes = (family.config_class for family in t5_families().values())
    return next((found for found in classes if found.__name__ == name), T5Config)


def find_t5(network: T5Config, vocabulary: Mapping[str, Any] | None, name: str | None = None) -> T5Family:
    """The family of a network with this vocabulary: the one that the user names, its own, or the first that fits.

    Raises:
      ValueError: if the network cannot be of that family.
    """
    families = t5_families()
    fitting = [family for family in families.values() if family.fits(network, vocabulary)]
    if not fitting:
        raise ValueError(f"The network is that of no family: {', '.join(families)}.")
    found = next((family for family in fitting if family.name == network.family), fitting[0])
    if name is None:
        return found
    if name not in families:
        raise ValueError(f"--family {name}: it is none of {', '.join(families)}.")
    if families[name].fits(network, vocabulary):
        return families[name]
    raise ValueError(f"--family {name}: the network is {found.name}: {found.recognized_by}.")


def find_encoder(config: EncoderConfig, head: Head = heads.OF_MASKED_LM) -> EncoderFamily:
    """The family with the class that holds a network and its head exactly: its own, or the first; see `held`.

    Raises:
      ValueError: if none does, with what would have to be another for the nearest one.
    """
    families = encoder_families()
    if head.kind == heads.DETECTOR:  # Other families have no class of that name.
        families = {name: family for name, family in families.items() if heads.DETECTOR in family.heads}
    problems = {name: family.problems(config, head) for name, family in families.items()}

    def distance(name: str) -> tuple[bool, int, bool]:
        return not _has_positions_of(families[name], config), len(problems[name]), name != config.family

    nearest = min(problems, key=distance)
    family = families[nearest]
    if not problems[nearest]:
        return family
    configured = f"its EncoderConfig or {head.class_name}" if head.labels else "its EncoderConfig"
    raise ValueError(
        f"No class of Hugging Face holds this encoder. For the nearest, {family.class_of(family.held(head).kind)}, "
        f"{configured} would have to be another: {'; '.join(problems[nearest])}. It trains and evaluates in Limba as "
        "it is."
    )


def no_class(network: T5Config | EncoderConfig, head: Head = heads.OF_MASKED_LM) -> str:
    """Why no class of Hugging Face holds a network, of an encoder with its head; "" if one does."""
    if isinstance(network, T5Config):
        own = own_layers.of(network)
        if own:
            return f"No class of Hugging Face holds this T5: it has {', '.join(own)}."
        family = next((family for family in t5_families().values() if family.has_layers_of(network)), None)
        if family is None:
            return f"No family that is here has the layers of this T5, which are {network.layer_kind}'s."
        problem = family.problem(network)
        return f"{family.model_class} does not hold this T5: {problem}." if problem else ""
    try:
        find_encoder(network, head)
    except ValueError as error:
        return str(error)
    return ""


def _has_positions_of(family: EncoderFamily, config: EncoderConfig) -> bool:
    return config.position_embedding_type in family.required["position_embedding_type"]
