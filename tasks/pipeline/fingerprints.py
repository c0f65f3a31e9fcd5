"""Fingerprints of the data that a saved position or a cache belongs to; they are the same in every process.

`check` says whether a saved position belongs to the data of today.
"""

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from limba.data import contract
from limba.files import redaction
from limba.files.untrusted_files import cut, shown
from limba.tasks.pipeline import converters
from limba.tasks.pipeline.streams import Stream
from limba.tasks.registry.tasks import is_mixture
from limba.tasks.vocabularies import (
    SentencePieceVocabulary,
    T5TokenizerVocabulary,
    TokenizerVocabulary,
    without_tensorflow,
)

# Fields that preprocessors got when runs had been saved without them, and their defaults, which change no example.
LATER_FIELDS: dict[str, Any] = {"line_by_line": False, "frame": (1, 1)}


def of_stream(stream: Stream, seed: int | None, num_readers: int | None) -> dict[str, Any]:
    """The settings that a saved position depends on: if any of them changes, it means other batches."""
    config = stream.config
    return {
        "mixture_or_task_name": config.name,
        "split": config.split,
        "seed": seed,
        "shuffle": config.shuffle,
        "shuffle_buffer_size": stream.shuffle_buffer_size or [task.shuffle_buffer_size for task in stream.tasks],
        "batch_size": config.batch_size,
        "num_readers": num_readers,
        "task_feature_lengths": dict(config.task_feature_lengths or {}),
        "pack": config.pack,
        "feature_converter": converters.name_of(stream.feature_converter),
        "tasks": {task.name: _of_task(stream, task) for task in stream.tasks},
    }


def _of_task(stream: Stream, task: Any) -> dict[str, Any]:
    reads_chunks = stream.reads_chunks(task)
    return {
        "rate": stream.provider.get_rate(task) if is_mixture(stream.provider) else 1.0,
        "source": task.source.fingerprint(stream.config.split) if reads_chunks else type(task.source).__name__,
        "preprocessors": [describe(step) for step in task.preprocessors],
        "vocabulary": of_vocabulary(task.output_features["targets"].vocabulary),
    }


def of_vocabulary(vocabulary: Any) -> list[int]:
    """Its size, a checksum of its file, and one of what decides ids; positions of before 2027 have no third."""
    vocabulary = without_tensorflow(vocabulary)
    if isinstance(vocabulary, SentencePieceVocabulary | TokenizerVocabulary | T5TokenizerVocabulary):
        return [vocabulary.vocab_size, vocabulary.file_checksum, zlib.crc32(vocabulary.digest.encode())]
    return [vocabulary.vocab_size, 0]


def same_vocabulary(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether two fingerprints are of vocabularies that give the same ids."""
    return before[0] == after[0] and bool({*before[1:]} & {*after[1:]})


def describe(step: Any) -> str:
    """A preprocessor as text, without addresses of objects, and without `LATER_FIELDS` that have their defaults.

    A class whose examples have changed under the same fields has an `examples_version`, which is in the text, too.
    """
    if isinstance(step, functools.partial):
        arguments = [describe(x) for x in step.args] + [f"{k}={describe(v)}" for k, v in step.keywords.items()]
        return f"{describe(step.func)}({', '.join(arguments)})"
    if dataclasses.is_dataclass(step) and not isinstance(step, type):
        values = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
        told = {name: x for name, x in values.items() if name not in LATER_FIELDS or x != LATER_FIELDS[name]}
        if version := getattr(step, "examples_version", None):
            told["examples_version"] = version
        return f"{type(step).__name__}({', '.join(f'{name}={describe(value)}' for name, value in told.items())})"
    if step is None or isinstance(step, str | bytes | int | float):
        return repr(redaction.without_credentials(step) if isinstance(step, str) else step)
    if isinstance(step, list | tuple):
        return f"[{', '.join(map(describe, step))}]"
    if isinstance(step, Mapping):
        return f"{{{', '.join(f'{key!r}: {describe(value)}' for key, value in step.items())}}}"
    return getattr(step, "__qualname__", type(step).__name__)


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The differences between two fingerprints, as "seed was 3 and is 4".

    Runs before credentials were left out of the names of files have them in `saved`, and some have `LATER_FIELDS`.
    """
    saved = {redaction.without_credentials(key): _without_later_fields(value) for key, value in saved.items()}
    for key in sorted({*saved, *now}):
        before, after = saved.get(key), now.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(before, after, f"{prefix}{key}.")
        elif key == "vocabulary" and before and after:
            if not same_vocabulary(before, after):
                sizes = f"it had {before[0]} ids and has {after[0]}"
                yield f"{prefix}{key} has changed, {sizes if before[0] != after[0] else 'its pieces are others'}"
        elif isinstance(before, Mapping) or isinstance(after, Mapping):
            yield f"{prefix}{key} is {'new' if before is None else 'missing'}"
        elif key not in saved or key not in now:
            yield f"{prefix}{key} is {'new' if key in now else 'missing'}"
        elif before != after and prefix.endswith("source.files."):
            yield f"{prefix}{key} had {cut(repr(before))} bytes and has {cut(repr(after))}"
        elif before != after:
            yield f"{prefix}{key} was {cut(repr(before))} and is {cut(repr(after))}"


def _without_later_fields(value: Any) -> Any:
    """The texts of preprocessors as `describe` has them now."""
    if not isinstance(value, list):
        return value
    for name, default in LATER_FIELDS.items():
        value = [text.replace(f"{name}={default!r}, ", "") if isinstance(text, str) else text for text in value]
    return value


def check(saved: Mapping[str, Any], stream: Stream, seed: int, num_readers: int, state_name: str) -> None:
    """Checks that a state was saved with this configuration; a seed that was drawn may differ.

    Data sets whose branch has moved return to the commit that the state belongs to.

    Raises:
      ChangedVocabularyError: if a vocabulary file has changed.
      ValueError: if anything else has.
    """
    check_task(saved, stream.config.name, state_name)
    _keep_revisions(stream, saved)
    seed = saved["seed"] if stream.config.seed is None else seed
    now = of_stream(stream, seed, num_readers)
    if not (changes := list(differences(saved, now))):
        return
    message = f"The saved data position ({state_name}) belongs to other data: {'; '.join(changes)}."
    for task in stream.tasks:
        before = saved["tasks"].get(task.name, {}).get("vocabulary")
        file = contract.vocabulary_file(task.output_features["targets"].vocabulary)
        if file and before and not same_vocabulary(before, now["tasks"][task.name]["vocabulary"]):
            raise contract.ChangedVocabularyError(f"{message} The vocabulary file of {task.name!r} is {file}.", file)
    raise ValueError(f"{message} Restore the old values, or {contract.NEW_RUN}.")


def _keep_revisions(stream: Stream, saved: Mapping[str, Any]) -> None:
    """Returns to the revisions of data sets in a saved fingerprint, where branches have moved."""
    for task in stream.tasks:
        source = saved["tasks"].get(task.name, {}).get("source")
        if stream.reads_chunks(task) and isinstance(source, Mapping):
            task.source.keep_revision(source)


def check_task(saved: Mapping[str, Any], name: str, state_name: str) -> None:
    """Raises ValueError if a fingerprint is of another task: everything else differs with it."""
    if (before := saved.get("mixture_or_task_name")) != name:
        raise ValueError(
            f"This run is of task {shown(before)}, and MIXTURE_OR_TASK_NAME is {name!r}: set it back, or "
            f"{contract.NEW_RUN}. (The saved data position {state_name} says so.)"
        )


def check_batch_size(saved: Mapping[str, Any], batch_size: int, state_name: str) -> None:
    """Raises ValueError if a fingerprint is of another batch size: the default number of readers follows from it."""
    if (before := saved.get("batch_size")) != batch_size:
        raise ValueError(
            f"The saved data position ({state_name}) belongs to other data: batch_size was {shown(before)} and is "
            f"{batch_size}. Restore the old BATCH_SIZE, or {contract.NEW_RUN}."
        )
