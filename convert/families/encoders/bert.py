"""BERT (arXiv:1810.04805), and what the classes share that were made from it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from limba.convert.families import heads
from limba.convert.families.config_keys import encoder_keys
from limba.convert.families.encoders.encoder_family import (
    EncoderFamily,
    HeadClass,
    activation,
    activation_name,
    common_limits,
    numbers,
    read_numbers,
    refuse_unless,
    value,
)
from limba.convert.tensors.table import Row
from limba.network.encoders.config import EncoderConfig

_RATES = {
    "hidden_dropout_prob": ("dropout_rate", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout_rate", 0.1),
    "initializer_range": ("initializer_range", 0.02),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
}
REQUIRED: dict[str, tuple[Any, ...]] = {
    "norm": ("layer_norm",),
    "norm_position": ("post",),
    "embedding_norm": (True,),
    "first_attention_norm": (True,),
    "attention_bias": (True,),
    "mlp_bias": (True,),
    "num_kv_heads": (None,),
    "global_attention_every": (1,),
}


def rows(prefix: str) -> tuple[Row, ...]:
    """Those of the encoder, whose tensors begin with the prefix."""
    layer, theirs = "encoder/layers_{i}", f"{prefix}.encoder.layer.{{i}}"
    return (
        Row("token_embedder", f"{prefix}.embeddings.word_embeddings"),
        Row("encoder/position_embedder", f"{prefix}.embeddings.position_embeddings"),
        Row("encoder/token_type_embedder", f"{prefix}.embeddings.token_type_embeddings"),
        Row("encoder/embedding_layer_norm", f"{prefix}.embeddings.LayerNorm"),
        Row("encoder/embedding_projection", f"{prefix}.embeddings_project"),
        *(Row(f"{layer}/attention/{name}", f"{theirs}.attention.self.{name}") for name in ("query", "key", "value")),
        Row(f"{layer}/attention/relative_key", f"{theirs}.attention.self.distance_embedding"),
        Row(f"{layer}/attention/out", f"{theirs}.attention.output.dense"),
        Row(f"{layer}/mlp/wi", f"{theirs}.intermediate.dense"),
        Row(f"{layer}/mlp/wo", f"{theirs}.output.dense"),
        Row(f"{layer}/post_attention_layer_norm", f"{theirs}.attention.output.LayerNorm"),
        Row(f"{layer}/post_mlp_layer_norm", f"{theirs}.output.LayerNorm"),
    )


# ------------------------------------------------------ heads ------------------------------------------------------

BIASES_OF_MASKED_LM = {"head_bias": (True,), "logits_bias": (True,), "logits_via_embedding": (True,)}
MASKED_LM = HeadClass(
    rows=(
        Row("mlm_head", "cls.predictions"),
        Row("mlm_head/dense", "cls.predictions.transform.dense"),
        Row("mlm_head/layer_norm", "cls.predictions.transform.LayerNorm"),
    ),
    required=lambda config: BIASES_OF_MASKED_LM | {"head_activation": tuple(config.mlp_activations[:1])},
)
_HEADS_OF_PAIRS = HeadClass(
    rows=(
        *MASKED_LM.rows,
        Row("classifier_head/dense", "bert.pooler.dense"),
        Row("pair_head", "cls.seq_relationship"),
    ),
    required=MASKED_LM.required,
)
OF_TOKENS = HeadClass(
    rows=(Row("classifier_head/logits", "classifier"),), required=lambda config: {"activation": (None,)}
)
ROWS_OF_SEQUENCES = (
    Row("classifier_head/dense", "classifier.dense"),
    Row("classifier_head/logits", "classifier.out_proj"),
)


def of_sequences(rows: tuple[Row, ...], drops_inputs: bool, activation: str | None) -> HeadClass:
    """The class for sequences; `activation` None is that of the MLP."""

    def required(config: EncoderConfig) -> dict[str, tuple[Any, ...]]:
        of_class = activation or config.mlp_activations[0]
        return {"pooling": ("first",), "activation": (of_class,), "use_norm": (False,), "dense_bias": (True,)}

    def fields(content: Mapping[str, Any], config: EncoderConfig) -> dict[str, Any]:
        return {name: values[0] for name, values in required(config).items()} | {"drop_inputs": drops_inputs}

    return HeadClass(rows, required, fields=fields)


def heads_of(masked_lm: HeadClass, of_sequences: HeadClass) -> dict[str, HeadClass]:
    """By kind, with BERT's class of tokens."""
    return {heads.MASKED_LM: masked_lm, heads.SEQUENCE: of_sequences, heads.TOKENS: OF_TOKENS}


# -------------------------------------------------- configurations --------------------------------------------------


def settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    """See `EncoderFamily.settings`."""
    content = numbers(config, _RATES)
    types = {"type_vocab_size": max(config.num_token_types, 1)}
    act = {"hidden_act": activation_name(config.mlp_activations[0])}
    return content | act | types | {"max_position_embeddings": config.max_positions, "pad_token_id": pad_id}


def fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    """See `EncoderFamily.fields`."""
    found = read_numbers(content, _RATES)
    act = activation(content, "hidden_act")
    return found | {
        "max_positions": value(content, "max_position_embeddings", 512, int),
        "num_token_types": value(content, "type_vocab_size", 2, int),
        "mlp_activations": (act,),
        "head_activation": act,
    }


def embedding_size(content: Mapping[str, Any], default: int) -> dict[str, Any]:
    """The field for `embedding_size` of config.json; None where that is the width of the layers."""
    found = value(content, "embedding_size", default, int)
    return {"embedding_size": None if found == content["hidden_size"] else found}


def limits(config: EncoderConfig) -> Iterator[str]:
    """See `EncoderFamily.limits`."""
    yield from common_limits(config)
    if len(config.mlp_activations) > 1:
        yield f"mlp_activations is {tuple(config.mlp_activations)!r}, and must be one activation, without a gate"


def zeros(name: str, rows: int, config: EncoderConfig) -> dict[str, np.ndarray]:
    """A table that adds nothing, by its name in Hugging Face."""
    return {name: np.zeros((rows, config.token_dim), np.float32)}


def no_token_types(prefix: str, config: EncoderConfig) -> dict[str, np.ndarray]:
    """A table of one row that adds nothing, for a network without token types."""
    return {} if config.num_token_types else zeros(f"{prefix}.embeddings.token_type_embeddings.weight", 1, config)


# Sizes by default, beside the rows of the embedding.
SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}

# ------------------------------------------------------- BERT -------------------------------------------------------

_RELATIVE_KEYS = ("relative_key", "relative_key_query")


def _settings_of_bert(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    relative = config.position_embedding_type in _RELATIVE_KEYS
    # Only where it is not the default: version 5 of transformers no longer has the key.
    return settings(config, pad_id) | ({"position_embedding_type": config.position_embedding_type} if relative else {})


def positions_of(content: Mapping[str, Any], *known: str) -> str:
    """`position_embedding_type` of config.json, learned ones where it is missing.

    Raises:
      ValueError: for none of the known ones, and for null.
    """
    if content.get("position_embedding_type", "") is None:
        raise ValueError(
            "position_embedding_type is null, with which version 4 of transformers adds no positions and version 5 "
            'learned ones. For learned ones write "absolute"; Limba has no encoder without'
        )
    refuse_unless(content, {"position_embedding_type": known})
    return content.get("position_embedding_type", "absolute")


def _fields_of_bert(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    positions = positions_of(content, "absolute", *_RELATIVE_KEYS)
    return fields(content, pad_id) | {"position_embedding_type": positions}


def _constants_of_bert(config: EncoderConfig, pad_id: int) -> dict[str, np.ndarray]:
    # BERT has the table with relative keys too, and does not read it.
    unread = (
        {}
        if config.has_absolute_positions
        else zeros("bert.embeddings.position_embeddings.weight", config.max_positions, config)
    )
    return no_token_types("bert", config) | unread


FAMILY = EncoderFamily(
    name="bert",
    title="BERT",
    model_type="bert",
    model_class="BertForMaskedLM",
    prefix="bert",
    required=REQUIRED | {"position_embedding_type": ("absolute", *_RELATIVE_KEYS)},
    keys=encoder_keys.BERT,
    defaults=SIZES | {"vocab_size": 30522},
    rows=rows("bert"),
    heads=heads_of(
        MASKED_LM,
        of_sequences(
            (Row("classifier_head/dense", "bert.pooler.dense"), Row("classifier_head/logits", "classifier")),
            drops_inputs=False,
            activation="tanh",
        ),
    )
    | {heads.PAIRS: _HEADS_OF_PAIRS},
    output="cls.predictions.decoder",
    settings=_settings_of_bert,
    fields=_fields_of_bert,
    limits=limits,
    constants=_constants_of_bert,
    ignored=r"^bert\.pooler\.|^cls\.seq_relationship\.",
)
