"""The file of `limba corpus`: what is read, which rules it must pass, and what comes out.

language: ron_Latn                       # ISO 639-3 and the script, as FineWeb-2 and datatrove write languages
sources:
  crawl: {files: "crawl/*.warc.gz", license: "CC0-1.0", origin: "https://commoncrawl.org"}
  books: {files: [books/a.jsonl.zst, books/b.parquet], text_column: content}
identify: {model: glotlid.bin, label: ron_Latn}      # keeps documents in the language
thresholds: ron_Latn.yml                             # FineWeb-2's file of the language, or:
trusted: wikipedia/*.jsonl                           # good text, of which the thresholds are computed
evaluation_files: [pairs.jsonl, questions.csv]       # documents with their words are left out
words: 10_000_000                                    # at most
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from limba.files import number_ranges
from limba.files.untrusted_files import shown

# A source's name is a folder's.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Z][a-z]{3}")
# What stands beside the sources' folders in OUT.
_TAKEN = ("removed", "thresholds.yml", "report.html", "README.md", "counts.json")


@dataclasses.dataclass(frozen=True)
class Source:
    """Where text comes from.

    Attributes:
      name: of its folder, and for mixtures.
      files: paths, patterns and addresses (hf://, s3://, gs://): JSON lines, Parquet, CSV, text with a document a line,
        WARC.
      text_column: with the text, of JSON lines, Parquet and CSV.
      license, origin: for the card; "" if the recipe does not say.
    """

    name: str
    files: tuple[str, ...]
    text_column: str
    license: str
    origin: str


@dataclasses.dataclass(frozen=True)
class Identification:
    """A fastText model that tells languages apart.

    Attributes:
      model: its file, of GlotLID, FT176 or one's own.
      label: its name for the language, without `__label__`: GlotLID's is 'ron_Latn', FT176's 'ro'.
      score: the least that a document may have; None takes that of the thresholds.
    """

    model: str
    label: str
    score: float | None


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The file of `limba corpus`.

    Attributes:
      language: as 'ron_Latn'.
      identify: None keeps all languages.
      thresholds: FineWeb-2's file of the language; with `trusted` None.
      trusted: files of good text, of which thresholds are computed; without both there are no rules of quality.
      tail: the share of the trusted documents that lie beyond each threshold.
      min_words: of a document, for the rules of quality.
      deduplicate: leave out near duplicates by MinHash.
      repair_characters: of text that was decoded wrongly (ftfy).
      remove_personal_data: write others in place of e-mail and IP addresses.
      evaluation_files: documents that share their n-grams of words are left out.
      words: at most so many in all, of documents drawn by their ids; None keeps all.
      tasks: parts that the work is divided into; None is one for each file, 100 at most.
      slurm: options of datatrove's executor; None works on this machine.
    """

    file: Path
    language: str
    sources: tuple[Source, ...]
    identify: Identification | None
    thresholds: str | None
    trusted: tuple[str, ...]
    tail: float
    min_words: int
    deduplicate: bool
    repair_characters: bool
    remove_personal_data: bool
    evaluation_files: tuple[str, ...]
    words: int | None
    tasks: int | None
    slurm: Mapping[str, Any] | None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_texts(value: Any) -> bool:
    return _is_text(value) or (isinstance(value, list) and bool(value) and all(map(_is_text, value)))


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(map(_is_text, value))


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _in(allowed: number_ranges.Range) -> tuple[Callable[[Any], bool], str]:
    return allowed.has, str(allowed)


_TEXT = (_is_text, "a text")
_TEXTS = (_are_texts, "a text, or a list of texts")
_TABLE = (_is_table, "a table")
_BOOL = (_is_bool, "true or false")
_COUNT = _in(number_ranges.AT_LEAST_1)

_Keys = Mapping[str, tuple[Callable[[Any], bool], str]]
_KEYS: _Keys = {
    "language": (lambda x: isinstance(x, str) and bool(_LANGUAGE.fullmatch(x)), "a language and a script: ron_Latn"),
    "sources": (_is_table, "a table of sources by their names"),
    "identify": _TABLE,
    "thresholds": _TEXT,
    "trusted": _TEXTS,
    "tail": _in(number_ranges.Range(0, 0.5)),
    "min_words": _in(number_ranges.AT_LEAST_0),
    "deduplicate": _BOOL,
    "repair_characters": _BOOL,
    "remove_personal_data": _BOOL,
    "evaluation_files": _TEXTS,
    "words": _COUNT,
    "tasks": _in(number_ranges.Range(1, 100_001, is_whole=True)),
    "slurm": _TABLE,
}
_KEYS_OF_SOURCE: _Keys = {"files": _TEXTS, "text_column": _TEXT, "license": _TEXT, "origin": _TEXT}
_KEYS_OF_IDENTIFY: _Keys = {
    "model": _TEXT,
    "label": _TEXT,
    "score": _in(number_ranges.Range(0, 1)),
}


def load(file: Path) -> Recipe:
    """Reads a recipe.

    Raises:
      FileNotFoundError: if the file does not exist.
      ValueError: if it is no YAML, a key is unknown or missing, or a value is not allowed.
    """
    from limba.files import untrusted_yaml

    content = _checked(untrusted_yaml.read(file), _KEYS, file, ())
    for key in ("language", "sources"):
        if key not in content:
            raise ValueError(f"{file}: {key} is missing; it is {_KEYS[key][1]}.")
    if "thresholds" in content and "trusted" in content:
        raise ValueError(f"{file}: thresholds and trusted are both given; leave one of them out.")
    sources = tuple(_source(name, value, file) for name, value in content["sources"].items())
    return Recipe(
        file=file,
        language=content["language"],
        sources=sources,
        identify=_identification(content["identify"], content["language"], file) if "identify" in content else None,
        thresholds=content.get("thresholds"),
        trusted=_texts(content.get("trusted", ())),
        tail=content.get("tail", 0.02),
        min_words=content.get("min_words", 50),
        deduplicate=content.get("deduplicate", True),
        repair_characters=content.get("repair_characters", True),
        remove_personal_data=content.get("remove_personal_data", True),
        evaluation_files=_texts(content.get("evaluation_files", ())),
        words=content.get("words"),
        tasks=content.get("tasks"),
        slurm=content.get("slurm"),
    )


def is_name(name: str) -> bool:
    """Whether a source may have the name: it is that of a folder in OUT, and none of the command's own."""
    return bool(_NAME.fullmatch(name)) and name not in _TAKEN


def _source(name: str, value: Any, file: Path) -> Source:
    from limba.files import untrusted_yaml

    wrong = None if is_name(name) else f"{shown(name)} is no name of a source; use letters, digits, '_', '-' and '.'"
    found = {} if wrong else _checked(value, _KEYS_OF_SOURCE, file, ("sources", name))
    if wrong or "files" not in found:
        where = untrusted_yaml.place(file, "sources", name)
        raise ValueError(f"{where}: {wrong or f'the source {name} has no files; it is {_TEXTS[1]}'}.")
    column = found.get("text_column", "text")
    return Source(name, _texts(found["files"]), column, found.get("license", ""), found.get("origin", ""))


def _identification(value: Any, language: str, file: Path) -> Identification:
    from limba.files import untrusted_yaml

    found = _checked(value, _KEYS_OF_IDENTIFY, file, ("identify",))
    if "model" not in found:
        raise ValueError(f"{untrusted_yaml.place(file, 'identify')}: identify.model is missing; it is a fastText file.")
    return Identification(found["model"], found.get("label", language), found.get("score"))


def _checked(value: Any, keys: _Keys, file: Path, path: tuple[str, ...]) -> dict[str, Any]:
    """A table's values that are not null. Raises ValueError for an unknown key, and for a value of another kind."""
    from limba.files import untrusted_yaml

    if not _is_table(value):
        where = untrusted_yaml.place(file, *path)
        raise ValueError(
            f"{where}: {'.'.join(path) or 'the file'} is {shown(value)}; it is a table of {', '.join(keys)}."
        )
    for key, given in value.items():
        is_right, what = keys.get(key, (lambda x: False, ""))
        if key in keys and (given is None or is_right(given)):
            continue
        where = untrusted_yaml.place(file, *path, key)  # It reads the whole file once more.
        if key not in keys:
            nearest = difflib.get_close_matches(key[:100], keys, n=1, cutoff=0.0)[0]
            raise ValueError(f"{where}: there is no key {shown(key)}; the nearest is {nearest!r}.")
        raise ValueError(f"{where}: {'.'.join((*path, key))} is {shown(given)}; it is {what}.")
    return {key: given for key, given in value.items() if given is not None}


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
