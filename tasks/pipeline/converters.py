"""The features that models read, made of a task's: SeqIO's feature converters, with arrays.

Task features are int32 `[examples, length]`, padded with 0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from limba.data import contract
from limba.tasks.pipeline.packing import pack
from limba.tasks.registry.tasks import nearest

Features = Mapping[str, np.ndarray]
Converter = Callable[[Features, bool], dict[str, np.ndarray]]
_NEED_BOTH = (
    *("EncDecFeatureConverter", "PrefixLMFeatureConverter"),
    *("EncoderClassificationFeatureConverter", "EncoderRegressionFeatureConverter", "TextPairFeatureConverter"),
)


def name_of(feature_converter: Any) -> str:
    """Of a converter that is given by name, or as a class of SeqIO's."""
    return feature_converter if isinstance(feature_converter, str) else feature_converter.__name__


def is_known(feature_converter: Any) -> bool:
    """Whether it needs no SeqIO: a name that is known here, or SeqIO's own class of that name."""
    if not isinstance(feature_converter, str) and not feature_converter.__module__.startswith("seqio."):
        return False
    return name_of(feature_converter) in CONVERTERS


def check_features(feature_converter: Any, task: str, names: Sequence[str]) -> None:
    """Raises ValueError if a converter that is known here cannot use the features that a task makes."""
    name = name_of(feature_converter)
    both = {"inputs", "targets"}
    if name in _NEED_BOTH and not both <= set(names):
        raise ValueError(f"{name} needs inputs and targets; task {task!r} makes {list(names)}.")
    if name == "MaskedLanguageModelFeatureConverter" and "target_positions" not in names:
        raise ValueError(
            f"A masked language model needs inputs, targets and target_positions; task {task!r} makes {list(names)}: "
            "register it with objective=objectives.MaskedLM()."
        )
    if name != "MaskedLanguageModelFeatureConverter" and "target_positions" in names:
        raise ValueError(
            f"{name} does not read the target_positions of task {task!r}, which is for masked language models: bind "
            "models.EncoderOnlyModel as MODEL, or another objective."
        )
    if name == "LMFeatureConverter" and "inputs" in names:
        raise ValueError(
            f"LMFeatureConverter reads targets only, and task {task!r} makes {list(names)}: "
            "DecoderFeatureConverter puts the inputs in front of them."
        )


def encoder_decoder(features: Features, packs: bool) -> dict[str, np.ndarray]:
    """`seqio.EncDecFeatureConverter`."""
    if not packs:
        return contract.encoder_decoder_features(features["inputs"], features["targets"])
    packed = pack({name: features[name] for name in ("inputs", "targets")})
    return {
        "encoder_input_tokens": packed["inputs"],
        "encoder_segment_ids": packed["inputs_segment_ids"],
        "encoder_positions": packed["inputs_positions"],
        **_decoder_features(packed, packs),
    }


def language_model(features: Features, packs: bool) -> dict[str, np.ndarray]:
    """`seqio.LMFeatureConverter`."""
    targets = {"targets": features["targets"]}
    return _decoder_features(pack(targets) if packs else targets, packs)


def prefix_language_model(features: Features, packs: bool) -> dict[str, np.ndarray]:
    """`seqio.PrefixLMFeatureConverter`: inputs and targets in one row, the loss on the targets."""
    joined = _join(features["inputs"], features["targets"])
    if packs:
        joined = pack(joined)
        positions = joined["targets_positions"]
    else:
        positions = np.arange(joined["targets"].shape[1], dtype=np.int32)
    width = np.where(joined["inputs_width"] == -1, 0, joined["inputs_width"])
    made = _decoder_features(joined, packs)
    made["decoder_causal_attention"] = (positions < joined["inputs_width_add_pos"]).astype(np.int32)
    made["decoder_loss_weights"] = ((positions < width) ^ (made["decoder_loss_weights"] != 0)).astype(np.int32)
    return made


def decoder(features: Features, packs: bool) -> dict[str, np.ndarray]:
    """`seqio.DecoderFeatureConverter`: a language model, with a prefix where the task has inputs."""
    return prefix_language_model(features, packs) if "inputs" in features else language_model(features, packs)


def masked_language_model(features: Features, packs: bool) -> dict[str, np.ndarray]:
    """Rows with masks, the tokens that were masked, and where they stand in the row: `masked_lm_positions`.

    Of sentence pairs also `encoder_token_types`, 1 on B and the [SEP] behind it; `pair_positions`, where the [CLS] of
    each pair stands; and `pair_labels`, 0 where there is no pair. The last two are `[rows, 1]`, and `[rows, targets]`
    of packed rows: each pair has a target.
    """
    has_pairs = "pair_labels" in features
    is_b = np.arange(features["inputs"].shape[1]) >= features["pair_start"] if has_pairs else None
    if not packs:
        of_pairs = {} if is_b is None else _pair_features(features["inputs"], is_b, features["pair_labels"])
        return {
            **of_pairs,
            "encoder_input_tokens": features["inputs"],
            "masked_lm_positions": features["target_positions"],
            "decoder_target_tokens": features["targets"],
            "decoder_loss_weights": (features["targets"] != 0).astype(np.int32),
        }
    to_pack = {name: features[name] for name in ("inputs", "targets", "target_positions")}
    if is_b is not None:
        to_pack["pair_labels"] = np.zeros_like(features["targets"])
        to_pack["pair_labels"][:, :1] = features["pair_labels"]
        to_pack["token_types"] = np.where(features["inputs"] != 0, is_b + 1, 0).astype(np.int32)  # 0 is padding
    packed = pack(to_pack)
    segments = packed["targets_segment_ids"]
    # Where each example of a row begins: its first token is its only one with position 0.
    begins = np.zeros((len(segments), packed["inputs_segment_ids"].max(initial=0) + 1), np.int32)
    rows, columns = np.nonzero((packed["inputs_positions"] == 0) & (packed["inputs_segment_ids"] > 0))
    begins[rows, packed["inputs_segment_ids"][rows, columns]] = columns
    offsets = np.take_along_axis(begins, segments, axis=1)
    of_pairs = {}
    if is_b is not None:
        of_pairs = _pair_features(packed["inputs"], packed["token_types"] == 2, packed["pair_labels"])
        pair_segments = packed["pair_labels_segment_ids"]
        of_pairs["pair_positions"] = np.take_along_axis(begins, pair_segments, axis=1)
    return {
        **of_pairs,
        "encoder_input_tokens": packed["inputs"],
        "encoder_segment_ids": packed["inputs_segment_ids"],
        "encoder_positions": packed["inputs_positions"],
        "masked_lm_positions": np.where(segments > 0, packed["target_positions"] + offsets, 0),
        "decoder_target_tokens": packed["targets"],
        "decoder_loss_weights": (packed["targets"] != 0).astype(np.int32),
        "decoder_segment_ids": segments,
    }


def _pair_features(inputs: np.ndarray, is_b: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Of rows that begin with their only pair."""
    return {
        "encoder_token_types": (is_b & (inputs != 0)).astype(np.int32),
        "pair_positions": np.zeros_like(labels),
        "pair_labels": labels,
    }


def encoder_classification(features: Features, packs: bool) -> dict[str, np.ndarray]:
    """Rows, and the numbers of their labels or of their tokens' labels: the ids of a LabelVocabulary less 1.

    Raises:
      ValueError: if rows are to be packed.
    """
    if packs:
        raise ValueError("Rows with labels are not packed: set PACK = False.")
    targets = features["targets"]
    return {
        **_inputs_of_encoder(features),
        "decoder_target_tokens": np.maximum(targets - 1, 0),
        "decoder_loss_weights": (targets != 0).astype(np.int32),
    }


def encoder_regression(features: Features, packs: bool) -> dict[str, np.ndarray]:
    """Rows, and their numbers: ids of a NumberVocabulary as float32 `decoder_target_values`.

    `decoder_target_tokens` is 1 where there is a number: targets are counted by it.

    Raises:
      ValueError: if rows are to be packed.
    """
    if packs:
        raise ValueError("Rows with numbers are not packed: set PACK = False.")
    targets = np.ascontiguousarray(features["targets"], np.int32)
    is_number = (targets != 0).astype(np.int32)
    return {
        **_inputs_of_encoder(features),
        "decoder_target_tokens": is_number,
        "decoder_target_values": targets.view(np.float32),
        "decoder_loss_weights": is_number,
    }


def _inputs_of_encoder(features: Features) -> dict[str, np.ndarray]:
    types = features.get(f"inputs{contract.TOKEN_TYPES}")
    return {"encoder_input_tokens": features["inputs"], **({} if types is None else {"encoder_token_types": types})}


def text_pairs(features: Features, packs: bool) -> dict[str, np.ndarray]:
    """The two texts of a row, as `encoder_input_tokens` and `decoder_target_tokens`.

    Raises:
      ValueError: if rows are to be packed.
    """
    if packs:
        raise ValueError("Pairs of texts are not packed: set PACK = False.")
    return {
        "encoder_input_tokens": features["inputs"],
        "decoder_target_tokens": features["targets"],
        "decoder_loss_weights": (features["targets"] != 0).astype(np.int32),
    }


CONVERTERS: Mapping[str, Converter] = {
    "EncDecFeatureConverter": encoder_decoder,
    "LMFeatureConverter": language_model,
    "PrefixLMFeatureConverter": prefix_language_model,
    "DecoderFeatureConverter": decoder,
    "MaskedLanguageModelFeatureConverter": masked_language_model,
    "EncoderClassificationFeatureConverter": encoder_classification,
    "EncoderRegressionFeatureConverter": encoder_regression,
    "TextPairFeatureConverter": text_pairs,
}


def unknown(name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that is not among those known."""
    return ValueError(f"There is no feature converter {name!r}.{nearest(name, known)}")


def _decoder_features(features: Features, packs: bool) -> dict[str, np.ndarray]:
    targets = features["targets"]
    shifted = np.zeros_like(targets)
    shifted[:, 1:] = targets[:, :-1]
    made = {"decoder_target_tokens": targets, "decoder_loss_weights": (targets != 0).astype(np.int32)}
    if packs:
        segments = features["targets_segment_ids"]
        shifted[:, 1:] *= segments[:, 1:] == segments[:, :-1]
        made |= {"decoder_segment_ids": segments, "decoder_positions": features["targets_positions"]}
    return {**made, "decoder_input_tokens": shifted}


def _join(inputs: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs and targets in one row; on its tokens the number of inputs (-1 for none), and that number plus 1."""
    rows, length = len(inputs), inputs.shape[1] + targets.shape[1]
    num_inputs, num_targets = np.count_nonzero(inputs, axis=1), np.count_nonzero(targets, axis=1)
    place = np.arange(length)
    of_inputs = place < num_inputs[:, None]
    # Without targets there is one, of padding.
    is_row = place < (num_inputs + np.maximum(num_targets, 1))[:, None]
    of_targets = ~of_inputs & (place < (num_inputs + num_targets)[:, None])
    joined = np.zeros((rows, length), np.int32)
    joined[of_inputs] = inputs[inputs != 0]
    joined[of_targets] = targets[targets != 0]
    width = np.where(is_row, np.where(num_inputs == 0, -1, num_inputs)[:, None], 0).astype(np.int32)
    more = np.where(is_row, (num_inputs + 1)[:, None], 0).astype(np.int32)
    return {"targets": joined, "inputs_width": width, "inputs_width_add_pos": more}
