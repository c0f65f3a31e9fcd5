"""A T5Gemma as CTranslate2's specification of a Transformer; see `ct2_t5`.

CTranslate2 has rotary positions, norms behind blocks and fewer heads of keys, and neither soft caps nor the windows of
single layers.
"""

from typing import Any

import numpy as np

from limba.addons.engines.ct2 import ct2_library
from limba.addons.engines.ct2.ct2_weights import Weights
from limba.convert.model_files.model import T5Model
from limba.network.t5 import T5Config


def check(model: T5Model) -> None:
    """Raises ValueError for what CTranslate2 does not compute."""
    layers: Any = model.config.gemma_layers
    if layers.merged_attention:
        raise ValueError(
            f"{model.path} is {model.family.title}, which CTranslate2 4.8 does not compute as transformers does, also "
            "from a folder of its own converter (docs/log.md). `limba convert to-hf` exports it, and `limba serve` "
            "serves it."
        )
    for field in ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window"):
        if (given := getattr(layers, field)) is not None:
            raise ValueError(
                f"{model.path} has {field} {given:g}, which CTranslate2 does not compute in a T5Gemma; its own "
                "converter leaves it out. `limba convert to-hf` exports it, and `limba serve` serves it."
            )


def spec(model: T5Model, quantization: str, activation: str) -> Any:
    """The specification with the weights; `activation` is CTranslate2's name of the MLP's."""
    specs, config = ct2_library.specs(), model.config
    layers: Any = config.gemma_layers
    is_grouped = layers.num_kv_heads not in (None, config.num_heads)
    common = {
        "pre_norm": True,
        "activation": specs.Activation[activation],
        "ffn_glu": True,
        "rms_norm": True,
        "pre_post_layer_norm": True,
        "rotary_dim": config.head_dim,
        "rotary_interleave": False,
        "rotary_base": layers.rotary_base,
        "head_dim": config.head_dim,
        "num_heads_kv": layers.num_kv_heads if is_grouped else None,
    }
    found = specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.num_encoder_layers, config.num_heads, **common),
        specs.TransformerDecoderSpec(
            config.num_decoder_layers, config.num_heads, external_pre_post_encoder_layers=True, **common
        ),
    )
    weights = Weights(model, quantization)
    for stack, embeddings in (("encoder", found.encoder.embeddings[0]), ("decoder", found.decoder.embeddings)):
        of_stack = getattr(found, stack)
        embeddings.weight = weights[f"model.{stack}.embed_tokens.weight"]
        of_stack.scale_embeddings = True  # by the square root of the width
        of_stack.layer_norm.gamma = _gamma(weights, f"model.{stack}.norm")
        for i, layer in enumerate(of_stack.layer):
            _fill_layer(layer, weights, f"model.{stack}.layers.{i}", stack == "decoder", config)
    output = "model.decoder.embed_tokens" if config.logits_via_embedding else "lm_head.out_proj"
    found.decoder.projection.weight = weights[f"{output}.weight"]
    return found


def _gamma(weights: Weights, module: str) -> np.ndarray:
    scale = weights[f"{module}.weight"]
    return (1 + scale.astype(np.float32)).astype(scale.dtype)


def _fill_layer(layer: Any, weights: Weights, own: str, is_decoder: bool, config: T5Config) -> None:
    layer.input_layer_norm.gamma = _gamma(weights, f"{own}.pre_self_attn_layernorm")
    layer.post_attention_layer_norm.gamma = _gamma(weights, f"{own}.post_self_attn_layernorm")
    _fill_attention(layer.self_attention, weights, f"{own}.self_attn", ("qkv",), config)
    if is_decoder:
        before, behind = (f"external_{place}_encoder_attention_layer_norm" for place in ("pre", "post"))
        getattr(layer, before).gamma = _gamma(weights, f"{own}.pre_cross_attn_layernorm")
        getattr(layer, behind).gamma = _gamma(weights, f"{own}.post_cross_attn_layernorm")
        _fill_attention(layer.attention, weights, f"{own}.cross_attn", ("q", "kv"), config)
    layer.pre_feedforward_layer_norm.gamma = _gamma(weights, f"{own}.pre_feedforward_layernorm")
    layer.post_feedforward_layer_norm.gamma = _gamma(weights, f"{own}.post_feedforward_layernorm")
    layer.ffn.linear_0.weight = weights[f"{own}.mlp.gate_proj.weight"]
    layer.ffn.linear_0_noact.weight = weights[f"{own}.mlp.up_proj.weight"]
    layer.ffn.linear_1.weight = weights[f"{own}.mlp.down_proj.weight"]


def _fill_attention(spec: Any, weights: Weights, attention: str, kernels: tuple[str, ...], config: T5Config) -> None:
    layers: Any = config.gemma_layers
    spec.queries_scale = (layers.query_pre_attn_scalar or config.head_dim) ** -0.5
    for linear, names in zip(spec.linear, kernels, strict=False):
        linear.weight = weights.joined(f"{attention}.{name}_proj.weight" for name in names)
    spec.linear[-1].weight = weights[f"{attention}.o_proj.weight"]
