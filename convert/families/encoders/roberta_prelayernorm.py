"""RoBERTa-PreLayerNorm (arXiv:2202.08005): BERT with norms before blocks, and positions that begin after padding."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from limba.convert.families.config_keys import encoder_keys
from limba.convert.families.encoders import bert
from limba.convert.families.encoders.encoder_family import HeadClass
from limba.convert.tensors.table import Row
from limba.network.encoders.config import EncoderConfig

PREFIX = "roberta_prelayernorm"

MASKED_LM = HeadClass(
    rows=(
        Row("mlm_head", "lm_head"),
        Row("mlm_head/dense", "lm_head.dense"),
        Row("mlm_head/layer_norm", "lm_head.layer_norm"),
    ),
    required=lambda config: bert.BIASES_OF_MASKED_LM | {"head_activation": ("gelu_erf",)},
)


def settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    """See `EncoderFamily.settings`: the table of positions has rows for ids up to padding's, which nothing reads."""
    return bert.settings(config, pad_id) | {"max_position_embeddings": first_position(pad_id) + config.max_positions}


def fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    """See `EncoderFamily.fields`; of a network with norms after the blocks."""
    bert.positions_of(content, "absolute")
    found = bert.fields(content, pad_id)
    positions = found["max_positions"] - first_position(pad_id)
    if positions < 1:
        raise ValueError(
            f"max_position_embeddings is {found['max_positions']}, which leaves no position behind pad_token_id, "
            f"{pad_id}"
        )
    return found | {"max_positions": positions, "head_activation": "gelu_erf"}


def first_position(pad_id: int) -> int:
    """See `EncoderFamily`."""
    return pad_id + 1


FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="roberta_prelayernorm",
    title="RoBERTa-PreLayerNorm",
    model_type="roberta-prelayernorm",
    model_class="RobertaPreLayerNormForMaskedLM",
    prefix=PREFIX,
    required=bert.REQUIRED | {"norm_position": ("pre",), "position_embedding_type": ("absolute",)},
    keys=encoder_keys.ROBERTA_PRELAYERNORM,
    defaults=bert.SIZES | {"vocab_size": 50265},
    rows=(
        Row("encoder/layers_{i}/pre_attention_layer_norm", f"{PREFIX}.encoder.layer.{{i}}.attention.LayerNorm"),
        Row("encoder/layers_{i}/pre_mlp_layer_norm", f"{PREFIX}.encoder.layer.{{i}}.intermediate.LayerNorm"),
        Row("encoder/encoder_norm", f"{PREFIX}.LayerNorm"),
        *bert.rows(PREFIX),
    ),
    heads=bert.heads_of(MASKED_LM, bert.of_sequences(bert.ROWS_OF_SEQUENCES, drops_inputs=True, activation="tanh")),
    output="lm_head.decoder",
    settings=settings,
    fields=lambda content, pad_id: fields(content, pad_id) | {"norm_position": "pre"},
    constants=lambda config, pad_id: bert.no_token_types(PREFIX, config),
    default_pad_id=1,
    first_position=first_position,
    special_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    ignored=rf"^{PREFIX}\.pooler\.",
)
