"""A T5 as CTranslate2's specification of a Transformer.

The names of tensors are Hugging Face's; kernels are `[out, in]`, tables of positions `[buckets, heads]`, in both.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.engines import ct2_library, ct2_weights
from convert.families import heads
from convert.families.config_files import t5_config
from convert.model_files.model import T5Model
from limba.network.layers import LayerNorm
from limba.network.t5 import MAX_DISTANCE, T5Config

# CTranslate2's names of the activations; its GELUTanh is Flax's gelu.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELUTanh", "silu": "SWISH", "swish": "SWISH"}


def check(model: T5Model) -> None:
    """Raises ValueError for a model that CTranslate2 does not have."""
    if model.head != heads.OF_T5:
        raise ValueError(
            f"{model.path} is a classifier of tokens, and CTranslate2 has none on a T5; `limba convert to-hf` exports "
            "it, and `limba infer` answers with it."
        )
    # What Hugging Face's T5 cannot express, CTranslate2's cannot: it is made for that.
    t5_config.model_config(model.config, model.family, "float32", None)
    _activation(model.config)


def _activation(config: T5Config) -> str:
    """CTranslate2's name of the MLP's. Raises ValueError if it has none."""
    first, *others = config.mlp_activations
    if first not in _ACTIVATIONS or others not in ([], ["linear"]):
        raise ValueError(
            f"mlp_activations is {tuple(config.mlp_activations)}; CTranslate2 has {', '.join(_ACTIVATIONS)}, alone or "
            "times linear."
        )
    return _ACTIVATIONS[first]


def write(model: T5Model, tokens: Sequence[str], quantization: str, folder: Path) -> None:
    """Writes model.bin, config.json and shared_vocabulary.json. Memory: all weights, in float32.

    Raises:
      ValueError: if a tensor holds NaN or infinite values.
    """
    spec = _spec(model, quantization)
    spec.register_source_vocabulary(list(tokens))
    spec.register_target_vocabulary(list(tokens))
    spec.config.bos_token = spec.config.decoder_start_token = tokens[model.config.decoder_start_token_id]
    spec.config.eos_token, spec.config.unk_token = tokens[1], tokens[2]
    spec.config.layer_norm_epsilon = LayerNorm.epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _spec(model: T5Model, quantization: str) -> Any:
    specs, config = ct2_library.specs(), model.config
    common = {
        "pre_norm": True,
        "activation": specs.Activation[_activation(config)],
        "relative_attention_bias": True,
        "ffn_glu": len(config.mlp_activations) > 1,
        "rms_norm": True,
        # Else it is the width through the heads, which is another one in small T5s 1.1.
        "head_dim": config.head_dim,
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.num_encoder_layers, config.num_heads, **common),
        specs.TransformerDecoderSpec(config.num_decoder_layers, config.num_heads, **common),
    )
    weights = _Weights(model, quantization)
    shared = weights["shared"]
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = shared
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = False
    fill_stack(spec.encoder, weights, "encoder")
    fill_stack(spec.decoder, weights, "decoder")
    set_output(spec.decoder, config, shared if config.logits_via_embedding else weights["lm_head"])
    return spec


def set_output(decoder: Any, config: T5Config, kernel: np.ndarray) -> None:
    """The output; where it is the embedding, its logits are divided by sqrt(emb_dim), and only there."""
    decoder.projection.weight = kernel
    if config.logits_via_embedding:
        decoder.scale_outputs = np.float32(config.emb_dim**-0.5)


class _Weights:
    """Hugging Face's tensors as arrays of the file's dtype, by their modules."""

    def __init__(self, model: T5Model, quantization: str):
        self._tensors, self._quantization, self._path = ct2_weights.stored(model), quantization, model.path

    def __getitem__(self, module: str) -> np.ndarray:
        tensor = self._tensors[f"{module}.weight"]
        in_file = ct2_weights.cast(tensor, self._quantization, f"{self._path}: {module}.weight")
        return np.array(np.asarray(in_file), order="C")  # a copy: CTranslate2 quantizes in place

    def __contains__(self, module: str) -> bool:
        return f"{module}.weight" in self._tensors

    def joined(self, attention: str, kernels: str) -> np.ndarray:
        return np.concatenate([self[f"{attention}.{kernel}"] for kernel in kernels])


def fill_stack(spec: Any, weights: _Weights, stack: str) -> None:
    spec.layer_norm.gamma = weights[f"{stack}.final_layer_norm"]
    bias = None
    for i, layer in enumerate(spec.layer):
        own = f"{stack}.block.{i}.layer"
        attention = f"{own}.0.SelfAttention"
        # T5 and mT5 have one table, in the first layer; umT5 has one in each.
        if f"{attention}.relative_attention_bias" in weights:
            bias = weights[f"{attention}.relative_attention_bias"]
        _fill_attention(layer.self_attention, weights, attention, ("qkv",))
        layer.self_attention.layer_norm.gamma = weights[f"{own}.0.layer_norm"]
        layer.self_attention.relative_attention_bias = bias
        layer.self_attention.relative_attention_max_distance = np.int32(MAX_DISTANCE)
        if stack == "decoder":
            _fill_attention(layer.attention, weights, f"{own}.1.EncDecAttention", ("q", "kv"))
            layer.attention.layer_norm.gamma = weights[f"{own}.1.layer_norm"]
        last = 2 if stack == "decoder" else 1
        mlp = f"{own}.{last}.DenseReluDense"
        is_gated = f"{mlp}.wi_1" in weights
        layer.ffn.linear_0.weight = weights[f"{mlp}.wi_0" if is_gated else f"{mlp}.wi"]
        if is_gated:
            layer.ffn.linear_0_noact.weight = weights[f"{mlp}.wi_1"]
        layer.ffn.linear_1.weight = weights[f"{mlp}.wo"]
        layer.ffn.layer_norm.gamma = weights[f"{own}.{last}.layer_norm"]


def _fill_attention(spec: Any, weights: _Weights, attention: str, kernels: Sequence[str]) -> None:
    spec.queries_scale = 1.0  # T5 does not divide by sqrt(head_dim).
    for linear, joined in zip(spec.linear, kernels, strict=False):
        linear.weight = weights.joined(attention, joined)
    spec.linear[-1].weight = weights[f"{attention}.o"]
