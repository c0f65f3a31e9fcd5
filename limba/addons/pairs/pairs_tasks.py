"""Pairs of a right and a wrong sentence as a task whose metric is how often the model prefers the right one.

    minimal_pairs.register_pairs_task(
        "agreement", data_files={"validation": "pairs.jsonl"}, vocabulary="vocab/spiece.model"
    )

Each pair is two examples, which are scored and never decoded.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from limba.addons.pairs import differing_words, pair_columns, pair_formats, pair_metrics
from limba.addons.pairs.pair_columns import PairColumns
from limba.addons.pairs.pair_formats import PairFormat, Sentences
from limba.addons.pairs.text_reader import TextReader
from limba.addons.pairs.token_spans import TokenSpans
from limba.data.lint_findings import Finding
from limba.files import untrusted_files
from limba.tasks import objectives
from limba.tasks.registry import Feature, Task, TaskRegistry, registering
from limba.tasks.registry.rows import TEXT, TOKENS, Columns, ColumnType, Rows, Tokens
from limba.tasks.registry.steps import Step
from limba.tasks.sources import corpora
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.supervised import row_preprocessor, supervised_tasks
from limba.tasks.vocabularies import PassThroughVocabulary, Vocabulary, known_text, sentencepiece_models

_ROWS_PER_GROUP = 128


@registering.once(TaskRegistry)
def register_pairs_task(
    name: str,
    *,
    data_files: Mapping[str, corpora.DataFiles] | Any,
    vocabulary: Vocabulary | str | os.PathLike[str],
    objective: objectives.Objective | None = None,
    mode: str = "",
    columns: PairColumns | None = None,
) -> Task:
    """Registers pairs of sentences as a task whose metric is `pair_metrics.pair_accuracy`.

    What is scored depends on what the model was trained with (`pair_formats`): the words that differ, as fillings of
    blanks or of masks, or the whole sentence. Files may be made later: of those that are there only the names of the
    columns are read, where `columns` is None. Registering a name again with
    the same arguments is harmless.

    Args:
      data_files: per split a file, a pattern or a list of them (jsonl, csv, tsv, parquet, also compressed), or a SeqIO
        source. Evaluation reads the split "validation".
      vocabulary: of the model; see `pretraining.register_pretraining_task`.
      objective: of the model's pre-training: `objectives.SpanCorruption()` for encoder-decoders (also if it is None),
        `FullLM()` for decoders, `MaskedLM()` for encoders.
      mode: text in front of the inputs, as of `register_pretraining_task`.
      columns: their names; None takes those of a known format that a local file has (as `limba eval --pairs`), else
        `PairColumns()`, which `limba pairs` writes.

    Raises:
      ValueError: if the name is taken by a task with other arguments; for an objective that does not fit; if a file has
        no columns of a known format.
    """
    made = make_pairs_task(name, data_files, vocabulary, pair_formats.of_objective(objective), mode, columns)
    return TaskRegistry.add(
        name,
        source=made.source,
        preprocessors=made.preprocessors,
        output_features=made.output_features,
        postprocess_fn=made.postprocessor,
        metric_fns=made.metric_fns,
    )


def make_pairs_task(
    name: str,
    data_files: Mapping[str, corpora.DataFiles] | Any,
    vocabulary: Vocabulary | str | os.PathLike[str],
    form: PairFormat,
    mode: str = "",
    columns: PairColumns | None = None,
    longest: int | None = None,
) -> Task:
    """The task of `register_pairs_task`, without registering it.

    Args:
      longest: tokens of a row that the model has positions for; None is no limit.

    Raises:
      ValueError: for a mode where there are no inputs to put it in front of.
    """
    if mode and not form.needs_sentinels:
        raise ValueError(f"Task {name!r} has the mode {mode!r}, which only models with sentinels read: leave it out.")
    feature = Feature(sentencepiece_models.open_vocabulary(vocabulary))
    features = dict.fromkeys(form.features, feature)
    if "target_positions" in features:
        features["target_positions"] = Feature(PassThroughVocabulary(2**31 - 1), add_eos=False)
    columns = columns or pair_columns.of_data(data_files)
    return Task(
        name,
        source=supervised_tasks.open_texts(data_files, columns.names),
        preprocessors=[ScorePairs(name, form, columns, mode, longest)],
        output_features=features,
        postprocess_fn=scored_sentence,
        metric_fns=[pair_metrics.pair_accuracy],
    )


def scored_sentence(answer: Any, example: Mapping[str, Any], is_target: bool = True) -> pair_metrics.ScoredSentence:
    """The target of the metric: what is known of an example."""
    del answer, is_target
    phenomenon, sentence = (example[name] for name in ("phenomenon", "sentence"))
    return pair_metrics.ScoredSentence(
        pair=int(example["idx"][0]),
        is_right=bool(example["is_correct"]),
        phenomenon=phenomenon.decode("utf-8", "replace"),
        num_tokens=int(np.count_nonzero(example["targets"])),
        sentence=sentence.decode("utf-8", "replace"),
    )


class ReadRow(NamedTuple):
    """A row with a pair.

    Attributes:
      texts: the right sentence, the wrong one and the phenomenon.
      tokens: of the two sentences.
      features: of the two sentences, as the format makes them.
    """

    texts: tuple[str, str, str]
    tokens: tuple[TokenSpans, TokenSpans]
    features: tuple[pair_formats.Features, pair_formats.Features]


@dataclasses.dataclass(frozen=True)
class ScorePairs(Step):
    """Makes two examples of each row, of the right sentence and of the wrong one, in this order.

    Examples have the features of the format; `idx`, the number of the row and 0 for the right sentence, 1 for the wrong
    one; `is_correct`; `phenomenon`; `sentence`; and `targets_pretokenized`, what is scored. Nothing is cut.

    Attributes:
      task: the task's name, for messages.
      form: of the model.
      columns_of_rows: the names of the columns of the rows.
      mode: text in front of the inputs.
      longest: tokens that a row of the model may have; None is no limit.
      output_features, sequence_length: set by `tasks.registry.steps.bind`, or by SeqIO.
    """

    task: str
    form: PairFormat
    columns_of_rows: PairColumns
    mode: str = ""
    longest: int | None = None
    output_features: Mapping[str, Feature] | None = None
    sequence_length: Mapping[str, int] | None = None

    @property
    def rows_per_group(self) -> int:
        return _ROWS_PER_GROUP

    def columns(self) -> dict[str, ColumnType]:
        texts = dict.fromkeys(("phenomenon", "sentence", "targets_pretokenized"), TEXT)
        tokens = dict.fromkeys(self.form.features, TOKENS)
        return {**tokens, **texts, "idx": ColumnType(np.int32, (2,)), "is_correct": ColumnType(np.bool_)}

    def check_rows(
        self,
        source: ShardedSource,
        split: str,
        features: Mapping[str, Feature],
        lengths: Mapping[str, int] | None = None,
    ) -> list[Finding]:
        """Makes the examples of the first rows of a split, all of a local file, before anything expensive.

        Returns:
          Warnings of characters that the vocabulary does not know, and of pairs with the same tokens.

        Raises:
          ValueError: for a row that makes no examples, which it names; for a vocabulary that does not fit.
        """
        make = dataclasses.replace(self, output_features=features, sequence_length=lengths).row_reader()
        limit = row_preprocessor.ROWS_TO_CHECK[source.is_remote(split)]
        texts: list[str] = []
        same = 0
        first = ""
        for file, row, document in itertools.islice(source.numbered_documents(split), limit):
            where = f"row {row} (the first is 0) of {file}"
            found_row = make(document, where)
            texts += found_row.texts[:2]
            if found_row.features[0] == found_row.features[1]:
                same, first = same + 1, first or where
        if not texts:
            raise ValueError(f"Split {split!r} of task {self.task!r} has no pairs: its files have no rows.")
        found = []
        if unknown := known_text.describe_inputs(features["targets"].vocabulary, texts):
            cost = "words with such characters look the same to the model"
            remedy = "Leave these pairs out, or use a vocabulary with these characters."
            found.append(Finding("unknown_letters", "warning", f"{self.task}: {unknown}", cost, remedy))
        if same:
            problem = (
                f"{self.task}: {same:,} of {len(texts) // 2:,} pairs have the same tokens in both sentences (the "
                f"first: {first}) and count as wrong."
            )
            found.append(Finding("same_tokens", "warning", problem, "their scores are equal", "Leave them out."))
        return found

    def rows_function(self) -> Callable[[Rows, int], Rows]:
        make = self.row_reader()
        assert self.output_features is not None
        vocabulary = self.output_features["targets"].vocabulary

        def make_rows(rows: Rows, seed: int) -> Rows:
            del seed
            found = [make(document, rows.place(i)) for i, document in enumerate(_documents(rows))]
            examples = [example for row in found for example in row.features]
            sentences = [text for row in found for text in row.texts[:2]]
            made: Columns = {name: Tokens.of([x[name] for x in examples]) for name in self.form.features}
            scored = sentences if "inputs" not in made else [vocabulary.decode(x["targets"]) for x in examples]
            for name, texts in (
                ("phenomenon", [row.texts[2] for row in found for _ in range(2)]),
                ("sentence", sentences),
                ("targets_pretokenized", scored),
            ):
                made[name] = np.array([text.encode("utf-8", "replace") for text in texts], object)
            of_rows = np.repeat(np.arange(len(found)), 2)
            choice = np.tile([0, 1], len(found))
            made["idx"] = np.stack([rows.number[of_rows], choice], axis=1).astype(np.int32)
            made["is_correct"] = choice == 0
            return rows.make(made, of_rows)

        return make_rows

    @property
    def mode_tokens(self) -> list[int]:
        """Those of `mode`, of a step that has its `output_features`."""
        assert self.output_features is not None
        return list(self.output_features["targets"].vocabulary.encode(self.mode)) if self.mode else []

    def row_reader(self) -> Callable[[Mapping[str, Any], str], ReadRow]:
        """A function of a row and its place, for messages, of a step that has its `output_features`.

        Raises:
          ValueError, FileNotFoundError: if the vocabulary does not fit the format; the function, for a bad row.
        """
        assert self.output_features is not None
        vocabulary = self.output_features["targets"].vocabulary
        reader, mode = TextReader(vocabulary, self.form), self.mode_tokens

        def read(document: Mapping[str, Any], where: str) -> ReadRow:
            try:
                texts = self.columns_of_rows.read(document)
                if not differing_words.differences(*texts[:2]):
                    raise ValueError(f"the two sentences have the same words, {untrusted_files.shown(texts[0])}")
                right, wrong = reader.read(texts[:2])
                both = self.form(Sentences(*texts[:2], (right, wrong)), reader.ids, mode)
                self._check_lengths(both)
            except ValueError as error:
                raise ValueError(f"Task {self.task!r}, {where}: {error}. Correct this row, or leave it out.") from error
            return ReadRow(texts, (right, wrong), both)

        return read

    def _check_lengths(self, both: tuple[pair_formats.Features, pair_formats.Features]) -> None:
        """Raises ValueError for a sentence that the model cannot read as a whole."""
        for features in both:
            for name, tokens in features.items():
                given = (self.sequence_length or {}).get(name)
                if given is not None and len(tokens) > given:
                    raise ValueError(
                        f"its {name} have {len(tokens)} tokens, and task_feature_lengths {given}: pairs are not cut, "
                        "and a length of None takes all"
                    )
                if self.longest is not None and len(tokens) > self.longest:
                    raise ValueError(
                        f"its {name} have {len(tokens)} tokens, and the model reads at most {self.longest}: pairs are "
                        "not cut"
                    )


def _documents(rows: Rows) -> Iterator[dict[str, Any]]:
    for i in range(len(rows.number)):
        yield {name: _plain(values[i]) for name, values in rows.columns.items()}


def _plain(value: Any) -> Any:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
