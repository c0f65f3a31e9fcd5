"""Span corruption with Grain around it: its order, shuffling, batches and state, our NumPy functions in between.

It needs `pip install grain`. The documents lie in memory, as those of a small corpus do in our pipeline: Grain's
shuffle wants random access, and it has no reader of JSON lines. 128 documents are encoded and cut into windows
together. The other way, a document at a time into Grain's ConcatThenSplitIterDataset, makes a ninth of the examples.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np
import sentencepiece

from tasks import objectives, vocabularies
from tasks.pretraining.denoising import split_into_windows
from tasks.vocabularies import sentencepiece_models

_OBJECTIVE = objectives.SpanCorruption()
_RAW_LENGTH = _OBJECTIVE.raw_length(512)
_DOCUMENTS = 128  # that are encoded and cut together


class _Windows(grain.experimental.FlatMapTransform):
    """Documents become windows of tokens, without the last one, which is shorter."""

    max_fan_out = 4096

    def __init__(self, vocabulary_file: str):
        self._pieces = sentencepiece.SentencePieceProcessor(vocabulary_file)

    def flat_map(self, element: list[str]) -> Sequence[np.ndarray]:
        tokens = np.concatenate([np.asarray(ids, np.int32) for ids in self._pieces.encode(element)])
        windows, lengths = split_into_windows(tokens, _RAW_LENGTH)
        return list(windows[lengths == _RAW_LENGTH])


class _Corrupt(grain.transforms.RandomMap):
    """A batch of windows becomes a batch of an encoder-decoder."""

    def __init__(self, vocabulary_file: str):
        self._ids = sentencepiece_models.ids_of(vocabularies.SentencePieceVocabulary(vocabulary_file, 100))

    def random_map(self, element: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        seeds = objectives.example_seeds(int(rng.integers(1 << 31)), 0, len(element))
        corrupted = _OBJECTIVE.corrupt(element, np.full(len(element), element.shape[1]), seeds, self._ids)
        return {
            "encoder_input_tokens": corrupted.inputs,
            "decoder_input_tokens": np.pad(corrupted.targets[:, :-1], [(0, 0), (1, 0)]),
            "decoder_target_tokens": corrupted.targets,
            "decoder_loss_weights": (corrupted.targets > 0).astype(np.int32),
        }


def batches(data_files: str, vocabulary_file: str, batch_size: int, shuffle_buffer_size: int) -> Iterator[Any]:
    """Batches without end: documents in a new order each epoch, windows shuffled in a buffer."""
    pattern = pathlib.Path(data_files)
    lines = [line for file in sorted(pattern.parent.glob(pattern.name)) for line in file.open(encoding="utf-8")]
    documents = grain.MapDataset.source([json.loads(line)["text"] for line in lines]).seed(0).shuffle().repeat()
    together = documents.batch(_DOCUMENTS, batch_fn=list).to_iter_dataset()
    windows = grain.experimental.FlatMapIterDataset(together, _Windows(vocabulary_file))
    shuffled = grain.experimental.WindowShuffleIterDataset(windows, window_size=shuffle_buffer_size, seed=0)
    return iter(shuffled.batch(batch_size).seed(1).random_map(_Corrupt(vocabulary_file)))
