"""A task made of files of `tf.train.Example`s, for `limba infer`: T5X's infer_from_tfexample_file.gin."""

import functools
import hashlib
from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf


def create_task_from_tfexample_file(
    paths: Sequence[str],
    file_type: str,
    inputs_key: str,
    targets_key: str | None,
    features: Mapping[str, seqio.Feature],
    task_id: str | None = None,
) -> str:
    """Registers a task with the split "infer" over files of examples, and returns its name.

    Args:
      paths: files or patterns; or one, as a string.
      file_type: "tfrecord".
      inputs_key, targets_key: the features with the texts; the latter, for scores, may be None.
      features: "inputs" and "targets": vocabularies, and whether EOS is added.
      task_id: the name is `infer_<task_id>`; None makes one of the arguments.

    Raises:
      ValueError: if there are no such files, or for another type of file.
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    if not tf.io.gfile.glob(paths):
        raise ValueError(
            f"create_task_from_tfexample_file.paths (TF_EXAMPLE_FILE_PATHS) {paths}: there is no such file."
        )
    if file_type != "tfrecord":
        raise ValueError(f"create_task_from_tfexample_file.file_type is {file_type!r}; TensorFlow reads 'tfrecord'.")
    keys = [inputs_key] if targets_key is None else [inputs_key, targets_key]
    arguments = ":".join([*paths, inputs_key, targets_key or ""])
    name = f"infer_{task_id or hashlib.md5(arguments.encode()).hexdigest()[:10]}"
    if name in seqio.TaskRegistry.names():  # Gin may call this for each place that names the task.
        seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(
        name,
        source=seqio.TFExampleDataSource(
            {"infer": paths}, {key: tf.io.FixedLenFeature([], tf.string) for key in keys}, tf.data.TFRecordDataset
        ),
        preprocessors=[
            functools.partial(seqio.preprocessors.rekey, key_map={"inputs": inputs_key, "targets": targets_key}),
            seqio.preprocessors.tokenize_and_append_eos,
        ],
        output_features=dict(features),
    )
    return name
