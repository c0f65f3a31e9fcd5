"""DeBERTa-v3 (arXiv:2111.09543), whose class in transformers is DeBERTa-v2's: BERT with disentangled attention, and
without positions of its own."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from limba.convert.families.config_keys import encoder_keys
from limba.convert.families.config_keys.keys import carried, only, settings, table, without_effect
from limba.convert.families.encoders import bert
from limba.convert.families.encoders.encoder_family import (
    HeadClass,
    activation,
    activation_name,
    known_activations,
    refuse_unless,
    value,
)
from limba.convert.families.heads import Head
from limba.convert.tensors.table import Row
from limba.files.untrusted_files import shown
from limba.network.encoders.config import EncoderConfig

_LAYER, _THEIRS = "encoder/layers_{i}", "deberta.encoder.layer.{i}"
# What makes it DeBERTa-v3 and not another network of its class; each key is missing or off by default there.
_FIXED: dict[str, Any] = {
    "relative_attention": True,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
_PRODUCTS = ("c2p", "p2c")


def _settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    return (
        bert.settings(config, pad_id)
        | _FIXED
        | {
            "type_vocab_size": config.num_token_types,
            "pos_att_type": list(_PRODUCTS),
            "position_buckets": config.num_buckets,
            "max_relative_positions": config.max_distance,
            "pooler_hidden_size": config.emb_dim,
            "pooler_dropout": 0,
        }
    )


def _fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    for key, wanted in _FIXED.items():
        if content.get(key) != wanted:
            given = shown(content[key]) if key in content else "not there"
            raise ValueError(f"{key} is {given}; Limba has DeBERTa-v3, where it is {wanted!r}")
    products = content.get("pos_att_type") or ""
    products = "|".join(map(str, products)) if isinstance(products, list) else str(products)
    if sorted(part.strip() for part in products.lower().split("|")) != sorted(_PRODUCTS):
        raise ValueError(f"pos_att_type is {shown(products)}; Limba has DeBERTa-v3, where it is {'|'.join(_PRODUCTS)}")
    fields = bert.fields({"type_vocab_size": 0, "layer_norm_eps": 1e-7} | dict(content), pad_id)
    refuse_unless(content, {"pooler_hidden_size": (fields["emb_dim"],), "embedding_size": (fields["emb_dim"],)})
    most = value(content, "max_relative_positions", -1, int)
    buckets = value(content, "position_buckets", -1, int)
    if buckets < 1:
        raise ValueError(f"position_buckets is {buckets}; Limba has DeBERTa-v3, where it is 256")
    own = {"position_embedding_type": "disentangled", "num_buckets": buckets}
    return fields | own | {"max_distance": fields["max_positions"] if most < 1 else most}


def _of_rows(content: Mapping[str, Any], config: EncoderConfig) -> dict[str, Any]:
    return {"activation": activation(content, "pooler_hidden_act")}


def _settings_of_rows(config: EncoderConfig, head: Head) -> dict[str, Any]:
    assert head.activation is not None, "the class requires one"
    return {"pooler_hidden_act": activation_name(head.activation)}


_OF_SEQUENCES = HeadClass(
    rows=(Row("classifier_head/dense", "pooler.dense"), Row("classifier_head/logits", "classifier")),
    required=lambda config: {
        "pooling": ("first",),
        "activation": known_activations(),
        "use_norm": (False,),
        "dense_bias": (True,),
    },
    settings=_settings_of_rows,
    fields=_of_rows,
)

_OTHER_DEBERTA = "Limba has the networks of DeBERTa-v3 (small, base, large) and mDeBERTa-v3 alone."
_KEYS = table(
    *encoder_keys.OF_BERT,
    *carried(position_buckets="num_buckets", max_relative_positions="max_distance; below 1 it is max_positions"),
    only("relative_attention", (True,), "DeBERTa without distances", _OTHER_DEBERTA),
    only("share_att_key", (True,), "further products for the distances", _OTHER_DEBERTA),
    only("norm_rel_ebd", ("layer_norm",), "distances without a norm", _OTHER_DEBERTA),
    only("position_biased_input", (False,), "learned positions beside the distances", _OTHER_DEBERTA),
    carried(pos_att_type="must be c2p and p2c")[0],
    only("conv_kernel_size", (0,), "a convolution beside the first layer (DeBERTa-v2 xlarge)", _OTHER_DEBERTA),
    *without_effect("of the convolution, which is not there", "conv_act", "conv_groups"),
    only("legacy", (True,), "the same head under other names", "Load the model, and save it with legacy=true."),
    only("z_steps", (0, 1), "the last layer several times", _OTHER_DEBERTA),
    *carried(pooler_hidden_act="activation of a classifier", pooler_hidden_size="must be hidden_size"),
    *settings("a rate of training: a run's file says its own", pooler_dropout=0, cls_dropout=None),
    *without_effect("no class reads it: attention is to distances", "position_embedding_type"),
)

FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="deberta_v2",
    title="DeBERTa-v3",
    model_type="deberta-v2",
    model_class="DebertaV2ForMaskedLM",
    prefix="deberta",
    required=bert.REQUIRED | {"position_embedding_type": ("disentangled",)},
    numpy_forward="limba.addons.encoders.numpy_further",
    keys=_KEYS,
    defaults={
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
    },
    rows=(
        *(
            Row(f"{_LAYER}/attention/{name}", f"{_THEIRS}.attention.self.{name}_proj")
            for name in ("query", "key", "value")
        ),
        Row("encoder/relative_embedder", "deberta.encoder.rel_embeddings"),
        Row("encoder/relative_embedder/layer_norm", "deberta.encoder.LayerNorm"),
        *bert.rows("deberta"),
    ),
    heads=bert.heads_of(bert.MASKED_LM, _OF_SEQUENCES),
    settings=_settings,
    fields=_fields,
    constants=lambda config, pad_id: {},
    # Heads of the pre-training, which no class of transformers reads.
    ignored=r"^lm_predictions\.|^mask_predictions\.|^pooler\.|^deberta\.pooler\.",
)
