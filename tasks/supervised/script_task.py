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

from tasks.metrics import text_metrics
from tasks.sources import corpora
from tasks.sources.sharded import ShardedSource
from tasks.supervised import dataset_table, supervised_tasks
from tasks.supervised.dataset import SupervisedDataset
from tasks.supervised.question_formats import Questions
from tasks.supervised.row_formats import Translation
from tasks.vocabularies import Vocabulary

# One source for each data set: it is opened once, and a task registered again is the same task.
_sources: dict[str, ShardedSource] = {}
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
    form = row_dataset(entry, inputs, label_column, labels, languages, metric_names, questions)
    registered = supervised_tasks.register_supervised_task(
        name,
        form,
        vocabulary=vocabulary,
        data_files=open_source(form, files, dataset, dataset_config, splits),
        shuffle_buffer_size=shuffle_buffer_size,
    )
    return registered.name


def row_dataset(
    entry: str | None,
    inputs: str | None,
    label_column: str,
    labels: Mapping[str, str] | Sequence[str] | None,
    languages: Sequence[str] | None,
    metric_names: Sequence[str] | None,
    questions: Sequence[str] | None = None,
) -> SupervisedDataset:
    """How rows become examples.

    Args:
      entry: of the table of data sets, such as "glue_sst2"; None takes the others.
      inputs, label_column, labels: see `SupervisedDataset`.
      languages: from which to which a column `translation` is translated, with `inputs` before each text.
      metric_names: of functions of `text_metrics`; None leaves the entry's, BLEU of translations, SQuAD's of questions,
        or accuracy.
      questions: the columns of questions, contexts and answers, with `inputs` before each text.

    Raises:
      ValueError: if there is no such entry or metric.
    """
    if entry is not None:
        form = dataset_table.find_dataset(entry)
    elif languages is not None:
        source, target = languages
        form = SupervisedDataset(Translation(source, target, inputs or ""), metric_fns=(text_metrics.bleu,))
    elif questions is not None:
        question, context, answers = questions
        form = SupervisedDataset(Questions(question, context, answers, inputs or ""), metric_fns=(text_metrics.squad,))
    else:
        form = SupervisedDataset(inputs or "", label_column, labels)
    if metric_names is None:
        return form
    return dataclasses.replace(form, metric_fns=tuple(map(_metric, metric_names)))


def open_source(
    form: SupervisedDataset,
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
    columns, nested = form.format.columns, form.format.nested_columns
    if files is None and dataset is None:
        if form.hub is None:
            raise ValueError("script_task: there are neither files nor a data set on the hub; give one of them.")
        dataset, dataset_config, splits = form.hub, form.config, splits or form.splits
    key = repr((files, dataset, dataset_config, splits, columns, nested))
    if key not in _sources:
        if files is not None:
            load_args = supervised_tasks.texts_of_csv(files, (*columns, *nested))
            _sources[key] = corpora.HuggingFaceSource(
                files, columns, splits=splits, load_args=load_args, nested_columns=nested
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
    short = {"mcc": "matthews_corrcoef", "f1": "f1_score_with_invalid", "pearson": "pearson_corrcoef"}
    name = {**short, "spearman": "spearman_corrcoef"}.get(name, name)
    if name not in known:
        nearest = difflib.get_close_matches(name, [*known, *short], n=3, cutoff=0.3) or sorted(known)
        raise ValueError(f"There is no metric {name!r} (metric_names); the nearest are {', '.join(nearest)}.")
    return getattr(text_metrics, name)
