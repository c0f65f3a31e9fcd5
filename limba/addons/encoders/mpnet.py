"""MPNet (arXiv:2004.09297): the positions of RoBERTa and the distances of T5, without token types."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from limba.convert.families.config_keys import encoder_keys
from limba.convert.families.config_keys.keys import carried, table, without_effect
from limba.convert.families.encoders import bert, roberta_prelayernorm
from limba.convert.families.encoders.encoder_family import refuse_unless
from limba.convert.tensors.table import Row
from limba.network.encoders.config import EncoderConfig

# The class takes id 1 for padding and begins its positions after it.
_PAD_ID = 1
_ATTENTION = (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o"))


def _settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    content = roberta_prelayernorm.settings(config, pad_id) | {"relative_attention_num_buckets": config.num_buckets}
    del content["type_vocab_size"]
    return content


def _fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    refuse_unless(content, {"relative_attention_num_buckets": (32,)})
    own = {"position_embedding_type": "absolute_and_t5_buckets", "num_token_types": 0}
    # No class reads the key.
    without = {key: x for key, x in content.items() if key != "position_embedding_type"}
    return roberta_prelayernorm.fields(without, pad_id) | own


def _constants(config: EncoderConfig, pad_id: int) -> dict[str, np.ndarray]:
    """For a network with T5's buckets alone, learned positions that add nothing."""
    if config.has_absolute_positions:
        return {}
    rows = config.max_positions + roberta_prelayernorm.first_position(pad_id)
    return bert.zeros("mpnet.embeddings.position_embeddings.weight", rows, config)


_KEYS = table(
    *encoder_keys.OF_BERT,
    *carried(relative_attention_num_buckets="num_buckets, 32"),
    *without_effect("no class reads it: there are no segments", "type_vocab_size"),
    *without_effect("no class reads it: positions are learned, with distances", "position_embedding_type"),
)

FAMILY = dataclasses.replace(
    roberta_prelayernorm.FAMILY,
    name="mpnet",
    title="MPNet",
    model_type="mpnet",
    model_class="MPNetForMaskedLM",
    prefix="mpnet",
    required=bert.REQUIRED
    | {"position_embedding_type": ("absolute_and_t5_buckets", "t5_buckets"), "num_token_types": (0,)}
    | {"num_buckets": (32,), "max_distance": (128,)},
    keys=_KEYS,
    defaults=bert.SIZES | {"vocab_size": 30527},
    rows=(
        *(
            Row(f"encoder/layers_{{i}}/attention/{ours}", f"mpnet.encoder.layer.{{i}}.attention.attn.{theirs}")
            for ours, theirs in _ATTENTION
        ),
        Row("encoder/layers_{i}/post_attention_layer_norm", "mpnet.encoder.layer.{i}.attention.LayerNorm"),
        Row("encoder/relpos_bias", "mpnet.encoder.relative_attention_bias"),
        *bert.rows("mpnet"),
    ),
    settings=_settings,
    fields=_fields,
    constants=_constants,
    default_pad_id=_PAD_ID,
    fixed_pad_id=_PAD_ID,
    ignored=r"^mpnet\.pooler\.",
    numpy_forward="limba.addons.encoders.numpy_relatives",
)
