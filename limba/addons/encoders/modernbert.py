"""ModernBERT (arXiv:2412.13663): pre-LN, rotary positions, gated MLP, layers that look at a window."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from limba.addons.encoders.gated_mlp import SCALED, gated_limits
from limba.convert.families import heads
from limba.convert.families.config_keys import encoder_keys
from limba.convert.families.config_keys.keys import carried, only, settings, table, without_effect
from limba.convert.families.encoders.encoder_family import (
    EncoderFamily,
    HeadClass,
    activation,
    activation_name,
    known_activations,
    numbers,
    read_numbers,
    refuse_unless,
    value,
)
from limba.convert.families.heads import Head
from limba.convert.tensors.table import Row
from limba.files.untrusted_files import shown
from limba.network.encoders.config import EncoderConfig

_LAYER = "encoder/layers_{i}"
_RATES = {
    "embedding_dropout": ("dropout_rate", 0.0),
    "attention_dropout": ("attention_dropout_rate", 0.0),
    "initializer_range": ("initializer_range", 0.02),
    "norm_eps": ("norm_epsilon", 1e-5),
}
_BIASES = {
    "attention_bias": ("attention_bias", False),
    "mlp_bias": ("mlp_bias", False),
}
_BIASES_OF_MASKED_LM = {"classifier_bias": ("head_bias", False), "decoder_bias": ("logits_bias", True)}
_POOLINGS = {"cls": "first", "mean": "mean"}


def _settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    content = numbers(config, _RATES | _BIASES)
    return content | {
        "hidden_activation": activation_name(config.mlp_activations[0]),
        "max_position_embeddings": config.max_positions,
        "norm_bias": config.norm == "layer_norm",
        "mlp_dropout": config.dropout_rate,
        # Version 5 of transformers reads these keys, too, and writes others.
        "global_rope_theta": config.rotary_base,
        "local_rope_theta": config.local_rotary_base or config.rotary_base,
        "global_attn_every_n_layers": config.global_attention_every,
        "local_attention": config.local_attention_window,
        "pad_token_id": pad_id,
    }


def _fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    fields = read_numbers(content, _RATES)
    biases = _BIASES | _BIASES_OF_MASKED_LM
    # In version 4 of transformers a bias of null is none, and the windows' base of null is the other layers'.
    biases = {key: (field, default and key not in content) for key, (field, default) in biases.items()}
    fields |= {field: value(content, key, default, bool) for key, (field, default) in biases.items()}
    whole = _theta(content, "full_attention", "global_rope_theta", 160_000.0)
    of_windows = whole if "local_rope_theta" in content else 10_000.0
    window = _theta(content, "sliding_attention", "local_rope_theta", of_windows)
    return fields | {
        "max_positions": value(content, "max_position_embeddings", 8192, int),
        "norm": "layer_norm" if value(content, "norm_bias", False, bool) else "layer_norm_without_bias",
        "mlp_activations": (activation(content, "hidden_activation"), "linear"),
        "head_activation": activation(content, "classifier_activation"),
        "rotary_base": whole,
        "local_rotary_base": window,
        "global_attention_every": _period(content, fields["num_layers"]),
        "local_attention_window": value(content, "local_attention", 128, int),
        "norm_position": "pre",
        "first_attention_norm": False,
        "position_embedding_type": "rotary",
    }


def _theta(content: Mapping[str, Any], kind: str, key: str, default: float) -> float:
    """The base of the rotary positions of one kind of layers, by the keys of either version of transformers."""
    given = value(value(content, "rope_parameters", {}, dict), kind, {}, dict)
    refuse_unless(given, {"rope_type": ("default",)})
    return float(value(given, "rope_theta", value(content, key, default, (int, float)), (int, float)))


def _period(content: Mapping[str, Any], num_layers: int) -> int:
    """Layers 0, n, 2n … look at the whole row."""
    layer_types = value(content, "layer_types", [], list)
    if not layer_types:
        return value(content, "global_attn_every_n_layers", 3, int)
    places = [i for i, kind in enumerate(layer_types) if kind == "full_attention"]
    period = places[1] if len(places) > 1 else max(num_layers, 1)
    if len(layer_types) != num_layers or places != list(range(0, num_layers, period)):
        raise ValueError(
            f"layer_types is {shown(layer_types)}; in Limba layers 0, n, 2n … of {num_layers} look at the whole row, "
            "and the others at a window"
        )
    return period


# ------------------------------------------------------ heads ------------------------------------------------------


def _rows_of_transform(head: str) -> tuple[Row, ...]:
    return Row(f"{head}/dense", "head.dense"), Row(f"{head}/layer_norm", "head.norm")


def _settings_of_masked_lm(config: EncoderConfig, head: Head) -> dict[str, Any]:
    assert config.head_activation is not None, "the class requires one"
    biases = {key: getattr(config, field) for key, (field, _) in _BIASES_OF_MASKED_LM.items()}
    return biases | {"classifier_activation": activation_name(config.head_activation)}


def _settings_of_labels(config: EncoderConfig, head: Head) -> dict[str, Any]:
    assert head.activation is not None, "the class requires one"
    return {
        "classifier_bias": head.dense_bias,
        "classifier_activation": activation_name(head.activation),
        "classifier_dropout": config.dropout_rate,
    }


def _settings_of_rows(config: EncoderConfig, head: Head) -> dict[str, Any]:
    pooling = next(theirs for theirs, ours in _POOLINGS.items() if ours == head.pooling)
    return _settings_of_labels(config, head) | {"classifier_pooling": pooling}


def _fields_of_labels(content: Mapping[str, Any], config: EncoderConfig) -> dict[str, Any]:
    return {
        # The same keys of config.json: the class of masked language models has the same transform.
        "activation": config.head_activation,
        "use_norm": True,
        "dense_bias": config.head_bias,
    }


def _fields_of_rows(content: Mapping[str, Any], config: EncoderConfig) -> dict[str, Any]:
    refuse_unless(content, {"classifier_pooling": tuple(_POOLINGS)})
    return _fields_of_labels(content, config) | {"pooling": _POOLINGS[content.get("classifier_pooling") or "cls"]}


# The class that labels words pools nothing, whatever config.json says.
_OF_WORDS = HeadClass(
    rows=(*_rows_of_transform("classifier_head"), Row("classifier_head/logits", "classifier")),
    required=lambda config: {"activation": known_activations(), "use_norm": (True,)},
    settings=_settings_of_labels,
    fields=_fields_of_labels,
)
_OF_ROWS = dataclasses.replace(
    _OF_WORDS,
    required=lambda config: {**_OF_WORDS.required(config), "pooling": ("first", "mean")},
    settings=_settings_of_rows,
    fields=_fields_of_rows,
)


_KEYS = table(
    *encoder_keys.ENCODER,
    *carried(
        hidden_activation="mlp_activations",
        embedding_dropout="dropout_rate",
        attention_dropout="attention_dropout_rate",
        norm_eps="norm_epsilon",
        norm_bias="norm",
        attention_bias="attention_bias",
        mlp_bias="mlp_bias",
        classifier_bias="head_bias, dense_bias of a classifier",
        classifier_activation="head_activation, activation of a classifier",
        classifier_pooling="pooling of a classifier",
        decoder_bias="logits_bias",
        global_rope_theta="rotary_base",
        local_rope_theta="local_rotary_base",
        rope_parameters="rotary_base and local_rotary_base",
        layer_types="global_attention_every",
        global_attn_every_n_layers="global_attention_every, before version 5",
        local_attention="local_attention_window",
    ),
    only("rope_theta", (), "one version of transformers takes it for global_rope_theta", "Write global_rope_theta."),
    only("rope_scaling", ({"rope_type": "default"},), "other rotary positions than Limba's", SCALED),
    *settings("a rate of training: a run's file says its own", classifier_dropout=0.0, mlp_dropout=0.0),
    *without_effect("no class reads it: positions are rotary", "position_embedding_type"),
    *without_effect("no class reads it: norm_eps is read", "layer_norm_eps"),
    *without_effect(
        "another way to compute the same",
        *("deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index", "reference_compile"),
        "repad_logits_with_grad",
    ),
    *settings("of new weights, which Limba does not cut off", initializer_cutoff_factor=2.0),
)

FAMILY = EncoderFamily(
    name="modernbert",
    title="ModernBERT",
    model_type="modernbert",
    model_class="ModernBertForMaskedLM",
    prefix="model",
    required={
        "norm": ("layer_norm", "layer_norm_without_bias"),
        "norm_position": ("pre",),
        "embedding_norm": (True,),
        "first_attention_norm": (False,),
        "position_embedding_type": ("rotary",),
        "num_token_types": (0,),
        "num_kv_heads": (None,),
    },
    numpy_forward="limba.addons.encoders.numpy_modernbert",
    keys=_KEYS,
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
    },
    rows=(
        Row("token_embedder", "model.embeddings.tok_embeddings"),
        Row("encoder/embedding_layer_norm", "model.embeddings.norm"),
        *(Row(f"{_LAYER}/attention/{name}", "model.layers.{i}.attn.Wqkv") for name in ("query", "key", "value")),
        Row(f"{_LAYER}/attention/out", "model.layers.{i}.attn.Wo"),
        Row(f"{_LAYER}/pre_attention_layer_norm", "model.layers.{i}.attn_norm"),
        Row(f"{_LAYER}/pre_mlp_layer_norm", "model.layers.{i}.mlp_norm"),
        Row(f"{_LAYER}/mlp/wi_0", "model.layers.{i}.mlp.Wi"),
        Row(f"{_LAYER}/mlp/wi_1", "model.layers.{i}.mlp.Wi"),
        Row(f"{_LAYER}/mlp/wo", "model.layers.{i}.mlp.Wo"),
        Row("encoder/encoder_norm", "model.final_norm"),
    ),
    heads={
        heads.MASKED_LM: HeadClass(
            rows=(Row("mlm_head", "decoder"), *_rows_of_transform("mlm_head")),
            required=lambda config: {"head_activation": known_activations(), "logits_via_embedding": (True,)},
            settings=_settings_of_masked_lm,
        ),
        heads.SEQUENCE: _OF_ROWS,
        heads.TOKENS: _OF_WORDS,
    },
    output="decoder",
    settings=_settings,
    fields=_fields,
    limits=lambda config: gated_limits(config, "gelu_erf"),
    default_pad_id=50283,
    buffers=r"inv_freq$",
    special_ids={"cls_token_id": "cls", "sep_token_id": "sep", "bos_token_id": "cls", "eos_token_id": "sep"},
)
