"""A T5 as CTranslate2's specification of a Transformer.

The names of tensors are Hugging Face's; kernels are `[out, in]`, tables of positions `[buckets, heads]`, in both.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons.engines.ct2 import ct2_library, ct2_t5gemma
from limba.addons.engines.ct2.ct2_weights import Weights
from limba.convert.families import heads
from limba.convert.families.config_files import t5_config
from limba.convert.model_files.hf.special_tokens import SpecialTokens
from limba.convert.model_files.model import T5Model
from limba.network.layers import LayerNorm
from limba.network.t5 import MAX_DISTANCE, T5Config

# The tokens by id.
VOCABULARY = "shared_vocabulary.json"
# CTranslate2's names of the activations; its GELUTanh is Flax's gelu.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELUTanh", "silu": "SWISH", "swish": "SWISH"}


def check(model: T5Model) -> None:
    """Raises ValueError for a model that CTranslate2 does not have."""
    if model.head != heads.OF_T5:
        raise ValueError(
            f"{model.path} is a classifier of tokens, and CTranslate2 has none on a T5; `limba convert to-hf` exports "
            "it, and `limba infer` answers with it."
        )
    if model.family.layer_kind not in ("t5", "gemma"):
        raise ValueError(
            f"{model.path} is {model.family.title}, and CTranslate2 has no such encoder-decoder; `limba convert to-hf` "
            "exports it."
        )
    # What Hugging Face's T5 cannot express, CTranslate2's cannot: it is made for that.
    t5_config.model_config(model.config, model.family, "float32", None)
    _activation(model.config)
    if model.family.layer_kind == "gemma":
        ct2_t5gemma.check(model)


def _activation(config: T5Config) -> str:
    """CTranslate2's name of the MLP's. Raises ValueError if it has none."""
    first, *others = config.mlp_activations
    if first not in _ACTIVATIONS or others not in ([], ["linear"]):
        raise ValueError(
            f"mlp_activations is {tuple(config.mlp_activations)}; CTranslate2 has {', '.join(_ACTIVATIONS)}, alone or "
            "times linear."
        )
    return _ACTIVATIONS[first]


def write(model: T5Model, tokens: Sequence[str], special: SpecialTokens, quantization: str, folder: Path) -> None:
    """Writes model.bin, config.json and shared_vocabulary.json. Memory: all weights, in float32.

    Raises:
      ValueError: if a tensor holds NaN or infinite values.
    """
    if (layers := model.config.gemma_layers) is None:
        spec, epsilon = _spec(model, quantization), LayerNorm.epsilon
    else:
        spec = ct2_t5gemma.spec(model, quantization, _activation(model.config))
        epsilon = layers.norm_epsilon
    spec.register_source_vocabulary(list(tokens))
    spec.register_target_vocabulary(list(tokens))
    spec.config.bos_token = spec.config.decoder_start_token = tokens[model.config.decoder_start_token_id]
    spec.config.eos_token, spec.config.unk_token = tokens[special.eos.id], tokens[unknown_id(special)]
    spec.config.layer_norm_epsilon = epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def unknown_id(special: SpecialTokens) -> int:
    """The id that the engine takes for a token that it does not know: padding, where all texts have tokens."""
    return special.pad.id if special.unk is None else special.unk.id


def _spec(model: T5Model, quantization: str) -> Any:
    specs, config = ct2_library.specs(), model.config
    common = {
        "pre_norm": True,
        "activation": specs.Activation[_activation(config)],
        "relative_attention_bias": True,
        "ffn_glu": len(config.mlp_activations) > 1,
        "rms_norm": True,
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.num_encoder_layers, config.num_heads, **common),
        specs.TransformerDecoderSpec(config.num_decoder_layers, config.num_heads, **common),
    )
    weights = Weights(model, quantization)
    shared = weights["shared.weight"]
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = shared
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = False
    fill_stack(spec.encoder, weights, "encoder")
    fill_stack(spec.decoder, weights, "decoder")
    set_output(spec.decoder, config, shared if config.logits_via_embedding else weights["lm_head.weight"])
    return spec


def set_output(decoder: Any, config: T5Config, kernel: np.ndarray) -> None:
    """The output; where it is the embedding, its logits are divided by sqrt(emb_dim), and only there."""
    decoder.projection.weight = kernel
    if config.logits_via_embedding:
        decoder.scale_outputs = np.float32(config.emb_dim**-0.5)


def fill_stack(spec: Any, weights: Weights, stack: str) -> None:
    """Fills the specification of the encoder or the decoder."""
    spec.layer_norm.gamma = weights[f"{stack}.final_layer_norm.weight"]
    bias = None
    for i, layer in enumerate(spec.layer):
        own = f"{stack}.block.{i}.layer"
        attention = f"{own}.0.SelfAttention"
        # T5 and mT5 have one table, in the first layer; umT5 has one in each.
        if (table := f"{attention}.relative_attention_bias.weight") in weights:
            bias = weights[table]
        _fill_attention(layer.self_attention, weights, attention, ("qkv",))
        layer.self_attention.layer_norm.gamma = weights[f"{own}.0.layer_norm.weight"]
        layer.self_attention.relative_attention_bias = bias
        layer.self_attention.relative_attention_max_distance = np.int32(MAX_DISTANCE)
        if stack == "decoder":
            _fill_attention(layer.attention, weights, f"{own}.1.EncDecAttention", ("q", "kv"))
            layer.attention.layer_norm.gamma = weights[f"{own}.1.layer_norm.weight"]
        last = 2 if stack == "decoder" else 1
        mlp = f"{own}.{last}.DenseReluDense"
        is_gated = f"{mlp}.wi_1.weight" in weights
        layer.ffn.linear_0.weight = weights[f"{mlp}.wi_0.weight" if is_gated else f"{mlp}.wi.weight"]
        if is_gated:
            layer.ffn.linear_0_noact.weight = weights[f"{mlp}.wi_1.weight"]
        layer.ffn.linear_1.weight = weights[f"{mlp}.wo.weight"]
        layer.ffn.layer_norm.gamma = weights[f"{own}.{last}.layer_norm.weight"]


def _fill_attention(spec: Any, weights: Weights, attention: str, kernels: Sequence[str]) -> None:
    spec.queries_scale = 1.0  # T5 does not divide by sqrt(head_dim).
    for linear, names in zip(spec.linear, kernels, strict=False):
        linear.weight = weights.joined(f"{attention}.{name}.weight" for name in names)
    spec.linear[-1].weight = weights[f"{attention}.o.weight"]
