"""SeqIO preprocessors that work on whole chunks of documents: one NumPy call instead of a graph call per example."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

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
    """Makes examples of documents: tokenizes, concatenates, cuts into windows and does to them what an objective says.

    Like T5's reference it puts nothing between documents, and EOS at the end of both features; a language model gets
    EOS between documents and not at the ends of windows.

    Attributes:
      objective: what is done to a window.
      text_column: the feature that has the text.
      documents_per_batch: documents that are concatenated. One short window is left over per batch, so more documents
        mean less padding.
      mode: text in front of the inputs that tells a model of several objectives which one is meant, such as UL2's
        "[NLU]". Its tokens count as inputs, and windows are that much shorter.
      output_features: set by SeqIO.
      sequence_length: set by SeqIO.
    """

    objective: objectives.Objective
    text_column: str = "text"
    documents_per_batch: int = 1024
    mode: str = ""
    output_features: Mapping[str, seqio.Feature] | None = None
    sequence_length: Mapping[str, int] | None = None

    def lengths(
        self, output_features: Mapping[str, seqio.Feature], sequence_length: Mapping[str, int]
    ) -> dict[str, int]:
        """Tokens per feature of a full example, if the main feature is as long as `sequence_length` says."""
        length = sequence_length[self.objective.main_feature]
        lengths = self.objective.lengths(length - len(self.mode_tokens(output_features)))
        return lengths | {self.objective.main_feature: length}

    def check(self, output_features: Mapping[str, seqio.Feature], sequence_length: Mapping[str, int]) -> None:
        """Raises ValueError or FileNotFoundError if vocabulary and lengths do not allow this objective."""
        vocabulary = output_features["targets"].vocabulary
        vocabularies.check_vocabulary(vocabulary)
        length = sequence_length[self.objective.main_feature] - len(self.mode_tokens(output_features))
        self.objective.check_sentinels(length, vocabularies.num_sentinels(vocabulary))

    def mode_tokens(self, output_features: Mapping[str, seqio.Feature]) -> list[int]:
        return output_features["inputs"].vocabulary.encode(self.mode) if self.mode else []

    def function(self) -> Callable[[np.ndarray, int], tuple[dict[str, tuple[np.ndarray, np.ndarray]], np.ndarray]]:
        """What makes examples of texts `[documents]` and a seed, in NumPy.

        It returns each feature as int32 `[examples, length]`, padded, and int64 `[examples]`, the lengths; and which of
        the documents each example begins in, int64 `[examples]`.

        Raises:
          ValueError, FileNotFoundError: as `check`; also without the length of the main feature.
        """
        assert self.output_features is not None
        main = self.objective.main_feature
        if not self.sequence_length or main not in self.sequence_length:
            raise ValueError(
                f"The length of `{main}` decides how long windows are; give sequence_length={{'{main}': …}}."
            )
        self.check(self.output_features, self.sequence_length)
        vocabulary = self.output_features["targets"].vocabulary
        ids = vocabularies.ids_of(vocabulary)
        mode = np.array(self.mode_tokens(self.output_features), np.int32)
        raw_length = self.objective.raw_length(self.sequence_length[main] - len(mode))
        has_inputs = "inputs" in self.lengths(self.output_features, self.sequence_length)

        def make_examples(texts, seed):
            tokens, lengths = encode_batch(vocabulary, texts)
            if self.objective.eos_after_documents:
                tokens, lengths = np.insert(tokens, np.cumsum(lengths), vocabulary.eos_id), lengths + 1
            windows, window_lengths = split_into_windows(tokens, raw_length)
            made = self.objective.corrupt(windows, window_lengths, objectives.example_seeds(seed, 0, len(windows)), ids)
            features = {"targets": (made.targets, made.targets_lengths)}
            if has_inputs:
                inputs = np.concatenate([np.tile(mode, (len(windows), 1)), made.inputs], axis=1)
                features["inputs"] = inputs, made.inputs_lengths + len(mode)
            first_tokens = np.arange(len(windows)) * raw_length
            return features, np.searchsorted(np.cumsum(lengths), first_tokens, side="right")

        return make_examples

    # Streams call this where AutoGraph converts all Python, which would take a second for each reader.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        function = self.function()
        assert self.output_features is not None and self.sequence_length is not None
        names = list(self.lengths(self.output_features, self.sequence_length))

        def make_examples(texts, documents, seed_high, seed_low):
            features, first_documents = function(texts, (int(seed_high) << 32) ^ int(seed_low))
            return [x for name in names for x in features[name]] + [documents[first_documents]]

        def map_batch(batch, seed):
            texts = batch[self.text_column]
            documents = batch.get("document", tf.fill([tf.shape(texts)[0], 3], tf.constant(-1, tf.int64)))
            *features, documents = tf.numpy_function(
                make_examples,
                [texts, documents, *seed],
                [tf.int32, tf.int64] * len(names) + [tf.int64],
                stateful=False,
            )
            for tokens, lengths in zip(features[::2], features[1::2], strict=True):
                tokens.set_shape([None, None])
                lengths.set_shape([None])
            documents.set_shape([None, 3])
            return (*features, documents)

        def cut_padding(*made):
            *features, document = made
            cut = [tokens[:length] for tokens, length in zip(features[::2], features[1::2], strict=True)]
            return {**dict(zip(names, cut, strict=True)), "document": document}

        batches = dataset.batch(self.documents_per_batch)
        # One batch at a time: what runs ahead would have to be saved with the position.
        batches = seqio.map_over_dataset(map_batch, num_seeds=1, num_parallel_calls=None)(batches)
        return batches.unbatch().map(cut_padding)
