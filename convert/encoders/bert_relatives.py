"""BERT (arXiv:1810.04805) and the classes that were made from it: RoBERTa-PreLayerNorm, MPNet and RoFormer."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convert.encoders.family import (
    Family,
    HeadClass,
    Row,
    activation,
    activation_name,
    common_limits,
    refuse_unless,
    value,
)
from convert.families import encoder_keys, heads
from limba.encoders.config import EncoderConfig

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "emb_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
}
_RATES = {
    "hidden_dropout_prob": ("dropout_rate", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout_rate", 0.1),
    "initializer_range": ("initializer_range", 0.02),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
}
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "norm": ("layer_norm",),
    "norm_position": ("post",),
    "embedding_norm": (True,),
    "first_attention_norm": (True,),
    "attention_bias": (True,),
    "mlp_bias": (True,),
    "global_attention_every": (1,),
}


def _rows(prefix: str) -> tuple[Row, ...]:
    layer, theirs = "encoder/layers_{i}", f"{prefix}.encoder.layer.{{i}}"
    return (
        Row("token_embedder", f"{prefix}.embeddings.word_embeddings"),
        Row("encoder/position_embedder", f"{prefix}.embeddings.position_embeddings"),
        Row("encoder/token_type_embedder", f"{prefix}.embeddings.token_type_embeddings"),
        Row("encoder/embedding_layer_norm", f"{prefix}.embeddings.LayerNorm"),
        *(Row(f"{layer}/attention/{name}", f"{theirs}.attention.self.{name}") for name in ("query", "key", "value")),
        Row(f"{layer}/attention/relative_key", f"{theirs}.attention.self.distance_embedding"),
        Row(f"{layer}/attention/out", f"{theirs}.attention.output.dense"),
        Row(f"{layer}/mlp/wi", f"{theirs}.intermediate.dense"),
        Row(f"{layer}/mlp/wo", f"{theirs}.output.dense"),
        Row(f"{layer}/post_attention_layer_norm", f"{theirs}.attention.output.LayerNorm"),
        Row(f"{layer}/post_mlp_layer_norm", f"{theirs}.output.LayerNorm"),
    )


# ------------------------------------------------------ heads ------------------------------------------------------

_BIASES_OF_MASKED_LM = {"head_bias": (True,), "logits_bias": (True,)}
_HEAD_OF_BERT = HeadClass(
    rows=(
        Row("mlm_head", "cls.predictions"),
        Row("mlm_head/dense", "cls.predictions.transform.dense"),
        Row("mlm_head/layer_norm", "cls.predictions.transform.LayerNorm"),
    ),
    required=lambda config: _BIASES_OF_MASKED_LM | {"head_activation": tuple(config.mlp_activations[:1])},
)
_HEADS_OF_PAIRS = HeadClass(
    rows=(
        *_HEAD_OF_BERT.rows,
        Row("classifier_head/dense", "bert.pooler.dense"),
        Row("pair_head", "cls.seq_relationship"),
    ),
    required=_HEAD_OF_BERT.required,
)
_HEAD_OF_ROBERTA = HeadClass(
    rows=(
        Row("mlm_head", "lm_head"),
        Row("mlm_head/dense", "lm_head.dense"),
        Row("mlm_head/layer_norm", "lm_head.layer_norm"),
    ),
    required=lambda config: _BIASES_OF_MASKED_LM | {"head_activation": ("gelu_erf",)},
)
_OF_TOKENS = HeadClass(
    rows=(Row("classifier_head/logits", "classifier"),), required=lambda config: {"activation": (None,)}
)
_ROWS_OF_SEQUENCES = (
    Row("classifier_head/dense", "classifier.dense"),
    Row("classifier_head/logits", "classifier.out_proj"),
)


def _of_sequences(rows: tuple[Row, ...], drops_inputs: bool, activation: str | None) -> HeadClass:
    """The class for sequences; `activation` None is that of the MLP."""

    def required(config: EncoderConfig) -> dict[str, tuple[Any, ...]]:
        of_class = activation or config.mlp_activations[0]
        return {"pooling": ("first",), "activation": (of_class,), "use_norm": (False,), "dense_bias": (True,)}

    def fields(content: Mapping[str, Any], config: EncoderConfig) -> dict[str, Any]:
        return {name: values[0] for name, values in required(config).items()} | {"drop_inputs": drops_inputs}

    return HeadClass(rows, required, fields=fields)


def _heads(masked_lm: HeadClass, of_sequences: HeadClass) -> dict[str, HeadClass]:
    return {heads.MASKED_LM: masked_lm, heads.SEQUENCE: of_sequences, heads.TOKENS: _OF_TOKENS}


# -------------------------------------------------- configurations --------------------------------------------------


def _settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    content = {key: getattr(config, field) for key, field in _SIZES.items()}
    content |= {key: getattr(config, field) for key, (field, _) in _RATES.items()}
    types = {"type_vocab_size": max(config.num_token_types, 1)}
    act = {"hidden_act": activation_name(config.mlp_activations[0])}
    return content | act | types | {"max_position_embeddings": config.max_positions, "pad_token_id": pad_id}


def _fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    fields = {field: value(content, key, None, int) for key, field in _SIZES.items()}
    fields |= {field: value(content, key, default, (int, float)) for key, (field, default) in _RATES.items()}
    if fields["num_heads"] < 1 or fields["emb_dim"] % fields["num_heads"]:
        raise ValueError(
            f"hidden_size is {fields['emb_dim']}, which is not a multiple of num_attention_heads, {fields['num_heads']}"
        )
    act = activation(content, "hidden_act")
    return fields | {
        "head_dim": fields["emb_dim"] // fields["num_heads"],
        "max_positions": value(content, "max_position_embeddings", 512, int),
        "num_token_types": value(content, "type_vocab_size", 2, int),
        "mlp_activations": (act,),
        "head_activation": act,
    }


def _limits(config: EncoderConfig) -> Iterator[str]:
    yield from common_limits(config)
    if len(config.mlp_activations) > 1:
        yield f"mlp_activations is {tuple(config.mlp_activations)!r}, and must be one activation, without a gate"


def _zeros(name: str, rows: int, config: EncoderConfig) -> dict[str, np.ndarray]:
    return {name: np.zeros((rows, config.emb_dim), np.float32)}


def _no_token_types(prefix: str, config: EncoderConfig) -> dict[str, np.ndarray]:
    """A table of one row that adds nothing, for a network without token types."""
    return {} if config.num_token_types else _zeros(f"{prefix}.embeddings.token_type_embeddings.weight", 1, config)


# ------------------------------------------------------- BERT -------------------------------------------------------

_RELATIVE_KEYS = ("relative_key", "relative_key_query")


def _settings_of_bert(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    relative = config.position_embedding_type in _RELATIVE_KEYS
    # Only where it is not the default: version 5 of transformers no longer has the key.
    return _settings(config, pad_id) | ({"position_embedding_type": config.position_embedding_type} if relative else {})


def _fields_of_bert(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    refuse_unless(content, {"position_embedding_type": ("absolute", *_RELATIVE_KEYS)})
    return _fields(content, pad_id) | {"position_embedding_type": content.get("position_embedding_type") or "absolute"}


def _constants_of_bert(config: EncoderConfig, pad_id: int) -> dict[str, np.ndarray]:
    # BERT has the table with relative keys too, and does not read it.
    unread = (
        {}
        if config.has_absolute_positions
        else _zeros("bert.embeddings.position_embeddings.weight", config.max_positions, config)
    )
    return _no_token_types("bert", config) | unread


BERT = Family(
    name="bert",
    title="BERT",
    model_type="bert",
    stem="Bert",
    prefix="bert",
    required=_REQUIRED | {"position_embedding_type": ("absolute", *_RELATIVE_KEYS)},
    keys=encoder_keys.BERT,
    rows=_rows("bert"),
    heads=_heads(
        _HEAD_OF_BERT,
        _of_sequences(
            (Row("classifier_head/dense", "bert.pooler.dense"), Row("classifier_head/logits", "classifier")),
            drops_inputs=False,
            activation="tanh",
        ),
    )
    | {heads.PAIRS: _HEADS_OF_PAIRS},
    settings=_settings_of_bert,
    fields=_fields_of_bert,
    limits=_limits,
    constants=_constants_of_bert,
    ignored=r"^bert\.pooler\.|^cls\.seq_relationship\.",
)


# ----------------------------------------------- RoBERTa-PreLayerNorm -----------------------------------------------


def _settings_of_roberta(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    return _settings(config, pad_id) | {"max_position_embeddings": config.max_positions + pad_id + 1}


def _fields_of_roberta(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    refuse_unless(content, {"position_embedding_type": ("absolute",)})
    fields = _fields(content, pad_id)
    positions = fields["max_positions"] - pad_id - 1
    if positions < 1:
        raise ValueError(
            f"max_position_embeddings is {fields['max_positions']}, which leaves no position behind pad_token_id, "
            f"{pad_id}"
        )
    return fields | {"norm_position": "pre", "max_positions": positions, "head_activation": "gelu_erf"}


ROBERTA_PRELAYERNORM = Family(
    name="roberta_prelayernorm",
    title="RoBERTa-PreLayerNorm",
    model_type="roberta-prelayernorm",
    stem="RobertaPreLayerNorm",
    prefix="roberta_prelayernorm",
    required=_REQUIRED | {"norm_position": ("pre",), "position_embedding_type": ("absolute",)},
    keys=encoder_keys.ROBERTA_PRELAYERNORM,
    rows=(
        Row(
            "encoder/layers_{i}/pre_attention_layer_norm", "roberta_prelayernorm.encoder.layer.{i}.attention.LayerNorm"
        ),
        Row("encoder/layers_{i}/pre_mlp_layer_norm", "roberta_prelayernorm.encoder.layer.{i}.intermediate.LayerNorm"),
        Row("encoder/encoder_norm", "roberta_prelayernorm.LayerNorm"),
        *_rows("roberta_prelayernorm"),
    ),
    heads=_heads(_HEAD_OF_ROBERTA, _of_sequences(_ROWS_OF_SEQUENCES, drops_inputs=True, activation="tanh")),
    settings=_settings_of_roberta,
    fields=_fields_of_roberta,
    limits=_limits,
    constants=lambda config, pad_id: _no_token_types("roberta_prelayernorm", config),
    default_pad_id=1,
    first_position=lambda pad_id: pad_id + 1,
    special_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    ignored=r"^roberta_prelayernorm\.pooler\.",
)


# ------------------------------------------------------- MPNet ------------------------------------------------------

# The class takes id 1 for padding and begins its positions after it.
_MPNET_PAD_ID = 1


def _settings_of_mpnet(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    content = _settings_of_roberta(config, pad_id) | {"relative_attention_num_buckets": config.num_buckets}
    del content["type_vocab_size"]
    return content


def _fields_of_mpnet(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    refuse_unless(content, {"relative_attention_num_buckets": (32,)})
    own = {"position_embedding_type": "absolute_and_t5_buckets", "norm_position": "post", "num_token_types": 0}
    return _fields_of_roberta(content, pad_id) | own


def _constants_of_mpnet(config: EncoderConfig, pad_id: int) -> dict[str, np.ndarray]:
    """For a network with T5's buckets alone, learned positions that add nothing."""
    if config.has_absolute_positions:
        return {}
    return _zeros("mpnet.embeddings.position_embeddings.weight", config.max_positions + pad_id + 1, config)


MPNET = Family(
    name="mpnet",
    title="MPNet",
    model_type="mpnet",
    stem="MPNet",
    prefix="mpnet",
    required=_REQUIRED
    | {"position_embedding_type": ("absolute_and_t5_buckets", "t5_buckets"), "num_token_types": (0,)}
    | {"num_buckets": (32,), "max_distance": (128,)},
    keys=encoder_keys.MPNET,
    rows=(
        *(
            Row(f"encoder/layers_{{i}}/attention/{ours}", f"mpnet.encoder.layer.{{i}}.attention.attn.{theirs}")
            for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o"))
        ),
        Row("encoder/layers_{i}/post_attention_layer_norm", "mpnet.encoder.layer.{i}.attention.LayerNorm"),
        Row("encoder/relpos_bias", "mpnet.encoder.relative_attention_bias"),
        *_rows("mpnet"),
    ),
    heads=_heads(_HEAD_OF_ROBERTA, _of_sequences(_ROWS_OF_SEQUENCES, drops_inputs=True, activation="tanh")),
    settings=_settings_of_mpnet,
    fields=_fields_of_mpnet,
    limits=_limits,
    constants=_constants_of_mpnet,
    default_pad_id=_MPNET_PAD_ID,
    fixed_pad_id=_MPNET_PAD_ID,
    first_position=lambda pad_id: pad_id + 1,
    special_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    ignored=r"^mpnet\.pooler\.",
)


# ----------------------------------------------------- RoFormer -----------------------------------------------------


def _fields_of_roformer(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    refuse_unless(content, {"rotary_value": (False,), "embedding_size": (content.get("hidden_size"),)})
    own = {"position_embedding_type": "rotary", "rotary_pairs": "interleaved"}
    return _fields(content, pad_id) | {"max_positions": value(content, "max_position_embeddings", 1536, int)} | own


def _settings_of_roformer(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    return _settings(config, pad_id) | {"embedding_size": config.emb_dim, "rotary_value": False}


def _limits_of_roformer(config: EncoderConfig) -> Iterator[str]:
    yield from _limits(config)
    if config.rotary_dim not in (None, config.head_dim):
        yield f"rotary_dim is {config.rotary_dim}, and must be head_dim, {config.head_dim}"


ROFORMER = Family(
    name="roformer",
    title="RoFormer",
    model_type="roformer",
    stem="RoFormer",
    prefix="roformer",
    required=_REQUIRED | {"position_embedding_type": ("rotary",), "rotary_base": (10_000.0,)},
    keys=encoder_keys.ROFORMER,
    rows=_rows("roformer"),
    heads=_heads(_HEAD_OF_BERT, _of_sequences(_ROWS_OF_SEQUENCES, drops_inputs=True, activation=None)),
    settings=_settings_of_roformer,
    fields=_fields_of_roformer,
    limits=_limits_of_roformer,
    constants=lambda config, pad_id: _no_token_types("roformer", config),
    rotary_pairs="interleaved",
    # The class computes its sines itself.
    ignored=r"^roformer\.pooler\.|^cls\.seq_relationship\.|\.embed_positions\.",
)
