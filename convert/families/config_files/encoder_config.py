"""An encoder's config.json, read and written without transformers."""

import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from limba.convert.families import heads
from limba.convert.families.config_files import other_models
from limba.convert.families.config_keys import keys
from limba.convert.families.encoders.encoder_family import EncoderFamily, value
from limba.convert.families.heads import Head
from limba.convert.families.table import of_model_type
from limba.files import untrusted_json
from limba.network.encoders.config import EncoderConfig

# The engine pads rows with it.
PAD_ID = 0
# Far more than any table has: a damaged number must not decide the size of an array.
_MOST_ROWS = 2**24


class ConfigFile(NamedTuple):
    """What a config.json says.

    Attributes:
      content: of the file, without the keys that the user says have no effect.
      family: whose it is.
      network: its padding is 0.
      head: a masked language model's where the file says no other.
      pad_id: the padding of the folder.
    """

    content: dict[str, Any]
    family: EncoderFamily
    network: EncoderConfig
    head: Head
    pad_id: int

    @property
    def explicit(self) -> dict[str, Any]:
        """The content with what it leaves to transformers' defaults."""
        given = {key: x for key, x in self.content.items() if x is not None}
        return settings(self.family, self.network, self.head, self.pad_id) | given


def settings(family: EncoderFamily, network: EncoderConfig, head: Head, pad_id: int) -> dict[str, Any]:
    """What config.json says of a network and its head, without what all families have."""
    return family.settings(network, pad_id) | family.head_class(head.kind).settings(network, head)


def read(file: Path, ignored: Collection[str] = ()) -> ConfigFile:
    """A config.json of one of the families.

    Args:
      ignored: keys that the user says have no effect.

    Raises:
      ValueError: if it is damaged, Limba does not have its network or its head, or a key makes it another one.
    """
    content, family = _read(file)
    keys.check(file, content, family.keys, ignored)
    content = {key: x for key, x in content.items() if key not in ignored}
    try:
        pad_id = value(content, "pad_token_id", family.default_pad_id, int)
        if family.fixed_pad_id not in (None, pad_id):
            raise ValueError(f"pad_token_id is {pad_id}, and {family.model_class} takes {family.fixed_pad_id}")
        network = EncoderConfig(**family.fields(family.completed(content), pad_id), family=family.name)
        if not 0 <= pad_id < network.vocab_size:
            raise ValueError(f"pad_token_id is {pad_id}, and vocab_size {network.vocab_size}")
        if max(network.vocab_size, network.max_positions) > _MOST_ROWS:
            raise ValueError(
                f"vocab_size is {network.vocab_size:,} and max_position_embeddings {network.max_positions:,}; a table "
                f"has at most {_MOST_ROWS:,} rows"
            )
        head = family.held(heads.of_config(content))
        head = dataclasses.replace(head, **family.heads[head.kind].fields(content, network))
        if problems := family.problems(network, head):
            raise ValueError("; ".join(problems))
    except ValueError as error:
        raise ValueError(f"{file}: {str(error).removesuffix('.')}.") from error
    return ConfigFile(content, family, network, head, pad_id)


def notes(file: Path, ignored: Collection[str] = ()) -> Iterator[str]:
    """Sentences about what does not travel of a config.json."""
    content, family = _read(file)
    return keys.left_out(file, content, family.keys, ignored)


def _read(file: Path) -> tuple[dict[str, Any], EncoderFamily]:
    content = untrusted_json.read_object(file)
    other_models.check_classes(file, content)
    family = of_model_type(content.get("model_type"))
    assert isinstance(family, EncoderFamily), "the caller has looked at model_type"
    return content, family
