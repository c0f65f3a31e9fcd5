"""T5Gemma 2, its text: encoder and decoder of Gemma 3's layers, and one attention of the decoder to both.

Its folders also have a tower for images, which Limba leaves out. The class of transformers has no form without it, so
an export has one of zeros: an image of one pixel, and no layers.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from limba.addons.t5gemma import t5gemma, t5gemma_keys
from limba.addons.t5gemma.t5gemma import T5GemmaFamily
from limba.convert.families.config_keys.keys import Table
from limba.convert.tensors.table import Row
from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0
from limba.files.untrusted_files import shown
from limba.network.gemma_layers import GemmaLayers
from limba.network.t5 import T5Config

_ENCODER, _TEXT = "encoder", "text_config"
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_BASES = {_GLOBAL: 1_000_000.0, _LOCAL: 10_000.0}
_NO_IMAGE = -1  # No token has this id.
_TOKENS_OF_IMAGES = ("boi_token_index", "eoi_token_index", "image_token_index")
_VISION = {
    "model_type": "siglip_vision_model",
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_attention_heads"), 1),
    **dict.fromkeys(("num_channels", "image_size", "patch_size"), 1),
    "num_hidden_layers": 0,
    "vision_use_head": False,
}
_TOWER, _PROJECTOR = "model.encoder.vision_tower", "model.encoder.multi_modal_projector"
_EMBEDDING, _DECODERS_EMBEDDING = "model.encoder.embed_tokens", "model.decoder.embed_tokens"
# By names of tensors, with 0 for the width.
_ZEROS = {
    f"{_TOWER}.embeddings.patch_embedding.weight": (1, 1, 1, 1),
    f"{_TOWER}.embeddings.patch_embedding.bias": (1,),
    f"{_TOWER}.embeddings.position_embedding.weight": (1, 1),
    f"{_TOWER}.post_layernorm.weight": (1,),
    f"{_TOWER}.post_layernorm.bias": (1,),
    f"{_PROJECTOR}.mm_input_projection_weight": (1, 0),
    f"{_PROJECTOR}.mm_soft_emb_norm.weight": (1,),
    f"{_EMBEDDING}.eoi_embedding": (0,),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Gemma2Family(T5GemmaFamily):
    """See `T5GemmaFamily`."""

    torch_attention: ClassVar[str | None] = None
    encoder_keys: Table

    def change_class(self, model: Any) -> None:
        """Leaves out what it has for images: the tower, and an embedding of a token."""
        import torch

        encoder = model.model.encoder
        encoder.vision_tower = encoder.multi_modal_projector = torch.nn.Identity()
        with torch.device("meta"):
            embedding = torch.nn.Embedding(*encoder.text_model.embed_tokens.weight.shape)
        scale = encoder.text_model.embed_tokens.scalar_embed_scale
        embedding.register_forward_hook(lambda module, args, embedded: embedded * scale)
        encoder.text_model.embed_tokens = model.model.decoder.embed_tokens = embedding
        model.lm_head.out_proj.weight = embedding.weight
        # One module is the embedding of both stacks, which leaves nothing to tie.
        model.tie_weights = lambda *args, **kwargs: None

    def name_in_files(self, name: str) -> str:
        """Files do not have the module of its encoder that has no images."""
        return name.replace(".encoder.text_model.", ".encoder.")

    def stacks(self, content: Mapping[str, Any]) -> dict[str, Any]:
        encoder = content.get(_ENCODER)
        text = encoder.get(_TEXT) if isinstance(encoder, Mapping) else None
        return {f"{_ENCODER}: {_TEXT}": text, "decoder": content.get("decoder")}

    def key_tables(self, content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Table]]:
        yield from super().key_tables(content)
        if isinstance(content.get(_ENCODER), Mapping):
            yield f": {_ENCODER}", content[_ENCODER], self.encoder_keys

    def rotary_fields(self, file: Path, stack: Mapping[str, Any]) -> dict[str, Any]:
        of_kinds = stack.get("rope_parameters") or {}
        usual = {_GLOBAL: stack.get("rope_theta"), _LOCAL: stack.get("rope_local_base_freq")}
        found = {}
        for kind, base in _BASES.items():
            inside = of_kinds.get(kind) if isinstance(of_kinds, Mapping) else of_kinds
            if not isinstance(inside, Mapping | None):
                raise ValueError(f"{file}: rope_parameters is {shown(of_kinds)}; it has an object for {kind}.")
            given = {"rope_theta": usual[kind] or base, **(inside or {})}
            if kind == _GLOBAL:
                given |= stack.get("rope_scaling") or {}
            type_ = given.get("rope_type", given.get("type", "default"))
            if type_ not in (("default", "linear") if kind == _GLOBAL else ("default",)):
                raise ValueError(
                    f"{file}: rope_type of {kind} is {shown(type_)}; Limba has default, and linear for {_GLOBAL}."
                )
            given["factor"] = given.get("factor", 1.0) if type_ == "linear" else 1.0
            for key in ("rope_theta", "factor"):
                number_ranges.check(f"{file}: {key} of {kind}", given[key], ABOVE_0)
            found[kind] = given
        return {
            "rotary_base": float(found[_GLOBAL]["rope_theta"]),
            "rotary_factor": float(found[_GLOBAL]["factor"]),
            "local_rotary_base": float(found[_LOCAL]["rope_theta"]),
        }

    def rotary_settings(self, layers: GemmaLayers) -> dict[str, Any]:
        of_global: dict[str, Any] = {"rope_type": "default", "rope_theta": layers.rotary_base}
        if layers.rotary_factor != 1.0:
            of_global |= {"rope_type": "linear", "factor": layers.rotary_factor}
        of_local = {"rope_type": "default", "rope_theta": layers.local_rotary_base or layers.rotary_base}
        return {"rope_parameters": {_GLOBAL: of_global, _LOCAL: of_local}}

    def own_stacks(self, encoder: dict[str, Any], decoder: dict[str, Any]) -> dict[str, Any]:
        no_images = dict.fromkeys(_TOKENS_OF_IMAGES, _NO_IMAGE)
        of_encoder = {"model_type": "t5gemma2_encoder", _TEXT: encoder, "vision_config": _VISION, **no_images}
        del no_images["boi_token_index"]
        return {_ENCODER: of_encoder | {"mm_tokens_per_image": 1}, "decoder": decoder, **no_images}

    def further_problem(self, network: T5Config, layers: GemmaLayers) -> str:
        if layers.attn_logit_softcapping is not None:
            return f"attn_logit_softcapping is {layers.attn_logit_softcapping:g}, which T5Gemma 2's class leaves out"
        if not network.logits_via_embedding:
            return "logits_via_embedding is False, and T5Gemma 2's output is its embedding"
        return ""

    def constants(self, network: T5Config) -> dict[str, np.ndarray]:
        shapes = {name: tuple(size or network.emb_dim for size in shape) for name, shape in _ZEROS.items()}
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def _rows() -> Iterator[Row]:
    left_out = ("encoder_decoder_attention", "cross_attention", "decoder/token_embedder", "logits_dense")
    yield from (row for row in t5gemma.FAMILY.rows if not any(part in row.limba for part in left_out))
    for stack, attention in (("encoder", "attention"), ("decoder", "self_attention")):
        for name in ("query", "key"):
            own, theirs = f"{stack}/layers_{{i}}/{attention}", f"model.{stack}.layers.{{i}}.self_attn"
            yield Row(f"{own}/{name}_norm", f"{theirs}.{name[0]}_norm")


FAMILY = T5Gemma2Family(
    name="t5gemma2",
    title="T5Gemma 2",
    model_type="t5gemma2",
    model_class="T5Gemma2ForConditionalGeneration",
    network={},
    recognized_by="it has gemma_layers with merged_attention",
    in_bytes=None,
    in_transformers=True,
    in_flax=False,
    is_new=True,
    prefix="model.",
    rows=tuple(_rows()),
    embeddings=(f"{_EMBEDDING}.weight", f"{_DECODERS_EMBEDDING}.weight"),
    output=("lm_head.out_proj.weight", f"{_EMBEDDING}.weight"),
    left_out=(_TOWER, _PROJECTOR, f"{_EMBEDDING}.eoi_embedding", f"{_DECODERS_EMBEDDING}.eoi_embedding"),
    left_out_because="Limba's T5s read texts, and no images",
    keys=t5gemma_keys.KEYS_2,
    stack_keys=t5gemma_keys.STACK_KEYS_2,
    encoder_keys=t5gemma_keys.ENCODER_KEYS_2,
    stack_defaults=t5gemma.DEFAULTS
    | {"vocab_size": 262_208, "final_logit_softcapping": None, "attn_logit_softcapping": None},
    stack_types=("t5gemma2_text", "t5gemma2_decoder"),
    usual_period=6,
    layers=dict.fromkeys(("merged_attention", "qk_norm", "shared_embedding", "halved_encoder_window"), True),
)
