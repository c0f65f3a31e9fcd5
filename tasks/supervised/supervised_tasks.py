"""One entry makes a data set a supervised task: what is read, what is answered, and how answers are measured.

    register_supervised_task(
        "moods",
        SupervisedDataset("{text}", "mood", labels=["glad", "sad"]),
        data_files={"train": "train.csv", "validation": "validation.csv"},
        vocabulary="vocab/spiece.model",
    )

registers `moods`, whose answers are generated, and `moods_rank`, where the likeliest label is the answer. The entries
of GLUE, SuperGLUE and others are in `tasks.supervised_datasets`.
"""

import dataclasses
import difflib
import functools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import seqio

from tasks import metrics, mixtures, postprocessors, shards, sources
from tasks.supervised_examples import Supervise
from tasks.supervised_formats import Format, Template

_registered: dict[str, tuple] = {}


@dataclasses.dataclass(frozen=True)
class SupervisedDataset:
    """An entry of the table.

    Attributes:
      inputs: a template of what the model reads, the prefix and the columns in braces: `"mood of: {text}"`; or one of
        `supervised_formats`, and then neither `label_column` nor `labels`.
      label_column: the column with the answer.
      labels: the text of each value of that column, or the values, where they are texts; None where answers are free.
      unlabelled: the value of that column where the label is not told.
      metric_fns: of generated answers; None is `metrics.accuracy` and, with labels, what the most frequent label
        reaches. With labels they get the numbers of labels, in the order of `labels`, and -1 for another answer.
      hub, config: the data set on the Hugging Face hub.
      splits: the hub's splits by the names that tasks see; None leaves them as they are.
      num_examples: rows of the training split, for the rates of mixtures.
    """

    inputs: str | Format
    label_column: str = ""
    labels: Mapping[Any, str] | Sequence[str] | None = None
    unlabelled: Any = None
    metric_fns: Sequence[metrics.MetricFn] | None = None
    hub: str | None = None
    config: str | None = None
    splits: Mapping[str, str] | None = None
    num_examples: int | None = None

    def __post_init__(self):
        if isinstance(self.inputs, str) and not self.label_column:
            raise ValueError(f"The data set with the inputs {self.inputs!r} needs label_column, where the answers are.")
        if not isinstance(self.inputs, str) and not callable(self.inputs):
            raise ValueError(f"SupervisedDataset.inputs is {self.inputs!r}; give a template, such as '{{text}}'.")
        if not isinstance(self.label_column, str):
            raise ValueError(f"SupervisedDataset.label_column is {self.label_column!r}; give the name of a column.")
        if self.metric_fns is not None and (
            not isinstance(self.metric_fns, list | tuple) or not all(map(callable, self.metric_fns))
        ):
            raise ValueError(
                f"SupervisedDataset.metric_fns is {self.metric_fns!r}; give a list of functions, such as "
                "[metrics.accuracy]."
            )
        if not isinstance(self.inputs, str) and (self.label_column or self.labels is not None):
            raise ValueError(f"The format {self.inputs} has its columns and labels; leave label_column and labels out.")
        _ = self.format  # checks the template

    @property
    def format(self) -> Format:
        if not isinstance(self.inputs, str):
            return self.inputs
        return Template(self.inputs, self.label_column, self.labels, self.unlabelled)

    @property
    def metrics(self) -> list[metrics.MetricFn]:
        if self.metric_fns is not None:
            return list(self.metric_fns)
        return [metrics.accuracy, *([metrics.majority_accuracy] if self.format.num_choices else [])]


def register_supervised_task(
    name: str,
    dataset: SupervisedDataset | None = None,
    *,
    vocabulary: seqio.Vocabulary | str | os.PathLike[str],
    data_files: Mapping[str, sources.DataFiles] | seqio.DataSource | None = None,
    shuffle_buffer_size: int = 4096,
) -> seqio.Task:
    """Registers a data set as a SeqIO task with the features `inputs` and `targets`, EOS on both.

    Where the labels are known there is a second task, `<name>_rank`, without a training split: it scores each label's
    text under the model and takes the likeliest. Nothing is read; registering a name again with the same arguments is
    harmless.

    Args:
      name: the task's name; without a data set that of an entry of `supervised_datasets.DATASETS`, such as "glue_mrpc".
      dataset: the entry.
      vocabulary: a SeqIO vocabulary, or the path of a SentencePiece model, which gets 100 sentinels.
      data_files: per split a file, a pattern or a list of them (csv, tsv, json, jsonl, parquet, also compressed), or a
        SeqIO source; None streams the data set from the hub.
      shuffle_buffer_size: examples in the shuffle buffers of all readers together.

    Raises:
      ValueError: if there is no entry of that name, nothing says where the data are, or the name is taken by a task
        with other arguments.
    """
    if dataset is None:
        dataset = find_dataset(name)
    arguments = (dataset, vocabulary, data_files, shuffle_buffer_size)
    if name in seqio.TaskRegistry.names():
        if _registered.get(name) == arguments:
            return seqio.TaskRegistry.get(name)
        raise ValueError(f"A task {name!r} is registered already, with other arguments; choose another name.")
    if not isinstance(vocabulary, seqio.Vocabulary | str | os.PathLike):
        raise ValueError(f"Task {name!r} has the vocabulary {vocabulary!r}; give the path of a spiece.model.")
    if not isinstance(vocabulary, seqio.Vocabulary):
        vocabulary = seqio.SentencePieceVocabulary(os.fspath(vocabulary), extra_ids=100)
    form = dataset.format
    task = _add(
        name,
        _source(name, dataset, data_files),
        Supervise(name, form),
        vocabulary,
        functools.partial(_postprocess, form=form),
        dataset.metrics,
        shuffle_buffer_size,
    )
    if form.num_choices is not None and (source := _source_to_rank(name, dataset, data_files)) is not None:
        rank = functools.partial(metrics.rank_classification, num_classes=form.num_choices or None)
        # Those of class numbers measure the likeliest label as well.
        others = dataset.metrics if isinstance(form, Template) else []
        _add(
            f"{name}_rank",
            source,
            Supervise(f"{name}_rank", form, ranks=True),
            vocabulary,
            postprocessors.rank_classification,
            [metrics.of_best_choice(rank, others)],
            shuffle_buffer_size,
        )
    _registered[name] = arguments
    return task


def _add(
    name: str,
    source: seqio.DataSource,
    preprocessor: Supervise,
    vocabulary: seqio.Vocabulary,
    postprocess_fn: Any,
    metric_fns: list[metrics.MetricFn],
    shuffle_buffer_size: int,
) -> seqio.Task:
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[preprocessor],
        output_features=dict.fromkeys(("inputs", "targets"), seqio.Feature(vocabulary=vocabulary, add_eos=True)),
        postprocess_fn=postprocess_fn,
        metric_fns=metric_fns,
        shuffle_buffer_size=shuffle_buffer_size,
    )


def _postprocess(answer: str, form: Format, example: Mapping[str, Any] | None = None, is_target: bool = False) -> Any:
    if is_target and example is not None and (reference := json.loads(example["reference"])) is not None:
        return reference
    return form.prediction(answer)


def _source(
    name: str, dataset: SupervisedDataset, data_files: Mapping[str, sources.DataFiles] | seqio.DataSource | None
) -> seqio.DataSource:
    form = dataset.format
    if isinstance(data_files, seqio.DataSource):
        return data_files
    if data_files is not None:
        load_args = _texts_of_csv(data_files, form.columns)
        return sources.HuggingFaceSource(
            data_files, form.columns, load_args=load_args, nested_columns=form.nested_columns
        )
    if dataset.hub is None:
        raise ValueError(f"Nothing says where the data of task {name!r} are: give data_files, or hub of its entry.")
    return sources.HubSource(
        dataset.hub, dataset.config, form.columns, splits=dataset.splits, nested_columns=form.nested_columns
    )


def _source_to_rank(
    name: str, dataset: SupervisedDataset, data_files: Mapping[str, sources.DataFiles] | seqio.DataSource | None
) -> seqio.DataSource | None:
    """The source without its training split, where all labels would be learned as if they were right."""
    if isinstance(data_files, seqio.DataSource):
        return data_files
    if data_files is not None:
        data_files = {split: files for split, files in data_files.items() if split != "train"}
        return _source(name, dataset, data_files) if data_files else None
    splits = dataset.splits or {split: split for split in ("validation", "test")}
    splits = {split: part for split, part in splits.items() if split != "train"}
    return _source(name, dataclasses.replace(dataset, splits=splits), None) if splits else None


def _texts_of_csv(data_files: Mapping[str, sources.DataFiles], columns: Sequence[str]) -> dict[str, Any]:
    """What makes columns of csv texts: else pandas takes "None" and "NA" for nothing and "007" for 7."""
    first = next(iter(sources.files_by_split(data_files).values()))[0]
    is_csv = shards.builder_of(pathlib.PurePath(first.partition("?")[0])) == "csv"
    return {"converters": dict.fromkeys(columns, str), "keep_default_na": False} if is_csv else {}


# ------------------------------------------------------------ the table ----------------------------------------------


def find_dataset(name: str) -> SupervisedDataset:
    """The entry of that name.

    Raises:
      ValueError: if there is none; says which are near.
    """
    from tasks.supervised_datasets import DATASETS  # which has entries, and so needs this module

    if name not in DATASETS:
        nearest = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.3) or sorted(DATASETS)
        raise ValueError(
            f"The table of data sets has no {name!r}. The nearest are {', '.join(map(repr, nearest))}; for data of "
            "your own give a SupervisedDataset."
        )
    return DATASETS[name]


def register_benchmark(
    prefix: str,
    *,
    vocabulary: seqio.Vocabulary | str | os.PathLike[str],
    temperature: float = 1.0,
    maximum: float | None = None,
) -> seqio.Mixture:
    """Registers the tasks of the table whose names begin with a prefix, and their mixture `<prefix>_proportional`.

    Args:
      prefix: "glue" or "super_glue".
      vocabulary: see `register_supervised_task`.
      temperature, maximum: see `mixtures.mixing_rate`; sizes are the rows of the training splits, as T5 has them. Tasks
        without such a split are there to be evaluated.

    Raises:
      ValueError: if no entry begins so.
    """
    from tasks.supervised_datasets import DATASETS

    names = [name for name in DATASETS if name.startswith(f"{prefix}_")]
    if not names:
        raise ValueError(f"No data set of the table begins with {prefix!r}; 'glue' and 'super_glue' do.")
    for name in names:
        register_supervised_task(name, vocabulary=vocabulary)
    sizes = {name: float(DATASETS[name].num_examples or 1) for name in names}
    return mixtures.register_mixture(f"{prefix}_proportional", sizes, temperature=temperature, maximum=maximum)
