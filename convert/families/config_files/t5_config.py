"""Hugging Face's config.json and generation_config.json, written and read without transformers.

Version 5 of transformers forces `tie_word_embeddings` to true and takes what a file says there only for whether logits
are scaled; 4.57 reads the same key for both. So an untied model states false for `tie_word_embeddings` and for
`scale_decoder_outputs` and stores both tensors; a tied one states true for both, and its logits are scaled by
1/sqrt(d_model) in T5X, in Limba and in both versions.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from limba.convert.families import heads
from limba.convert.families.config_files import other_models
from limba.convert.families.config_keys import keys, t5_keys
from limba.convert.families.heads import Head
from limba.convert.families.t5_family import T5Family
from limba.convert.families.table import of_config, t5_families
from limba.files import number_ranges, untrusted_json
from limba.files.number_ranges import AT_LEAST_1, SHARE
from limba.files.untrusted_files import shown
from limba.gin_config import run_folders
from limba.network import own_layers
from limba.network.config_checks import MOST, MOST_LAYERS
from limba.network.layers import LayerNorm
from limba.network.t5 import MAX_DISTANCE, NUM_BUCKETS, T5Config

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
_PAD, _EOS, _START = "pad_token_id", "eos_token_id", "decoder_start_token_id"
# Where no file says them, in every version of transformers.
USUAL_IDS = {_PAD: 0, _EOS: 1}
# Names that transformers takes for others in the config.json of a T5.
_OTHER_NAMES = {
    "hidden_size": "d_model",
    "head_dim": "d_kv",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
}


def model_config(
    config: T5Config,
    family: T5Family,
    dtype: str,
    inputs_length: int | None,
    ids: Mapping[str, int] = USUAL_IDS,
) -> dict[str, Any]:
    """The content of config.json.

    Args:
      family, dtype: whose names the keys get, and that of the stored tensors.
      inputs_length: of the training, as information (T5's positions are relative); None leaves it out.
      ids: `pad_token_id` and `eos_token_id` of the folder.

    Raises:
      ValueError: if Hugging Face's T5 cannot express the network.
    """
    if problem := family.problem(config):
        raise ValueError(f"{family.model_class} does not hold the network: {problem}.")
    return family.with_own_keys(_t5_config(config, family, dtype, inputs_length, ids))


def _t5_config(
    config: T5Config, family: T5Family, dtype: str, inputs_length: int | None, ids: Mapping[str, int]
) -> dict[str, Any]:
    """As `model_config`, with T5's keys."""
    activations = tuple(config.mlp_activations)
    feed_forward = _FEED_FORWARD | {own: name for name, own in family.activations.items()}
    if activations not in feed_forward:
        raise ValueError(
            f"mlp_activations is {activations}, which Hugging Face's T5 does not have; it has {list(feed_forward)}."
        )
    if min(config.num_encoder_layers, config.num_decoder_layers) < 1:
        raise ValueError(
            f"The network has {config.num_encoder_layers} encoder and {config.num_decoder_layers} decoder layers; "
            "Hugging Face's T5 keeps the position bias in the first layer of each, so both need at least 1."
        )
    if own := own_layers.of(config):
        raise ValueError(f"The network has {', '.join(own)}, which Hugging Face's T5 does not.")
    if config.scale_attn_logits:
        raise ValueError(
            "The network divides queries by sqrt(head_dim) (scale_attn_logits), which Hugging Face's T5 does not."
        )
    tied = config.logits_via_embedding
    return {
        "architectures": [family.model_class],
        "model_type": family.model_type,
        "is_encoder_decoder": True,
        "use_cache": True,
        "vocab_size": config.vocab_size,
        "d_model": config.emb_dim,
        "d_kv": config.head_dim,
        "d_ff": config.mlp_dim,
        "num_heads": config.num_heads,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": feed_forward[activations],
        "relative_attention_num_buckets": NUM_BUCKETS,
        "relative_attention_max_distance": MAX_DISTANCE,
        "layer_norm_epsilon": LayerNorm.epsilon,
        "dropout_rate": config.dropout_rate,
        "initializer_factor": 1.0,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
        "torch_dtype": dtype,
        **({} if inputs_length is None else {"n_positions": inputs_length}),
        **_all_ids(config, ids),
        **family.layer_keys(config),
    }


def _all_ids(config: T5Config, ids: Mapping[str, int]) -> dict[str, int]:
    return {**ids, _START: in_folder(config.decoder_start_token_id, ids[_PAD])}


def in_folder(id_: int, pad_id: int) -> int:
    """The folder's id of one of Limba's, and Limba's of the folder's: padding, which is 0 in Limba, is exchanged."""
    return {0: pad_id, pad_id: 0}.get(id_, id_)


def classifier_config(
    config: T5Config, family: T5Family, head: Head, dtype: str, ids: Mapping[str, int] = USUAL_IDS
) -> dict[str, Any]:
    """The content of config.json of a classifier of tokens on the encoder; see `model_config`."""
    content = model_config(config, family, dtype, None, ids)
    # One rate of dropout for network and head, in Limba.
    return content | {
        "architectures": [family.class_of(head.kind)],
        "is_encoder_decoder": False,
        "use_cache": False,
        "classifier_dropout": config.dropout_rate,
        **head.settings(),
    }


def generation_config(
    config: T5Config, family: T5Family, targets_length: int | None = None, ids: Mapping[str, int] = USUAL_IDS
) -> dict[str, Any]:
    """The content of generation_config.json.

    Args:
      targets_length: tokens of the run's targets: `generate()` makes no more. Without it transformers stops after 20.
    """
    # Not `max_length`: beside `generate(max_new_tokens=…)`, as people write it now, version 5 warns of that.
    lengths = {} if targets_length is None else {"max_new_tokens": targets_length}
    return _all_ids(config, ids) | lengths | dict(family.generation)


# ------------------------------------------------------- reading -----------------------------------------------------


def read(file: Path, ignored: Collection[str] = ()) -> dict[str, Any]:
    """A config.json of one of the families, with T5's keys.

    Where generation_config.json lies beside it and says what the decoder begins with, that counts, as in transformers'
    `generate`.

    Args:
      ignored: keys that the user says have no effect; they are left out.

    Raises:
      ValueError: if it is damaged, of another network, or has a key that makes it another one.
    """
    content, family = _read(file)
    other_models.refuse_head(file, content)
    if other_models.is_encoder_alone(content) or other_models.is_token_classifier(content):
        # It gets a decoder (`new_decoder` of `convert.model_files.t5_files`), or needs none.
        content["is_encoder_decoder"] = True
    for part, inside, table in family.key_tables(content):
        keys.check(f"{file}{part}", inside, table, ignored)
    for key in ("tie_word_embeddings", "scale_decoder_outputs"):
        if content.get(key, True) is None:
            raise ValueError(
                f"{file}: {key} is null, which is false to one version of transformers and to another the default. "
                "Write true if the embedding is the output too, else false."
            )
    if content.get("is_gated_act", True) is None:
        content["is_gated_act"] = False  # as transformers takes it
    named = family.with_t5_keys(file, content, ignored)
    if named.get("num_hidden_layers") is not None and "num_layers" not in named:
        # transformers counts the decoder's layers before it takes the other name.
        named.setdefault("num_decoder_layers", family.defaults.get("num_layers"))
    for other, key in _OTHER_NAMES.items():
        value = named.pop(other, None)
        if value is not None and named.setdefault(key, value) != value:
            raise ValueError(f"{file}: {other} is {shown(value)} and {key} {shown(named[key])}; they mean the same.")
    generation_file, generation = _generation_beside(file)
    known = {key: value for key, value in generation.items() if key in t5_keys.GENERATION_KEYS}
    keys.check(generation_file, known, t5_keys.GENERATION_KEYS, ignored)
    if generation.get(_START) is not None:
        named[_START] = generation[_START]
    _check_generation(generation_file, generation, file, named, ignored)
    return named


def _check_generation(
    generation_file: Path, generation: Mapping[str, Any], file: Path, named: dict[str, Any], ignored: Collection[str]
) -> None:
    """Takes special ids that config.json leaves out. Raises ValueError for others than it has."""
    for key in USUAL_IDS:
        if (given := generation.get(key)) is None or key in ignored:
            continue
        if named.get(key) is None:
            named[key] = given
        if _only_id(generation_file, generation, key) != (usual := _only_id(file, named, key)):
            raise ValueError(
                f"{generation_file}: {key} is {shown(given)}, and in {file.name} it is {usual}. Write the one of the "
                "tokenizer into both."
            )


def special_ids(file: Path, content: Mapping[str, Any]) -> dict[str, int]:
    """`pad_token_id` and `eos_token_id` of a config.json that was read, in the folder's ids.

    Raises:
      ValueError: for what is no id, or several.
    """
    return {key: _only_id(file, content, key) for key in USUAL_IDS}


def _only_id(file: Path, content: Mapping[str, Any], key: str) -> int:
    found = content.get(key)
    one = found[0] if isinstance(found, list) and len(found) == 1 else found
    one = USUAL_IDS[key] if one is None else one
    if type(one) is not int or one < 0:
        what = "Limba has one" if isinstance(found, list) else "it is an id of the vocabulary"
        raise ValueError(f"{file}: {key} is {shown(found)}; {what}. Write the one that the model was trained with.")
    return one


def notes(file: Path, ignored: Collection[str] = ()) -> Iterator[str]:
    """Sentences about a config.json, and the generation_config.json beside it, that `read` accepts: what of them does
    not travel, and where they contradict each other."""
    content, family = _read(file)
    if other_models.is_encoder_alone(content):
        yield (
            f"{file.parent} is the encoder of a T5 alone, and gets a new decoder. `limba embed` and the classifiers of "
            "docs/encoders.md take the encoder as it is; for texts, train it."
        )
    for part, inside, table in family.key_tables(content):
        yield from keys.left_out(f"{file}{part}", inside, table, ignored)
    generation_file, generation = _generation_beside(file)
    yield from keys.left_out(generation_file, generation, t5_keys.GENERATION_KEYS, ignored)
    first, second = content.get(_START), generation.get(_START)
    if None not in (first, second) and first != second:
        yield (
            f"{_START} is {shown(first)} in {file.name} and {second} in {generation_file.name}: {second} counts, as in "
            f"`generate` of transformers. If it was trained with {shown(first)}, change it in {generation_file}."
        )


def _generation_beside(file: Path) -> tuple[Path, dict[str, Any]]:
    generation_file = file.parent / "generation_config.json"
    is_there = file.name == "config.json" and generation_file.is_file()
    return generation_file, untrusted_json.read_object(generation_file) if is_there else {}


def _read(file: Path) -> tuple[dict[str, Any], T5Family]:
    content = untrusted_json.read_object(file)
    other_models.check_classes(file, content)
    found = content.get("model_type")
    family = of_config(content) if isinstance(found, str | None) else None
    if not isinstance(family, T5Family):
        known = dict.fromkeys(family.model_type for family in t5_families().values() if not family.is_typeless)
        raise other_models.refuse_type(file, found, [*known])
    return content, family


def family_of(content: Mapping[str, Any]) -> T5Family:
    """The first family with the `model_type` of a config.json that was read: its reading is that of all of them."""
    family = of_config(content)
    assert isinstance(family, T5Family), content
    return family


def head_of(file: Path, content: Mapping[str, Any]) -> Head:
    """The head that a config.json says: a T5's, or one with labels of tokens.

    Raises:
      ValueError: if its labels are not the texts of 0, 1, 2 …
    """
    if not other_models.is_token_classifier(content):
        return heads.OF_T5
    try:
        return heads.of_config(content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}.") from error


def hides_its_output(content: Mapping[str, Any]) -> bool:
    """Whether config.json says of every model that the embedding is the output too; see `Family.hides_output`."""
    return family_of(content).hides_output and _is_of_version_5(content) and "scale_decoder_outputs" not in content


def scales_its_output(content: Mapping[str, Any]) -> bool:
    """Whether version 5 of transformers divides the logits of an untied model by sqrt(d_model), and Limba does not.

    `content` has every key that the network depends on.
    """
    is_tied = content["tie_word_embeddings"]
    return family_of(content).scales_untied and _is_of_version_5(content) and not is_tied


def ties_output(file: Path) -> bool:
    """Whether an output that is not stored is the embedding, though T5 1.0's scale is off.

    Version 5 of transformers makes new T5s so whose configuration asks for an output of their own.

    Args:
      file: the config.json that was saved with the weights.
    """
    content = untrusted_json.read_object(file) if file.is_file() else {}
    return content.get("tie_word_embeddings") is True and _is_of_version_5(content)


def _is_of_version_5(content: Mapping[str, Any]) -> bool:
    """Whether version 5 of transformers wrote config.json."""
    version = str(content.get("transformers_version", "")).split(".")[0]
    return (number_ranges.of_digits(version) or 0) > 4


def explicit(content: Mapping[str, Any], config: T5Config) -> dict[str, Any]:
    """config.json with every key that the network depends on, so that nobody needs to know what is meant without."""
    ids = USUAL_IDS | {key: content[key] for key in USUAL_IDS if content.get(key) is not None}
    meant = _t5_config(config, family_of(content), "float32", None, ids)
    tied = dict.fromkeys(("tie_word_embeddings", "scale_decoder_outputs"), config.logits_via_embedding)
    given = {key: value for key, value in content.items() if value is not None}
    return meant | given | tied


def network_config(file: Path, content: Mapping[str, Any]) -> T5Config:
    """The network of a config.json, unrolled; what a key that is missing means is what transformers takes it for.

    Raises:
      ValueError: if a size is missing, or Limba's T5 is not of this kind.
    """
    family = family_of(content)
    content = family.completed(content)
    # Both keys say the same to begin with; version 5 of transformers leaves the first at true.
    tied = content.get("scale_decoder_outputs", content["tie_word_embeddings"])
    own = _own_layers(file, content)
    projection, activations = content["feed_forward_proj"], _ACTIVATIONS | family.activations
    if not isinstance(projection, str) or projection not in activations:
        raise ValueError(f"{file}: feed_forward_proj is {shown(projection)}; Limba's T5 has {sorted(activations)}.")
    _check_activation(file, content, projection)
    sizes = ("vocab_size", "d_model", "num_heads", "d_kv", "d_ff", "num_layers")
    for key in sizes:
        if key not in content:
            raise ValueError(f"{file} has no {key!r}.")
    for key in (*sizes, *(["num_decoder_layers"] if content.get("num_decoder_layers") is not None else [])):
        number_ranges.check(f"{file}: {key}", content[key], AT_LEAST_1)
        if content[key] > MOST:
            raise ValueError(f"{file}: {key} is {shown(content[key])}; a size of a network is at most {MOST:,}.")
    for key in ("num_layers", "num_decoder_layers"):
        if (content.get(key) or 0) > MOST_LAYERS:
            raise ValueError(f"{file}: {key} is {shown(content[key])}; a network has at most {MOST_LAYERS:,} layers.")
    start = content.get(_START) or 0
    if type(start) is not int or not 0 <= start < content["vocab_size"]:
        raise ValueError(
            f"{file}: {_START} is {shown(start)}; it is an id of the vocabulary, from 0 to "
            f"{content['vocab_size'] - 1}, and in most T5s 0."
        )
    if tied != (tie := content["tie_word_embeddings"]) and not (tie is True and _is_of_version_5(content)):
        raise ValueError(
            f"{file}: tie_word_embeddings is {shown(tie)} and scale_decoder_outputs {shown(tied)}; each version of "
            "transformers reads another of the two. Both are true if the embedding is the output too, else false."
        )
    if not isinstance(tied, bool):
        raise ValueError(f"{file}: tie_word_embeddings or scale_decoder_outputs is {shown(tied)}; it is true or false.")
    for key, id_ in special_ids(file, content).items():
        if id_ >= content["vocab_size"]:
            raise ValueError(f"{file}: {key} is {id_}, and vocab_size {content['vocab_size']}.")
    dropout_rate = content.get("dropout_rate", 0.1)
    number_ranges.check(f"{file}: dropout_rate", dropout_rate, SHARE)
    return family.make_network(
        content,
        vocab_size=content["vocab_size"],
        emb_dim=content["d_model"],
        num_heads=content["num_heads"],
        head_dim=content["d_kv"],
        mlp_dim=content["d_ff"],
        num_encoder_layers=content["num_layers"],
        num_decoder_layers=content.get("num_decoder_layers") or content["num_layers"],
        mlp_activations=activations[projection],
        dropout_rate=dropout_rate,
        logits_via_embedding=tied,
        relative_bias_per_layer=family.network.get("relative_bias_per_layer", False),
        decoder_start_token_id=in_folder(start, special_ids(file, content)[_PAD]),
        kernels="xla" if own else "auto",
        **own,
    )


def _own_layers(file: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The attention layers of a config.json of t5-experiments that are not T5's; nothing is imported.

    Their modules do not lie in the folder of a config.json, which may come from somebody else; a file of another name
    is the user's own.

    Raises:
      ValueError: for what is not the name of a class.
    """
    named = {key: content[key] for key in own_layers.FIELDS if content.get(key) is not None}
    own = {key: name for key, name in named.items() if not str(name).endswith(":T5Attention")}
    for key, name in own.items():
        own_layers.check_name(str(file), key, name)
    if own and file.name == "config.json":
        run_folders.read_data(file.parent)
    return own


def _check_activation(file: Path, content: Mapping[str, Any], projection: str) -> None:
    """Raises ValueError if keys that transformers derives from feed_forward_proj, and prefers, contradict it."""
    activation = "gelu_new" if projection == "gated-gelu" else projection.rpartition("-")[2]
    for key, meant in (("dense_act_fn", activation), ("is_gated_act", projection.startswith("gated-"))):
        if content.get(key) not in (None, meant):
            raise ValueError(
                f"{file}: {key} is {shown(content[key])}, and feed_forward_proj {projection!r} means {meant!r}; "
                "transformers takes the first. Make feed_forward_proj say it."
            )
