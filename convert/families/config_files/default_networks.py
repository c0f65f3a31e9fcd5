"""The sizes that transformers' configuration of a `model_type` has by default, for a network from scratch.

A config.json always has them, so no family fills them in. Other keys that are missing have its defaults anyway.
"""

import json
from typing import Any

# T5Config's.
OF_T5 = {"vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
_OF_ENCODERS = {
    **{name: {"vocab_size": 30522, **_BASE} for name in ("bert", "xlm-roberta", "camembert")},
    **{name: {"vocab_size": 50265, **_BASE} for name in ("roberta", "roberta-prelayernorm")},
    "mpnet": {"vocab_size": 30527, **_BASE},
    "roformer": {"vocab_size": 50000, **_BASE},
    "modernbert": {"vocab_size": 50368, **_BASE, "num_hidden_layers": 22, "intermediate_size": 1152},
}


def content(model_type: str) -> dict[str, Any]:
    """A config.json with these sizes.

    Raises:
      ValueError: for a type of which there are none.
    """
    sizes = {"t5": OF_T5, **_OF_ENCODERS}
    if model_type not in sizes:
        raise ValueError(
            f"model_type is {model_type!r}; a network by transformers' defaults is of {', '.join(sizes)}. Of others "
            "that Limba has write a config.json, and name it as config_name."
        )
    return {"model_type": model_type, **sizes[model_type]}


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
