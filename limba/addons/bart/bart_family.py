"""BART's family, of which mBART's is made: their config.json, and the rows of their tensors."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from limba.addons.bart import bart_keys
from limba.addons.bart.bart import BartConfig
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.families.config_keys.keys import Table
from limba.convert.families.t5_family import T5Family
from limba.convert.tensors.table import Row
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1, SHARE
from limba.files.untrusted_files import shown
from limba.network.t5 import T5Config

# T5's names of what BART's config.json says under others.
_SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "d_ff": "encoder_ffn_dim",
    "num_heads": "encoder_attention_heads",
    "num_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "feed_forward_proj": "activation_function",
    "dropout_rate": "dropout",
}
# Fields of `BartConfig` that `T5Config` does not have.
_FIELDS = {
    "max_positions": "max_position_embeddings",
    "scale_embedding": "scale_embedding",
    "attention_dropout_rate": "attention_dropout",
    "activation_dropout_rate": "activation_dropout",
}
_OWN = "bart"
# Of both classes, for keys that are missing.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50_265,
    "d_model": 1024,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "max_position_embeddings": 1024,
    "scale_embedding": False,
    "decoder_start_token_id": 2,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
_LIMITS = {
    **dict.fromkeys(("d_model", "encoder_attention_heads", "max_position_embeddings"), AT_LEAST_1),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), SHARE),
}
# The decoder's, which are the encoder's in every network here.
_TWINS = {"decoder_ffn_dim": "encoder_ffn_dim", "decoder_attention_heads": "encoder_attention_heads"}
_BIAS = "final_logits_bias"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BartFamily(T5Family):
    """See `T5Family`. Inside Limba its config.json has T5's keys, and "bart" with further fields of `BartConfig`."""

    layer_kind: ClassVar[str] = "bart"
    config_class: ClassVar[type[T5Config]] = BartConfig
    numpy_forward: ClassVar[str] = "limba.addons.bart.numpy_bart"
    usual_ids: ClassVar[Mapping[str, int]] = {"pad_token_id": 1, "eos_token_id": 2}
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def norms_before(self) -> bool:
        """Whether it is mBART."""
        return bool(self.network["norms_before"])

    def key_tables(self, content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Table]]:
        yield "", content, self.keys

    def with_t5_keys(self, file: Path, content: Mapping[str, Any], ignored: Collection[str] = ()) -> dict[str, Any]:
        found = _DEFAULTS | {key: x for key, x in content.items() if x is not None and key not in ignored}
        for key, limits in _LIMITS.items():
            number_ranges.check(f"{file}: {key}", found[key], limits)
        for twin, key in _TWINS.items():
            if found.get(twin, found[key]) != found[key]:
                raise ValueError(
                    f"{file}: {key} is {shown(found[key])} and {twin} {shown(found[twin])}; the two "
                    "are one in Limba's networks."
                )
        if not isinstance(found["scale_embedding"], bool):
            raise ValueError(f"{file}: scale_embedding is {shown(found['scale_embedding'])}; it is true or false.")
        width, num_heads = found["d_model"], found["encoder_attention_heads"]
        if width % num_heads:
            raise ValueError(
                f"{file}: d_model is {width} and encoder_attention_heads {shown(num_heads)}; a head is a whole part of "
                "the width. Write the sizes of the weights."
            )
        return {
            **{key: content[key] for key in ("architectures", "torch_dtype", "dtype") if key in content},
            "model_type": self.model_type,
            **{name: found[key] for name, key in _SIZES.items()},
            "d_kv": width // num_heads,
            "tie_word_embeddings": True,
            "scale_decoder_outputs": True,
            **{key: found[key] for key in ("decoder_start_token_id", "pad_token_id", "eos_token_id")},
            _OWN: {"norms_before": self.norms_before, **{field: found[key] for field, key in _FIELDS.items()}},
        }

    def with_own_keys(self, content: Mapping[str, Any]) -> dict[str, Any]:
        own = {key: content[name] for name, key in _SIZES.items()}
        return {
            "architectures": [self.model_class],
            "model_type": self.model_type,
            "is_encoder_decoder": True,
            "use_cache": True,
            **own,
            **{twin: own[key] for twin, key in _TWINS.items()},
            "num_hidden_layers": own["encoder_layers"],
            **{key: content[_OWN][field] for field, key in _FIELDS.items()},
            # As the hub's files say it; CTranslate2's converter reads them.
            "normalize_before": self.norms_before,
            "normalize_embedding": True,
            "add_final_layer_norm": self.norms_before,
            "init_std": 0.02,
            "tie_word_embeddings": True,
            **{key: content[key] for key in ("decoder_start_token_id", "pad_token_id", "eos_token_id")},
            # Else transformers takes the usual one for a setting of `generate`.
            "forced_eos_token_id": None,
            **{key: content[key] for key in ("torch_dtype",) if key in content},
        }

    def make_network(self, content: Mapping[str, Any], **fields: Any) -> BartConfig:
        return BartConfig(**fields, **content[_OWN])

    def layer_keys(self, network: T5Config) -> dict[str, Any]:
        return {_OWN: {field: getattr(network, field) for field in ("norms_before", *_FIELDS)}}

    def constants(self, network: T5Config) -> dict[str, np.ndarray]:
        return {_BIAS: np.zeros((1, network.vocab_size), np.float32)}

    def check_left_out(self, path: Path, tensors: Mapping[str, SavedTensor]) -> None:
        bias = tensors.get(_BIAS)
        if bias is not None and np.any(np.asarray(bias)):
            raise ValueError(
                f"{path}: {_BIAS} is not zero, and Limba's BART adds nothing to its logits. No training changes it: "
                "write zeros, if the model was trained without."
            )

    def usual_start(self, content: Mapping[str, Any]) -> int | None:
        return 2


def rows(norms_before: bool) -> Iterator[Row]:
    """Which modules hold which of Limba's, in BART or mBART."""
    yield Row("token_embedder", "model.shared")
    for stack in ("encoder", "decoder"):
        own, theirs = f"{stack}/layers_{{i}}", f"model.{stack}.layers.{{i}}"
        yield Row(f"{stack}/positions", f"model.{stack}.embed_positions")
        yield Row(f"{stack}/embedding_layer_norm", f"model.{stack}.layernorm_embedding")
        blocks = {"attention": ("self_attn", "attention")}
        if stack == "decoder":
            blocks = {
                "self_attention": ("self_attn", "self_attention"),
                "encoder_decoder_attention": ("encoder_attn", "cross_attention"),
            }
        for block, (module, norm) in blocks.items():
            for name in ("query", "key", "value", "out"):
                of_theirs = "out_proj" if name == "out" else f"{name[0]}_proj"
                yield Row(f"{own}/{block}/{name}", f"{theirs}.{module}.{of_theirs}")
            yield Row(f"{own}/{norm}_layer_norm", f"{theirs}.{module}_layer_norm")
        for name, module in (("wi", "fc1"), ("wo", "fc2")):
            yield Row(f"{own}/mlp/{name}", f"{theirs}.{module}")
        yield Row(f"{own}/mlp_layer_norm", f"{theirs}.final_layer_norm")
        if norms_before:
            yield Row(f"{stack}/{stack}_norm", f"model.{stack}.layer_norm")


FAMILY = BartFamily(
    name="bart",
    title="BART",
    model_type="bart",
    model_class="BartForConditionalGeneration",
    network={"norms_before": False},
    recognized_by="its network is a BartConfig",
    keys=bart_keys.keys(norms_before=False),
    activations={"gelu": ("gelu_erf",), "gelu_new": ("gelu",), "swish": ("silu",), "silu": ("silu",)},
    prefix="model.",
    rows=tuple(rows(norms_before=False)),
    embeddings=tuple(f"model.{name}.weight" for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens")),
    output=("lm_head.weight", "model.shared.weight"),
    in_transformers=True,
    in_flax=False,
    left_out=(_BIAS, f"model.{_BIAS}"),
    left_out_because="a bias of zeros, which an export has again",
)
