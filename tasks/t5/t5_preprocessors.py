"""SeqIO preprocessors under the names and with the arguments of T5's `t5.data.preprocessors`, for T5X's task modules.

They work on tokenized examples one at a time, as such modules chain them. A new pre-training task is better registered
with `tasks.pretraining`, which tokenizes and corrupts whole chunks and is several times as fast. As in T5, no EOS is
appended here: `seqio.preprocessors.append_eos_after_trim` does that for the features that a task declares.
"""

import dataclasses
import logging
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from limba.tasks import objectives
from limba.tasks.vocabularies import SentencePieceVocabulary, sentencepiece_models, without_tensorflow

logger = logging.getLogger(__name__)

# T5 takes one piece of a document, of at most this many tokens.
_MAX_DOCUMENT_LENGTH = 65536

Features = Mapping[str, seqio.Feature]


def span_corruption(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    mean_noise_span_length: float = 3.0,
    noise_density: float = 0.15,
    input_feature_key: str = "inputs",
    merge_examples_to_reduce_padding: bool = True,
    reserved_for_packing: int | None = None,
) -> tf.data.Dataset:
    """T5's pre-training objective: examples with `targets` tokens become corrupted `inputs` and `targets`.

    Args:
      mean_noise_span_length, noise_density: see `objectives.SpanCorruption`.
      merge_examples_to_reduce_padding: join 128 documents before they are cut into windows.
      reserved_for_packing: tokens of the inputs that are left free.

    Raises:
      ValueError: if the targets do not fit.
    """
    objective = objectives.SpanCorruption(noise_density, mean_noise_span_length)
    inputs_length = sequence_length[input_feature_key] - (reserved_for_packing or 0)
    targets_length = objective.lengths(inputs_length)["targets"]
    if sequence_length["targets"] < targets_length:
        raise ValueError(
            f"Corrupting {inputs_length} input tokens makes {targets_length} target tokens, and the feature length of "
            f"targets is {sequence_length['targets']}: set it to {targets_length}."
        )
    dataset = select_random_chunk(dataset, max_length=_MAX_DOCUMENT_LENGTH)
    if merge_examples_to_reduce_padding:
        dataset = reduce_concat_tokens(dataset)
    dataset = split_tokens(dataset, max_tokens_per_segment=objective.raw_length(inputs_length))
    return _corrupt(dataset, objective, inputs_length, output_features, input_feature_key)


def iid_denoising(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features
) -> tf.data.Dataset:
    """T5's baseline: each token is masked with probability 0.15, see `objectives.IidDenoising`."""
    dataset = select_random_chunk(dataset, max_length=_MAX_DOCUMENT_LENGTH)
    dataset = split_tokens_to_inputs_length(reduce_concat_tokens(dataset), sequence_length, output_features)
    return _corrupt(dataset, objectives.IidDenoising(), sequence_length["inputs"], output_features)


def prefix_lm(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features, noise_density: float = 0.5
) -> tf.data.Dataset:
    """Cuts windows of documents in two at a random place, see `objectives.PrefixLM`. Documents are not joined."""
    dataset = select_random_chunk(dataset, max_length=_MAX_DOCUMENT_LENGTH)
    dataset = split_tokens_to_inputs_length(dataset, sequence_length, output_features)
    return _corrupt(dataset, objectives.PrefixLM(noise_density), sequence_length["inputs"], output_features)


def full_lm(dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features) -> tf.data.Dataset:
    """Windows of `targets`, with EOS at the ends of documents only, see `objectives.FullLM`."""
    dataset = select_random_chunk(dataset, max_length=_MAX_DOCUMENT_LENGTH)
    dataset = reduce_concat_tokens(seqio.preprocessors.append_eos(dataset, output_features))
    return split_tokens(dataset, max_tokens_per_segment=sequence_length["targets"])


def _corrupt(
    dataset: tf.data.Dataset,
    objective: objectives.Objective,
    inputs_length: int,
    output_features: Features,
    input_feature_key: str = "inputs",
) -> tf.data.Dataset:
    """Makes `inputs` and `targets` of windows of `targets`, without EOS."""
    vocabulary = output_features["targets"].vocabulary
    raw_length = objective.raw_length(inputs_length)
    ids = sentencepiece_models.ids_of(vocabulary)
    if ids.sentinel_ids is not None and isinstance(without_tensorflow(vocabulary), SentencePieceVocabulary):
        ids = dataclasses.replace(ids, num_sentinels=0, sentinel_ids=None)  # T5 knows only those that count down.
    try:
        objective.check_sentinels(inputs_length, ids.num_sentinels)
    except ValueError as error:
        # T5 does not look, and T5X's task modules were trained this way; `tasks.pretraining` refuses it.
        logger.warning(
            "%s As T5 does, this task takes the last pieces of the vocabulary for sentinels, %r first.",
            error,
            vocabulary.decode([ids.first_sentinel]),
        )
        ids = dataclasses.replace(ids, num_sentinels=ids.vocab_size, sentinel_ids=None)

    def corrupt_row(tokens: np.ndarray, seed_high: np.ndarray, seed_low: np.ndarray) -> Any:
        seed = (int(seed_high) << 32) ^ int(seed_low)
        corrupted = objective.corrupt(
            np.pad(tokens, (0, max(raw_length - len(tokens), 0)))[None],
            np.array([len(tokens)]),
            objectives.example_seeds(seed, 0, 1),
            ids,
        )
        # Without the EOS that our objectives end with.
        inputs, targets = corrupted.inputs[0], corrupted.targets[0]
        return inputs[: corrupted.inputs_lengths[0] - 1], targets[: corrupted.targets_lengths[0] - 1]

    def corrupt(example: Mapping[str, tf.Tensor], seed: tf.Tensor) -> Any:
        inputs, targets = tf.numpy_function(
            corrupt_row, [tf.cast(example["targets"], tf.int32), *seed], [tf.int32, tf.int32], stateful=False
        )
        return {input_feature_key: tf.ensure_shape(inputs, [None]), "targets": tf.ensure_shape(targets, [None])}

    # A single token cannot be corrupted.
    dataset = dataset.filter(lambda example: tf.size(example["targets"]) > 1)
    return seqio.map_over_dataset(corrupt, num_seeds=1)(dataset)


def select_random_chunk(
    dataset: tf.data.Dataset,
    output_features: Features | None = None,
    max_length: int | None = None,
    feature_key: str = "targets",
    sequence_length: Mapping[str, int] | None = None,
) -> tf.data.Dataset:
    """One piece of each example, `max_length` tokens from a random multiple of it on; empty examples are dropped.

    Without `max_length` it is the feature's length, less one if EOS will follow.
    """
    if max_length is None:
        if sequence_length is None:
            raise ValueError("select_random_chunk needs max_length or sequence_length.")
        max_length = sequence_length[feature_key] - int(bool(output_features and output_features[feature_key].add_eos))

    def select(example: Mapping[str, tf.Tensor], seed: tf.Tensor) -> Any:
        tokens = example[feature_key]
        pieces = -(-tf.size(tokens) // max_length)
        start = max_length * tf.random.stateless_uniform([], seed, maxval=pieces, dtype=tf.int32)
        return {feature_key: tokens[start : start + max_length]}

    dataset = dataset.filter(lambda example: tf.size(example[feature_key]) > 0)
    return seqio.map_over_dataset(select, num_seeds=1)(dataset)


def reduce_concat_tokens(
    dataset: tf.data.Dataset, feature_key: str = "targets", batch_size: int = 128
) -> tf.data.Dataset:
    """Joins the tokens of each `batch_size` examples into one."""
    tokens = dataset.map(lambda example: example[feature_key])
    return tokens.ragged_batch(batch_size).map(lambda rows: {feature_key: rows.flat_values})


def split_tokens(
    dataset: tf.data.Dataset,
    min_tokens_per_segment: int | None = None,
    max_tokens_per_segment: int = 512,
    feature_key: str = "targets",
) -> tf.data.Dataset:
    """Cuts each example into pieces of `max_tokens_per_segment`; the last has the rest."""
    if min_tokens_per_segment is not None:
        raise ValueError("split_tokens makes pieces of one length only; leave min_tokens_per_segment out.")

    def cut(example: Mapping[str, tf.Tensor]) -> Any:
        tokens = example[feature_key]
        ends = tf.concat([tf.range(0, tf.size(tokens), max_tokens_per_segment), [tf.size(tokens)]], 0)
        return tf.data.Dataset.from_tensor_slices({feature_key: tf.RaggedTensor.from_row_splits(tokens, ends)})

    return dataset.flat_map(cut)


def split_tokens_to_inputs_length(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features, **arguments: Any
) -> tf.data.Dataset:
    """`split_tokens` to the length of the inputs, less one if EOS will follow."""
    inputs = output_features.get("inputs", output_features["targets"])
    length = sequence_length["inputs"] - int(inputs.add_eos)
    return split_tokens(dataset, max_tokens_per_segment=length, **arguments)


def split_tokens_to_targets_length(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features, **arguments: Any
) -> tf.data.Dataset:
    """`split_tokens` to the length of the targets, less one if EOS will follow."""
    length = sequence_length["targets"] - int(output_features["targets"].add_eos)
    return split_tokens(dataset, max_tokens_per_segment=length, **arguments)


def trim_tokens_at_front(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], keys_to_trim: Sequence[str] | None = None
) -> tf.data.Dataset:
    """Keeps the last tokens of features, as many as their length, less one for EOS."""
    keys = list(keys_to_trim or sequence_length)
    return dataset.map(lambda x: {**x, **{key: x[key][1 - sequence_length[key] :] for key in keys if key in x}})


def lm(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Of `text`: it becomes `targets`, beside empty `inputs`."""
    return dataset.map(lambda example: {"inputs": "", "targets": example["text"]})


def parse_tsv(
    dataset: tf.data.Dataset,
    field_names: Sequence[str] | None = None,
    field_delim: str = "\t",
    field_columns: Sequence[int] | None = None,
) -> tf.data.Dataset:
    """Lines become `{field name: text}`: the first fields, or those at `field_columns`; by default T5's names."""
    names = list(field_names or ("inputs", "targets"))
    columns = list(field_columns or range(len(names)))

    def parse(line: tf.Tensor) -> Any:
        fields = tf.io.decode_csv(line, [""] * len(names), field_delim, use_quote_delim=False, select_cols=columns)
        return dict(zip(names, fields, strict=True))

    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def preprocess_tsv(
    dataset: tf.data.Dataset,
    field_delim: str = "\t",
    num_fields: int = 2,
    inputs_format: str = "{0}",
    targets_format: str = "{1}",
    field_names: Sequence[str] | None = None,
    use_quote_delim: bool = False,
) -> tf.data.Dataset:
    """Lines become `inputs` and `targets`, texts with the numbers, or the names, of fields in braces.

    Raises:
      ValueError: for the number of a field that there is not.
    """
    names = [str(number) for number in range(num_fields)] if field_names is None else list(field_names)
    pattern = r"\d+" if field_names is None else "|".join(map(re.escape, names))
    formats = {"inputs": inputs_format, "targets": targets_format}
    parts = {key: re.split(rf"\{{({pattern})\}}", text) for key, text in formats.items()}
    if missing := {name for found in parts.values() for name in found[1::2]} - {*names}:
        raise ValueError(f"preprocess_tsv has the fields {names}, and its formats name {sorted(missing)}: num_fields?")

    def make(line: tf.Tensor) -> Any:
        fields = dict(zip(names, tf.io.decode_csv(line, [""] * len(names), field_delim, use_quote_delim), strict=True))
        return {
            key: tf.strings.join([fields[x] if number % 2 else x for number, x in enumerate(found)])
            for key, found in parts.items()
        }

    return dataset.map(make, num_parallel_calls=tf.data.AUTOTUNE)


def summarize(dataset: tf.data.Dataset, article_key: str, summary_key: str) -> tf.data.Dataset:
    """`summarize: ` and the article become `inputs`, the summary `targets`."""

    def make(example: Mapping[str, tf.Tensor]) -> Any:
        inputs = tf.strings.join(["summarize:", example[article_key]], " ")
        return {"inputs": inputs, "targets": example[summary_key]}

    return dataset.map(make, num_parallel_calls=tf.data.AUTOTUNE)


# ------------------------------------------------- ranking of answers ------------------------------------------------

TensorFn = Callable[[Mapping[str, tf.Tensor]], tf.Tensor]


def rank_classification(
    dataset: tf.data.Dataset,
    inputs_fn: TensorFn,
    targets_fn: TensorFn,
    is_correct_fn: TensorFn,
    weight_fn: TensorFn | None = None,
    mode: str = "eval",
    passthrough_feature_keys: Sequence[str] | None = None,
) -> tf.data.Dataset:
    """An example for each answer of an example, for the postprocessor and the metric of this name.

    A task of one's own has this from `tasks.supervised`, by naming its labels.

    Args:
      inputs_fn: the text that each answer belongs to, `[answers]`, or one for all of them.
      targets_fn: the answers, `[answers]`.
      is_correct_fn: whether each is right, `[answers]`.
      mode: "eval" has all answers, "train" the right ones, "fewshot_eval" all of an example in one.
      passthrough_feature_keys: features that are kept.

    Raises:
      ValueError: for another mode.
    """
    if mode not in ("train", "eval", "fewshot_eval"):
        raise ValueError(f"rank_classification has the modes 'train', 'eval' and 'fewshot_eval', not {mode!r}.")

    def make(number: tf.Tensor, example: Mapping[str, tf.Tensor]) -> Any:
        targets = targets_fn(example)
        count = tf.size(targets)
        numbers = tf.fill([count], tf.cast(number, tf.int32))
        answers = {
            "idx": tf.stack([numbers, tf.range(count)], axis=1),
            "inputs": tf.broadcast_to(inputs_fn(example), [count]),
            "targets": targets,
            "is_correct": tf.cast(is_correct_fn(example), tf.bool),
        }
        if weight_fn is not None:
            answers["weight"] = tf.fill([count], tf.cast(weight_fn(example), tf.float32))
        for key in passthrough_feature_keys or ():
            answers[key] = tf.repeat(example[key][None], count, axis=0)
        return answers

    dataset = dataset.enumerate().map(make, num_parallel_calls=tf.data.AUTOTUNE)
    if mode != "fewshot_eval":
        dataset = dataset.unbatch()
    return dataset.filter(lambda example: example["is_correct"]) if mode == "train" else dataset


def rank_classification_formatter(
    dataset: tf.data.Dataset,
    inputs_formats: str | Sequence[str],
    targets_formats: str | Sequence[str],
    mode: str = "eval",
    label_key: str = "label",
    weight_key: str | None = None,
) -> tf.data.Dataset:
    """`rank_classification` of texts with features in braces; `{a/b}` is a feature within a feature.

    Args:
      inputs_formats: a text, or one for each answer.
      targets_formats: the answers; a single one where each of the inputs is an answer's own.
      mode: see `rank_classification`.
      label_key, weight_key: the features with the number of the right answer, or numbers of right ones, and its weight.

    Raises:
      ValueError: if there are several inputs and another number of targets.
    """
    inputs, targets = ([x] if isinstance(x, str) else list(x) for x in (inputs_formats, targets_formats))
    count = max(len(inputs), len(targets))
    if not {len(inputs), len(targets)} <= {1, count}:
        raise ValueError(f"{len(inputs)} inputs_formats do not go with {len(targets)} targets_formats.")

    def filled(formats: list[str]) -> TensorFn:
        return lambda example: tf.stack([_fill(text, example) for text in formats * (count // len(formats))])

    def is_correct(example: Mapping[str, tf.Tensor]) -> Any:
        return tf.reduce_any(tf.range(count)[:, None] == tf.cast(tf.reshape(example[label_key], [1, -1]), tf.int32), 1)

    weight_fn = (lambda example: example[weight_key]) if weight_key is not None else None
    return rank_classification(dataset, filled(inputs), filled(targets), is_correct, weight_fn, mode)


def _fill(text: str, example: Mapping[str, Any]) -> tf.Tensor:
    parts: list[Any] = []
    for literal, name, _, _ in string.Formatter().parse(text):
        parts.append(literal)
        if name is not None:
            value: Any = example
            for key in name.split("/"):
                value = value[key]
            parts.append(value if value.dtype == tf.string else tf.strings.as_string(value))
    return tf.strings.join(parts)
