"""The config.json of a network from scratch that has the sizes of transformers' class of a `model_type` by default."""

import json
from typing import Any

from limba.convert.families.table import all_families, of_model_type


def content(model_type: str) -> dict[str, Any]:
    """A config.json with the class's sizes.

    Raises:
      ValueError: for a type of which there are none.
    """
    family = of_model_type(model_type)
    if family is None or not family.defaults:
        known = dict.fromkeys(family.model_type for family in all_families().values() if family.defaults)
        raise ValueError(
            f"model_type is {model_type!r}; a network by transformers' defaults is of {', '.join(known)}. Of others "
            "that Limba has write a config.json, and name it as config_name."
        )
    return {"model_type": model_type, **family.defaults}


def parsed(overrides: str) -> dict[str, Any]:
    """Keys and values of "key=value,key=value"; the reader of the config.json says which keys there are.

    Raises:
      ValueError: for a part without a value.
    """
    found = {}
    for part in filter(None, overrides.split(",")):
        key, equals, text = (word.strip() for word in part.partition("="))
        if not (key and equals and text):
            raise ValueError(f"config_overrides has {part!r}; it is key=value, and commas stand between several.")
        text = {"true": "true", "y": "true", "yes": "true", "false": "false", "n": "false"}.get(text.lower(), text)
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found
