"""RoFormer (arXiv:2104.09864): BERT with rotary positions."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from limba.convert.families.config_keys import encoder_keys
from limba.convert.families.config_keys.keys import carried, table, without_effect
from limba.convert.families.encoders import bert
from limba.convert.families.encoders.encoder_family import refuse_unless, value
from limba.network.encoders.config import EncoderConfig


def _fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    refuse_unless(content, {"rotary_value": (False,)})
    own = {"position_embedding_type": "rotary", "rotary_pairs": "interleaved"}
    own |= bert.embedding_size(content, content["hidden_size"])
    return bert.fields(content, pad_id) | {"max_positions": value(content, "max_position_embeddings", 1536, int)} | own


def _settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    return bert.settings(config, pad_id) | {"embedding_size": config.token_dim, "rotary_value": False}


_KEYS = table(
    *encoder_keys.OF_BERT,
    *carried(embedding_size="embedding_size", rotary_value="must be false"),
    *without_effect("no class reads it: positions are rotary", "position_embedding_type"),
)

FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="roformer",
    title="RoFormer",
    model_type="roformer",
    model_class="RoFormerForMaskedLM",
    prefix="roformer",
    required=bert.REQUIRED | {"position_embedding_type": ("rotary",), "rotary_base": (10_000.0,)},
    keys=_KEYS,
    defaults=bert.SIZES | {"vocab_size": 50000},
    rows=bert.rows("roformer"),
    heads=bert.heads_of(bert.MASKED_LM, bert.of_sequences(bert.ROWS_OF_SEQUENCES, drops_inputs=True, activation=None)),
    settings=_settings,
    fields=_fields,
    constants=lambda config, pad_id: bert.no_token_types("roformer", config),
    has_embedding_size=True,
    rotary_pairs="interleaved",
    # The class computes its sines itself.
    ignored=r"^roformer\.pooler\.|^cls\.seq_relationship\.|\.embed_positions\.",
    numpy_forward="limba.addons.encoders.numpy_relatives",
)
