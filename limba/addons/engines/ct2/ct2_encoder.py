"""An encoder as CTranslate2's specification: tokens to hidden states. It has no heads.

The tensors are those of Hugging Face, of BERT and its relatives with a table of positions.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.engines.ct2 import ct2_library
from limba.addons.engines.ct2.ct2_weights import Weights
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.model_files.model import EncoderModel

FAMILIES = ("bert", "roberta", "xlm_roberta", "camembert", "distilbert")
_TYPES = "encoder/token_type_embedder"
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
        raise ValueError(f"{model.path} is {family.title}; of encoders CTranslate2 has {', '.join(FAMILIES)}.")
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
        num_source_embeddings=1 + (_TYPES in _modules(model.family)),
        embeddings_merge=specs.EmbeddingsMerge.ADD,
    )
    first_position = model.family.first_position(model.pad_id)
    fill(encoder, Weights(model, quantization), _modules(model.family), first_position)
    spec = specs.TransformerEncoderModelSpec(encoder)
    spec.register_vocabulary(list(tokens))
    spec.config.unk_token = special.get("unk", special["pad"])
    spec.config.bos_token, spec.config.eos_token = special["cls"], special["sep"]
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _modules(family: EncoderFamily) -> dict[str, str]:
    """Hugging Face's names of modules by Limba's; `{i}` is the number of a layer."""
    return {row.limba: row.theirs for row in family.rows}


def fill(spec: Any, weights: Weights, modules: Mapping[str, str], first_position: int) -> None:
    """Fills the specification of the encoder."""
    spec.scale_embeddings = False
    spec.embeddings[0].weight = weights[f"{modules['token_embedder']}.weight"]
    if _TYPES in modules:
        spec.embeddings[1].weight = weights[f"{modules[_TYPES]}.weight"]
    # RoBERTa's first token takes the row after padding's; no token takes those before.
    positions = weights[f"{modules['encoder/position_embedder']}.weight"]
    spec.position_encodings.encodings = positions[first_position:]
    _fill_norm(spec.layernorm_embedding, weights, modules["encoder/embedding_layer_norm"])
    for i, layer in enumerate(spec.layer):
        prefix = "encoder/layers_{i}/"
        of_layer = {
            name.removeprefix(prefix): theirs.replace("{i}", str(i))
            for name, theirs in modules.items()
            if name.startswith(prefix)
        }
        inner = [of_layer[f"attention/{name}"] for name in ("query", "key", "value")]
        attention = layer.self_attention
        attention.linear[0].weight = weights.joined(f"{name}.weight" for name in inner)
        attention.linear[0].bias = weights.joined(f"{name}.bias" for name in inner)
        _fill_linear(attention.linear[1], weights, of_layer["attention/out"])
        _fill_norm(attention.layer_norm, weights, of_layer["post_attention_layer_norm"])
        _fill_linear(layer.ffn.linear_0, weights, of_layer["mlp/wi"])
        _fill_linear(layer.ffn.linear_1, weights, of_layer["mlp/wo"])
        _fill_norm(layer.ffn.layer_norm, weights, of_layer["post_mlp_layer_norm"])


def _fill_linear(spec: Any, weights: Weights, module: str) -> None:
    spec.weight, spec.bias = weights[f"{module}.weight"], weights[f"{module}.bias"]


def _fill_norm(spec: Any, weights: Weights, module: str) -> None:
    spec.gamma, spec.beta = weights[f"{module}.weight"], weights[f"{module}.bias"]
