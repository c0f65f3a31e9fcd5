"""A supervised task that a gin file names, without a Python module: fine-tuning by `limba run`.

MIXTURE_OR_TASK_NAME = @script_task.task()
script_task.task:
  name = 'moods'
  vocabulary = %VOCABULARY
  inputs = 'mood of: {text}'
  label_column = 'mood'
  labels = ['glad', 'sad']
  files = {'train': ['train.csv'], 'validation': ['validation.csv']}
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from limba.addons.run import script_metrics
from limba.addons.run.glue_metrics import COMBINED_SCORES
from limba.files import setting_names
from limba.tasks import supervised
from limba.tasks.metrics import tagging_metrics, text_metrics
from limba.tasks.sources import corpora
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.supervised import dataset_table, supervised_tasks
from limba.tasks.supervised.complete_rows import CompleteTemplate
from limba.tasks.supervised.dataset import SupervisedDataset
from limba.tasks.supervised.question_formats import Questions
from limba.tasks.supervised.row_formats import UNKNOWN, Number, Translation
from limba.tasks.vocabularies import Vocabulary

# One source for each data set: it is opened once, and a task registered again is the same task.
_sources: dict[str, ShardedSource] = {}
_forms: dict[str, Any] = {}
_OF_NUMBERS = (text_metrics.mse, text_metrics.pearson_corrcoef, text_metrics.spearman_corrcoef)
# Functions of `text_metrics` that are not metrics of targets and predictions.
_NOT_METRICS = (
    *("check_lengths", "are_finite", "class_f1", "sklearn_metrics_wrapper", "deduplicate_metric"),
    *("mean_multiclass_f1", "mean_group_metric", "class_scores", "label_scores"),
)


def task(
    name: str,
    vocabulary: Vocabulary,
    entry: str | None = None,
    inputs: str | None = None,
    label_column: str = "",
    labels: Mapping[str, str] | Sequence[str] | None = None,
    languages: Sequence[str] | None = None,
    questions: Sequence[str] | None = None,
    metric_names: Sequence[str] | None = None,
    answers: str = "text",
    drops_empty: bool = False,
    files: Mapping[str, Sequence[str]] | None = None,
    dataset: str | None = None,
    dataset_config: str | None = None,
    splits: Mapping[str, str] | None = None,
    shuffle_buffer_size: int = 4096,
) -> str:
    """Registers the task, unless it is there already, and returns its name.

    The other arguments are those of `row_dataset` and `open_source`.

    Raises:
      ValueError: as these, and as `register_supervised_task`.
    """
    form = row_dataset(entry, inputs, label_column, labels, languages, metric_names, questions, answers, drops_empty)
    registered = supervised_tasks.register_supervised_task(
        name,
        form,
        vocabulary=vocabulary,
        data_files=open_source(form, files, dataset, dataset_config, splits),
        shuffle_buffer_size=shuffle_buffer_size,
    )
    return registered.name


def word_task(
    name: str,
    vocabulary: Vocabulary,
    tokens: str,
    tags: str,
    labels: Sequence[str],
    by_kind: bool = False,
    all_pieces: bool = False,
    files: Mapping[str, Sequence[str]] | None = None,
    dataset: str | None = None,
    dataset_config: str | None = None,
    splits: Mapping[str, str] | None = None,
    shuffle_buffer_size: int = 4096,
) -> str:
    """`task` of rows of words with labels, for encoders; the arguments are those of `word_dataset`."""
    form = word_dataset(tokens, tags, labels, by_kind, all_pieces)
    registered = supervised.register_token_task(
        name,
        form,
        vocabulary=vocabulary,
        data_files=open_source(form, files, dataset, dataset_config, splits),
        shuffle_buffer_size=shuffle_buffer_size,
    )
    return registered.name


def word_dataset(tokens: str, tags: str, labels: Sequence[str], by_kind: bool = False, all_pieces: bool = False) -> Any:
    """How rows of words become examples. Labels that are no BIO's have the metrics of single words.

    Args:
      by_kind: that of `tagging_metrics.ner_scores`.
      all_pieces: all pieces of a word have its label, not only the first.

    Raises:
      ValueError: for `by_kind` with labels that are no BIO's.
    """
    make = supervised.PieceDataset if all_pieces else supervised.TokenDataset
    if tagging_metrics.are_bio(labels):
        return _as_scripts(make(labels, tokens, tags, (tagging_metrics.ner_scores(by_kind),)), "word_labels")
    if by_kind:
        raise ValueError(
            f"{setting_names.shown('by_kind')} is true, and the labels {', '.join(labels)} name no entities: these are "
            "O, B-KIND and I-KIND. Leave it out: the scores of each label are there in any case."
        )
    return _as_scripts(make(labels, tokens, tags), "word_labels")


def row_dataset(
    entry: str | None,
    inputs: str | None,
    label_column: str,
    labels: Mapping[str, str] | Sequence[str] | None,
    languages: Sequence[str] | None,
    metric_names: Sequence[str] | None,
    questions: Sequence[str] | None = None,
    answers: str = "text",
    drops_empty: bool = False,
) -> SupervisedDataset:
    """How rows become examples; metrics have the names and numbers of the scripts (`script_metrics`).

    Args:
      entry: of the table of data sets, such as "glue_sst2"; None takes the others.
      inputs, label_column, labels: see `SupervisedDataset`.
      languages: from which to which a column `translation` is translated, with `inputs` before each text.
      metric_names: of functions of `text_metrics`; None leaves the entry's, BLEU of translations, SQuAD's of questions,
        or accuracy.
      questions: the columns of questions, contexts and answers, with `inputs` before each text.
      answers: "text" of a T5; "label" or "number" of an encoder, for which entries lose T5's prompts.
      drops_empty: rows without a text or without an answer make no examples, as in run_summarization.py.

    Raises:
      ValueError: if there is no such entry or metric, or an encoder cannot give the answers of the entry.
    """
    if entry is not None:
        form = dataset_table.find_dataset(entry)
        if answers != "text":
            inputs_of_encoder = supervised_tasks.of_encoder(entry, form.format, has_prompt=True)
            form = dataclasses.replace(form, inputs=inputs_of_encoder, label_column="", labels=None)
    elif languages is not None:
        source, target = languages
        form = SupervisedDataset(Translation(source, target, inputs or ""), metric_fns=(text_metrics.bleu,))
    elif questions is not None:
        question, context, column = questions
        form = SupervisedDataset(Questions(question, context, column, inputs or ""), metric_fns=(text_metrics.squad,))
    elif drops_empty:
        form = SupervisedDataset(CompleteTemplate(inputs or "", label_column, labels))
    elif answers == "number":
        form = SupervisedDataset(Number(inputs or "", label_column), metric_fns=_OF_NUMBERS)
    else:
        # GLUE's files have it where the label is kept secret.
        hidden = -1 if answers == "label" and "-1" not in (labels or ()) else None
        form = SupervisedDataset(inputs or "", label_column, labels, hidden)
    if metric_names is not None:
        form = dataclasses.replace(form, metric_fns=tuple(map(_metric, metric_names)))
    elif entry is not None and entry in COMBINED_SCORES:
        form = dataclasses.replace(form, metric_fns=(*form.metrics, COMBINED_SCORES[entry]))
    return _as_scripts(form, answers)


def _as_scripts(form: Any, answers: str) -> Any:
    """A data set with the metrics of the scripts: the same for the same data set, as some metrics are made anew."""
    key = f"{answers} {form!r}"
    if key not in _forms:
        metrics = tuple(script_metrics.of_script(metric, answers) for metric in form.metrics)
        _forms[key] = dataclasses.replace(form, metric_fns=metrics)
    return _forms[key]


def open_source(
    form: Any,
    files: Mapping[str, Sequence[str]] | None = None,
    dataset: str | None = None,
    dataset_config: str | None = None,
    splits: Mapping[str, str] | None = None,
) -> ShardedSource:
    """The rows; nothing is read yet.

    Args:
      files: local files or URLs by split; or
      dataset, dataset_config: on the hub; without files and data set those of the entry.
      splits: parts of splits under names, `{"train": "train[:1000]", "validation": "validation"}`.

    Raises:
      ValueError: if there are no data.
    """
    columns: tuple[str, ...]
    nested: tuple[str, ...]
    if not isinstance(form, SupervisedDataset):
        columns, nested, label = (), (form.tokens, form.tags), None
    else:
        columns, nested, label = (
            form.format.columns,
            form.format.nested_columns,
            getattr(form.format, "label_column", None),
        )
    if files is None and dataset is None:
        if form.hub is None:
            raise ValueError("script_task: there are neither files nor a data set on the hub; give one of them.")
        dataset, dataset_config, splits = form.hub, form.config, splits or form.splits
    return open_rows(columns, nested, label, files, dataset, dataset_config, splits)


def open_rows(
    columns: Sequence[str],
    nested: Sequence[str],
    label: str | None,
    files: Mapping[str, Sequence[str]] | None,
    dataset: str | None,
    dataset_config: str | None,
    splits: Mapping[str, str] | None,
) -> ShardedSource:
    """`open_source` of columns: texts and numbers; `nested` ones have lists. A test file may lack that of `label`."""
    key = repr((files, dataset, dataset_config, splits, columns, nested, label))
    if key not in _sources:
        if files is not None:
            load_args = supervised_tasks.texts_of_csv(files, (*columns, *nested))
            fill = {label: UNKNOWN} if label else {}
            _sources[key] = corpora.HuggingFaceSource(
                files, columns, splits=splits, load_args=load_args, nested_columns=nested, fill=fill
            )
        else:
            assert dataset is not None
            _sources[key] = corpora.HubSource(dataset, dataset_config, columns, splits=splits, nested_columns=nested)
    return _sources[key]


def _metric(name: str) -> text_metrics.MetricFn:
    known = [
        known
        for known, value in vars(text_metrics).items()
        if callable(value) and not known.startswith("_") and value.__module__ == text_metrics.__name__
        if known not in _NOT_METRICS
    ]
    short = {
        "f1": "f1_score_with_invalid",
        **dict.fromkeys(("mcc", "matthews_correlation"), "matthews_corrcoef"),
        **dict.fromkeys(("pearson", "pearsonr"), "pearson_corrcoef"),
        **dict.fromkeys(("spearman", "spearmanr"), "spearman_corrcoef"),
    }
    name = short.get(name, name)
    if name not in known:
        nearest = difflib.get_close_matches(name, [*known, *short], n=3, cutoff=0.3) or sorted(known)
        raise ValueError(f"There is no metric {name!r} (metric_names); the nearest are {', '.join(nearest)}.")
    return getattr(text_metrics, name)


# For the core, by the table of add-ons: the example of a model card registers a run's task by its gin file.
FUNCTIONS = {"script_task.task": task}
