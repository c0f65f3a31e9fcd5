"""The usual shape of a SeqIO pre-training pipeline: T5's span corruption in TensorFlow, an example per graph call."""

import seqio
import tensorflow as tf

from tasks import objectives

RAW_LENGTH = objectives.SpanCorruption().raw_length(512)
NOISE_DENSITY, MEAN_SPAN_LENGTH = 0.15, 3.0


def random_segments(num_items: tf.Tensor, num_segments: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Lengths of `num_segments` random non-empty segments of `num_items` items."""
    is_start = seqio.stateless_shuffle(tf.cast(tf.range(num_items - 1) < num_segments - 1, tf.int32), seed)
    segment = tf.cumsum(tf.pad(is_start, [[1, 0]]))
    return tf.math.segment_sum(tf.ones_like(segment), segment)


def noise_mask(length: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    num_noise = tf.cast(tf.round(tf.cast(length, tf.float32) * NOISE_DENSITY), tf.int32)
    num_noise = tf.clip_by_value(num_noise, 1, length - 1)
    num_spans = tf.maximum(tf.cast(tf.round(tf.cast(num_noise, tf.float32) / MEAN_SPAN_LENGTH), tf.int32), 1)
    noise = random_segments(num_noise, num_spans, seeds[0])
    text = random_segments(length - num_noise, num_spans, seeds[1])
    starts = tf.cumsum(tf.reshape(tf.stack([text, noise], axis=1), [-1]))[:-1]
    is_start = tf.math.unsorted_segment_sum(tf.ones_like(starts), starts, length)
    return tf.math.floormod(tf.cumsum(is_start), 2) == 1


def spans_to_sentinels(tokens: tf.Tensor, mask: tf.Tensor, vocabulary: seqio.Vocabulary) -> tf.Tensor:
    before = tf.pad(mask[:-1], [[1, 0]])
    is_start = mask & ~before
    sentinels = vocabulary.vocab_size - tf.cumsum(tf.cast(is_start, tf.int32))
    return tf.boolean_mask(tf.where(is_start, sentinels, tokens), ~(mask & before))


def reference_preprocessors(vocabulary: seqio.Vocabulary) -> list:
    @seqio.map_over_dataset
    def rename(example):
        return {"targets": example["text"]}

    def concatenate_and_split(dataset):
        # 128 documents at a time, as in T5's pre-training tasks.
        texts = dataset.map(lambda example: example["targets"]).ragged_batch(128)
        windows = texts.map(lambda batch: tf.RaggedTensor.from_row_splits(
            batch.flat_values,
            tf.concat([tf.range(0, tf.size(batch.flat_values), RAW_LENGTH), [tf.size(batch.flat_values)]], 0),
        ))  # fmt: skip
        return windows.unbatch().map(lambda window: {"targets": window})

    @seqio.map_over_dataset(num_seeds=2)
    def denoise(example, seeds):
        tokens = example["targets"]
        mask = noise_mask(tf.size(tokens), seeds)
        return {
            "inputs": spans_to_sentinels(tokens, mask, vocabulary),
            "targets": spans_to_sentinels(tokens, ~mask, vocabulary),
        }

    return [
        rename,
        lambda dataset, output_features: seqio.preprocessors.tokenize(
            dataset, output_features, copy_pretokenized=False
        ),
        concatenate_and_split,
        lambda dataset: dataset.filter(lambda example: tf.size(example["targets"]) > 1),
        denoise,
        seqio.preprocessors.append_eos,
    ]
