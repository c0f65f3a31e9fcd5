"""One call makes plain text a task that restores diacritics: its inputs are its sentences without their marks."""

import collections
import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.addons.diacritics import marks, scores
from limba.data.lint_findings import Finding
from limba.tasks.pretraining import blank_sentences
from limba.tasks.registry import Feature, Task, TaskRegistry, registering
from limba.tasks.registry.rows import TEXT, TOKENS, Columns, ColumnType, Rows, Tokens
from limba.tasks.registry.rows import texts as texts_of
from limba.tasks.registry.steps import Step
from limba.tasks.sources import corpora
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.vocabularies import Vocabulary, sentencepiece_models
from limba.tasks.vocabularies.vocabulary import encode_batch

logger = logging.getLogger(__name__)

# By task, in this process: its documents, its sentences, those cut and left out.
counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
_warned: set[str] = set()
_FEATURES = ("inputs", "targets")
_DOCUMENTS_TO_CHECK = 32
_DOCUMENTS_PER_GROUP = 128


@registering.once(TaskRegistry)
def register_diacritics_task(
    name: str,
    *,
    data_files: Mapping[str, corpora.DataFiles] | Any,
    vocabulary: Vocabulary | str | os.PathLike[str],
    language: str | marks.Language | None,
    text_column: str = "text",
    max_tokens: int = 512,
    min_marked_words: float = 0.0,
    shuffle_buffer_size: int = 4096,
) -> Task:
    """Registers the restoration of diacritics as a SeqIO task: `inputs` without marks, `targets` with, EOS on both.

    An example is a sentence. One that is too long for `task_feature_lengths` is cut between words, and the log
    counts them. Nothing is read: files may be made later. Registering a name again with the same arguments is harmless.

    Args:
      data_files, vocabulary, text_column, shuffle_buffer_size: see `pretraining.register_pretraining_task`.
      language: a code such as "ro", rules of your own, or None for all marks of Latin letters.
      max_tokens: of inputs and targets each, where no lengths are given (in inference evaluation), EOS included.
      min_marked_words: the share of a document's words that have marks, below which it is left out as written without;
        0.05 is a cautious value for Romanian.

    Raises:
      ValueError: if the name is taken by a task with other arguments, for an unknown language, or for a number that
        makes no sense.
    """
    feature = Feature(sentencepiece_models.open_vocabulary(vocabulary), add_eos=True)
    return TaskRegistry.add(
        name,
        source=corpora.open_source(data_files, text_column),
        preprocessors=[RemoveDiacritics(name, language, text_column, max_tokens, min_marked_words)],
        output_features=dict.fromkeys(_FEATURES, feature),
        metric_fns=[scores.metric(language)],
        shuffle_buffer_size=shuffle_buffer_size,
    )


@dataclasses.dataclass(frozen=True)
class RemoveDiacritics(Step):
    """Makes examples of documents: sentences that fit, with marks as targets and without as inputs.

    The examples also have `inputs_pretokenized` and `targets_pretokenized`, for the metrics.

    Attributes:
      name: of the task, for the log.
      language, text_column, max_tokens, min_marked_words: see `register_diacritics_task`.
      output_features, sequence_length: set by `tasks.registry.steps.bind`, or by SeqIO.

    Raises:
      ValueError: for an unknown language, or a number that makes no sense.
    """

    name: str
    language: str | marks.Language | None
    text_column: str = "text"
    max_tokens: int = 512
    min_marked_words: float = 0.0
    output_features: Mapping[str, Feature] | None = None
    sequence_length: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        marks.find_language(self.language)
        if self.max_tokens < 2:
            raise ValueError(f"Task {self.name!r} has max_tokens {self.max_tokens}; a token and EOS need 2.")
        if not 0 <= (share := self.min_marked_words) <= 1:
            raise ValueError(f"Task {self.name!r} has min_marked_words {share}; it is a share, such as 0.05.")

    def missing_letters(self, vocabulary: Vocabulary) -> str:
        """Letters of the language, with marks and without, that a vocabulary does not give back."""
        rules = marks.rules_of(self.language)
        letters = sorted(rules.letters | (rules.places if rules.letters else set()), key=lambda x: (x.lower(), x))
        return "".join(x for x in letters if vocabulary.decode(vocabulary.encode(x)).strip() != x)

    def find_missing_letters(self, vocabulary: Vocabulary) -> Iterator[Finding]:
        """The finding of `limba lint` about `missing_letters`."""
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
        features: Mapping[str, Feature],
        lengths: Mapping[str, int] | None = None,
    ) -> None:
        """Looks for a first example, without which training would read for ever.

        Raises:
          ValueError: if no document of the split has one.
        """
        function = dataclasses.replace(self, output_features=features, sequence_length=lengths).function()
        before = counts[self.name].copy()
        for documents in source.documents(split, _DOCUMENTS_TO_CHECK):
            ids, _, _ = function([(document[self.text_column] or "").encode() for document in documents])
            if ids["targets"]:
                # What was logged is not logged again when the documents are read.
                counts[self.name] = before | collections.Counter(reported=counts[self.name]["reported"])
                return
        found = counts[self.name] - before
        raise ValueError(
            f"Task {self.name!r}: no document of split {split!r} makes an example. Of {found['documents']} documents "
            f"{found['documents_left_out']} were left out because fewer than {self.min_marked_words:.0%} of their "
            f"words have marks (min_marked_words), and {found['words_left_out']} words were longer than "
            f"{dict(lengths or dict.fromkeys(_FEATURES, self.max_tokens))}."
        )

    def function(self) -> Callable[[Sequence[bytes]], tuple[dict[str, list[np.ndarray]], list[tuple[str, ...]], Any]]:
        """A NumPy function that makes examples of texts.

        It returns the tokens of each feature `[length]` with EOS, the pairs of texts (inputs, targets), and which of
        the documents each example is of, int64 `[examples]`.
        """
        assert self.output_features is not None
        rules = marks.rules_of(self.language)
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
                    encode_batch(feature.vocabulary, [text.encode() for text in texts])
                    for feature, texts in zip(features, zip(*pairs, strict=True), strict=True)
                )
            ]

        def fitting(pair: tuple[str, ...], tokens: Sequence[np.ndarray]) -> Iterator[tuple[Any, Any]]:
            """A pair that fits; a longer one in halves, cut between words."""
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

        def make_examples(texts: Any) -> Any:
            pairs, documents = [], []
            for number, text in enumerate(texts):
                marked = rules.with_marks(text.decode("utf-8", errors="replace"))
                found = [(rules.without_marks(sentence), sentence) for sentence in blank_sentences.sentences(marked)]
                if self._is_left_out(found):
                    continue
                pairs += found
                documents += [number] * len(found)
            examples, of_documents = [], []
            for pair, number, *tokens in zip(pairs, documents, *(encode(pairs) if pairs else ()), strict=True):
                parts = list(fitting(pair, tokens))
                counts[self.name]["cut"] += [part for part, _ in parts] != [pair]
                examples += parts
                of_documents += [number] * len(parts)
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
        """Counts, and logs the counts: the first time, and whenever there is four times as much to report."""
        count = counts[self.name]
        count["documents"] += documents
        count["sentences"] += sentences
        done = count["cut"] + count["documents_left_out"]
        if done < max(1, 4 * count["reported"]):
            return
        count["reported"] = done
        lengths = dict(self.sequence_length or dict.fromkeys(_FEATURES, self.max_tokens))
        logger.warning(
            "Task %s: of %d sentences so far %d were longer than %s and were cut between words; %d single words were "
            "longer and were left out. Of %d documents %d were left out because too few words have marks.",
            self.name,
            count["sentences"],
            count["cut"],
            lengths,
            count["words_left_out"],
            count["documents"],
            count["documents_left_out"],
        )

    def _warn_of_missing_letters(self, vocabulary: Vocabulary) -> None:
        if self.name in _warned:
            return
        _warned.add(self.name)
        for finding in self.find_missing_letters(vocabulary):
            logger.warning("%s %s", finding.what, finding.remedy)

    @property
    def rows_per_group(self) -> int:
        return _DOCUMENTS_PER_GROUP

    def columns(self) -> dict[str, ColumnType]:
        texts = dict.fromkeys((f"{name}_pretokenized" for name in _FEATURES), TEXT)
        return {**dict.fromkeys(_FEATURES, TOKENS), **texts}

    def rows_function(self) -> Callable[[Rows, int], Rows]:
        function = self.function()

        def make_rows(rows: Rows, seed: int) -> Rows:
            del seed
            ids, pairs, of_documents = function(texts_of(rows, self.text_column))
            made: Columns = {name: Tokens.of(ids[name]) for name in _FEATURES}
            for i, name in enumerate(_FEATURES):
                made[f"{name}_pretokenized"] = np.array([pair[i].encode() for pair in pairs], object)
            return rows.make(made, of_documents)

        return make_rows
