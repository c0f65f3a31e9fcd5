"""The forward pass of MPNet, RoFormer, DistilBERT and ELECTRA in NumPy, as relatives of BERT.

It follows the papers (MPNet arXiv:2004.09297, RoFormer arXiv:2104.09864, DistilBERT arXiv:1910.01108, ELECTRA
arXiv:2003.10555), and shares nothing with Limba's network or tables of names; see `convert.compare.numpy_encoders`.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare import numpy_encoders
from limba.convert.compare.float64 import Rounding
from limba.convert.compare.numpy_encoders import ACTIVATIONS, ROBERTA, Array, Config, Layout, Weights, by_dense, turned

# DistilBERT's names of BERT's modules, and its keys of BERT's.
_MODULES_OF_DISTILBERT = {
    ".transformer.layer.": ".encoder.layer.",
    **{f".attention.{name[0]}_lin.": f".attention.self.{name}." for name in ("query", "key", "value")},
    ".attention.out_lin.": ".attention.output.dense.",
    ".sa_layer_norm.": ".attention.output.LayerNorm.",
    ".ffn.lin1.": ".intermediate.dense.",
    ".ffn.lin2.": ".output.dense.",
    ".output_layer_norm.": ".output.LayerNorm.",
    "vocab_transform.": "cls.predictions.transform.dense.",
    "vocab_layer_norm.": "cls.predictions.transform.LayerNorm.",
    "vocab_projector.": "cls.predictions.",
}
_KEYS_OF_DISTILBERT = {"n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "activation": "hidden_act"}


def logits(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """See `numpy_encoders.logits`; those of replaced tokens are `[batch, length]`."""
    weights, config = _by_names_of_bert(tensors, config, rounding)
    if numpy_encoders.class_of(config) == "ElectraForPreTraining":
        x = numpy_encoders.states_of(_layout(config), weights, config, input_ids, token_type_ids)
        x = ACTIVATIONS[config["hidden_act"]](weights.product("discriminator_predictions.dense", x))
        return weights.product("discriminator_predictions.dense_prediction", x)[..., 0]
    return numpy_encoders.logits_of(_layout(config), weights, config, input_ids, token_type_ids)


def hidden_states(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """See `numpy_encoders.hidden_states`."""
    weights, config = _by_names_of_bert(tensors, config, rounding)
    return numpy_encoders.states_of(_layout(config), weights, config, input_ids, token_type_ids)


def _by_names_of_bert(tensors: Mapping[str, SavedTensor], config: Config, rounding: Rounding) -> tuple[Weights, Config]:
    """A DistilBERT with BERT's names of tensors and keys; others as they are."""
    if config["model_type"] != "distilbert":
        return Weights(tensors, rounding), config
    renamed = {}
    for name, tensor in tensors.items():
        for theirs, of_bert in _MODULES_OF_DISTILBERT.items():
            name = name.replace(theirs, of_bert)
        renamed[name] = tensor
    keys = {_KEYS_OF_DISTILBERT.get(key, key): x for key, x in config.items()}
    return Weights(renamed, rounding), keys | {"layer_norm_eps": 1e-12}


def _layout(config: Config) -> Layout:
    if config["model_type"] == "roformer":
        return dataclasses.replace(_ROFORMER, of_rows=by_dense(ACTIVATIONS[config["hidden_act"]]))
    return _LAYOUTS[config["model_type"]]


def _buckets(weights: Weights, length: int) -> Array:
    """`[1, heads, length, length]` from T5's table `[32, heads]`, with distances up to 128."""
    distances = np.arange(length) - np.arange(length)[:, None]
    far = np.log(np.maximum(np.abs(distances), 1).astype(np.float32) / 8) / np.float32(math.log(128 / 8)) * 8
    buckets = np.where(np.abs(distances) < 8, np.abs(distances), np.minimum(8 + far.astype(int), 15))
    table = weights[f"{weights.prefix}.encoder.relative_attention_bias.weight"]
    return table[buckets + 16 * (distances > 0)].transpose(2, 0, 1)[None]


_ROFORMER = Layout(
    has_positions=False,
    has_projection=True,
    turn=functools.partial(turned, base=10_000.0, interleaved=True),
)
_LAYOUTS = {
    "mpnet": dataclasses.replace(
        ROBERTA,
        has_types=False,
        attention=("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o"),
        norms=("attention.LayerNorm", "output.LayerNorm"),
        bias=_buckets,
    ),
    "distilbert": Layout(has_types=False, of_rows=by_dense(ACTIVATIONS["relu"], "pre_classifier", "classifier")),
    "electra": Layout(
        has_projection=True,
        head=("generator_lm_head", "generator_predictions.dense", "generator_predictions.LayerNorm"),
        head_activation="gelu",
        of_rows=by_dense(ACTIVATIONS["gelu"]),
    ),
}
