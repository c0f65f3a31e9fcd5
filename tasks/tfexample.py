"""A task made of files of tf.Examples, for `limba infer` on data that nobody has registered."""

import hashlib
from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

_READERS = {"tfrecord": tf.data.TFRecordDataset}


def create_task_from_tfexample_file(
    paths: Sequence[str],
    file_type: str,
    inputs_key: str,
    targets_key: str | None,
    features: Mapping[str, seqio.Feature],
    task_id: str | None = None,
) -> str:
    """Registers a task over files of tf.Examples, with the one split `infer`.

    Args:
      paths: files, or patterns of them.
      file_type: "tfrecord".
      inputs_key: the field of the text.
      targets_key: the field of the answer; None leaves the targets empty.
      features: `inputs` and `targets`.
      task_id: the name of the task; one that is made of paths and fields by default.

    Returns:
      The name.

    Raises:
      ValueError: for another file type, or features that are not these two.
    """
    if file_type not in _READERS:
        raise ValueError(
            f"create_task_from_tfexample_file.file_type is {file_type!r}; it is one of {sorted(_READERS)}."
        )
    if set(features) != {"inputs", "targets"}:
        raise ValueError(
            f"create_task_from_tfexample_file.features are {sorted(features)}; they are inputs and targets."
        )
    if task_id is None:
        what = "|".join([*paths, inputs_key, targets_key or ""])
        task_id = f"tfexamples_{hashlib.sha256(what.encode()).hexdigest()[:12]}"
    if task_id in seqio.TaskRegistry.names():
        return task_id

    fields = {key: tf.io.FixedLenFeature([], tf.string, default_value="") for key in (inputs_key, targets_key) if key}

    def rename(example):
        return {"inputs": example[inputs_key], "targets": example[targets_key] if targets_key else tf.constant("")}

    seqio.TaskRegistry.add(
        task_id,
        source=seqio.TFExampleDataSource({"infer": list(paths)}, fields, reader_cls=_READERS[file_type]),
        preprocessors=[
            lambda dataset: dataset.map(rename, num_parallel_calls=tf.data.AUTOTUNE),
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=dict(features),
        metric_fns=[],
    )
    return task_id
