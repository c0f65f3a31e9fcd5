"""One entry makes a data set a supervised task: its inputs, its answers, and the metrics of answers.

    register_supervised_task(
        "moods",
        SupervisedDataset("{text}", "mood", labels=["glad", "sad"]),
        data_files={"train": "train.csv", "validation": "validation.csv"},
        vocabulary="vocab/spiece.model",
    )

registers `moods`, whose answers are generated, `moods_rank`, where the likeliest label is the answer, and `moods_label`
for a classifier on T5's encoder. The entries of GLUE, SuperGLUE and others are in `tasks.supervised.dataset_table`.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from limba.data.contract import TOKEN_TYPES
from limba.tasks.metrics import ranking_metrics
from limba.tasks.registry import Feature, Mixture, Task, TaskRegistry, mixtures, registering
from limba.tasks.sources import arrow_tables, corpora
from limba.tasks.supervised import dataset_table, postprocessors
from limba.tasks.supervised.compared_answers import ComparedAnswers
from limba.tasks.supervised.dataset import SupervisedDataset
from limba.tasks.supervised.row_formats import UNKNOWN, Format, Number, Similarity, Template
from limba.tasks.supervised.row_preprocessor import Supervise
from limba.tasks.supervised.several_answers import MultiLabel, Numbers
from limba.tasks.vocabularies import (
    LabelVocabulary,
    MultiLabelVocabulary,
    NumberVocabulary,
    PassThroughVocabulary,
    TokenizerVocabulary,
    Vocabulary,
    sentencepiece_models,
)


@registering.once(TaskRegistry)
def register_supervised_task(
    name: str,
    dataset: SupervisedDataset | None = None,
    *,
    vocabulary: Vocabulary | str | os.PathLike[str],
    data_files: Mapping[str, corpora.DataFiles] | Any = None,
    shuffle_buffer_size: int = 4096,
) -> Task:
    """Registers a data set as a SeqIO task with the features `inputs` and `targets`, EOS on both.

    With a TokenizerVocabulary the task is one for encoders: the inputs are `[CLS] text [SEP]`, or
    `[CLS] text [SEP] second text [SEP]` for a template with `[SEP]`, and the target is the label as an id of a
    LabelVocabulary, or a number (STS-B, `row_formats.Number`); several labels or numbers of a row are
    `several_answers.MultiLabel` and `Numbers`. Entries of the table lose their prompts.

    With other vocabularies, where the labels are known, there are two tasks more. `<name>_rank`, without a training
    split, scores each label's text under the model and takes the likeliest. `<name>_label` has the inputs of `<name>`
    and labels, or STS-B's numbers, as targets, for a classifier or regressor on T5's encoder. Formats whose answers are
    no texts (`row_formats.Number`, `several_answers`) have one task, of that kind. Nothing is read; registering a name
    again with the same arguments is harmless.

    Args:
      name: the task's name; without a data set that of an entry of `supervised_datasets.DATASETS`, such as "glue_mrpc".
      dataset: the entry.
      vocabulary, shuffle_buffer_size: see `pretraining.register_pretraining_task`.
      data_files: per split a file, a pattern or a list of them (csv, tsv, json, jsonl, parquet, also compressed), or a
        SeqIO source; None streams the data set from the hub.

    Raises:
      ValueError: if there is no entry of that name, there are no data, or the name is taken by a task
        with other arguments; for an encoder's task without labels.
    """
    opened, is_known = sentencepiece_models.open_vocabulary(vocabulary), dataset is None
    if dataset is None:
        dataset = dataset_table.find_dataset(name)
    form = dataset.format
    feature = Feature(opened, add_eos=True)
    features = {"inputs": feature, "targets": feature}
    if isinstance(opened, TokenizerVocabulary):
        form = of_encoder(name, form, is_known)
        features = {**features, "targets": _label_feature(form), **of_token_types()}
    elif isinstance(form, _OF_ENCODERS):
        features = {**features, "targets": _label_feature(form)}
    add = functools.partial(TaskRegistry.add, shuffle_buffer_size=shuffle_buffer_size)
    source = _source(name, dataset, data_files)

    def add_task(name: str, form: Format, features: Mapping[str, Feature]) -> Task:
        return add(
            name,
            source=source,
            preprocessors=[Supervise(name, form)],
            output_features=features,
            postprocess_fn=ComparedAnswers(form, features["targets"].vocabulary),
            metric_fns=dataset.metrics,
        )

    task = add_task(name, form, features)
    if isinstance(opened, TokenizerVocabulary) or isinstance(form, _OF_ENCODERS):
        return task
    if (of_label := _with_label(form)) is not None:
        add_task(f"{name}_label", of_label, {"inputs": feature, "targets": _label_feature(of_label)})
    if form.num_choices is not None and (source_to_rank := _source_to_rank(name, dataset, data_files)) is not None:
        rank = functools.partial(ranking_metrics.rank_classification, num_classes=form.num_choices or None)
        # Those of class numbers measure the likeliest label as well.
        others = dataset.metrics if isinstance(form, Template) else []
        add(
            f"{name}_rank",
            source=source_to_rank,
            preprocessors=[Supervise(f"{name}_rank", form, ranks=True)],
            output_features=features,
            postprocess_fn=postprocessors.rank_classification,
            metric_fns=[ranking_metrics.of_best_choice(rank, others)],
        )
    return task


def of_token_types() -> dict[str, Feature]:
    """The feature beside the inputs of an encoder: of each token, which text of a pair it is of."""
    return {f"inputs{TOKEN_TYPES}": Feature(PassThroughVocabulary(2), add_eos=False)}


# Formats whose answers are no texts.
_OF_ENCODERS = (Number, Numbers, MultiLabel)
Labelled = Template | Number | Numbers | MultiLabel


def of_encoder(name: str, form: Format, has_prompt: bool) -> Labelled:
    """The format with a label, or a number, as answer; without T5's prompt, where it has one.

    Raises:
      ValueError: if it has neither a fixed set of labels nor numbers.
    """
    found = _with_label(form)
    if found is None:
        raise ValueError(
            f"Task {name!r} has no fixed set of labels, and a model with a TokenizerVocabulary chooses among some: "
            "give SupervisedDataset.labels, row_formats.Number for numbers, several_answers.MultiLabel for several "
            "labels of a row, or a vocabulary of T5."
        )
    return found.without_prompt() if has_prompt else found


def _with_label(form: Format) -> Labelled | None:
    """The format with labels or numbers as answers; None where it has neither."""
    form = form.as_number if isinstance(form, Similarity) else form
    return form if isinstance(form, _OF_ENCODERS) or (isinstance(form, Template) and form.choices) else None


def _label_feature(form: Labelled) -> Feature:
    vocabulary: Vocabulary
    match form:
        case Number():
            vocabulary = NumberVocabulary()
        case Numbers():
            vocabulary = NumberVocabulary(form.names)
        case MultiLabel():
            vocabulary = MultiLabelVocabulary(form.names)
        case _:
            vocabulary = LabelVocabulary(form.choices)
    return Feature(vocabulary, add_eos=False)


def _source(name: str, dataset: SupervisedDataset, data_files: Mapping[str, corpora.DataFiles] | Any) -> Any:
    columns, nested = dataset.format.columns, dataset.format.nested_columns
    if corpora.is_source(data_files):
        return data_files
    if data_files is not None:
        load_args = texts_of_csv(data_files, columns)
        # Rows to predict have no labels.
        labels = getattr(dataset.format, "answer_columns", [getattr(dataset.format, "label_column", None)])
        fill = {label: UNKNOWN for label in labels if label}
        return corpora.HuggingFaceSource(data_files, columns, load_args=load_args, nested_columns=nested, fill=fill)
    if dataset.hub is None:
        raise ValueError(f"Task {name!r} has no data: give data_files, or the hub's name in its entry.")
    return corpora.HubSource(dataset.hub, dataset.config, columns, splits=dataset.splits, nested_columns=nested)


def _source_to_rank(name: str, dataset: SupervisedDataset, data_files: Mapping[str, corpora.DataFiles] | Any) -> Any:
    """The source without its training split, where the model would learn all labels as right ones."""
    if corpora.is_source(data_files):
        return data_files
    if data_files is not None:
        data_files = {split: files for split, files in data_files.items() if split != "train"}
        return _source(name, dataset, data_files) if data_files else None
    splits = dataset.splits or {split: split for split in ("validation", "test")}
    splits = {split: part for split, part in splits.items() if split != "train"}
    return _source(name, dataclasses.replace(dataset, splits=splits), None) if splits else None


def open_texts(data_files: Mapping[str, corpora.DataFiles] | Any, columns: Sequence[str]) -> Any:
    """The source of columns of texts in files by split; a source is itself. Nothing is read yet."""
    if corpora.is_source(data_files):
        return data_files
    return corpora.HuggingFaceSource(data_files, columns, load_args=texts_of_csv(data_files, columns))


def texts_of_csv(data_files: Mapping[str, corpora.DataFiles], columns: Sequence[str]) -> dict[str, Any]:
    """Options that keep columns of csv as texts: else pandas takes "None" and "NA" for nothing and "007" for 7."""
    names = [files[0].partition("?")[0] for files in corpora.files_by_split(data_files).values()]
    has_csv = any(arrow_tables.builder_of(pathlib.PurePath(name)) == "csv" for name in names)
    return dict(zip(arrow_tables.OF_CSV, (dict.fromkeys(columns, str), False), strict=True)) if has_csv else {}


def register_benchmark(
    prefix: str,
    *,
    vocabulary: Vocabulary | str | os.PathLike[str],
    temperature: float = 1.0,
    maximum: float | None = None,
) -> Mixture:
    """Registers the tasks of the table whose names begin with a prefix, and their mixture `<prefix>_proportional`.

    Args:
      prefix: "glue" or "super_glue".
      vocabulary: see `register_supervised_task`.
      temperature, maximum: see `mixtures.mixing_rate`; sizes are the rows of the training splits, as T5 has them. Tasks
        without such a split are there to be evaluated.

    Raises:
      ValueError: if no entry begins so.
    """
    names = [name for name in dataset_table.DATASETS if name.startswith(f"{prefix}_")]
    if not names:
        raise ValueError(f"No data set of the table begins with {prefix!r}; 'glue' and 'super_glue' do.")
    for name in names:
        register_supervised_task(name, vocabulary=vocabulary)
    sizes = {name: float(dataset_table.DATASETS[name].num_examples or 1) for name in names}
    return mixtures.register_mixture(f"{prefix}_proportional", sizes, temperature=temperature, maximum=maximum)
