"""One call makes plain text a task that restores diacritics: its inputs are its sentences without their marks."""

import collections
import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from limba.findings import Finding
from tasks import diacritics, diacritics_metrics, preprocessors, sources
from tasks.sharded_source import ShardedSource

logger = logging.getLogger(__name__)

_registered: dict[str, tuple] = {}
# By task, in this process: what was done to its text.
counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
_warned: set[str] = set()
_FEATURES = ("inputs", "targets")
_DOCUMENTS_TO_CHECK = 32


def register_diacritics_task(
    name: str,
    *,
    data_files: Mapping[str, sources.DataFiles] | seqio.DataSource,
    vocabulary: seqio.Vocabulary | str | os.PathLike[str],
    language: str | diacritics.Language | None,
    text_column: str = "text",
    max_tokens: int = 512,
    min_marked_words: float = 0.0,
    shuffle_buffer_size: int = 4096,
) -> seqio.Task:
    """Registers the restoration of diacritics as a SeqIO task: `inputs` without marks, `targets` with, EOS on both.

    An example is a sentence. One that is too long for `task_feature_lengths` is cut between words, which is counted and
    logged. Nothing is read: files may be made later. Registering a name again with the same arguments is harmless.

    Args:
      name: the task's name, such as "ro_diacritics".
      data_files: per split a file, a pattern or a list of them (jsonl, json, parquet, txt, csv, also compressed), or a
        SeqIO source.
      vocabulary: a SeqIO vocabulary, or the path of a SentencePiece model, which gets 100 sentinels.
      language: a code such as "ro", rules of your own, or None for all marks of Latin letters.
      text_column: the column with the text, written with diacritics.
      max_tokens: of inputs and targets each, where no lengths are given (in inference evaluation), EOS included.
      min_marked_words: the share of a document's words that have marks, below which it is left out as written without;
        0.05 is a cautious value for Romanian.
      shuffle_buffer_size: examples in the shuffle buffers of all readers together.

    Raises:
      ValueError: if the name is taken by a task with other arguments, for an unknown language, or for a number that
        makes no sense.
    """
    arguments = (data_files, vocabulary, language, text_column, max_tokens, min_marked_words, shuffle_buffer_size)
    if name in seqio.TaskRegistry.names():
        if _registered.get(name) == arguments:
            return seqio.TaskRegistry.get(name)
        raise ValueError(f"A task {name!r} is registered already, with other arguments; choose another name.")
    step = RemoveDiacritics(name, language, text_column, max_tokens, min_marked_words)
    source = data_files
    if not isinstance(source, seqio.DataSource):
        source = sources.HuggingFaceSource(source, [text_column])
    if not isinstance(vocabulary, seqio.Vocabulary):
        vocabulary = seqio.SentencePieceVocabulary(os.fspath(vocabulary), extra_ids=100)
    task = seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[step],
        output_features=dict.fromkeys(_FEATURES, seqio.Feature(vocabulary=vocabulary, add_eos=True)),
        metric_fns=[diacritics_metrics.metric(language)],
        shuffle_buffer_size=shuffle_buffer_size,
    )
    _registered[name] = arguments
    return task


@dataclasses.dataclass(frozen=True)
class RemoveDiacritics:
    """Makes examples of documents: sentences that fit, with marks as targets and without as inputs.

    The examples also have `inputs_pretokenized` and `targets_pretokenized`, what metrics compare.

    Attributes:
      name: of the task, for what is logged.
      language, text_column, max_tokens, min_marked_words: see `register_diacritics_task`.
      output_features: set by SeqIO.
      sequence_length: set by SeqIO.

    Raises:
      ValueError: for an unknown language, or a number that makes no sense.
    """

    name: str
    language: str | diacritics.Language | None
    text_column: str = "text"
    max_tokens: int = 512
    min_marked_words: float = 0.0
    output_features: Mapping[str, seqio.Feature] | None = None
    sequence_length: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        diacritics.find_language(self.language)
        if self.max_tokens < 2:
            raise ValueError(f"Task {self.name!r} has max_tokens {self.max_tokens}; a token and EOS need 2.")
        if not 0 <= self.min_marked_words <= 1:
            raise ValueError(
                f"Task {self.name!r} has min_marked_words {self.min_marked_words}; it is a share, such as 0.05."
            )

    def missing_letters(self, vocabulary: seqio.Vocabulary) -> str:
        """Letters of the language, with marks and without, that do not come back from a vocabulary."""
        rules = diacritics.rules_of(self.language)
        letters = sorted(rules.letters | (rules.places if rules.letters else set()), key=lambda x: (x.lower(), x))
        return "".join(x for x in letters if vocabulary.decode(vocabulary.encode(x)).strip() != x)

    def find_missing_letters(self, vocabulary: seqio.Vocabulary) -> Iterator[Finding]:
        """What `limba lint` says of `missing_letters`."""
        if missing := self.missing_letters(vocabulary):
            yield Finding(
                "missing_letters",
                "warning",
                f"The vocabulary of task {self.name!r} lacks {' '.join(missing)} of the language {self.language!r}.",
                "the model can neither read nor write them, and every word with one is wrong",
                "Build one from text with them (--character_coverage 1.0), or with --byte_fallback; or use bytes.",
            )

    def check_rows(
        self,
        source: ShardedSource,
        split: str,
        features: Mapping[str, seqio.Feature],
        lengths: Mapping[str, int] | None = None,
    ) -> None:
        """Looks for a first example, without which a training would read for ever.

        Raises:
          ValueError: if no document of the split has one.
        """
        function = dataclasses.replace(self, output_features=features, sequence_length=lengths).function()
        before = counts[self.name].copy()
        for documents in source.documents(split, _DOCUMENTS_TO_CHECK):
            ids, _, _ = function([(document[self.text_column] or "").encode() for document in documents])
            if ids["targets"]:
                counts[self.name] = before
                return
        found = counts[self.name] - before
        raise ValueError(
            f"Task {self.name!r}: no document of split {split!r} makes an example. Of {found['documents']} documents "
            f"{found['documents_left_out']} were left out because fewer than {self.min_marked_words:.0%} of their "
            f"words have marks (min_marked_words), and {found['words_left_out']} words were longer than "
            f"{dict(lengths or dict.fromkeys(_FEATURES, self.max_tokens))}."
        )

    def function(self) -> Callable[[Sequence[bytes]], tuple[dict[str, list[np.ndarray]], list[tuple[str, ...]], Any]]:
        """What makes examples of texts, in NumPy.

        It returns the tokens of each feature `[length]` with EOS, the pairs of texts (inputs, targets), and which of
        the documents each example is of, int64 `[examples]`.
        """
        assert self.output_features is not None
        rules = diacritics.rules_of(self.language)
        features = [self.output_features[name] for name in _FEATURES]
        room = [(self.sequence_length or {}).get(name, self.max_tokens) - 1 for name in _FEATURES]
        if min(room) < 1:
            raise ValueError(f"Task {self.name!r} has lengths {self.sequence_length}; a token and EOS need 2.")
        self._warn_of_missing_letters(features[1].vocabulary)

        def encode(pairs: Sequence[tuple[str, ...]]) -> list[list[np.ndarray]]:
            """Tokens of each feature of each pair, without EOS."""
            return [
                np.split(tokens, np.cumsum(lengths)[:-1])
                for tokens, lengths in (
                    preprocessors.encode_batch(feature.vocabulary, [text.encode() for text in texts])
                    for feature, texts in zip(features, zip(*pairs, strict=True), strict=True)
                )
            ]

        def fitting(pair: tuple[str, ...], tokens: Sequence[np.ndarray]) -> Iterator[tuple[Any, Any]]:
            """A pair that fits as it is; of a longer one its halves, of words."""
            if all(len(ids) <= most for ids, most in zip(tokens, room, strict=True)):
                yield pair, tokens
                return
            words = [text.split() for text in pair]
            if len(words[1]) < 2:
                counts[self.name]["words_left_out"] += 1
                return
            half = len(words[1]) // 2
            halves = [tuple(" ".join(part[begin:end]) for part in words) for begin, end in ((0, half), (half, None))]
            yield from itertools.chain.from_iterable(map(fitting, halves, zip(*encode(halves), strict=True)))

        def make_examples(texts):
            pairs, documents = [], []
            for number, text in enumerate(texts):
                marked = rules.with_marks(text.decode("utf-8", errors="replace"))
                found = [(rules.without_marks(sentence), sentence) for sentence in diacritics.sentences(marked)]
                if self._is_left_out(found):
                    continue
                pairs += found
                documents += [number] * len(found)
            examples, of_documents = [], []
            for pair, number, *tokens in zip(pairs, documents, *(encode(pairs) if pairs else ()), strict=True):
                made = list(fitting(pair, tokens))
                counts[self.name]["cut"] += [kept for kept, _ in made] != [pair]
                examples += made
                of_documents += [number] * len(made)
            self._count(len(texts), len(pairs))
            ids = {
                name: [np.append(tokens[i], feature.vocabulary.eos_id).astype(np.int32) for _, tokens in examples]
                for i, (name, feature) in enumerate(zip(_FEATURES, features, strict=True))
            }
            return ids, [pair for pair, _ in examples], np.array(of_documents, np.int64)

        return make_examples

    def _is_left_out(self, pairs: Sequence[tuple[str, ...]]) -> bool:
        if not self.min_marked_words or not pairs:
            return False
        words = [(a, b) for pair in pairs for a, b in zip(*(text.split() for text in pair), strict=True)]
        left_out = sum(a != b for a, b in words) < self.min_marked_words * len(words)
        counts[self.name]["documents_left_out"] += left_out
        return left_out

    def _count(self, documents: int, sentences: int) -> None:
        """Counts, and says what was done to the text: the first time, and whenever there is four times as much."""
        count = counts[self.name]
        count["documents"] += documents
        count["sentences"] += sentences
        done = count["cut"] + count["documents_left_out"]
        if done < max(1, 4 * count["said"]):
            return
        count["said"] = done
        lengths = dict(self.sequence_length or dict.fromkeys(_FEATURES, self.max_tokens))
        logger.warning(
            "Task %s: of %d sentences so far %d were longer than %s and were cut between words; %d single words were "
            "longer and were left out. Of %d documents %d were left out because too few words have marks.",
            *(self.name, count["sentences"], count["cut"], lengths, count["words_left_out"]),
            *(count["documents"], count["documents_left_out"]),
        )

    def _warn_of_missing_letters(self, vocabulary: seqio.Vocabulary) -> None:
        if self.name in _warned:
            return
        _warned.add(self.name)
        for finding in self.find_missing_letters(vocabulary):
            logger.warning("%s %s", finding.what, finding.remedy)

    # Streams call this where AutoGraph converts all Python.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        function = self.function()
        group_size = 128

        def make_examples(texts, documents):
            ids, pairs, of_documents = function(texts)
            columns = []
            for name in _FEATURES:
                lengths = np.array([len(tokens) for tokens in ids[name]], np.int64)
                padded = np.zeros((len(lengths), max(lengths, default=0)), np.int32)
                for row, tokens in zip(padded, ids[name], strict=True):
                    row[: len(tokens)] = tokens
                columns += [padded, lengths]
            texts = [np.array([pair[i].encode() for pair in pairs], object) for i in range(2)]
            return [*columns, *texts, documents[of_documents]]

        def map_batch(batch):
            texts = batch[self.text_column]
            documents = batch.get("document", tf.fill([tf.shape(texts)[0], 3], tf.constant(-1, tf.int64)))
            dtypes = [tf.int32, tf.int64] * 2 + [tf.string] * 2 + [tf.int64]
            columns = tf.numpy_function(make_examples, [texts, documents], dtypes, stateful=False)
            for column, shape in zip(columns, [[None, None], [None]] * 2 + [[None]] * 2 + [[None, 3]], strict=True):
                column.set_shape(shape)
            return tuple(columns)

        def name_features(inputs, inputs_length, targets, targets_length, plain, marked, document):
            tokens = {"inputs": inputs[:inputs_length], "targets": targets[:targets_length]}
            return {**tokens, "inputs_pretokenized": plain, "targets_pretokenized": marked, "document": document}

        # One batch at a time: what runs ahead would have to be saved with the position.
        return dataset.batch(group_size).map(map_batch).unbatch().map(name_features)
