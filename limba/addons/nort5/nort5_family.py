"""NorT5's family: HPLT's config.json, whose class is code of its repository, and the rows of its tensors."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from limba.addons.nort5 import nort5_keys
from limba.addons.nort5.nort5 import NorT5Config
from limba.convert.families.config_keys.keys import Table
from limba.convert.families.t5_family import T5Family
from limba.convert.tensors.table import Row
from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0, AT_LEAST_0, AT_LEAST_1, SHARE
from limba.files.untrusted_files import shown
from limba.network.t5 import T5Config

# T5's names of what NorT5's config.json says under others.
_SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
}
# Fields of `NorT5Config` that `T5Config` does not have.
_FIELDS = {
    "num_buckets": "position_bucket_size",
    "norm_epsilon": "layer_norm_eps",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "cls_token_id": "cls_token_id",
    "sep_token_id": "sep_token_id",
}
_OWN = "nort5"
# A parameter of HPLT's module itself, which has no module of its own.
_BARE = ".relative_embedding"
# What HPLT's class takes for keys that are missing.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50_000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "position_bucket_size": 32,
    "layer_norm_eps": 1e-7,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "bos_token_id": 5,
    "eos_token_id": 6,
}
_LIMITS = {
    **dict.fromkeys(_SIZES.values(), AT_LEAST_1),
    # A table has twice as many rows.
    "position_bucket_size": AT_LEAST_1._replace(below=2**30),
    "layer_norm_eps": ABOVE_0._replace(below=1),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), SHARE),
    **dict.fromkeys(("cls_token_id", "sep_token_id", "bos_token_id"), AT_LEAST_0),
}
_FILES = ("configuration_nort5", "modeling_nort5")
_AUTO_MAP = {
    "AutoConfig": f"{_FILES[0]}.NorT5Config",
    "AutoModel": f"{_FILES[1]}.NorT5Model",
    "AutoModelForSeq2SeqLM": f"{_FILES[1]}.NorT5ForConditionalGeneration",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NorT5Family(T5Family):
    """See `T5Family`. Inside Limba its config.json has T5's keys, and "nort5" with further fields of `NorT5Config`."""

    layer_kind: ClassVar[str] = "nort5"
    config_class: ClassVar[type[T5Config]] = NorT5Config
    numpy_forward: ClassVar[str] = "limba.addons.nort5.numpy_nort5"
    usual_ids: ClassVar[Mapping[str, int]] = {"pad_token_id": 0, "eos_token_id": 6}
    is_typeless: ClassVar[bool] = True
    code: ClassVar[str] = (
        "The class is code of HPLT: copy configuration_nort5.py and modeling_nort5.py of "
        "https://github.com/hplt-project/HPLT-WP4 (encoder-decoder/huggingface_prototype), or of the repository that "
        "the model came from, into the folder, and load it with trust_remote_code=True. HPLT wrote it for transformers "
        "4.46.1; in 4.57 it computes the same and neither trains nor generates."
    )
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def key_tables(self, content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Table]]:
        yield "", content, self.keys

    def with_t5_keys(self, file: Path, content: Mapping[str, Any], ignored: Any = ()) -> dict[str, Any]:
        found = _DEFAULTS | {key: x for key, x in content.items() if x is not None and key not in ignored}
        for key, limits in _LIMITS.items():
            number_ranges.check(f"{file}: {key}", found[key], limits)
        width, num_heads = found["hidden_size"], found["num_attention_heads"]
        if width % num_heads:
            raise ValueError(
                f"{file}: hidden_size is {width} and num_attention_heads {shown(num_heads)}; a head is a whole part of "
                "the width. Write the sizes of the weights."
            )
        return {
            **{key: content[key] for key in ("architectures", "torch_dtype", "dtype") if key in content},
            "model_type": self.model_type,
            **{name: found[key] for name, key in _SIZES.items()},
            "num_decoder_layers": found["num_hidden_layers"],
            "d_kv": width // num_heads,
            "feed_forward_proj": "gated-gelu",
            "dropout_rate": found["hidden_dropout_prob"],
            "tie_word_embeddings": False,
            "scale_decoder_outputs": False,
            "decoder_start_token_id": found.get("decoder_start_token_id", found["bos_token_id"]),
            "pad_token_id": found["pad_token_id"],
            "eos_token_id": found["eos_token_id"],
            _OWN: {field: found[key] for field, key in _FIELDS.items()},
        }

    def with_own_keys(self, content: Mapping[str, Any]) -> dict[str, Any]:
        own = content[_OWN]
        return {
            "architectures": [self.model_class],
            "auto_map": _AUTO_MAP,
            "is_encoder_decoder": True,
            **{key: content[name] for name, key in _SIZES.items()},
            **{key: own[field] for field, key in _FIELDS.items()},
            "hidden_dropout_prob": content["dropout_rate"],
            "max_position_embeddings": 512,
            "output_all_encoded_layers": True,
            "bos_token_id": content["decoder_start_token_id"],
            "eos_token_id": content["eos_token_id"],
            "pad_token_id": content["pad_token_id"],
            **{key: content[key] for key in ("torch_dtype",) if key in content},
        }

    def make_network(self, content: Mapping[str, Any], **fields: Any) -> NorT5Config:
        return NorT5Config(**fields, **content[_OWN])

    def layer_keys(self, network: T5Config) -> dict[str, Any]:
        return {_OWN: {field: getattr(network, field) for field in _FIELDS}}

    def problem(self, network: T5Config) -> str:
        depths = network.num_encoder_layers, network.num_decoder_layers
        if depths[0] != depths[1]:
            return f"it has {depths[0]} encoder and {depths[1]} decoder layers, and the class as many of both"
        if network.decoder_start_token_id == 0:
            return "its decoder begins with padding (decoder_start_token_id = 0), which is 5 in HPLT's models"
        return ""

    def tensor_name(self, name: str) -> str:
        return name.removesuffix(".weight") if name.endswith(f"{_BARE}.weight") else name

    def usual_start(self, content: Mapping[str, Any]) -> int | None:
        start: int = {**_DEFAULTS, **content}["bos_token_id"]
        return start


def _rows() -> Iterator[Row]:
    yield Row("token_embedder", "embedding.word_embedding")
    for ours, theirs in (
        ("encoder/distances", "encoder.relative_embedding"),
        ("decoder/self_distances", "decoder.self_relative_embedding"),
        ("decoder/cross_distances", "decoder.cross_relative_embedding"),
    ):
        yield Row(f"{ours}/vectors", f"{theirs}{_BARE}")
        yield Row(f"{ours}/layer_norm", f"{theirs}.relative_layer_norm")
    for stack in ("encoder", "decoder"):
        own, layer = f"{stack}/layers_{{i}}", f"{stack}.layers.{{i}}"
        blocks = {"attention": ("attention", "attention")}
        if stack == "decoder":
            blocks = {
                "self_attention": ("self_attention", "self_attention"),
                "encoder_decoder_attention": ("cross_attention", "cross_attention"),
            }
        for block, (theirs, place) in blocks.items():
            for kernel, name in (
                ("query", "in_proj_q"),
                ("key", "in_proj_k"),
                ("value", "in_proj_v"),
                ("out", "out_proj"),
            ):
                yield Row(f"{own}/{block}/{kernel}", f"{layer}.{theirs}.{name}")
            yield Row(f"{own}/post_{place}_layer_norm", f"{layer}.{theirs}.post_layer_norm")
        # The class multiplies the first half by the GELU of the second.
        yield Row(f"{own}/mlp/wi_1", f"{layer}.mlp.mlp.1")
        yield Row(f"{own}/mlp/wi_0", f"{layer}.mlp.mlp.1")
        yield Row(f"{own}/mlp/wo", f"{layer}.mlp.mlp.4")
    yield Row("decoder/logits_dense", "classifier.nonlinearity.2")


FAMILY = NorT5Family(
    name="nort5",
    title="NorT5",
    model_type="nort5",
    model_class="NorT5ForConditionalGeneration",
    network={},
    recognized_by="its network is a NorT5Config",
    keys=nort5_keys.KEYS,
    rows=tuple(_rows()),
    embeddings=("embedding.word_embedding.weight",),
    output=("classifier.nonlinearity.2.weight", "embedding.word_embedding.weight"),
    in_flax=False,
)
