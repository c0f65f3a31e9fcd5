"""Hugging Face's config.json and generation_config.json, written and read without transformers.

Version 5 of transformers forces `tie_word_embeddings` to true and takes what a file says there only for whether logits
are scaled; 4.57 reads the same key for both. So an untied model states false for `tie_word_embeddings` and for
`scale_decoder_outputs` and stores both tensors; a tied one states true for both, and its logits are scaled by
1/sqrt(d_model) in T5X, in Limba and in both versions.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.layers import LayerNorm
from limba.network import MAX_DISTANCE, NUM_BUCKETS, T5Config

# Flax's gelu is the tanh approximation; Hugging Face means the same by "gated-gelu", but not by "gelu".
_FEED_FORWARD = {
    ("relu",): "relu",
    ("gelu",): "gelu_new",
    ("gelu", "linear"): "gated-gelu",
    ("relu", "linear"): "gated-relu",
    ("silu", "linear"): "gated-silu",
}
_ACTIVATIONS = {name: activations for activations, name in _FEED_FORWARD.items()} | {
    "gated-gelu_new": ("gelu", "linear")
}
_SPECIAL_IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


@dataclasses.dataclass(frozen=True)
class Family:
    """What T5s have in common.

    Attributes:
      model_type: Hugging Face's, which chooses its classes.
      model_class: that generates.
      mlp_activations: where nothing else says them.
    """

    model_type: str
    model_class: str
    mlp_activations: tuple[str, ...] = ("gelu", "linear")


FAMILIES = {
    "t5": Family("t5", "T5ForConditionalGeneration", ("relu",)),
    "t5_1_1": Family("t5", "T5ForConditionalGeneration"),
    "mt5": Family("mt5", "MT5ForConditionalGeneration"),
    "umt5": Family("umt5", "UMT5ForConditionalGeneration"),
    "byt5": Family("t5", "T5ForConditionalGeneration"),
}


def find_family(config: T5Config, vocabulary: Mapping[str, Any] | None, family: str | None = None) -> str:
    """The family of a network.

    Args:
      config: the network.
      vocabulary: as `run.json` describes it; None if it is not known.
      family: what somebody says it is.

    Raises:
      ValueError: if it cannot be what they say.
    """
    in_bytes = vocabulary is not None and vocabulary["class"] == "ByteVocabulary"
    if config.relative_bias_per_layer:
        found = "umt5"
    elif in_bytes:
        found = "byt5"
    else:
        found = "t5" if config.logits_via_embedding else "t5_1_1"
    # mT5 is T5 1.1 with another vocabulary; transformers' classes differ in name alone.
    if family in (None, found) or (family == "mt5" and found == "t5_1_1"):
        return family or found
    facts = {
        "umt5": "every layer has its table of relative positions",
        "byt5": "its vocabulary is bytes",
        "t5": "the embedding is the output too",
        "t5_1_1": "there is an output matrix (decoder/logits_dense), and one table of relative positions a stack",
    }
    raise ValueError(f"--family {family}: the network is {found}: {facts[found]}.")


def model_config(config: T5Config, family: str, dtype: str, inputs_length: int | None) -> dict[str, Any]:
    """The content of config.json.

    Args:
      config: the network.
      family: one of `FAMILIES`.
      dtype: of the stored tensors.
      inputs_length: of the training, as information (T5's positions are relative); None leaves it out.

    Raises:
      ValueError: if Hugging Face's T5 cannot express the network.
    """
    activations = tuple(config.mlp_activations)
    if activations not in _FEED_FORWARD:
        raise ValueError(
            f"mlp_activations is {activations}, which Hugging Face's T5 does not have; it has {list(_FEED_FORWARD)}."
        )
    if min(config.num_encoder_layers, config.num_decoder_layers) < 1:
        raise ValueError(
            f"The network has {config.num_encoder_layers} encoder and {config.num_decoder_layers} decoder layers; "
            "Hugging Face's T5 keeps the position bias in the first layer of each, so both need at least 1."
        )
    if config.scale_attn_logits:
        raise ValueError(
            "The network divides queries by sqrt(head_dim) (scale_attn_logits), which Hugging Face's T5 does not."
        )
    tied = config.logits_via_embedding
    return {
        "architectures": [FAMILIES[family].model_class],
        "model_type": FAMILIES[family].model_type,
        "is_encoder_decoder": True,
        "use_cache": True,
        "vocab_size": config.vocab_size,
        "d_model": config.emb_dim,
        "d_kv": config.head_dim,
        "d_ff": config.mlp_dim,
        "num_heads": config.num_heads,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": _FEED_FORWARD[activations],
        "relative_attention_num_buckets": NUM_BUCKETS,
        "relative_attention_max_distance": MAX_DISTANCE,
        "layer_norm_epsilon": LayerNorm.epsilon,
        "dropout_rate": config.dropout_rate,
        "initializer_factor": 1.0,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
        "torch_dtype": dtype,
        **({} if inputs_length is None else {"n_positions": inputs_length}),
        **_SPECIAL_IDS,
    }


def generation_config() -> dict[str, Any]:
    """The content of generation_config.json."""
    return dict(_SPECIAL_IDS)


# ------------------------------------------------------- reading -----------------------------------------------------


def read(file: Path) -> dict[str, Any]:
    """A config.json of a T5.

    Raises:
      ValueError: if it is damaged, or of another network.
    """
    try:
        content = json.loads(file.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is not JSON: {error}.") from error
    if not isinstance(content, dict) or content.get("model_type") not in ("t5", "mt5", "umt5"):
        found = content.get("model_type") if isinstance(content, dict) else content
        raise ValueError(f"{file}: model_type is {found!r}; t5, mt5 and umt5 are converted.")
    return content


def hides_its_output(content: Mapping[str, Any]) -> bool:
    """Whether config.json says that the embedding is the output too, of every model: version 5 does so for these."""
    version = str(content.get("transformers_version", ""))
    forced = (
        content["model_type"] in ("mt5", "umt5") and version.split(".")[0].isdigit() and int(version.split(".")[0]) > 4
    )
    return forced and "scale_decoder_outputs" not in content


def explicit(content: Mapping[str, Any], config: T5Config) -> dict[str, Any]:
    """config.json with every key that the network depends on, so that nobody needs to know what is meant without."""
    family = "umt5" if config.relative_bias_per_layer else "t5" if config.logits_via_embedding else "t5_1_1"
    meant = model_config(config, family, "float32", None)
    tied = dict.fromkeys(("tie_word_embeddings", "scale_decoder_outputs"), config.logits_via_embedding)
    given = {key: value for key, value in content.items() if value is not None}
    return meant | given | tied


def network_config(file: Path, content: Mapping[str, Any]) -> T5Config:
    """The network of a config.json, unrolled; what a key that is missing means is what transformers takes it for.

    Raises:
      ValueError: if a size is missing, or Limba's T5 is not of this kind.
    """
    # Both keys say the same to begin with; version 5 of transformers leaves the first at true.
    tied = content.get("scale_decoder_outputs", content.get("tie_word_embeddings", content["model_type"] != "mt5"))
    fixed = {
        "relative_attention_num_buckets": NUM_BUCKETS,
        "relative_attention_max_distance": MAX_DISTANCE,
        "layer_norm_epsilon": LayerNorm.epsilon,
    }
    for key, ours in fixed.items():
        if content.get(key, ours) != ours:
            raise ValueError(f"{file}: {key} is {content[key]}; Limba's T5 has {ours}.")
    default = "relu" if content["model_type"] == "t5" else "gated-gelu"
    projection = content.get("feed_forward_proj", default)
    if not isinstance(projection, str) or projection not in _ACTIVATIONS:
        raise ValueError(f"{file}: feed_forward_proj is {projection!r}; Limba's T5 has {sorted(_ACTIVATIONS)}.")
    sizes = ("vocab_size", "d_model", "num_heads", "d_kv", "d_ff", "num_layers")
    for key in sizes:
        if key not in content:
            raise ValueError(f"{file} has no {key!r}.")
    for key in (*sizes, *(["num_decoder_layers"] if content.get("num_decoder_layers") is not None else [])):
        if not isinstance(content[key], int) or isinstance(content[key], bool) or content[key] < 1:
            raise ValueError(f"{file}: {key} is {content[key]!r}; it is a whole number of at least 1.")
    if not isinstance(tied, bool):
        raise ValueError(f"{file}: tie_word_embeddings or scale_decoder_outputs is {tied!r}; it is true or false.")
    dropout_rate = content.get("dropout_rate", 0.1)
    if not isinstance(dropout_rate, int | float):
        raise ValueError(f"{file}: dropout_rate is {dropout_rate!r}; it is a number.")
    return T5Config(
        vocab_size=content["vocab_size"],
        emb_dim=content["d_model"],
        num_heads=content["num_heads"],
        head_dim=content["d_kv"],
        mlp_dim=content["d_ff"],
        num_encoder_layers=content["num_layers"],
        num_decoder_layers=content.get("num_decoder_layers") or content["num_layers"],
        mlp_activations=_ACTIVATIONS[projection],
        dropout_rate=dropout_rate,
        logits_via_embedding=tied,
        relative_bias_per_layer=content["model_type"] == "umt5",
    )
