"""Thresholds of the rules of quality: FineWeb-2's file of a language, or computed from a sample of good text.

The names are those of FineWeb-2's files (github.com/huggingface/fineweb-2, configs/), and so is what each bounds.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.pipeline.filters import gopher_repetition_filter as repetition
from datatrove.utils.text import PUNCTUATION_SET, TERMINAL_PUNCTUATION

from limba.addons.corpus import word_splitting
from limba.files import number_ranges, untrusted_yaml
from limba.files.untrusted_files import shown

_TOP, _REPEATED = (2, 3, 4), (5, 6, 7, 8, 9, 10)
# A stop word is at least this share of all words; there are at least so many (FineWeb-2 has 8 for Thai and Telugu).
_STOP_WORD_SHARE, _LEAST_STOP_WORDS = 0.008, 8
# Of good documents; each threshold is then the place of dozens of them.
LEAST_DOCUMENTS = 200
_SHARE = number_ranges.Range(0, math.nextafter(1, 2))
_ANY = number_ranges.Range()


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """What a document must keep to, by FineWeb-2's names: shares of its lines and characters, lengths of its words.

    Attributes:
      dup_line_frac: lines that came before, at most.
      top_n_grams, dup_n_grams: characters in the most frequent n-gram of n words, and in n-grams that came before, at
        most; pairs of n and the share.
      line_punct_thr: lines that end as sentences do, at least.
      new_line_ratio: ends of lines for each word, at most.
      min_avg_word_length, max_avg_word_length: in characters.
      max_non_alpha_words_ratio: words with a letter, at least (the name is datatrove's).
      stopwords: frequent words, of which a document has two.
      language_score: of the fastText model, at least.
    """

    dup_line_frac: float
    top_n_grams: tuple[tuple[int, float], ...]
    dup_n_grams: tuple[tuple[int, float], ...]
    line_punct_thr: float
    new_line_ratio: float
    min_avg_word_length: float
    max_avg_word_length: float
    max_non_alpha_words_ratio: float
    stopwords: tuple[str, ...]
    language_score: float | None = None

    def as_file(self) -> str:
        """The text of a file that `read` reads."""
        import yaml

        content = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        for key in ("top_n_grams", "dup_n_grams"):
            content[key] = [list(pair) for pair in content[key]]
        content["stopwords"] = list(content["stopwords"])
        return yaml.safe_dump(content, allow_unicode=True)


def read(file: Path) -> Thresholds:
    """FineWeb-2's file of a language.

    Raises:
      FileNotFoundError: if it does not exist.
      ValueError: if it is no YAML, a threshold is missing, unknown or of another kind.
    """
    content = untrusted_yaml.read(file)
    fields = {field.name: field for field in dataclasses.fields(Thresholds)}
    if not isinstance(content, dict):
        raise ValueError(f"{file} is {shown(content)}; it is a table of {', '.join(fields)}.")
    if unknown := next((key for key in content if key not in fields), None):
        where = untrusted_yaml.place(file, unknown)
        raise ValueError(f"{where}: there is no threshold {shown(unknown)}; there are {', '.join(fields)}.")
    if missing := [name for name in fields if name not in content and name != "language_score"]:
        raise ValueError(f"{file}: {missing[0]} is missing; copy FineWeb-2's file of the language as it is.")
    return Thresholds(**{name: _value(name, value, file) for name, value in content.items()})


def _value(name: str, value: Any, file: Path) -> Any:
    where = f"{untrusted_yaml.place(file, name)}: {name}"
    if name == "stopwords":
        if not isinstance(value, list) or not value or not all(isinstance(word, str) and word for word in value):
            raise ValueError(f"{where} is {shown(value)}; it is a list of words.")
        return tuple(value)
    if name in ("top_n_grams", "dup_n_grams"):
        pairs = value if isinstance(value, list) else [value]
        for pair in pairs:
            is_pair = isinstance(pair, list) and len(pair) == 2 and number_ranges.AT_LEAST_1.has(pair[0])
            if not is_pair or not _SHARE.has(pair[1]):
                raise ValueError(f"{where} has {shown(pair)}; it is a list of pairs: a number of words and a share.")
        return tuple((n, share) for n, share in pairs)
    number_ranges.check(where, value, _ANY if "length" in name else _SHARE)
    return value


@dataclasses.dataclass(frozen=True)
class _Figures:
    """Of one document, what `Thresholds` bounds."""

    at_most: dict[str, float]
    at_least: dict[str, float]
    words: collections.Counter[str]


def of_sample(texts: Iterable[str], language: str, tail: float, scores: Iterable[float] = ()) -> Thresholds:
    """Thresholds that each let all but `tail` of good documents pass.

    Args:
      texts: good documents of the language.
      tail: a share: 0.1 takes the value that a tenth of the documents lies beyond.
      scores: of the documents by the model that identifies languages; the threshold is then the median less a standard
        deviation, between 0.3 and 0.9 (FineWeb-2, arXiv:2506.20920).

    Raises:
      ValueError: for less than `LEAST_DOCUMENTS` documents with words.
    """
    figures = list(_figures(texts, language))
    if len(figures) < LEAST_DOCUMENTS:
        raise ValueError(
            f"trusted has {len(figures):,} documents with words; thresholds take {LEAST_DOCUMENTS} and more."
        )

    def at_most(name: str) -> float:
        return _rounded(np.quantile([x.at_most[name] for x in figures], 1 - tail, method="higher"), up=True)

    def at_least(name: str) -> float:
        return _rounded(np.quantile([x.at_least[name] for x in figures], tail, method="lower"), up=False)

    found = np.asarray([*scores])
    score = None if not len(found) else float(np.clip(np.median(found) - np.std(found), 0.3, 0.9))
    return Thresholds(
        dup_line_frac=at_most("dup_line_frac"),
        top_n_grams=tuple((n, at_most(f"top_{n}")) for n in _TOP),
        dup_n_grams=tuple((n, at_most(f"dup_{n}")) for n in _REPEATED),
        line_punct_thr=at_least("line_punct_thr"),
        new_line_ratio=at_most("new_line_ratio"),
        min_avg_word_length=math.floor(at_least("avg_word_length")),
        max_avg_word_length=math.ceil(at_most("avg_word_length")),
        max_non_alpha_words_ratio=at_least("alpha_words"),
        stopwords=_stop_words(figures),
        language_score=None if score is None else round(score, 3),
    )


def _rounded(value: float, up: bool) -> float:
    """To three places, as in FineWeb-2's files; away from the documents, so that those at the threshold pass."""
    return (math.ceil(value * 1000 - 1e-6) if up else math.floor(value * 1000 + 1e-6)) / 1000


def _figures(texts: Iterable[str], language: str) -> Iterator[_Figures]:
    ends = tuple(TERMINAL_PUNCTUATION)
    words_of = word_splitting.of_language(language).word_tokenize
    for text in texts:
        words = words_of(text)
        lettered = [word for word in words if any(x not in PUNCTUATION_SET for x in word)]
        lines = [line for line in text.split("\n") if line.strip()]
        if not lettered or not lines:
            continue
        length = float(np.mean([len(word) for word in lettered]))
        repeated = {f"dup_{n}": repetition.find_all_duplicate(words, n) / len(text) for n in _REPEATED}
        top = {f"top_{n}": _top_share(words, n, text) for n in _TOP}
        duplicates = repetition.find_duplicates(text.strip("\n").split("\n"))[0]
        yield _Figures(
            at_most=repeated
            | top
            | {
                "dup_line_frac": duplicates / len(lines),
                "new_line_ratio": text.count("\n") / len(words),
                "avg_word_length": length,
            },
            at_least={
                "line_punct_thr": sum(line.endswith(ends) for line in lines) / len(lines),
                "alpha_words": sum(any(x.isalpha() for x in word) for word in words) / len(words),
                "avg_word_length": length,
            },
            words=collections.Counter(lettered),
        )


def _top_share(words: list[str], n: int, text: str) -> float:
    n_grams = repetition.get_n_grams(words, n)
    return repetition.find_top_duplicate(n_grams) / len(text) if n_grams else 0.0


def _stop_words(figures: list[_Figures]) -> tuple[str, ...]:
    counts: collections.Counter[str] = collections.Counter()
    for found in figures:
        counts.update(found.words)
    total = counts.total()
    letters = [(word, count) for word, count in counts.most_common() if any(x.isalpha() for x in word)]
    frequent = [word for word, count in letters if count >= _STOP_WORD_SHARE * total]
    return tuple(frequent if len(frequent) >= _LEAST_STOP_WORDS else [word for word, _ in letters[:_LEAST_STOP_WORDS]])
