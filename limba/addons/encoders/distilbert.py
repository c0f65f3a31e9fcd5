"""DistilBERT (arXiv:1910.01108): BERT without token types and without a pooler, with names of its own."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from limba.addons.encoders.other_keys import by_usual_keys
from limba.convert.families.config_keys import encoder_keys
from limba.convert.families.config_keys.keys import carried, only, settings, table, without_effect
from limba.convert.families.encoders import bert
from limba.convert.families.encoders.encoder_family import HeadClass
from limba.convert.tensors.table import Row
from limba.network.encoders.config import EncoderConfig

# The class's keys of config.json by BERT's; the first three may have BERT's names.
_OWN_KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "hidden_act": "activation",
}
# Keys of BERT's whose value the class does not read from config.json.
_FIXED = {"type_vocab_size": 0, "layer_norm_eps": 1e-12}
_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "hidden_dim": 3072,
}
_LAYER, _THEIRS = "encoder/layers_{i}", "distilbert.transformer.layer.{i}"


def _settings(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    content = bert.settings(config, pad_id)
    return {_OWN_KEYS.get(key, key): x for key, x in content.items() if key not in _FIXED}


def _fields(content: Mapping[str, Any], pad_id: int) -> dict[str, Any]:
    return bert.fields({**by_usual_keys(content, _OWN_KEYS, _DEFAULTS), **_FIXED}, pad_id)


_KEYS = table(
    *encoder_keys.ENCODER,
    *carried(
        dim="emb_dim",
        n_layers="num_layers",
        n_heads="num_heads",
        hidden_dim="mlp_dim",
        activation="mlp_activations",
        dropout="dropout_rate",
        attention_dropout="attention_dropout_rate",
    ),
    *settings("a rate of training: a run's file says its own", seq_classif_dropout=0.2, qa_dropout=0.1),
    only("intermediate_size", (), "the class does not read it", "Write hidden_dim."),
    *settings("the weights have the table of positions, and Limba trains it", sinusoidal_pos_embds=False),
    *without_effect("the output is the embedding", "tie_weights_"),
)

FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="distilbert",
    title="DistilBERT",
    model_type="distilbert",
    model_class="DistilBertForMaskedLM",
    prefix="distilbert",
    required=bert.REQUIRED
    | {"position_embedding_type": ("absolute",), "num_token_types": (0,), "norm_epsilon": (1e-12,)},
    keys=_KEYS,
    defaults=_DEFAULTS,
    rows=(
        Row("token_embedder", "distilbert.embeddings.word_embeddings"),
        Row("encoder/position_embedder", "distilbert.embeddings.position_embeddings"),
        Row("encoder/embedding_layer_norm", "distilbert.embeddings.LayerNorm"),
        *(
            Row(f"{_LAYER}/attention/{ours}", f"{_THEIRS}.attention.{theirs}_lin")
            for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "out"))
        ),
        Row(f"{_LAYER}/mlp/wi", f"{_THEIRS}.ffn.lin1"),
        Row(f"{_LAYER}/mlp/wo", f"{_THEIRS}.ffn.lin2"),
        Row(f"{_LAYER}/post_attention_layer_norm", f"{_THEIRS}.sa_layer_norm"),
        Row(f"{_LAYER}/post_mlp_layer_norm", f"{_THEIRS}.output_layer_norm"),
    ),
    heads=bert.heads_of(
        HeadClass(
            rows=(
                Row("mlm_head", "vocab_projector"),
                Row("mlm_head/dense", "vocab_transform"),
                Row("mlm_head/layer_norm", "vocab_layer_norm"),
            ),
            required=bert.MASKED_LM.required,
        ),
        bert.of_sequences(
            (Row("classifier_head/dense", "pre_classifier"), Row("classifier_head/logits", "classifier")),
            drops_inputs=False,
            activation="relu",
        ),
    ),
    output="vocab_projector",
    settings=_settings,
    fields=_fields,
    constants=lambda config, pad_id: {},
    ignored="$^",
    numpy_forward="limba.addons.encoders.numpy_relatives",
)
