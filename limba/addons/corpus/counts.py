"""What a run of `limba corpus` kept and left out, by rule: from datatrove's own statistics of each task."""

import collections
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba.files.untrusted_files import shown

# Of each rule, for people to look at.
_EXAMPLES, _EXAMPLE_CHARACTERS = 3, 600


@dataclasses.dataclass
class Counts:
    """Figures of a whole run.

    Attributes:
      read, kept: by source, `documents`, `words` and `characters`.
      rules: documents that a rule left out, in the order of the rules.
      lengths: kept documents by the bits of their length, as JSON has keys: '10' is 512 to 1,023 characters.
      languages: of documents that were left out as of another language, the most frequent.
      skipped: what could not be read.
      examples: by rule, the beginnings of some documents.
    """

    read: dict[str, dict[str, int]]
    kept: dict[str, dict[str, int]]
    rules: dict[str, int]
    lengths: dict[str, int]
    languages: dict[str, int]
    skipped: list[str]
    examples: dict[str, list[str]]


# The names that datatrove's blocks have in their statistics, and what a rule is called where a block has one alone.
_ALONE = {"Language": "another language", "MinHash": "near duplicate"}
# The folders of what was left out, where the documents in them have no rule.
_OF_FOLDERS = {"language": "another language", "duplicates": "near duplicate"}
_LEAK = ("contaminated", "in an evaluation file")


def collect(work: Path, stages: Sequence[str], skipped: list[str]) -> Counts:
    """The figures of finished stages."""
    read: dict[str, dict[str, int]] = {}
    kept: dict[str, dict[str, int]] = {}
    rules: dict[str, int] = {}
    lengths: collections.Counter[int] = collections.Counter()
    for stage in stages:
        for name, stats in _blocks(work / "logs" / stage / "stats"):
            if name in ("read", "kept"):
                of_sources: dict[str, dict[str, int]] = {}
                of_lengths: collections.Counter[int] = collections.Counter()
                _add_counts(stats, of_sources, of_lengths)
                if name == "read":
                    read = of_sources
                else:
                    kept, lengths = of_sources, of_lengths
            else:
                _add_rules(name, stats, rules)
    return Counts(
        read=read,
        kept=kept,
        rules=rules,
        lengths={str(bits): number for bits, number in sorted(lengths.items())},
        languages=_languages(work / "removed/language"),
        skipped=skipped,
        examples=_examples(work / "removed"),
    )


def words_by_task(work: Path, stage: str) -> dict[int, int]:
    """How many words each task of a stage kept."""
    found = {}
    for file in sorted((work / "logs" / stage / "stats").glob("*.json")):
        blocks = json.loads(file.read_text("utf-8"))
        stats = next(block["stats"] for block in blocks if block["name"] == "kept")
        found[int(file.stem)] = sum(_total(x) for key, x in stats.items() if key.startswith("words/"))
    return found


def _blocks(folder: Path) -> list[tuple[str, dict[str, int]]]:
    """Of each block of a pipeline, its name and the sums of its statistics over all tasks."""
    found: list[tuple[str, collections.Counter[str]]] = []
    counts: collections.Counter[str]
    for file in sorted(folder.glob("*.json")):
        for number, block in enumerate(json.loads(file.read_text("utf-8"))):
            if number == len(found):
                found.append((block["name"], collections.Counter()))
            counts = found[number][1]
            for key, value in block["stats"].items():
                counts[key] += _total(value)
                if key.startswith("characters/"):
                    counts[key.replace("characters/", "documents/", 1)] += _number(value)
    return [(name, dict(sums)) for name, sums in found]


def _total(value: Any) -> int:
    return int(value["total"] if isinstance(value, dict) else value)


def _number(value: Any) -> int:
    """Of how many documents a sum is: datatrove leaves a mean of 1 out, and the number, where it can be computed."""
    return round(value["total"] / value.get("mean", 1)) if isinstance(value, dict) else value


def _add_counts(stats: dict[str, int], sources: dict[str, dict[str, int]], lengths: collections.Counter[int]) -> None:
    for key, value in stats.items():
        what, _, name = key.partition("/")
        if what == "length":
            lengths[int(name)] += value
        elif what in ("documents", "words", "characters"):
            sources.setdefault(name, {})[what] = value


def _add_rules(name: str, stats: dict[str, int], rules: dict[str, int]) -> None:
    reasons = {key.removeprefix("dropped_"): value for key, value in stats.items() if key.startswith("dropped_")}
    if _LEAK[0] in reasons:
        reasons[_LEAK[1]] = reasons.pop(_LEAK[0])
    if not reasons and stats.get("dropped"):
        reasons = {
            next((rule for part, rule in _ALONE.items() if part.lower() in name.lower()), name): stats["dropped"]
        }
    for reason, value in reasons.items():
        rules[reason] = rules.get(reason, 0) + value


def _rows(folder: Path) -> Any:
    import zstandard

    for file in sorted(folder.glob("*.jsonl.zst")):
        with file.open("rb") as packed, zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            for line in io.TextIOWrapper(stream, encoding="utf-8"):
                yield json.loads(line)


def _examples(removed: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for folder in sorted(removed.glob("*")):
        for row in _rows(folder):
            rule = row["metadata"].get("filter_reason") or _OF_FOLDERS[folder.name]
            texts = found.setdefault(_LEAK[1] if rule == _LEAK[0] else rule, [])
            if len(texts) < _EXAMPLES:
                texts.append(row["text"][:_EXAMPLE_CHARACTERS])
    return found


def _languages(folder: Path) -> dict[str, int]:
    counts = collections.Counter(
        "_".join(str(row["metadata"][key]) for key in ("language", "language_script") if key in row["metadata"])
        for row in _rows(folder)
    )
    return dict(counts.most_common(20))


def short(counts: Counts) -> str:
    """One line for people."""
    before, after = (sum(x.get("documents", 0) for x in part.values()) for part in (counts.read, counts.kept))
    words = sum(x.get("words", 0) for x in counts.kept.values())
    share = f"{after / before:.1%} of " if before else ""
    return f"{after:,} documents with {words:,} words kept, {share}{shown(before)} that were read"
