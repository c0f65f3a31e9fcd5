"""The preprocessor of pre-training tasks: groups of documents become corrupted windows, in one call of NumPy."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from limba.data.lint_findings import Finding
from limba.tasks import objectives
from limba.tasks.registry import Feature
from limba.tasks.registry.rows import TOKENS, Columns, ColumnType, Rows, Tokens, texts
from limba.tasks.registry.steps import Step
from limba.tasks.sources import blank_texts
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.vocabularies import T5TokenizerVocabulary, sentencepiece_models
from limba.tasks.vocabularies.vocabulary import encode_batch

# A window of one token cannot be corrupted.
_FEWEST_TOKENS = 2


def split_into_windows(tokens: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a text into windows: int32 `[windows, length]`, padded with 0, and int64 `[windows]`, their tokens.

    The last window has the rest; a rest of one token, which cannot be corrupted, is dropped.
    """
    full, rest = divmod(len(tokens), length)
    num_windows = full + (rest >= _FEWEST_TOKENS)
    windows = np.zeros(num_windows * length, np.int32)
    kept = tokens[: num_windows * length]
    windows[: len(kept)] = kept
    lengths = np.full(num_windows, length, np.int64)
    if rest >= _FEWEST_TOKENS:
        lengths[-1] = rest
    return windows.reshape(num_windows, length), lengths


def one_window_each(
    tokens: np.ndarray, lengths: np.ndarray, length: int, cuts_left: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A window for each text that has a token, cut to `length`: as of `split_into_windows`, and which texts they are.

    Args:
      tokens, lengths: of all texts, one behind the other, and of each.
      cuts_left: whether a text that is too long loses its beginning, and not its end.
    """
    which = np.flatnonzero(lengths)
    kept = np.minimum(lengths[which], length)
    windows = np.zeros((len(which), length), np.int32)
    is_text = np.arange(length) < kept[:, None]
    ends = np.cumsum(lengths)[which]
    first = ends - (kept if cuts_left else lengths[which])
    windows[is_text] = tokens[(first[:, None] + np.arange(length))[is_text]]
    return windows, kept, which


def without_blanks(lines: Sequence[bytes]) -> list[bytes]:
    """Lines, with nothing in place of those that are blank: some vocabularies have tokens of blanks."""
    return [line if line.decode("utf-8", errors="replace").strip() else b"" for line in lines]


@dataclasses.dataclass(frozen=True)
class Denoise(Step):
    """Makes examples of documents: tokenizes, concatenates, cuts into windows and corrupts these by an objective.

    Like T5's reference it puts nothing between documents, and EOS at the end of both features; a language model gets
    EOS between documents and not at the ends of windows.

    Attributes:
      objective: makes examples of windows.
      text_column: the feature that has the text.
      documents_per_batch: documents that are concatenated. One short window is left over per batch, so more documents
        mean less padding.
      mode: text in front of the inputs that tells a model of several objectives which one is meant, such as UL2's
        "[NLU]". Its tokens count as inputs, and windows are that much shorter.
      line_by_line: each document that is not blank is a window of its own, and its rest is cut: `line_by_line` of
        run_mlm.py. Only for objectives that take windows of one token, such as `objectives.MaskedLM`.
      output_features, sequence_length: set by `tasks.registry.steps.bind`, or by SeqIO.
    """

    objective: objectives.Objective
    text_column: str = "text"
    documents_per_batch: int = 1024
    mode: str = ""
    line_by_line: bool = False
    output_features: Mapping[str, Feature] | None = None
    sequence_length: Mapping[str, int] | None = None

    is_random: ClassVar[bool] = True

    @property
    def rows_per_group(self) -> int:
        return self.documents_per_batch

    def lengths(self, output_features: Mapping[str, Feature], sequence_length: Mapping[str, int]) -> dict[str, int]:
        """Tokens per feature of a full example, if the main feature has the length in `sequence_length`."""
        length = sequence_length[self.objective.main_feature]
        lengths = self.objective.lengths(length - len(self.mode_tokens(output_features)))
        return lengths | {self.objective.main_feature: length}

    def check(self, output_features: Mapping[str, Feature], sequence_length: Mapping[str, int]) -> None:
        """Raises ValueError or FileNotFoundError if vocabulary and lengths do not allow this objective."""
        vocabulary = output_features["targets"].vocabulary
        if special_tokens := getattr(self.objective, "special_tokens", ()):
            sentencepiece_models.check_special_tokens(vocabulary, special_tokens)
            cast(Any, self.objective).check_ids(sentencepiece_models.ids_of(vocabulary))
        elif isinstance(vocabulary, T5TokenizerVocabulary) and isinstance(self.objective, objectives.PrefixLM):
            sentencepiece_models.check_file(vocabulary)  # A prefix LM has no sentinels, as Gemma's tokenizer has none.
        else:
            sentencepiece_models.check_vocabulary(vocabulary)
        length = sequence_length[self.objective.main_feature] - len(self.mode_tokens(output_features))
        self.objective.check_sentinels(length, sentencepiece_models.num_sentinels(vocabulary))

    def check_rows(
        self,
        source: ShardedSource,
        split: str,
        features: Mapping[str, Feature],
        lengths: Mapping[str, int] | None = None,
    ) -> list[Finding]:
        """Looks for the tokens of a first example, without which training would read for ever, and for blank texts.

        Raises:
          ValueError: if the documents of a split have too few.
        """
        del lengths
        vocabulary = features["targets"].vocabulary
        sentencepiece_models.check_file(vocabulary)
        num_documents = num_tokens = 0
        for chunk in source.chunks_of(split, shuffle=False, seed=0).documents(num_epochs=1):
            for text in texts(chunk, self.text_column):
                num_documents += 1
                num_tokens += len(encode_batch(vocabulary, [text])[0])
                if num_tokens >= _FEWEST_TOKENS:
                    return self._blank_texts(source, split)
        have = f"{num_documents} documents have" if num_documents > 1 else "document has"
        raise ValueError(
            f"No example can be made of split {split!r} of {source!r}: its {have} {num_tokens} tokens in the column "
            f"{self.text_column!r}, and an example takes {_FEWEST_TOKENS}. Give it text."
        )

    def _blank_texts(self, source: ShardedSource, split: str) -> list[Finding]:
        found = blank_texts.find(source, split, self.text_column).describe(split, self.text_column)
        remedy = "Remove these rows, or give them text."
        return [Finding("blank_texts", "warning", found, "less text than the files seem to have", remedy)] * bool(found)

    def mode_tokens(self, output_features: Mapping[str, Feature]) -> list[int]:
        return output_features["inputs"].vocabulary.encode(self.mode) if self.mode else []

    def function(self) -> Callable[[np.ndarray, int], tuple[dict[str, tuple[np.ndarray, np.ndarray]], np.ndarray]]:
        """A NumPy function that makes examples of texts `[documents]` and a seed.

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
        ids = sentencepiece_models.ids_of(vocabulary)
        mode = np.array(self.mode_tokens(self.output_features), np.int32)
        raw_length = self.objective.raw_length(self.sequence_length[main] - len(mode))
        has_inputs = "inputs" in self.lengths(self.output_features, self.sequence_length)

        def make_examples(texts: Any, seed: Any) -> Any:
            tokens, lengths = encode_batch(vocabulary, without_blanks(texts) if self.line_by_line else texts)
            if self.objective.eos_after_documents:
                tokens, lengths = np.insert(tokens, np.cumsum(lengths), vocabulary.eos_id), lengths + 1
            if self.line_by_line:
                cuts_left = getattr(vocabulary, "cuts_left", False)
                windows, window_lengths, first_documents = one_window_each(tokens, lengths, raw_length, cuts_left)
            else:
                windows, window_lengths = split_into_windows(tokens, raw_length)
                first_tokens = np.arange(len(windows)) * raw_length
                first_documents = np.searchsorted(np.cumsum(lengths), first_tokens, side="right")
            seeds = objectives.example_seeds(seed, 0, len(windows))
            corrupted = self.objective.corrupt(windows, window_lengths, seeds, ids)
            features = {"targets": (corrupted.targets, corrupted.targets_lengths), **corrupted.others}
            if has_inputs:
                inputs = np.concatenate([np.tile(mode, (len(windows), 1)), corrupted.inputs], axis=1)
                features["inputs"] = inputs, corrupted.inputs_lengths + len(mode)
            return features, first_documents

        return make_examples

    def columns(self) -> dict[str, ColumnType]:
        assert self.output_features is not None and self.sequence_length is not None
        return dict.fromkeys(self.lengths(self.output_features, self.sequence_length), TOKENS)

    def rows_function(self) -> Callable[[Rows, int], Rows]:
        function = self.function()

        def make_rows(rows: Rows, seed: int) -> Rows:
            features, first_documents = function(texts(rows, self.text_column), seed)
            made: Columns = {name: Tokens(*columns) for name, columns in features.items()}
            return rows.make(made, first_documents)

        return make_rows
