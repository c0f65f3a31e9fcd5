"""Checksums of batches, to compare two versions of the pipeline: `python -m tests.tasks.pipeline.batches_of_before`.

`batches_of_before.json` was written by the version that made batches with `tf.data`, at the commit that it names.
"""

import argparse
import itertools
import json
import pathlib
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from limba.addons import diacritics
from limba.data import contract
from tasks import objectives, pretraining, supervised
from tasks.registry import mixtures

FILE = pathlib.Path(__file__).with_suffix(".json")
LENGTHS = {"inputs": 64, "targets": 20}
_NUM_BATCHES = 30
_ROWS = (40, 3, 25, 60, 17, 31, 24)
_TEXT = "ană are mere și pere în curte lângă casă unde câinele latră toată ziua fără să obosească vreodată"
_WORDS = _TEXT.split(" ")


def write_corpus(folder: pathlib.Path) -> None:
    """Documents in 7 uneven shards, and rows with labels."""
    for shard, rows in enumerate(_ROWS):
        lines = [{"text": _document(shard, row), "n": row} for row in range(rows)]
        _write(folder / f"train-{shard}.jsonl", lines)
    _write(folder / "validation.jsonl", [{"text": _document(99, row), "n": row} for row in range(30)])
    labelled = [{"text": _document(7, row)[:50], "mood": ("glad", "sad", "calm")[row * 7 % 3]} for row in range(90)]
    _write(folder / "moods.jsonl", labelled)


def _write(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _document(shard: int, row: int) -> str:
    words = [_WORDS[(shard * 31 + row * 7 + i * i) % len(_WORDS)] for i in range(5 + (row * 5 + shard) % 23)]
    return f"Doc {shard} {row}: {' '.join(words)}. {words[0].capitalize()} {words[-1]}!"


def register(folder: pathlib.Path, vocabulary: Any) -> None:
    """The tasks and mixtures, all over byte vocabularies."""
    text = {"train": str(folder / "train-*.jsonl"), "validation": str(folder / "validation.jsonl")}
    labelled = {"train": str(folder / "moods.jsonl"), "validation": str(folder / "moods.jsonl")}
    moods = supervised.SupervisedDataset("mood of: {text}", "mood", labels=["glad", "sad", "calm"])
    for name, options in {
        "spans": {},
        "prefix": {"objective": objectives.PrefixLM()},
        "lm": {"objective": objectives.FullLM()},
        "mode": {"objective": objectives.SpanCorruption(0.3, 8.0), "mode": "[S2S]"},
    }.items():
        pretraining.register_pretraining_task(
            f"before_{name}", data_files=text, vocabulary=vocabulary, shuffle_buffer_size=100, **options
        )
    supervised.register_supervised_task(
        "before_moods", moods, vocabulary=vocabulary, data_files=labelled, shuffle_buffer_size=50
    )
    diacritics.register_diacritics_task(
        "before_marks", data_files=text, vocabulary=vocabulary, language="ro", shuffle_buffer_size=64
    )
    pretraining.register_ul2_mixture(
        "before_ul2", data_files=text, vocabulary=vocabulary, denoisers=objectives.UL2_DENOISERS[3:5]
    )
    mixtures.register_mixture("before_mixed", {"before_spans": 3.0, "before_moods": 1.0, "before_ul2": 2.0})


# Name: task or mixture, feature converter, and further fields of the configuration.
STREAMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "spans": ("before_spans", "EncDecFeatureConverter", {}),
    "spans_in_order": ("before_spans", "EncDecFeatureConverter", {"shuffle": False}),
    "spans_one_reader": ("before_spans", "EncDecFeatureConverter", {"num_readers": 1}),
    "spans_packed": ("before_spans", "EncDecFeatureConverter", {"pack": True}),
    "mode": ("before_mode", "EncDecFeatureConverter", {"task_feature_lengths": {"inputs": 64, "targets": 28}}),
    "lm": ("before_lm", "LMFeatureConverter", {"task_feature_lengths": {"targets": 48}}),
    "lm_packed": ("before_lm", "DecoderFeatureConverter", {"task_feature_lengths": {"targets": 48}, "pack": True}),
    "prefix_decoder": (
        "before_prefix",
        "DecoderFeatureConverter",
        {"task_feature_lengths": {"inputs": 40, "targets": 40}},
    ),
    "prefix_packed": (
        "before_prefix",
        "PrefixLMFeatureConverter",
        {"task_feature_lengths": {"inputs": 40, "targets": 40}, "pack": True},
    ),
    "moods": ("before_moods", "EncDecFeatureConverter", {}),
    "moods_in_order": ("before_moods", "EncDecFeatureConverter", {"shuffle": False}),
    "moods_packed": ("before_moods", "EncDecFeatureConverter", {"pack": True}),
    "moods_decoder": ("before_moods", "PrefixLMFeatureConverter", {"pack": True}),
    "marks": ("before_marks", "EncDecFeatureConverter", {"task_feature_lengths": {"inputs": 40, "targets": 40}}),
    "marks_packed": (
        "before_marks",
        "EncDecFeatureConverter",
        {"task_feature_lengths": {"inputs": 90, "targets": 100}, "pack": True},
    ),
    "mixed": ("before_mixed", "EncDecFeatureConverter", {"task_feature_lengths": {"inputs": 64, "targets": 64}}),
    "mixed_packed": (
        "before_mixed",
        "EncDecFeatureConverter",
        {"task_feature_lengths": {"inputs": 64, "targets": 64}, "pack": True},
    ),
    "mixed_decoder": (
        "before_mixed",
        "DecoderFeatureConverter",
        {"task_feature_lengths": {"inputs": 64, "targets": 64}},
    ),
}


def config_of(name: str, split: str) -> contract.DatasetConfig:
    task, _, options = STREAMS[name]
    fields = {"task_feature_lengths": LENGTHS, "batch_size": 8, "seed": 7, **options}
    return contract.DatasetConfig(task, split=split, **fields)


def checksum(batch: contract.Batch) -> int:
    """Of all features: names, contents, shapes and types count."""
    of_features = {
        name: zlib.crc32(repr((x.shape, x.dtype.name)).encode(), zlib.crc32(np.ascontiguousarray(x).tobytes()))
        for name, x in sorted(batch.items())
    }
    return zlib.crc32(json.dumps(of_features).encode())


def checksums(name: str) -> Iterator[tuple[str, list[int]]]:
    """Of the training stream and of each evaluation set."""
    from tasks.pipeline import task_batches

    converter = STREAMS[name][1]
    train = task_batches.get_train_batches(config_of(name, "train"), converter)
    yield "train", [checksum(batch) for batch in itertools.islice(train, _NUM_BATCHES)]
    for task, batches in task_batches.get_eval_batches(config_of(name, "validation"), converter).items():
        yield task, [checksum(batch) for batch in batches]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", required=True, help="where this runs")
    commit = parser.parse_args().commit
    from tasks import vocabularies

    with tempfile.TemporaryDirectory() as folder:
        write_corpus(pathlib.Path(folder))
        register(pathlib.Path(folder), vocabularies.ByteVocabulary(100))
        found = {name: dict(checksums(name)) for name in STREAMS}
    FILE.write_text(json.dumps({"commit": commit, "checksums": found}, separators=(",", ":")), encoding="utf-8")


if __name__ == "__main__":
    main()
