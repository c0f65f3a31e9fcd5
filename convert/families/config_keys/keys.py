"""What happens to each key of a JSON file of transformers': T5s and encoders, config.json and what lies beside it.

A key is carried into Limba's network, or it has no effect on it and the table gives the reason. Some have none at some
values only, and are refused at others. A key that no table has is refused: it may make another network.
docs/config_keys.md is written from the tables.
"""

import dataclasses
import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from limba.files.untrusted_files import cut, shown, some

FLAG = "--ignore_config_keys"


@dataclasses.dataclass(frozen=True)
class Key:
    """What happens to one key. A value of null counts as a missing key.

    Attributes:
      name: of the key.
      reason: of a carried key, what it becomes; of another one, why it has no effect, or what it would do.
      is_carried: whether the network, the vocabulary or the check reads it.
      values: those that pass; None for all.
      remedy: for another value, a sentence. Without one the value is not refused but only named as left out: it is a
        setting, and changes nothing of the network.
    """

    name: str
    reason: str
    is_carried: bool = False
    values: tuple[Any, ...] | None = None
    remedy: str = ""

    def passes(self, value: Any) -> bool:
        return value is None or self.values is None or value in self.values


Table = Mapping[str, Key]

_UNKNOWN_SETTING = Key("", "Limba does not know it", values=())


def carried(**becomes: str) -> list[Key]:
    """Keys that are carried, with what they become. Values are checked where they are read."""
    return [Key(name, reason, is_carried=True) for name, reason in becomes.items()]


def fixed(reason: str, **values: Any) -> list[Key]:
    """Keys that the network has at one value only."""
    remedy = "No network of Limba has another value: train such a model where it comes from."
    return [Key(name, reason, True, (value,), remedy) for name, value in values.items()]


def without_effect(reason: str, *names: str) -> list[Key]:
    """Keys that change nothing, at any value."""
    return [Key(name, reason) for name in names]


def only(name: str, values: tuple[Any, ...], reason: str, remedy: str) -> Key:
    """A key that changes nothing at some values, and is refused at others."""
    return Key(name, reason, values=values, remedy=remedy)


def settings(reason: str, **usual: Any) -> list[Key]:
    """Settings that do not travel, with the values at which nothing needs to be said."""
    return [Key(name, reason, values=value if isinstance(value, tuple) else (value,)) for name, value in usual.items()]


def table(*keys: Key) -> dict[str, Key]:
    """By name; a later key replaces an earlier one of its name."""
    return {key.name: key for key in keys}


def check(where: Any, content: Mapping[str, Any], known: Table, ignored: Collection[str] = ()) -> None:
    """Looks at every key of a file.

    Args:
      where: the file, for messages.
      content: of the file.
      ignored: keys that the user says have no effect.

    Raises:
      ValueError: for a key that no row of the table has, a value that is refused, or an ignored key that is carried.
    """
    for name in ignored:
        if name in content and name in known and known[name].is_carried:
            raise ValueError(f"{FLAG} {name}: this key counts ({known[name].reason}); change it in {where}.")
    unknown = {key: x for key, x in content.items() if key not in known and key not in ignored and x is not None}
    for key, value in content.items():
        row = known.get(key)
        if row is not None and key not in ignored and row.remedy and not row.passes(value):
            raise ValueError(f"{where}: {key} is {shown(value)}; {row.reason}. {row.remedy}")
    if unknown:
        named = [f"{cut(key)} is {shown(value)}{_nearest(key, known)}" for key, value in unknown.items()]
        raise ValueError(
            f"{where}: {some(named)}. Limba does not know {'this key' if len(named) == 1 else 'these'}, "
            "which may make another network. If you are sure that nothing of the model depends on it, give "
            f"{FLAG} {','.join(map(cut, unknown))}."
        )


def _nearest(key: str, known: Table) -> str:
    near = difflib.get_close_matches(key, known, 1, 0.85)
    return f" (the nearest that Limba knows is {near[0]})" if near else ""


def left_out(where: Any, content: Mapping[str, Any], known: Table, ignored: Collection[str]) -> Iterator[str]:
    """A sentence for what does not travel: settings that are not the usual ones, keys that the user ignores."""
    by_reason: dict[str, list[str]] = {}
    for key, value in content.items():
        row = Key(key, f"{FLAG} says so", values=()) if key in ignored else known.get(key, _UNKNOWN_SETTING)
        if not row.passes(value) and not row.remedy:
            by_reason.setdefault(row.reason, []).append(f"{cut(key)} {shown(value)}")
    for reason, named in by_reason.items():
        yield f"Not carried from {where}: {', '.join(named)} ({reason})."


# ------------------------------------------- what every class of transformers has -------------------------------------

_DECODER = "Limba has no such network"
_OWN_CODE = (
    "Compare the two classes; if the repository's computes what transformers' own does, give --ignore_config_keys "
    "auto_map."
)
_DEFAULT_ADAPTERS: dict[str, Any] = {"adapters": {}, "config_map": {}, "fusion_config_map": {}, "fusions": {}}
_LIKE_TRANSFORMERS = "Load the model in its library, merge it into the weights, and save it."

# Of `generate` in transformers 4 and 5. config.json had them before generation_config.json came; null is no setting.
GENERATION = settings(
    "a setting of `generate`: Limba's decoding has its own (docs/decoding.md)",
    max_length=20,
    max_new_tokens=(),
    min_length=0,
    min_new_tokens=(),
    early_stopping=False,
    max_time=(),
    stop_strings=(),
    do_sample=False,
    num_beams=1,
    num_beam_groups=1,
    diversity_penalty=0.0,
    temperature=1.0,
    top_k=50,
    top_p=1.0,
    min_p=(),
    top_h=(),
    typical_p=1.0,
    epsilon_cutoff=0.0,
    eta_cutoff=0.0,
    penalty_alpha=(),
    repetition_penalty=1.0,
    encoder_repetition_penalty=1.0,
    length_penalty=1.0,
    no_repeat_ngram_size=0,
    encoder_no_repeat_ngram_size=0,
    num_return_sequences=1,
    bad_words_ids=(),
    force_words_ids=(),
    constraints=(),
    renormalize_logits=False,
    forced_bos_token_id=(),
    forced_decoder_ids=(),
    forced_eos_token_id=(),
    remove_invalid_values=False,
    exponential_decay_length_penalty=(),
    suppress_tokens=(),
    begin_suppress_tokens=(),
    sequence_bias=(),
    token_healing=False,
    guidance_scale=(),
    watermarking_config=(),
    dola_layers=(),
)

COMMON = (
    *carried(model_type="the family", architectures="the head"),
    *without_effect(
        "says where the file comes from",
        *("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "name", "language", "model_name"),
        "unsloth_version",
    ),
    *without_effect("the weights say their own dtype", "torch_dtype", "dtype", "use_bfloat16", "is_bf16"),
    *without_effect(
        "says what a call in PyTorch returns",
        *("output_attentions", "output_hidden_states", "return_dict", "use_return_dict", "output_past", "use_cache"),
        *("torchscript", "keys_to_ignore_at_inference", "tie_last_hidden_states", "output_scores", "output_logits"),
        "return_dict_in_generate",
    ),
    *without_effect(
        "another way to compute the same",
        *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset"),
        *("_attn_implementation_internal", "experts_implementation", "_experts_implementation"),
        *("_experts_implementation_internal", "gradient_checkpointing", "chunk_size_feed_forward", "xla_device"),
        *("tf_legacy_loss", "model_parallel", "static_position_embeddings"),
    ),
    *without_effect("a setting of a script", "finetuning_task", "max_seq_length"),
    # They change what these programs do with a folder, and the export of Limba does not have them.
    *settings(
        "a setting of a pipeline, or of another library",
        task_specific_params=({},),
        prefix="",
        custom_pipelines=({},),
        sentence_transformers=(),
        sbert_ce_default_activation_function=(),
        **{"transformers.js_config": ()},
    ),
    only("is_decoder", (False,), f"a decoder on its own: {_DECODER}", "Convert the encoder-decoder or the encoder."),
    only("add_cross_attention", (False,), f"attention to another model: {_DECODER}", "Set it to false if unused."),
    only("cross_attention_hidden_size", (), f"attention to another model: {_DECODER}", "Remove it if unused."),
    only("tie_encoder_decoder", (False,), f"encoder and decoder share their layers: {_DECODER}", "Untie them first."),
    only("pruned_heads", ({},), "some layers have fewer heads: Limba's all have as many", "Take the model unpruned."),
    only(
        "quantization_config",
        ({},),
        "the weights are quantized, and Limba reads none that are",
        "In transformers call model.dequantize() and save the model, or take the one that was quantized.",
    ),
    only("compression_config", ({},), "the weights are compressed", _LIKE_TRANSFORMERS),
    only("adapters", ({}, _DEFAULT_ADAPTERS), "layers of the library adapters: they compute too", _LIKE_TRANSFORMERS),
    only("auto_map", ({},), "the class is code of its repository, and Limba runs none", _OWN_CODE),
    only("per_layer_config", ({},), "layers that differ from each other: Limba's do not", "Train such a model there."),
    *GENERATION,
)
