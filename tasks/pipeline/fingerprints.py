"""Fingerprints of the data that a saved position or a cache belongs to; they are the same in every process."""

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from limba.files import redaction
from limba.files.untrusted_files import cut
from tasks.vocabularies import SentencePieceVocabulary, T5TokenizerVocabulary, TokenizerVocabulary, without_tensorflow

# Fields that preprocessors got when runs had been saved without them, and their defaults, which change no example.
LATER_FIELDS = {"line_by_line": False}


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
    """A preprocessor as text, without addresses of objects, and without `LATER_FIELDS` that have their defaults."""
    if isinstance(step, functools.partial):
        arguments = [describe(x) for x in step.args] + [f"{k}={describe(v)}" for k, v in step.keywords.items()]
        return f"{describe(step.func)}({', '.join(arguments)})"
    if dataclasses.is_dataclass(step) and not isinstance(step, type):
        values = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
        told = {name: x for name, x in values.items() if name not in LATER_FIELDS or x != LATER_FIELDS[name]}
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
