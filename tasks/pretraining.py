"""One call makes a corpus a pre-training task."""

import os
from collections.abc import Mapping

import seqio

from tasks import objectives, preprocessors, sources

_registered: dict[str, tuple] = {}


def register_pretraining_task(
    name: str,
    *,
    data_files: Mapping[str, sources.DataFiles] | seqio.DataSource,
    vocabulary: seqio.Vocabulary | str | os.PathLike[str],
    text_column: str = "text",
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    shuffle_buffer_size: int = 4096,
) -> seqio.Task:
    """Registers span corruption of a corpus as a SeqIO task with the features `inputs` and `targets`, EOS on both.

    Nothing is read: files may be made later. Registering a name again with the same arguments is harmless.

    Args:
      name: the task's name, such as "my_corpus_span_corruption".
      data_files: per split a file, a pattern or a list of them (jsonl, json, parquet, txt, csv, also compressed), or a
        SeqIO source.
      vocabulary: a SeqIO vocabulary, or the path of a SentencePiece model, which gets 100 sentinels.
      text_column: the column with the text.
      noise_density: the share of tokens that is masked.
      mean_noise_span_length: tokens per masked span on average; 20 is right for bytes.
      shuffle_buffer_size: examples in the shuffle buffers of all readers together.

    Raises:
      ValueError: if the name is taken by a task with other arguments.
    """
    arguments = (
        data_files, vocabulary, text_column, noise_density, mean_noise_span_length, shuffle_buffer_size
    )  # fmt: skip
    if name in seqio.TaskRegistry.names():
        if _registered.get(name) == arguments:
            return seqio.TaskRegistry.get(name)
        raise ValueError(f"A task {name!r} is registered already, with other arguments; choose another name.")
    if isinstance(data_files, seqio.DataSource):
        source = data_files
    else:
        source = sources.HuggingFaceSource(data_files, [text_column])
    if not isinstance(vocabulary, seqio.Vocabulary):
        vocabulary = seqio.SentencePieceVocabulary(os.fspath(vocabulary), extra_ids=100)
    objective = objectives.SpanCorruption(noise_density, mean_noise_span_length)
    feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)
    task = seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[preprocessors.Denoise(objective, text_column)],
        output_features={"inputs": feature, "targets": feature},
        shuffle_buffer_size=shuffle_buffer_size,
    )
    _registered[name] = arguments
    return task
