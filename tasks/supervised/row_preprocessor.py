"""The preprocessor of supervised tasks: rows become tokens of a text and of its answer, a batch of rows at a time."""

import collections
import dataclasses
import itertools
import logging
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.data import token_rows
from limba.data.contract import TOKEN_TYPES
from limba.data.lint_findings import Finding
from limba.data.token_rows import Row, Texts
from limba.files import json_text, setting_names
from limba.tasks.registry import Feature
from limba.tasks.registry.rows import TEXT, TOKENS, Columns, ColumnType, Rows, Tokens
from limba.tasks.registry.steps import Step
from limba.tasks.sources import class_names
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.supervised import few_shots
from limba.tasks.supervised.complete_rows import CompleteTemplate
from limba.tasks.supervised.question_formats import Questions
from limba.tasks.supervised.row_formats import UNKNOWN, Example, Format, Squad, Template
from limba.tasks.supervised.several_answers import MultiLabel
from limba.tasks.vocabularies import SentencePieceVocabulary, T5TokenizerVocabulary, TokenizerVocabulary, normalization
from limba.tasks.vocabularies.vocabulary import encode_batch, without_tensorflow

logger = logging.getLogger(__name__)

_ROWS_PER_GROUP = 128
# Rows whose labels are looked at before a run: of a file here, and of one that is far away.
ROWS_TO_CHECK = {False: 100_000, True: 256}

# Rows whose tokens are counted before a run.
ROWS_TO_TOKENIZE = 1000

# Warnings that were given: an evaluation may have the rows of another.
_warned: set[Finding] = set()


@dataclasses.dataclass(frozen=True)
class Supervise(Step):
    """Makes examples of rows by a format, tokenizes them, and appends EOS; long texts are cut, and the log counts them.

    Examples have `inputs` and `targets`, both also `_pretokenized`, and `reference`, JSON for the metrics ("null" where
    the targets are enough). With `ranks` there is an example for each choice, and, as T5's `rank_classification` makes
    them, `idx`, the number of the row and of the choice, and `is_correct`.

    Attributes:
      task: the task's name, for messages.
      format: see `supervised_formats`.
      ranks: whether each choice is an example.
      output_features, sequence_length: set by `tasks.registry.steps.bind`, or by SeqIO; lengths of None cut nothing.
    """

    task: str
    format: Format
    ranks: bool = False
    output_features: Mapping[str, Feature] | None = None
    sequence_length: Mapping[str, int] | None = None

    def check_rows(
        self,
        source: ShardedSource,
        split: str,
        features: Mapping[str, Feature],
        lengths: Mapping[str, int] | None = None,
    ) -> list[Finding]:
        """Makes examples of the first rows of a split, which finds wrong labels before anything expensive.

        Returns:
          Warnings of rows without an answer, a label or a text, and of texts that are longer than the model reads.

        Raises:
          ValueError: for a row that makes no example, which it names; for labels whose tokens are the same; if no row
            of the split has an answer.
        """
        found = self._check_labels(features["targets"], (lengths or {}).get("targets"))
        of_rows, first = self._read_first(source, split)
        special = find_special_tokens(self.task, split, first, features)
        return found + of_rows + special + self._cut_texts(first, split, features, lengths)

    def check_examples(self, source: ShardedSource, split: str) -> list[Finding]:
        """What `check_rows` finds without a vocabulary. Raises ValueError as it does."""
        return self._read_first(source, split)[0]

    def _read_first(self, source: ShardedSource, split: str) -> tuple[list[Finding], list[Example]]:
        """Findings about the first rows of a split, and the examples of the very first."""
        limit = ROWS_TO_CHECK[source.is_remote(split)]
        if isinstance(self.format, Template) and self.format.labels is not None:
            column = self.format.label_column
            names = source.class_names(split, column)
            class_names.check_numbers(column, names, self.format.numbered_labels, repr(split))
        counts: collections.Counter[str] = collections.Counter()
        first: list[Example] = []
        places: dict[str, str] = {}
        spaced = ""
        for file, row, document in itertools.islice(source.numbered_documents(split), limit):
            counts["rows"] += 1
            place = f"row {row} (the first is 0) of {file}"
            try:
                examples = self.format(document)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ValueError(bad_row(self.task, place, error)) from error
            if isinstance(self.format, CompleteTemplate) and not examples:
                counts["dropped"] += 1
                places.setdefault("dropped", place)
                continue
            has_questions = isinstance(self.format, Questions | Squad)
            # A question without an answer, and a row without a label, are right.
            kind = "unanswered" if has_questions else "unlabelled" if isinstance(self.format, MultiLabel) else "empty"
            counts[kind] += any(not x.targets.strip() for x in examples)
            counts["unknown"] += any(example.targets == UNKNOWN for example in examples)
            if not getattr(self.format, "has_text", lambda row: True)(document):
                counts["blank"] += 1
                places.setdefault("blank", place)
            if isinstance(self.format, Template) and (label := self.format.spaced_label(document)) is not None:
                counts["spaced"] += 1
                spaced = spaced or label
                places.setdefault("spaced", place)
            if counts["rows"] <= ROWS_TO_TOKENIZE:
                first += self._of_row(examples)
        if counts["rows"] < limit:
            _check_answers(self.task, split, counts)
        return _about_rows(self.task, split, counts, places, spaced), first

    @property
    def length_setting(self) -> str | None:
        """What gin sets the length of texts by, where nothing is generated; None where it is TASK_FEATURE_LENGTHS."""
        return getattr(self.format, "length_setting", None)

    def _cut_texts(
        self,
        examples: Sequence[Example],
        split: str,
        features: Mapping[str, Feature],
        lengths: Mapping[str, int] | None,
    ) -> list[Finding]:
        encoder = _Cutter(self.task, features, None, self.length_setting)
        examples = few_shots.fit(examples, (lengths or {}).get("inputs"), encoder.count_inputs)
        found = []
        for name, most in (lengths or {}).items():
            if name in ("inputs", "targets") and examples:
                tokens = np.array([row.length for row in encoder.rows(name, examples, None)])
                found += cut_texts(self.task, split, name, tokens, most, self.length_setting)
        return found

    def _of_row(self, examples: Sequence[Example]) -> list[Example]:
        """The examples of a row, with `ranks` one for each choice."""
        if not self.ranks:
            return list(examples)
        # The first example knows all right answers of its row.
        return [dataclasses.replace(examples[0], targets=text) for text in (examples[0].choices if examples else ())]

    def _check_labels(self, feature: Feature, most: int | None) -> list[Finding]:
        """Finds labels that the vocabulary does not give back; raises ValueError for two that have the same tokens.

        `most` is the tokens of the targets, EOS included; None cuts nothing.
        """
        if not isinstance(self.format, Template):
            return []
        of_tokens: dict[tuple[int, ...], str] = {}
        changed = []
        for label in self.format.choices:
            tokens = feature.vocabulary.encode(label)
            if feature.vocabulary.decode(tokens).split() != normalization.normalized(feature.vocabulary, label).split():
                changed.append(label)
            room = None if most is None else most - feature.add_eos
            key = tuple(tokens[:room])
            if key in of_tokens:
                cut = "" if room is None or len(tokens) <= room else f" in the {most} tokens of the targets"
                raise ValueError(
                    f"Task {self.task!r}: the labels {of_tokens[key]!r} and {label!r} have the same tokens{cut}, and "
                    "no answer tells them apart. Give them other texts, a vocabulary with their characters, or "
                    f"longer targets in {setting_names.shown('TASK_FEATURE_LENGTHS', 'targets')}."
                )
            of_tokens[key] = label
        if not changed:
            return []
        labels = ", ".join(map(repr, changed))
        problem = f"{self.task}: the vocabulary does not give the labels {labels} back."
        remedy = "Give them other texts, or a vocabulary with their characters."
        return [Finding("unwritten_labels", "warning", problem, "no generated answer will be one of them", remedy)]

    @property
    def rows_per_group(self) -> int:
        return _ROWS_PER_GROUP

    def columns(self) -> dict[str, ColumnType]:
        names = {"inputs": TOKENS, "targets": TOKENS, "inputs_pretokenized": TEXT, "targets_pretokenized": TEXT}
        types = {name: TOKENS for name in self.output_features or () if name.endswith(TOKEN_TYPES)}
        ranking = {"idx": ColumnType(np.int32, (2,)), "is_correct": ColumnType(np.bool_)} if self.ranks else {}
        return {**names, **types, "reference": TEXT, **ranking}

    def rows_function(self) -> Callable[[Rows, int], Rows]:
        assert self.output_features is not None
        cutter = _Cutter(self.task, self.output_features, self.sequence_length, self.length_setting)

        def make_rows(rows: Rows, seed: int) -> Rows:
            del seed
            numbered = list(self._examples(rows))
            most = (self.sequence_length or {}).get("inputs")
            examples = few_shots.fit([example for _, _, example in numbered], most, cutter.count_inputs)
            made = cutter.made(examples)
            for name in ("inputs", "targets"):
                texts = [getattr(example, name) for example in examples]
                made[f"{name}_pretokenized"] = np.array([text.encode() for text in texts], object)
            references = [json_text.dumps(example.reference, ensure_ascii=False).encode() for _, _, example in numbered]
            made["reference"] = np.array(references, object)
            if self.ranks:
                made["idx"] = np.array([idx for _, idx, _ in numbered], np.int32).reshape(-1, 2)
                correct = [bool(x.correct and x.correct[idx[1]]) for _, idx, x in numbered]
                made["is_correct"] = np.array(correct, bool)
            return rows.make(made, np.array([row for row, _, _ in numbered], np.int64))

        return make_rows

    def _examples(self, rows: Rows) -> Iterator[tuple[int, tuple[int, int], Example]]:
        """The row in the group, `idx`, and example after example."""
        for i, number in enumerate(rows.number.tolist()):
            try:
                examples = self.format({name: _plain(values[i]) for name, values in rows.columns.items()})
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ValueError(bad_row(self.task, rows.place(i), error)) from error
            for choice, example in enumerate(self._of_row(examples)):
                yield i, (number, choice if self.ranks else 0), example


def find_special_tokens(
    task: str, split: str, examples: Sequence[Example], features: Mapping[str, Feature]
) -> list[Finding]:
    """The finding that texts have the padding token in them."""
    vocabulary = without_tensorflow(features["inputs"].vocabulary)
    if isinstance(vocabulary, SentencePieceVocabulary):
        token = vocabulary.tokenizer.id_to_piece(vocabulary.pad_id)
    elif isinstance(vocabulary, TokenizerVocabulary | T5TokenizerVocabulary):
        token = vocabulary.tokenizer.id_to_token(vocabulary.pad_id)
    else:
        return []
    if not (number := sum(token in f"{x.inputs} {x.targets}" for x in examples)):
        return []
    problem = f"{task}: {number:,} of the first {len(examples):,} examples of split {split!r} have {token} in their "
    how = "no word of the model sees it, as behind the end of a text; in transformers all do"
    return [Finding("special_tokens", "warning", f"{problem}text.", how, f"Take {token} out of the texts: {how}.")]


def _check_answers(task: str, split: str, counts: Mapping[str, int]) -> None:
    """Raises ValueError if no row of a split makes an example, or none of the training split has an answer."""
    kinds = ["dropped", *(["empty", "unanswered", "unlabelled"] if split == "train" else [])]
    if any(counts[kind] == counts["rows"] > 0 for kind in kinds):
        what = "both a text and an answer" if counts["dropped"] == counts["rows"] else "an answer"
        raise ValueError(
            f"Task {task!r}: none of the {counts['rows']:,} rows of split {split!r} has {what}. Fill their column, or "
            f"name another one: {setting_names.shown('label_column and inputs')}."
        )


def _about_rows(
    task: str, split: str, counts: Mapping[str, int], places: Mapping[str, str], spaced: str
) -> list[Finding]:
    """Findings about the first rows of a split, of `counts`; `places` have the first, `spaced` is the first label."""
    rows = f"of the first {counts['rows']:,} rows of split {split!r}"
    costs = "such rows teach and measure nothing"
    found = []
    for kind, name, what, cost, remedy in (
        ("unknown", "empty_rows", "no label", costs, "Predict them; loss and metrics mean nothing."),
        (
            *("empty", "empty_rows", "no answer", costs),
            "Leave these rows out of the file, or fill the answers: they teach to answer nothing.",
        ),
        (
            *("unanswered", "unanswered_questions", "no answer"),
            "they teach to write nothing, which is right only if an answer is not always there",
            "They are kept: their target is empty, and an empty prediction is right.",
        ),
        (
            *("blank", "empty_rows", "no text in the columns of the inputs", costs),
            "Leave these rows out of the file, or fill these columns: the model reads the words around them alone.",
        ),
        (
            *("dropped", "dropped_rows", "no text or no answer and are left out", costs),
            "Fill these cells if the rows are to be learned and predicted.",
        ),
        (
            *("spaced", "spaced_labels", f"a label with extra blanks, such as {spaced!r}"),
            "another program takes them for labels of their own",
            "The label is read without them.",
        ),
    ):
        if counts[kind]:
            place = f"; the first is {places[kind]}" if kind in places else ""
            found.append(Finding(name, "warning", f"{task}: {counts[kind]:,} {rows} have {what}{place}.", cost, remedy))
    return found


def check_task(task: Any, split: str, lengths: Mapping[str, int] | None) -> None:
    """Checks the rows of a task whose preprocessor knows how, and logs warnings; of others nothing.

    Raises:
      ValueError: see `Supervise.check_rows` and `RemoveDiacritics.check_rows`.
    """
    warn(find_in_rows(task, split, lengths))


def check_generated(task: Any, split: str, lengths: Mapping[str, int] | None) -> None:
    """`check_task` of rows whose answers are generated: the length of the targets ends these, and no reference."""
    if any(getattr(step, "length_setting", None) for step in task.preprocessors):
        check_task(task, split, lengths)
        return
    is_told = (task.name, "targets", (lengths or {}).get("targets")) in _told_of_cut
    for finding in find_in_rows(task, split, lengths):
        if not isinstance(finding, CutTexts) or finding.feature == "inputs":
            warn([finding])
        elif not is_told:
            what = f"{finding.counted}: generated answers and scores end there; metrics compare with the whole texts."
            setting = setting_names.shown("task_feature_lengths", "generated")
            warn([dataclasses.replace(finding, what=what, remedy=f"Raise the targets of the evaluation's {setting}.")])


def warn(findings: Iterable[Finding]) -> None:
    """Logs each warning once."""
    for finding in findings:
        if finding not in _warned:
            _warned.add(finding)
            logger.warning("%s %s", finding.what, finding.remedy)


def find_in_rows(task: Any, split: str, lengths: Mapping[str, int] | None) -> list[Finding]:
    """The warnings of `check_task`, which `limba lint` reports. Raises ValueError as it does."""
    steps = [step for step in task.preprocessors if hasattr(step, "check_rows")]
    if not isinstance(task.source, ShardedSource):
        return []
    found = (step.check_rows(task.source, split, task.output_features, lengths) for step in steps)
    return [finding for of_step in found for finding in of_step or ()]


def bad_row(task: str, where: str, error: Exception) -> str:
    """The message for a row that makes no example."""
    reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
    return f"Task {task!r}, {where}: {reason}. Correct the row, or the task's labels and columns."


def _plain(value: Any) -> Any:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


class _Cutter:
    """Tokenizes texts, and warns of those that are longer than the model reads."""

    def __init__(
        self, task: str, features: Mapping[str, Feature], lengths: Mapping[str, int] | None, length_setting: str | None
    ):
        self._features, self._length_setting = features, length_setting
        self._lengths = lengths or {}
        self._task = task

    def count_inputs(self, texts: Sequence[str]) -> np.ndarray:
        """The tokens of inputs, special ones included, before any is cut."""
        return np.array([row.length for row in self._rows(self._features["inputs"], texts, None)], np.int64)

    def made(self, examples: Sequence[Example]) -> Columns:
        """The columns `inputs` and `targets` of examples, cut, and where an encoder reads pairs their token types."""
        columns: Columns = {}
        for name in ("inputs", "targets"):
            found = self.rows(name, examples, self._lengths.get(name))
            columns[name] = Tokens.of([row.ids for row in found])
            if f"{name}{TOKEN_TYPES}" in self._features:
                columns[f"{name}{TOKEN_TYPES}"] = Tokens.of([row.types for row in found])
            if (most := self._lengths.get(name)) is not None:
                lengths = np.array([row.length for row in found])
                warn_of_cut(self._task, name, lengths, most, self._length_setting)
        return columns

    def rows(self, name: str, examples: Sequence[Example], most: int | None) -> list[Row]:
        """The rows of a feature, of at most `most` tokens."""
        feature = self._features[name]
        texts: list[Texts] = [getattr(example, name) for example in examples]
        if isinstance(feature.vocabulary, TokenizerVocabulary) and name == "inputs":
            texts = [example.texts or example.inputs for example in examples]
        found = self._rows(feature, texts, most)
        if isinstance(feature.vocabulary, T5TokenizerVocabulary) and name == "targets":
            return [feature.vocabulary.as_targets(row) for row in found]
        return found

    @staticmethod
    def _rows(feature: Feature, texts: Sequence[Texts], most: int | None) -> list[Row]:
        if feature.add_eos:
            return token_rows.of_vocabulary(without_tensorflow(feature.vocabulary), texts, most)
        # Labels and numbers, which have no end.
        flat, lengths = encode_batch(feature.vocabulary, [text.encode() for text in texts if isinstance(text, str)])
        parts = np.split(flat, np.cumsum(lengths)[:-1]) if len(texts) else []
        return [Row(ids.tolist()[:most], [0] * len(ids), len(ids)) for ids in parts]


# Texts of which `cut_texts` or `warn_of_cut` has warned: task, feature and length.
_told_of_cut: set[tuple[str, str, int]] = set()


@dataclasses.dataclass(frozen=True)
class CutTexts(Finding):
    """Texts that are longer than the model reads.

    Attributes:
      feature: whose texts they are.
      counted: how many there are, the beginning of `what`.
    """

    feature: str = ""
    counted: str = ""


def _where(name: str, setting: str | None) -> str:
    """What sets the length of a feature."""
    return setting_names.shown("TASK_FEATURE_LENGTHS", name) if setting is None else setting


def cut_texts(
    task: str, split: str, name: str, lengths: np.ndarray, most: int, setting: str | None = None
) -> list[Finding]:
    """The finding that some of the first texts of a feature have more than the `most` tokens that are read."""
    cut = int(np.count_nonzero(lengths > most))
    if not cut:
        return []
    _told_of_cut.add((task, name, most))
    counted = (
        f"{task}: {cut:,} of the first {len(lengths):,} examples of split {split!r} have {name} longer than {most} "
        f"tokens (the longest: {int(lengths.max())})"
    )
    cost, remedy = (
        f"the model does not see the ends of these {name}",
        f"Raise {_where(name, setting)}, or shorten them.",
    )
    return [CutTexts("cut_texts", "warning", f"{counted} and are cut.", cost, remedy, name, counted)]


def warn_of_cut(task: str, name: str, lengths: np.ndarray, most: int, setting: str | None = None) -> None:
    """Warns of texts that are cut where the first ones were not: once, not once a reader or a process of readers."""
    cut = int(np.count_nonzero(lengths > most))
    if not cut or (task, name, most) in _told_of_cut or multiprocessing.parent_process() is not None:
        return
    _told_of_cut.add((task, name, most))
    logger.warning(
        "%s: some examples, not among the first, have %s longer than %d tokens, one %d, and are cut. Raise "
        "%s, or shorten them.",
        *(task, name, most, int(lengths.max()), _where(name, setting)),
    )
