"""Examples of a task for inference, in the order of the files, and files of predictions.

Tasks that need SeqIO are read by the add-on that is for it, which TensorFlow comes with.
"""

import itertools
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from limba.addons import table
from limba.data import contract
from limba.files import json_text
from limba.tasks.metrics import metric_packages
from limba.tasks.pipeline import converters, feature_lengths, streams
from limba.tasks.registry import Task, rows
from limba.tasks.registry.providers import find_provider
from limba.tasks.registry.rows import Tokens
from limba.tasks.registry.steps import bind
from limba.tasks.registry.tasks import get_subtasks
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.supervised import row_preprocessor
from limba.tasks.vocabularies import Vocabulary, without_tensorflow

# Predictions or scores, one an example, and auxiliary values: lists or arrays with an entry an example.
Inferences = tuple[Sequence[Any], Mapping[str, Any]]
Example = dict[str, Any]

# What tasks of rows make of a row, and how many examples are looked at before a run.
_TEXTS = {"inputs_pretokenized", "targets_pretokenized"}
_FIRST = 100

MODES = ("predict", "predict_with_aux", "score")


def subtasks(config: contract.DatasetConfig) -> list[Any]:
    """The task, or each task of the mixture.

    Raises:
      ValueError: if there is none of that name.
    """
    return get_subtasks(find_provider(config.mixture_or_task_name, config.module))


def check_metrics(config: contract.DatasetConfig) -> None:
    """Raises ValueError if a metric of a task that has the split needs a package that is not installed."""
    for task in subtasks(config):
        if config.split in task.splits:
            metric_packages.check(task.name, task.metric_fns)


def needs_seqio(task: Any, feature_converter: Any) -> bool:
    """Whether a task or the model's feature converter is SeqIO's."""
    ours = isinstance(task, Task) and isinstance(task.source, ShardedSource)
    return not ours or not converters.is_known(feature_converter)


def _of_seqio(task: Any) -> Any:
    return table.part("seqio", f"Task {task.name!r}, which has parts of SeqIO's,")


def may_be_endless(task: Any, config: contract.DatasetConfig) -> bool:
    """Whether the split of a task is not known to end."""
    if isinstance(task.source, ShardedSource):
        return False
    return _of_seqio(task).may_be_endless(task, config)


def has_blanks(config: contract.DatasetConfig) -> bool:
    """Whether the texts of a task may have T5's sentinels, the blanks that a model fills.

    Tasks of rows show their texts, of which the first are looked at, if that takes no network; others, such as span
    corruption, may have them.
    """
    for task in subtasks(config):
        is_ours = isinstance(task, Task) and isinstance(task.source, ShardedSource)
        if not is_ours or not task.preprocessors or task.source.needs_network:
            return True
        last = bind(task.preprocessors[-1], task.output_features, config.task_feature_lengths)
        if not {*last.columns()} >= _TEXTS:
            return True
        if config.split in task.splits:
            first = itertools.islice(_examples(task, config, 0, 1), _FIRST)
            if any(b"<extra_id_" in example[name] for example in first for name in _TEXTS):
                return True
    return False


class Examples:
    """Some examples of a task, with the names of a `tf.data.Dataset` that writing functions use."""

    def __init__(self, examples: Sequence[Example]):
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self._examples)

    def as_numpy_iterator(self) -> Iterator[Example]:
        return iter(self._examples)


def examples(task: Task, config: contract.DatasetConfig, shard_id: int = 0, num_shards: int = 1) -> Iterator[Example]:
    """The examples of a shard, one by one, in the order of the files; texts are bytes.

    Of the configuration split, lengths (None cuts nothing) and seed matter.

    Raises:
      ValueError, FileNotFoundError: if something is wrong with the task or its rows.
    """
    row_preprocessor.check_generated(task, config.split, config.task_feature_lengths)
    return _examples(task, config, shard_id, num_shards)


def _examples(task: Task, config: contract.DatasetConfig, shard_id: int, num_shards: int) -> Iterator[Example]:
    lengths = config.task_feature_lengths
    seed = secrets.randbits(30) if config.seed is None else config.seed
    run = streams.preprocessor([bind(step, task.output_features, lengths) for step in task.preprocessors])
    documents = task.source.chunks_of(config.split, False, seed, shard_id, num_shards).documents(num_epochs=1)
    for made in run(documents, seed):
        columns = {name: column.cut((lengths or {})[name]) if name in (lengths or {}) else column  # type: ignore[union-attr]
                   for name, column in made.columns.items()}  # fmt: skip
        for i in range(rows.num_rows(columns)):
            yield {name: _value(column, i) for name, column in columns.items()}


def target(task: Any, example: Example, is_target: bool = True) -> Any:
    """What metrics compare predictions with; or, with `is_target=False`, the prediction that is the right text."""
    text = example.get("targets_pretokenized")
    if text is None:
        text = task.output_features["targets"].vocabulary.decode(list(example["targets"]))
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    return task.postprocess_fn(text, example=example, is_target=is_target)


def _value(column: rows.Column, i: int) -> Any:
    return column.padded[i, : column.lengths[i]] if isinstance(column, Tokens) else column[i]


def pads_inputs_alone(feature_converter: Any) -> bool:
    """Whether the model's inputs may have another length than its targets, with the same results."""
    return converters.name_of(feature_converter) == "EncDecFeatureConverter"


def model_features(
    found: Sequence[Example], lengths: Mapping[str, int] | None, feature_converter: Any
) -> dict[str, np.ndarray]:
    """The model's features of examples, `[examples, length]`; without lengths as long as the longest."""
    names = ("inputs", "targets", "target_positions", f"inputs{contract.TOKEN_TYPES}")
    known = feature_lengths.of_all(lengths or {})
    tokens = {name: Tokens.of([x[name] for x in found]) for name in names if name in found[0]}
    padded: dict[str, np.ndarray] = {
        name: column.cut(length).pad(length)
        for name, column in tokens.items()
        for length in [known.get(name) or column.padded.shape[1]]
    }
    return converters.CONVERTERS[converters.name_of(feature_converter)](padded, False)


def chunks(
    task: Any,
    config: contract.DatasetConfig,
    feature_converter: Any,
    shard_id: int,
    num_shards: int,
    size: int,
    skip: int,
) -> Iterator[tuple[Any, contract.Batch]]:
    """A shard of a task in chunks of `size` examples, in the order of the files.

    The shard is number `shard_id` of `num_shards`; its first `skip` chunks are left out, and its last may have fewer
    examples. Of the configuration split, lengths and seed matter.

    Yields:
      The task's examples (`Examples`, or a `tf.data.Dataset` of SeqIO's tasks) with sequences padded to the longest of
      the chunk, and the model's features `[examples, length]`.
    """
    if needs_seqio(task, feature_converter):
        yield from _of_seqio(task).chunks(task, config, feature_converter, shard_id, num_shards, size, skip)
        return
    found = examples(task, config, shard_id, num_shards)
    for number, part in enumerate(iter(lambda: list(itertools.islice(found, size)), [])):
        if number >= skip:
            yield Examples(_padded(part)), model_features(part, config.task_feature_lengths, feature_converter)


def _padded(found: Sequence[Example]) -> list[Example]:
    names = [name for name, value in found[0].items() if isinstance(value, np.ndarray) and value.ndim == 1]
    columns = {name: Tokens.of([x[name] for x in found]).padded for name in names if found[0][name].dtype == np.int32}
    return [{**x, **{name: padded[i] for name, padded in columns.items()}} for i, x in enumerate(found)]


def write_inferences_to_file(
    path: str,
    inferences: Inferences,
    task_ds: Any,
    mode: str,
    vocabulary: Any = None,
    json_encoder_cls: type[json.JSONEncoder] | None = None,
    include_all_inputs: bool = False,
    input_fields_to_include: Sequence[str] | None = None,
    output_ids: bool = False,
) -> None:
    """Writes JSON lines `{"inputs": {…}, "prediction": …}`, or `"score"`; `"aux"` where there are such values.

    Args:
      inferences: predictions are token ids `[length]` or `[num_decodes, length]` an example.
      task_ds: the examples, as `chunks` yields them; their features `*_pretokenized` are written.
      mode: "predict", "predict_with_aux" or "score".
      json_encoder_cls: of values that JSON does not have.
      include_all_inputs, input_fields_to_include: write all features of the examples; or these, and their pretokenized
        forms.
      output_ids: also write the ids of predictions up to the first 0, as `prediction_tokens`.

    Raises:
      ValueError: for another mode, without a vocabulary to decode with, or if both choices of features are made.
    """
    if include_all_inputs and input_fields_to_include is not None:
        raise ValueError("Set either include_all_inputs or input_fields_to_include of write_inferences_to_file.")
    if mode not in MODES:
        raise ValueError(f"write_inferences_to_file knows the modes {MODES}, not {mode!r}.")
    results, aux = inferences
    texts: Any = None
    if mode != "score":
        if vocabulary is None:
            raise ValueError(f"write_inferences_to_file needs a vocabulary in mode {mode!r}.")
        texts = _decode(vocabulary, results)

    def is_included(feature: str) -> bool:
        if input_fields_to_include is None:
            return include_all_inputs or feature.endswith("_pretokenized")
        return feature.removesuffix("_pretokenized") in input_fields_to_include or feature in input_fields_to_include

    with epath.Path(path).open("w", encoding="utf-8") as file:
        for i, example in enumerate(task_ds.as_numpy_iterator()):
            inputs = {name: _plain(x) for name, x in example.items() if is_included(name)}
            texts_first = sorted(inputs.items(), key=lambda pair: not isinstance(pair[1], str))
            line: dict[str, Any] = {"inputs": dict(texts_first)}
            if texts is None:
                line["score"] = _plain(results[i])
            else:
                line["prediction"] = _plain(texts[i])
                if output_ids:
                    ids = np.asarray(results[i]).tolist()
                    line["prediction_tokens"] = ids[: ids.index(0)] if 0 in ids else ids
            if aux:
                line["aux"] = _of_example(aux, i)
            file.write(json_text.dumps(line, cls=json_encoder_cls, ensure_ascii=False) + "\n")


def _decode(vocabulary: Any, ids: Any) -> Any:
    """The texts of predictions `[examples, …, length]`, as nested lists."""
    own = without_tensorflow(vocabulary)
    if not isinstance(own, Vocabulary):  # SeqIO's, of a user's class: as T5X does it
        import tensorflow as tf

        return [_plain(text) for text in vocabulary.decode_tf(tf.constant(ids)).numpy()]
    nested = len(ids) and np.ndim(ids[0]) > 1
    return [_decode(own, x) for x in ids] if nested else [own.decode(x) for x in ids]


def _of_example(aux: Any, i: int) -> Any:
    """The auxiliary values of one example; they may be nested in dicts and tuples."""
    if isinstance(aux, Mapping):
        return {name: _of_example(value, i) for name, value in aux.items()}
    if isinstance(aux, tuple):
        return [_of_example(value, i) for value in aux]
    return _plain(aux[i])


def _plain(value: Any) -> Any:
    """A value that JSON can hold; numbers become floats, as in T5X's files."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.number):
        return float(value)
    return value
