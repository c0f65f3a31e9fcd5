"""SeqIO preprocessors that work on whole chunks of documents: one NumPy call instead of a graph call per example."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from tasks import objectives, vocabularies


def encode_batch(vocabulary: seqio.Vocabulary, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of all texts, int32 `[tokens]`, and the number of tokens of each, int64 `[texts]`. Appends no EOS."""
    if isinstance(vocabulary, seqio.ByteVocabulary):
        tokens = np.frombuffer(b"".join(texts), np.uint8).astype(np.int32) + 3  # pad, EOS and unknown come first
        return tokens, np.array([len(text) for text in texts], np.int64)
    strings = [text.decode("utf-8", errors="replace") for text in texts]
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        encoded = vocabulary.tokenizer.encode(strings, num_threads=1)
    else:
        encoded = [vocabulary.encode(string) for string in strings]
    lengths = np.array([len(ids) for ids in encoded], np.int64)
    return np.fromiter(itertools.chain.from_iterable(encoded), np.int32, lengths.sum()), lengths


def split_into_windows(tokens: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a text into windows: int32 `[windows, length]`, padded with 0, and int64 `[windows]`, their tokens.

    The last window is as long as what is left, but a single token, which cannot be corrupted, is dropped.
    """
    full, rest = divmod(len(tokens), length)
    num_windows = full + (rest > 1)
    windows = np.zeros(num_windows * length, np.int32)
    kept = tokens[: num_windows * length]
    windows[: len(kept)] = kept
    lengths = np.full(num_windows, length, np.int64)
    if rest > 1:
        lengths[-1] = rest
    return windows.reshape(num_windows, length), lengths


@dataclasses.dataclass(frozen=True)
class Denoise:
    """Makes `inputs` and `targets` of documents: tokenizes, concatenates, cuts into windows and corrupts them.

    Like T5's reference it puts nothing between documents, and EOS at the end of both features.

    Attributes:
      objective: what is done to a window.
      text_column: the feature that has the text.
      documents_per_batch: documents that are concatenated. One short window is left over per batch, so more documents
        mean less padding.
      output_features: set by SeqIO.
      sequence_length: set by SeqIO.
    """

    objective: objectives.Objective
    text_column: str = "text"
    documents_per_batch: int = 1024
    output_features: Mapping[str, seqio.Feature] | None = None
    sequence_length: Mapping[str, int] | None = None

    def check(self, output_features: Mapping[str, seqio.Feature], sequence_length: Mapping[str, int]) -> None:
        """Raises ValueError or FileNotFoundError if vocabulary and lengths do not allow this objective."""
        vocabulary = output_features["inputs"].vocabulary
        vocabularies.check_vocabulary(vocabulary)
        self.objective.check_sentinels(sequence_length["inputs"], vocabularies.num_sentinels(vocabulary))

    # Streams call this where AutoGraph converts all Python, which would take a second for each reader.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        assert self.output_features is not None
        if not self.sequence_length or "inputs" not in self.sequence_length:
            raise ValueError("The length of `inputs` decides how long windows are; give sequence_length={'inputs': …}.")
        self.check(self.output_features, self.sequence_length)
        vocabulary = self.output_features["inputs"].vocabulary
        raw_length = self.objective.raw_length(self.sequence_length["inputs"])

        def make_examples(texts, documents, seed_high, seed_low):
            tokens, lengths = encode_batch(vocabulary, texts)
            windows, window_lengths = split_into_windows(tokens, raw_length)
            seed = (int(seed_high) << 32) ^ int(seed_low)
            examples = self.objective.corrupt(
                windows,
                window_lengths,
                objectives.example_seeds(seed, 0, len(windows)),
                vocab_size=vocabulary.vocab_size,
                num_sentinels=vocabularies.num_sentinels(vocabulary),
                eos_id=vocabulary.eos_id,
            )
            first_tokens = np.arange(len(windows)) * raw_length
            first_documents = np.searchsorted(np.cumsum(lengths), first_tokens, side="right")
            return [*examples, documents[first_documents]]

        def map_batch(batch, seed):
            texts = batch[self.text_column]
            documents = batch.get("document", tf.fill([tf.shape(texts)[0], 3], tf.constant(-1, tf.int64)))
            inputs, inputs_lengths, targets, targets_lengths, documents = tf.numpy_function(
                make_examples,
                [texts, documents, *seed],
                [tf.int32, tf.int64, tf.int32, tf.int64, tf.int64],
                stateful=False,
            )
            for feature in (inputs, targets):
                feature.set_shape([None, None])
            for lengths in (inputs_lengths, targets_lengths):
                lengths.set_shape([None])
            documents.set_shape([None, 3])
            return inputs, inputs_lengths, targets, targets_lengths, documents

        def cut_padding(inputs, inputs_length, targets, targets_length, document):
            return {"inputs": inputs[:inputs_length], "targets": targets[:targets_length], "document": document}

        batches = dataset.batch(self.documents_per_batch)
        # One batch at a time: what runs ahead would have to be saved with the position.
        batches = seqio.map_over_dataset(map_batch, num_seeds=1, num_parallel_calls=None)(batches)
        return batches.unbatch().map(cut_padding)
