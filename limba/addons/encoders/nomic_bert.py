"""NomicBERT (arXiv:2402.01613): BERT with rotary positions and a gated MLP, without biases in its layers."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from limba.addons.encoders import eurobert
from limba.addons.encoders.gated_mlp import gated_limits
from limba.addons.encoders.other_keys import by_usual_keys
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.families.config_keys import encoder_keys
from limba.convert.families.config_keys.keys import carried, fixed, only, settings, table, without_effect
from limba.convert.families.encoders import bert, rotary_keys
from limba.convert.families.encoders.encoder_family import (
    HeadClass,
    activation,
    refuse_unless,
)
from limba.convert.tensors.table import Row, rows_of
from limba.network.encoders.config import EncoderConfig

_LAYER, _THEIRS = "encoder/layers_{i}", "nomic_bert.layers.{i}"
# The keys of Nomic's own program by the class's; its files on the hub have them.
_OLDER_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "rope_theta": "rotary_emb_base",
    "max_position_embeddings": "n_positions",
}
_OLDER_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu"}
# And its modules by the class's.
_OLDER_MODULES = (
    (r"^bert\.", "nomic_bert."),
    (r"(^|\.)encoder\.layers\.", r"\1layers."),
    (r"(^|\.)emb_ln\.", r"\1embeddings.LayerNorm."),
    (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
    (r"\.mlp\.fc11\.", ".mlp.up_proj."),
    (r"\.mlp\.fc12\.", ".mlp.gate_proj."),
    (r"\.mlp\.fc2\.", ".mlp.down_proj."),
    (r"\.norm1\.", ".post_attention_layernorm."),
    (r"\.norm2\.", ".post_mlp_layernorm."),
)
_JOINED, _PARTS = ".attn.Wqkv.", (".self_attn.q_proj.", ".self_attn.k_proj.", ".self_attn.v_proj.")
_DEFAULTS = bert.SIZES | {"vocab_size": 30528}


def _settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    content = bert.settings(config, pad_id)
    return content | {"head_dim": config.head_dim, **rotary_keys.settings(config.rotary_base)}


def _fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    content = _by_newer_keys(content)
    # The class has no dropout where config.json says none.
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    usual = {**dict.fromkeys(rates, 0.0), "hidden_act": "silu", "max_position_embeddings": 2048}
    content = usual | {key: x for key, x in content.items() if x is not None}
    found = bert.fields(content, pad_id)
    refuse_unless(content, {"head_dim": (found["head_dim"],)})
    return found | {
        "mlp_activations": (activation(content, "hidden_act"), "linear"),
        "attention_bias": False,
        "mlp_bias": False,
        "position_embedding_type": "rotary",
        "rotary_base": rotary_keys.base(content, 1000.0),
    }


def _by_newer_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    found = by_usual_keys(content, _OLDER_KEYS, _DEFAULTS)
    if (name := content.get("activation_function")) is not None:
        refuse_unless(content, {"activation_function": tuple(_OLDER_ACTIVATIONS)})
        found["hidden_act"] = _OLDER_ACTIVATIONS[name]
    return found


def _by_newer_names(tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
    """The tensors of Nomic's own program by the class's names; those of the class as they are."""
    found = {}
    for name, tensor in tensors.items():
        for older, newer in _OLDER_MODULES:
            name = re.sub(older, newer, name)
        if _JOINED not in name or tensor.shape[0] % len(_PARTS):
            found[name] = tensor
            continue
        rows = tensor.shape[0] // len(_PARTS)
        for number, part in enumerate(_PARTS):
            found[name.replace(_JOINED, part)] = rows_of(tensor, slice(number * rows, (number + 1) * rows))
    return found


_OTHER = "Train such a model where it comes from."
_KEYS = table(
    *encoder_keys.OF_BERT,
    *eurobert.ROTARY_KEYS,
    *eurobert.OWN_CLASS,
    *carried(
        n_embd="emb_dim",
        n_layer="num_layers",
        n_head="num_heads",
        n_inner="mlp_dim",
        n_positions="max_positions",
        layer_norm_epsilon="norm_epsilon",
        activation_function="mlp_activations",
        resid_pdrop="dropout_rate",
        attn_pdrop="attention_dropout_rate",
        rotary_emb_base="rotary_base",
    ),
    *fixed("another network, of Nomic's own program", rotary_emb_fraction=1.0, scale_attn_weights=True),
    *fixed(
        "another network, of Nomic's own program",
        **dict.fromkeys(
            (
                *("prenorm", "parallel_block", "parallel_block_tied_norm", "causal", "use_rms_norm", "qkv_proj_bias"),
                *("mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved", "scale_attn_by_inverse_layer_idx"),
            ),
            False,
        ),
    ),
    only("rotary_emb_scale_base", (), "another network, of Nomic's own program", _OTHER),
    *settings(
        "Nomic's own program turns rows longer than max_trained_positions by other angles",
        rotary_scaling_factor=(),
    ),
    *settings("a rate of training: a run's file says its own", embd_pdrop=0.0),
    *without_effect("the row count is vocab_size", "pad_vocab_size_multiple"),
    *without_effect("no class of transformers reads it", "max_trained_positions", "dense_seq_output"),
    *without_effect(
        "another way to compute the same",
        *("fused_bias_fc", "fused_dropout_add_ln", "last_layer_subset", "reorder_and_upcast_attn", "use_flash_attn"),
        *("use_xentropy", "mlp_checkpoint_lvl", "use_fused_mlp", "fused_mlp"),
    ),
    *without_effect(
        "of GPT-2's classes, and no class of these reads it",
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"),
        "summary_use_proj",
    ),
)

FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="nomic_bert",
    title="NomicBERT",
    model_type="nomic_bert",
    model_class="NomicBertForMaskedLM",
    prefix="nomic_bert",
    required=bert.REQUIRED | {"position_embedding_type": ("rotary",), "attention_bias": (False,), "mlp_bias": (False,)},
    numpy_forward="limba.addons.encoders.numpy_further",
    keys=_KEYS,
    defaults=_DEFAULTS,
    rows=(
        Row("token_embedder", "nomic_bert.embeddings.word_embeddings"),
        Row("encoder/token_type_embedder", "nomic_bert.embeddings.token_type_embeddings"),
        Row("encoder/embedding_layer_norm", "nomic_bert.embeddings.LayerNorm"),
        *(
            Row(f"{_LAYER}/attention/{ours}", f"{_THEIRS}.self_attn.{theirs}_proj")
            for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o"))
        ),
        Row(f"{_LAYER}/mlp/wi_0", f"{_THEIRS}.mlp.gate_proj"),
        Row(f"{_LAYER}/mlp/wi_1", f"{_THEIRS}.mlp.up_proj"),
        Row(f"{_LAYER}/mlp/wo", f"{_THEIRS}.mlp.down_proj"),
        Row(f"{_LAYER}/post_attention_layer_norm", f"{_THEIRS}.post_attention_layernorm"),
        Row(f"{_LAYER}/post_mlp_layer_norm", f"{_THEIRS}.post_mlp_layernorm"),
    ),
    heads=bert.heads_of(
        HeadClass(
            rows=(
                Row("mlm_head", "cls.predictions"),
                Row("mlm_head/dense", "cls.predictions.transform.dense"),
                Row("mlm_head/layer_norm", "cls.predictions.transform.layer_norm"),
            ),
            required=bert.MASKED_LM.required,
        ),
        bert.of_sequences(
            (Row("classifier_head/dense", "nomic_bert.pooler.dense"), Row("classifier_head/logits", "classifier")),
            drops_inputs=False,
            activation="tanh",
        ),
    ),
    settings=_settings,
    fields=_fields,
    limits=lambda config: gated_limits(config, "silu"),
    constants=lambda config, pad_id: bert.no_token_types("nomic_bert", config),
    newer_names=_by_newer_names,
    is_new=True,
    ignored=r"^nomic_bert\.pooler\.",
)
