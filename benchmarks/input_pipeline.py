"""Examples per cpu-second: this project's input pipeline against the usual shape of a SeqIO pipeline, in one run.

    python benchmarks/input_pipeline.py [--seconds 20]

Prints one JSON line. Both read the same JSON-lines shards through the same source, tokenize with the same SentencePiece
vocabulary, concatenate, corrupt spans (512 inputs, 114 targets), shuffle and batch. Ours is `tasks.pipeline` as it
trains, position saved once per round; "cached" reads the same task from `limba cache`. The reference is made of SeqIO's
own preprocessors and feature converter, an example per graph call, with T5's span corruption written in TensorFlow, as
T5's mixtures do. Rounds alternate, so that all see the same machine.
"""

import argparse
import json
import logging
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import seqio
import tensorflow as tf

from limba import cached_data, data
from tasks import cache, objectives, pipeline, pretraining, python_docs, sources, vocabularies

LENGTHS = objectives.span_corruption_lengths()
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


def reference_batches(data_files: str, vocabulary: seqio.Vocabulary, batch_size: int, shuffle_buffer_size: int):
    feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)
    task = seqio.TaskRegistry.add(
        "benchmark_reference",
        source=sources.HuggingFaceSource({"train": data_files}),
        preprocessors=reference_preprocessors(vocabulary),
        output_features={"inputs": feature, "targets": feature},
        shuffle_buffer_size=shuffle_buffer_size,
    )
    dataset = seqio.get_dataset(
        task.name, LENGTHS, seqio.EncDecFeatureConverter(pack=False), "train",
        shuffle=True, num_epochs=None, seed=0, verbose=False,
    )  # fmt: skip
    return dataset.batch(batch_size, drop_remainder=True).as_numpy_iterator()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="wall time to measure each side (20)")
    parser.add_argument("--batch_size", type=int, default=128)
    args = parser.parse_args()
    logging.disable(logging.WARNING)

    with tempfile.TemporaryDirectory() as directory:
        python_docs.write_corpus(directory)
        data_files = str(pathlib.Path(directory) / "train-*.jsonl")
        model = vocabularies.train_vocabulary(
            sources.HuggingFaceSource({"train": data_files}), pathlib.Path(directory) / "spiece.model", vocab_size=8192
        )
        vocabulary = seqio.SentencePieceVocabulary(str(model), extra_ids=100)
        pretraining.register_pretraining_task(
            "benchmark_ours", data_files={"train": data_files}, vocabulary=vocabulary, shuffle_buffer_size=2000
        )
        config = data.DatasetConfig("benchmark_ours", LENGTHS, "train", args.batch_size, seed=0)
        ours = pipeline.get_train_batches(config)
        cached_at = pathlib.Path(directory) / "cached"
        cache.write_cache(seqio.TaskRegistry.get("benchmark_ours"), "train", LENGTHS, cached_at)
        cached = cached_data.get_dataset(config, 0, 1, "EncDecFeatureConverter", str(cached_at))
        reference = reference_batches(data_files, vocabulary, args.batch_size, 2000)

        sides = {"ours": ours, "reference": reference, "cached": cached}
        examples, cpu = dict.fromkeys(sides, 0), dict.fromkeys(sides, 0.0)
        num_rounds = 5
        for batches in sides.values():
            for _ in range(5):
                next(batches)
        for _ in range(num_rounds):
            for side, batches in sides.items():
                start, start_cpu = time.monotonic(), time.process_time()
                while time.monotonic() - start < args.seconds / num_rounds:
                    examples[side] += len(next(batches)["encoder_input_tokens"])
                if side == "ours":
                    ours.save_state()
                cpu[side] += time.process_time() - start_cpu
    rates = {side: examples[side] / cpu[side] for side in sides}
    print(
        json.dumps(
            {
                "benchmark": "input_pipeline",
                "examples_per_cpu_second": round(rates["ours"], 1),
                "reference_examples_per_cpu_second": round(rates["reference"], 1),
                "cached_examples_per_cpu_second": round(rates["cached"], 1),
                "ratio": round(rates["ours"] / rates["reference"], 2),
                "inputs": LENGTHS["inputs"],
                "targets": LENGTHS["targets"],
                "batch_size": args.batch_size,
                "cpus": os.cpu_count(),
                "tensorflow": tf.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
