"""The encoder of a config.json alone, for training from scratch: transformers' keys, and those of t5-experiments.

t5-experiments (GENA-LM's training scripts) has keys of its own in the config.json of a BERT: pre-LN, T5's buckets,
rotary positions, DeepSpeed's block-sparse attention. No class of Hugging Face has all of them, so such a network need
not have one.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from limba.convert.families import heads
from limba.convert.families.config_files import encoder_config
from limba.convert.families.config_keys import encoder_keys, keys
from limba.convert.families.encoders import bert
from limba.convert.families.encoders.encoder_family import value
from limba.convert.families.heads import Head
from limba.convert.families.table import of_model_type
from limba.files import untrusted_json
from limba.files.untrusted_files import shown
from limba.network.encoders.config import EncoderConfig, sparse_part

_OWN_POSITIONS = {"relative_attention_bias": "t5_buckets", "rotary": "rotary"}


class NewNetwork(NamedTuple):
    """A network to train from scratch, its head, and what to call it."""

    config: EncoderConfig
    head: Head
    name: str


def read_network(file: Path, ignored: Collection[str] = ()) -> NewNetwork:
    """The network of a config.json.

    Args:
      ignored: keys that the user says have no effect.

    Raises:
      ValueError: if it is damaged, or Limba does not have its network.
    """
    content = untrusted_json.read_object(file)
    family, key = of_model_type(content.get("model_type")), "tie_word_embeddings"
    has_own_output = family is not None and key in family.keys and family.keys[key].is_carried
    if (tied := content.get(key, True)) is not True and key not in ignored and not has_own_output:
        raise ValueError(
            f"{file}: tie_word_embeddings is {shown(tied)}; the output of Limba's encoders is the embedding. Write "
            "true, or leave it out."
        )
    own = [key for key in encoder_keys.T5_EXPERIMENTS if key in content]
    if content.get("model_type") != "bert" or not (own or content.get("position_embedding_type") in _OWN_POSITIONS):
        read = encoder_config.read(file, ignored)
        return NewNetwork(read.network, read.head, read.family.name)
    keys.check(file, content, encoder_keys.NEW_BERT, ignored)
    try:
        pad_id = value(content, "pad_token_id", 0, int)
        if pad_id != encoder_config.PAD_ID:
            raise ValueError(f"pad_token_id is {pad_id}; a new network's is {encoder_config.PAD_ID}")
        return NewNetwork(EncoderConfig(**_fields(content)), heads.OF_MASKED_LM, "t5-experiments")
    except ValueError as error:
        raise ValueError(f"{file}: {str(error).removesuffix('.')}.") from error


def _fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `EncoderConfig` for a config.json of t5-experiments."""
    positions = content.get("position_embedding_type", "absolute")
    of_bert = {**content, "position_embedding_type": "absolute" if positions in _OWN_POSITIONS else positions}
    fields = bert.FAMILY.fields(bert.FAMILY.completed(of_bert), encoder_config.PAD_ID)
    fields["position_embedding_type"] = _OWN_POSITIONS.get(positions, positions)
    if positions == "relative_attention_bias":
        fields["num_buckets"] = value(content, "relative_attention_num_buckets", 32, int)
        fields["max_distance"] = value(content, "relative_last_bucket_distance", 128, int)
    if positions == "rotary":
        fields["rotary_dim"] = value(content, "rotary_dim", fields["head_dim"], int)
        fields["rotary_base"] = float(value(content, "rotary_base", 10_000, (int, float)))
    is_pre = value(content, "pre_layer_norm", False, bool)
    if is_pre != value(content, "last_layer_norm", is_pre, bool):
        raise ValueError(
            f"last_layer_norm is {shown(content['last_layer_norm'])} with pre_layer_norm {str(is_pre).lower()}; the "
            "norm after the last layer belongs to pre_layer_norm"
        )
    fields["norm_position"] = "pre" if is_pre else "post"
    if (layout := content.get("sparse_config_cls")) is not None:
        own = value(content, "sparse_attention", {}, dict)
        fields["sparse_attention"] = sparse_part().of_deepspeed(layout, own)
    return fields
