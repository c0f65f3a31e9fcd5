"""An encoder as CTranslate2's specification: tokens to hidden states. It has no heads.

The names of tensors are Hugging Face's, of BERT and its relatives with a table of positions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba.addons.engines.ct2 import ct2_library
from limba.addons.engines.ct2.ct2_weights import Weights
from limba.convert.model_files.model import EncoderModel

FAMILIES = ("bert", "roberta", "xlm_roberta", "camembert")
# The tokens by id.
VOCABULARY = "vocabulary.json"
# CTranslate2's names of the activations.
_ACTIVATIONS = {"gelu_erf": "GELU", "gelu": "GELUTanh", "relu": "RELU", "silu": "SWISH", "swish": "SWISH"}


def check(model: EncoderModel) -> None:
    """Raises ValueError for a model that CTranslate2 does not have."""
    family, config = model.family, model.config
    if model.head.labels:
        raise ValueError(
            f"{model.path} is a classifier, and CTranslate2 has no heads for labels; `limba convert to-hf` exports it."
        )
    if family.name not in FAMILIES:
        raise ValueError(f"{model.path} is a {family.title}; of encoders CTranslate2 has {', '.join(FAMILIES)}.")
    if config.position_embedding_type != "absolute":
        raise ValueError(
            f"{model.path}: position_embedding_type is {config.position_embedding_type!r}, and CTranslate2's BERT has "
            "'absolute' alone."
        )
    if config.mlp_activations[0] not in _ACTIVATIONS:
        raise ValueError(
            f"{model.path}: mlp_activations is {config.mlp_activations}; CTranslate2 has {', '.join(_ACTIVATIONS)}."
        )


def write(model: EncoderModel, tokens: Sequence[str], special: dict[str, str], quantization: str, folder: Path) -> None:
    """Writes model.bin, config.json and vocabulary.json. Memory: all weights, in float32.

    Args:
      tokens: by the folder's ids, one for each row of the embedding.
      special: tokens by role.

    Raises:
      ValueError: if a tensor holds NaN or infinite values.
    """
    specs, config = ct2_library.specs(), model.config
    encoder = specs.TransformerEncoderSpec(
        config.num_layers,
        config.num_heads,
        pre_norm=False,
        activation=specs.Activation[_ACTIVATIONS[config.mlp_activations[0]]],
        layernorm_embedding=True,
        num_source_embeddings=2,
        embeddings_merge=specs.EmbeddingsMerge.ADD,
    )
    fill(encoder, Weights(model, quantization), model.family.prefix, model.family.first_position(model.pad_id))
    spec = specs.TransformerEncoderModelSpec(encoder)
    spec.register_vocabulary(list(tokens))
    spec.config.unk_token = special.get("unk", special["pad"])
    spec.config.bos_token, spec.config.eos_token = special["cls"], special["sep"]
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def fill(spec: Any, weights: Weights, prefix: str, first_position: int) -> None:
    """Fills the specification of the encoder."""
    spec.scale_embeddings = False
    tables = f"{prefix}.embeddings"
    spec.embeddings[0].weight = weights[f"{tables}.word_embeddings.weight"]
    spec.embeddings[1].weight = weights[f"{tables}.token_type_embeddings.weight"]
    # RoBERTa's first token takes the row after padding's; no token takes those before.
    spec.position_encodings.encodings = weights[f"{tables}.position_embeddings.weight"][first_position:]
    _fill_norm(spec.layernorm_embedding, weights, f"{tables}.LayerNorm")
    for i, layer in enumerate(spec.layer):
        own = f"{prefix}.encoder.layer.{i}"
        inner = [f"{own}.attention.self.{name}" for name in ("query", "key", "value")]
        attention = layer.self_attention
        attention.linear[0].weight = weights.joined(f"{name}.weight" for name in inner)
        attention.linear[0].bias = weights.joined(f"{name}.bias" for name in inner)
        _fill_linear(attention.linear[1], weights, f"{own}.attention.output.dense")
        _fill_norm(attention.layer_norm, weights, f"{own}.attention.output.LayerNorm")
        _fill_linear(layer.ffn.linear_0, weights, f"{own}.intermediate.dense")
        _fill_linear(layer.ffn.linear_1, weights, f"{own}.output.dense")
        _fill_norm(layer.ffn.layer_norm, weights, f"{own}.output.LayerNorm")


def _fill_linear(spec: Any, weights: Weights, module: str) -> None:
    spec.weight, spec.bias = weights[f"{module}.weight"], weights[f"{module}.bias"]


def _fill_norm(spec: Any, weights: Weights, module: str) -> None:
    spec.gamma, spec.beta = weights[f"{module}.weight"], weights[f"{module}.bias"]
