"""ELECTRA (arXiv:2003.10555): BERT with tables of a width of their own. It detects tokens that were replaced; the
generator that replaces them is a masked language model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from limba.convert.families import heads
from limba.convert.families.config_keys import encoder_keys
from limba.convert.families.config_keys.keys import carried, table, without_effect
from limba.convert.families.encoders import bert
from limba.convert.families.encoders.encoder_family import HeadClass
from limba.convert.tensors.table import Row
from limba.network.encoders.config import EncoderConfig

# That of the class in config.json.
_EMBEDDING_SIZE = 128


def _fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    positions = bert.positions_of(content, "absolute")
    own = {"position_embedding_type": positions, "head_activation": "gelu_erf"}
    return bert.fields(content, pad_id) | own | bert.embedding_size(content, _EMBEDDING_SIZE)


_MASKED_LM = HeadClass(
    rows=(
        Row("mlm_head", "generator_lm_head"),
        Row("mlm_head/dense", "generator_predictions.dense"),
        Row("mlm_head/layer_norm", "generator_predictions.LayerNorm"),
    ),
    required=lambda config: bert.BIASES_OF_MASKED_LM | {"head_activation": ("gelu_erf",)},
)
_DETECTOR = HeadClass(
    rows=(
        Row("rtd_head/dense", "discriminator_predictions.dense"),
        Row("rtd_head/logits", "discriminator_predictions.dense_prediction"),
    ),
    required=lambda config: {},
)


def _settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    return bert.settings(config, pad_id) | {"embedding_size": config.token_dim}


_KEYS = table(
    *encoder_keys.OF_BERT,
    *carried(embedding_size="embedding_size"),
    *without_effect(
        "of a class for multiple choice, which Limba does not have",
        *("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout", "summary_proj_to_labels"),
        "summary_first_dropout",
    ),
    *without_effect("of the pre-training, and no class reads it", "generator_hidden_size"),
)

FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="electra",
    title="ELECTRA",
    model_type="electra",
    model_class="ElectraForMaskedLM",
    prefix="electra",
    output="generator_lm_head",
    required=bert.REQUIRED | {"position_embedding_type": ("absolute",)},
    keys=_KEYS,
    defaults={
        "vocab_size": 30522,
        "hidden_size": 256,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    rows=bert.rows("electra"),
    heads=bert.heads_of(_MASKED_LM, bert.of_sequences(bert.ROWS_OF_SEQUENCES, drops_inputs=True, activation="gelu_erf"))
    | {heads.DETECTOR: _DETECTOR},
    settings=_settings,
    fields=_fields,
    constants=lambda config, pad_id: bert.no_token_types("electra", config),
    has_embedding_size=True,
    # Files of the one network have the head of the other where a program opened them with another class.
    ignored=r"^discriminator_predictions\.|^generator_predictions\.|^generator_lm_head\.",
    numpy_forward="limba.addons.encoders.numpy_relatives",
)
