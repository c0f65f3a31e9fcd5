"""Which tensor of Hugging Face's encoders each parameter of ours is, and the fields that make them the same network."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util


@dataclasses.dataclass(frozen=True)
class Row:
    """A module of ours and the module, or tensor, that holds its numbers.

    Attributes:
      ours, theirs: `{i}` is the number of the layer.
      part: which of how many equal parts of its output, where theirs is several of ours.
      first_row: of its table that we have.
    """

    ours: str
    theirs: str
    part: tuple[int, int] = (0, 1)
    first_row: int = 0


@dataclasses.dataclass(frozen=True)
class HuggingFaceClass:
    """One class: what it is as an `EncoderConfig`, and where its tensors go.

    Attributes:
      settings: of its configuration, beside the sizes.
      fields: of ours.
      rows: of modules; the first that names a module of ours counts.
      unused: names of tensors that ours does without: what is tied, and fixed tables of sines.
    """

    name: str
    settings: Mapping[str, Any]
    fields: Mapping[str, Any]
    rows: tuple[Row, ...]
    unused: str = "$^"


# Leaves of our tree by the ending of theirs.
_SUFFIXES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "rel_embedding": "weight", "bias": "bias"}
# Whose tensor is the other way round: PyTorch's Linear is [out, in], its table of buckets [buckets, heads].
_TRANSPOSED = ("kernel", "rel_embedding")


def params(of_class: HuggingFaceClass, tensors: Mapping[str, np.ndarray], shapes: Any) -> dict[str, Any]:
    """Our tree of unrolled layers, of the shapes given; fails where a tensor of either side is left."""
    left = {name for name in tensors if not re.search(of_class.unused, name)}
    found = {}
    for path, like in traverse_util.flatten_dict(shapes, sep="/").items():
        module, _, leaf = path.rpartition("/")
        layer = re.search(r"/layers_(\d+)/", path)
        number = layer.group(1) if layer else "-"
        row = next(row for row in of_class.rows if row.ours.replace("{i}", number) == module)
        theirs = row.theirs.replace("{i}", number)
        name = theirs if theirs in tensors else f"{theirs}.{_SUFFIXES[leaf]}"
        tensor = np.split(tensors[name][row.first_row :], row.part[1])[row.part[0]]
        found[path] = tensor.T if leaf in _TRANSPOSED else tensor
        assert found[path].shape == like.shape, (path, found[path].shape, like.shape)
        left.discard(name)
    assert not left, left
    return traverse_util.unflatten_dict(found, sep="/")


def _of_bert(prefix: str) -> tuple[Row, ...]:
    """Modules that BERT and what was made from it have in common."""
    layer, theirs = "encoder/layers_{i}", f"{prefix}.encoder.layer.{{i}}"
    return (
        Row("token_embedder", f"{prefix}.embeddings.word_embeddings"),
        Row("encoder/token_type_embedder", f"{prefix}.embeddings.token_type_embeddings"),
        Row("encoder/embedding_layer_norm", f"{prefix}.embeddings.LayerNorm"),
        Row("encoder/embedding_projection", f"{prefix}.embeddings_project"),
        *(Row(f"{layer}/attention/{name}", f"{theirs}.attention.self.{name}") for name in ("query", "key", "value")),
        Row(f"{layer}/attention/relative_key", f"{theirs}.attention.self.distance_embedding"),
        Row(f"{layer}/attention/out", f"{theirs}.attention.output.dense"),
        Row(f"{layer}/mlp/wi", f"{theirs}.intermediate.dense"),
        Row(f"{layer}/mlp/wo", f"{theirs}.output.dense"),
        # Post-layer norms, and pre-layer norms.
        Row(f"{layer}/post_attention_layer_norm", f"{theirs}.attention.output.LayerNorm"),
        Row(f"{layer}/post_mlp_layer_norm", f"{theirs}.output.LayerNorm"),
        Row(f"{layer}/pre_attention_layer_norm", f"{theirs}.attention.LayerNorm"),
        Row(f"{layer}/pre_mlp_layer_norm", f"{theirs}.intermediate.LayerNorm"),
    )


_HEAD_OF_BERT = (
    Row("mlm_head", "cls.predictions.bias"),
    Row("mlm_head/dense", "cls.predictions.transform.dense"),
    Row("mlm_head/layer_norm", "cls.predictions.transform.LayerNorm"),
)
_HEAD_OF_ROBERTA = (
    Row("mlm_head", "lm_head.bias"),
    Row("mlm_head/dense", "lm_head.dense"),
    Row("mlm_head/layer_norm", "lm_head.layer_norm"),
)


def bert(position_embedding_type: str) -> HuggingFaceClass:
    """Post-layer norms; with relative keys the table of positions is there, and is not used."""
    return HuggingFaceClass(
        "BertForMaskedLM",
        {"position_embedding_type": position_embedding_type, "type_vocab_size": 2, "max_position_embeddings": 48},
        {"position_embedding_type": position_embedding_type, "num_token_types": 2, "max_positions": 48},
        (*_of_bert("bert"), Row("encoder/position_embedder", "bert.embeddings.position_embeddings"), *_HEAD_OF_BERT),
        unused="$^" if position_embedding_type == "absolute" else r"position_embeddings",
    )


# RoBERTa's positions, and MPNet's, begin after pad_id.
ROBERTA_PRELAYERNORM = HuggingFaceClass(
    "RobertaPreLayerNormForMaskedLM",
    {"type_vocab_size": 2, "pad_token_id": 1, "max_position_embeddings": 50, "layer_norm_eps": 1e-5},
    {"num_token_types": 2, "pad_id": 1, "max_positions": 48, "norm_epsilon": 1e-5, "norm_position": "pre"},
    (
        *_of_bert("roberta_prelayernorm"),
        Row("encoder/position_embedder", "roberta_prelayernorm.embeddings.position_embeddings", first_row=2),
        Row("encoder/encoder_norm", "roberta_prelayernorm.LayerNorm"),
        *_HEAD_OF_ROBERTA,
    ),
)

_LAYER = "encoder/layers_{i}"

MPNET = HuggingFaceClass(
    "MPNetForMaskedLM",
    {"pad_token_id": 1, "max_position_embeddings": 50},
    {"pad_id": 1, "max_positions": 48, "position_embedding_type": "absolute_and_t5_buckets"},
    (
        *(
            Row(f"{_LAYER}/attention/{ours}", f"mpnet.encoder.layer.{{i}}.attention.attn.{theirs}")
            for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o"))
        ),
        Row(f"{_LAYER}/post_attention_layer_norm", "mpnet.encoder.layer.{i}.attention.LayerNorm"),
        Row("encoder/relpos_bias", "mpnet.encoder.relative_attention_bias"),
        Row("encoder/position_embedder", "mpnet.embeddings.position_embeddings", first_row=2),
        *_of_bert("mpnet"),
        *_HEAD_OF_ROBERTA,
    ),
)

ROFORMER = HuggingFaceClass(
    "RoFormerForMaskedLM",
    {"type_vocab_size": 2, "max_position_embeddings": 48, "embedding_size": 16},
    {"embedding_size": 16, "num_token_types": 2, "position_embedding_type": "rotary", "rotary_pairs": "interleaved"},
    (*_of_bert("roformer"), *_HEAD_OF_BERT),
    unused="embed_positions",
)


DEBERTA_V2 = HuggingFaceClass(
    "DebertaV2ForMaskedLM",
    {"type_vocab_size": 0, "max_position_embeddings": 48, "position_buckets": 8, "max_relative_positions": 20}
    | {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    | {"position_biased_input": False, "pos_att_type": ["p2c", "c2p"]},
    {"position_embedding_type": "disentangled", "num_buckets": 8, "max_distance": 20},
    (
        *(
            Row(f"{_LAYER}/attention/{name}", f"deberta.encoder.layer.{{i}}.attention.self.{name}_proj")
            for name in ("query", "key", "value")
        ),
        Row("encoder/relative_embedder", "deberta.encoder.rel_embeddings"),
        Row("encoder/relative_embedder/layer_norm", "deberta.encoder.LayerNorm"),
        *_of_bert("deberta"),
        *_HEAD_OF_BERT,
    ),
)


def modernbert(biases: bool) -> HuggingFaceClass:
    """With all the biases that its configuration can have, or with those that its checkpoints have."""
    norm = "layer_norm" if biases else "layer_norm_without_bias"
    return HuggingFaceClass(
        "ModernBertForMaskedLM",
        {"pad_token_id": 2, "local_attention": 8, "reference_compile": False}
        | dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), biases)
        | dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id"), 1),
        {"pad_id": 2, "position_embedding_type": "rotary", "rotary_base": 160_000.0, "local_rotary_base": 1e4}
        | {"norm_position": "pre", "first_attention_norm": False, "norm": norm, "norm_epsilon": 1e-5}
        | {"global_attention_every": 3, "local_attention_window": 8, "mlp_activations": ("gelu_erf", "linear")}
        | dict.fromkeys(("attention_bias", "mlp_bias", "head_bias"), biases),
        (
            Row("token_embedder", "model.embeddings.tok_embeddings"),
            Row("encoder/embedding_layer_norm", "model.embeddings.norm"),
            *(
                Row(f"{_LAYER}/attention/{name}", "model.layers.{i}.attn.Wqkv", part=(number, 3))
                for number, name in enumerate(("query", "key", "value"))
            ),
            Row(f"{_LAYER}/attention/out", "model.layers.{i}.attn.Wo"),
            Row(f"{_LAYER}/pre_attention_layer_norm", "model.layers.{i}.attn_norm"),
            Row(f"{_LAYER}/pre_mlp_layer_norm", "model.layers.{i}.mlp_norm"),
            Row(f"{_LAYER}/mlp/wi_0", "model.layers.{i}.mlp.Wi", part=(0, 2)),
            Row(f"{_LAYER}/mlp/wi_1", "model.layers.{i}.mlp.Wi", part=(1, 2)),
            Row(f"{_LAYER}/mlp/wo", "model.layers.{i}.mlp.Wo"),
            Row("encoder/encoder_norm", "model.final_norm"),
            Row("mlm_head", "decoder"),
            Row("mlm_head/dense", "head.dense"),
            Row("mlm_head/layer_norm", "head.norm"),
        ),
    )
