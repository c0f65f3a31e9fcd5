"""What inference needs of SeqIO: the examples of a task in chunks, files of predictions, the evaluator of metrics."""

import importlib.util
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
from etils import epath

from limba import data
from tasks import providers, supervised_examples

# Predictions or scores, one an example, and auxiliary values: lists or arrays with an entry an example.
Inferences = tuple[Sequence[Any], Mapping[str, Any]]

MODES = ("predict", "predict_with_aux", "score")


def subtasks(config: data.DatasetConfig) -> list[seqio.Task]:
    """The task, or each task of the mixture.

    Raises:
      ValueError: if there is none of that name.
    """
    return list(seqio.get_subtasks(_provider(config)))


def _provider(config: data.DatasetConfig) -> seqio.Task | seqio.Mixture:
    provider = config.mixture_or_task_name
    return providers.find_provider(provider, config.module) if isinstance(provider, str) else provider


def chunks(
    task: seqio.Task,
    config: data.DatasetConfig,
    feature_converter: providers.FeatureConverter,
    shard_id: int,
    num_shards: int,
    size: int,
    skip: int,
) -> Iterator[tuple[tf.data.Dataset, data.Batch]]:
    """A shard of a task in chunks of `size` examples, in the order of the files.

    Args:
      task: the task.
      config: split, lengths, seed; the rest does not matter.
      feature_converter: a SeqIO feature converter, or its name.
      shard_id, num_shards: which part of the examples, of how many.
      size: examples in a chunk; the last may have fewer.
      skip: chunks to leave out at the beginning.

    Yields:
      The task's examples, and the model's features `[examples, length]`.
    """
    supervised_examples.check_task(task, config.split, config.task_feature_lengths)
    examples = task.get_dataset(
        sequence_length=config.task_feature_lengths,
        split=config.split,
        shuffle=False,
        num_epochs=1,
        shard_info=seqio.ShardInfo(index=shard_id, num_shards=num_shards),
        use_cached=config.use_cached,
        seed=config.seed,
    )
    converter = providers.converter_class(feature_converter)(pack=False)
    both = tf.data.Dataset.zip((examples, converter(examples, config.task_feature_lengths)))
    for of_task, of_model in both.padded_batch(size).skip(skip).prefetch(1).as_numpy_iterator():
        yield tf.data.Dataset.from_tensor_slices(of_task), of_model


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
      path: of the file.
      inferences: predictions are token ids `[length]` or `[num_decodes, length]` an example.
      task_ds: a `tf.data.Dataset` of the examples; their features `*_pretokenized` are written.
      mode: "predict", "predict_with_aux" or "score".
      vocabulary: of the predictions.
      json_encoder_cls: None is `seqio.TensorAndNumpyEncoder`.
      include_all_inputs: write all features of the examples.
      input_fields_to_include: write these features, and their pretokenized forms.
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
        texts = vocabulary.decode_tf(tf.constant(results)).numpy()

    def is_included(feature: str) -> bool:
        if input_fields_to_include is None:
            return include_all_inputs or feature.endswith("_pretokenized")
        return feature.removesuffix("_pretokenized") in input_fields_to_include or feature in input_fields_to_include

    with epath.Path(path).open("w") as file:
        for i, example in enumerate(task_ds.as_numpy_iterator()):
            line: dict[str, Any] = {"inputs": {name: _plain(x) for name, x in example.items() if is_included(name)}}
            if texts is None:
                line["score"] = _plain(results[i])
            else:
                line["prediction"] = _plain(texts[i])
                if output_ids:
                    ids = np.asarray(results[i]).tolist()
                    line["prediction_tokens"] = ids[: ids.index(0)] if 0 in ids else ids
            if aux:
                line["aux"] = _of_example(aux, i)
            file.write(json.dumps(line, cls=json_encoder_cls or seqio.TensorAndNumpyEncoder) + "\n")


def _of_example(aux: Any, i: int) -> Any:
    """The auxiliary values of one example; they may be nested in dicts and tuples."""
    if isinstance(aux, Mapping):
        return {name: _of_example(value, i) for name, value in aux.items()}
    if isinstance(aux, tuple):
        return [_of_example(value, i) for value in aux]
    return _plain(aux[i])


def _plain(value: Any) -> Any:
    """What JSON can hold; numbers become floats, as in T5X's files."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.number):
        return float(value)
    return value


def make_evaluator(
    config: data.DatasetConfig,
    evaluator_cls: Callable[..., Any] | None,
    feature_converter: providers.FeatureConverter,
    log_dir: pathlib.Path | None,
    tensorboard_logger: Callable[[str], Any],
) -> seqio.Evaluator:
    """The evaluator of a task's metrics.

    Args:
      config: task or mixture, split, lengths (None: as long as the examples need).
      evaluator_cls: `seqio.Evaluator`, usually with arguments bound by gin; None is one without loggers.
      feature_converter: a SeqIO feature converter, or its name.
      log_dir: where its loggers write; None leaves them out.
      tensorboard_logger: called with `log_dir` in the place of `seqio.TensorBoardLogger` where that cannot work:
        TensorFlow's summaries need the package tensorboard.
    """
    arguments: dict[str, Any] = {}
    if log_dir is None or evaluator_cls is None:
        arguments["logger_cls"] = ()
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)  # Evaluator does not make it.
        arguments["log_dir"] = str(log_dir)
    for task in providers.tasks_with_split(_provider(config), config.split):
        supervised_examples.check_task(task, config.split, config.task_feature_lengths)
    evaluator = (evaluator_cls or seqio.Evaluator)(
        mixture_or_task_name=_provider(config).name,
        feature_converter=providers.converter_class(feature_converter)(pack=False),
        eval_split=config.split,
        use_cached=config.use_cached,
        seed=config.seed,
        sequence_length=config.task_feature_lengths,
        use_memory_cache=config.use_memory_cache,
        **arguments,
    )
    if evaluator.eval_tasks and importlib.util.find_spec("tensorboard") is None:
        evaluator._loggers = tuple(
            tensorboard_logger(one.output_dir) if isinstance(one, seqio.TensorBoardLogger) else one
            for one in evaluator.loggers
        )
    return evaluator
