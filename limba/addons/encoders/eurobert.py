"""EuroBERT (arXiv:2503.05500): a Llama that sees both sides. RMS norms, rotary positions, gated MLP, fewer keys."""

from collections.abc import Mapping
from typing import Any

from limba.addons.encoders.gated_mlp import SCALED, gated_limits
from limba.convert.families import heads
from limba.convert.families.config_keys import encoder_keys
from limba.convert.families.config_keys.keys import carried, only, settings, table, without_effect
from limba.convert.families.encoders import rotary_keys
from limba.convert.families.encoders.encoder_family import (
    EncoderFamily,
    HeadClass,
    activation,
    activation_name,
    numbers,
    read_numbers,
    refuse_unless,
    value,
)
from limba.convert.families.heads import Head
from limba.convert.tensors.table import Row
from limba.network.encoders.config import EncoderConfig

_RATES = {
    "attention_dropout": ("attention_dropout_rate", 0.0),
    "initializer_range": ("initializer_range", 0.02),
    "rms_norm_eps": ("norm_epsilon", 1e-5),
}
_BIASES = ("attention_bias", "mlp_bias")
_POOLINGS = {"bos": "first", "mean": "mean", "late": "late"}
_LAYER, _THEIRS = "encoder/layers_{i}", "model.layers.{i}"


def _settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    return numbers(config, _RATES) | {
        **{key: getattr(config, key) for key in _BIASES},
        "num_key_value_heads": config.num_kv_heads or config.num_heads,
        "head_dim": config.head_dim,
        "hidden_act": activation_name(config.mlp_activations[0]),
        "max_position_embeddings": config.max_positions,
        **rotary_keys.settings(config.rotary_base),
        "pad_token_id": pad_id,
        "tie_word_embeddings": config.logits_via_embedding,
    }


def _fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    found = read_numbers(content, _RATES)
    refuse_unless(content, {"head_dim": (found["head_dim"],)})
    kv_heads = value(content, "num_key_value_heads", found["num_heads"], int)
    biases = {key: value(content, key, False, bool) for key in _BIASES}
    return {
        **found,
        **biases,
        "num_kv_heads": None if kv_heads == found["num_heads"] else kv_heads,
        "mlp_activations": (activation({"hidden_act": "silu", **content}, "hidden_act"), "linear"),
        "max_positions": value(content, "max_position_embeddings", 8192, int),
        "rotary_base": rotary_keys.base(content, 10_000.0),
        "norm": "rms_norm",
        "norm_position": "pre",
        "embedding_norm": False,
        "position_embedding_type": "rotary",
        "head_activation": None,
        "logits_bias": biases["mlp_bias"],
        "logits_via_embedding": value(content, "tie_word_embeddings", False, bool),
        "dropout_rate": 0.0,
    }


# ------------------------------------------------------ heads ------------------------------------------------------


def _required_of_rows(config: EncoderConfig) -> dict[str, tuple[Any, ...]]:
    fixed = {"activation": ("gelu_erf",), "use_norm": (False,), "dense_bias": (True,)}
    return {"pooling": tuple(_POOLINGS.values()), **fixed}


def _settings_of_rows(config: EncoderConfig, head: Head) -> dict[str, Any]:
    return {"classifier_pooling": next(theirs for theirs, ours in _POOLINGS.items() if ours == head.pooling)}


def _fields_of_rows(content: Mapping[str, Any], config: EncoderConfig) -> dict[str, Any]:
    refuse_unless(content, {"classifier_pooling": tuple(_POOLINGS)})
    return {"activation": "gelu_erf", "pooling": _POOLINGS[content.get("classifier_pooling") or "late"]}


# transformers has these classes itself. The files on the hub are older, and name code of their repositories.
OWN_CLASS = settings("transformers has this class itself, and Limba takes that one", auto_map=())
ROTARY_KEYS = (
    *carried(rope_theta="rotary_base", rope_parameters="rotary_base", head_dim="must be hidden_size / heads"),
    only("rope_scaling", ({"rope_type": "default"},), "other rotary positions than Limba's", SCALED),
    *without_effect("no class reads it: positions are rotary", "position_embedding_type"),
)
_KEYS = table(
    *encoder_keys.ENCODER,
    *ROTARY_KEYS,
    *OWN_CLASS,
    *carried(
        hidden_act="mlp_activations",
        attention_dropout="attention_dropout_rate",
        rms_norm_eps="norm_epsilon",
        attention_bias="attention_bias",
        mlp_bias="mlp_bias, logits_bias",
        num_key_value_heads="num_kv_heads",
        classifier_pooling="pooling of a classifier",
        tie_word_embeddings="logits_via_embedding",
    ),
    only("clf_pooling", ("late",), "transformers' class reads classifier_pooling", "Write classifier_pooling."),
    *settings("transformers' class has no such dropout", hidden_dropout=0.0),
    *without_effect("another way to compute the same", "pretraining_tp"),
    *without_effect("the tokenizer has it", "bos_token", "eos_token", "pad_token", "mask_token"),
)

FAMILY = EncoderFamily(
    name="eurobert",
    title="EuroBERT",
    model_type="eurobert",
    model_class="EuroBertForMaskedLM",
    prefix="model",
    required={
        "norm": ("rms_norm",),
        "norm_position": ("pre",),
        "embedding_norm": (False,),
        "first_attention_norm": (True,),
        "position_embedding_type": ("rotary",),
        "num_token_types": (0,),
        "global_attention_every": (1,),
    },
    numpy_forward="limba.addons.encoders.numpy_further",
    keys=_KEYS,
    defaults={
        "vocab_size": 128256,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "tie_word_embeddings": False,
    },
    rows=(
        Row("token_embedder", "model.embed_tokens"),
        *(
            Row(f"{_LAYER}/attention/{ours}", f"{_THEIRS}.self_attn.{theirs}_proj")
            for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o"))
        ),
        Row(f"{_LAYER}/mlp/wi_0", f"{_THEIRS}.mlp.gate_proj"),
        Row(f"{_LAYER}/mlp/wi_1", f"{_THEIRS}.mlp.up_proj"),
        Row(f"{_LAYER}/mlp/wo", f"{_THEIRS}.mlp.down_proj"),
        Row(f"{_LAYER}/pre_attention_layer_norm", f"{_THEIRS}.input_layernorm"),
        Row(f"{_LAYER}/pre_mlp_layer_norm", f"{_THEIRS}.post_attention_layernorm"),
        Row("encoder/encoder_norm", "model.norm"),
    ),
    heads={
        heads.MASKED_LM: HeadClass(
            rows=(Row("mlm_head", "lm_head"), Row("mlm_head/logits", "lm_head")),
            required=lambda config: {"head_activation": (None,), "logits_bias": (config.mlp_bias,)},
        ),
        heads.SEQUENCE: HeadClass(
            rows=(Row("classifier_head/dense", "dense"), Row("classifier_head/logits", "classifier")),
            required=_required_of_rows,
            settings=_settings_of_rows,
            fields=_fields_of_rows,
        ),
        heads.TOKENS: HeadClass(
            rows=(Row("classifier_head/logits", "classifier"),), required=lambda config: {"activation": (None,)}
        ),
    },
    output="lm_head",
    settings=_settings,
    fields=_fields,
    limits=lambda config: gated_limits(config, "silu"),
    default_pad_id=128001,
    is_new=True,
    buffers=r"inv_freq$",
    special_ids={"bos_token_id": "cls", "eos_token_id": "sep", "mask_token_id": "mask"},
)
