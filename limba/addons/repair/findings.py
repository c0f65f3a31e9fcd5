"""What a look at a folder found: a line for each thing that was looked at, and what a repair would do about it."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from limba.files.untrusted_files import cut, shown

# What is looked at, in the order of the table. docs/repair.md describes each.
CODES = (
    *("weights", "weights-differ", "names-wrapped", "not-finite", "weights-rounded"),
    *("embedding-missing", "embedding-name", "embedding-doubled", "embeddings-differ", "tied-flag", "vocab-size"),
    *("pad-id", "eos-id", "bos-id", "cls-id", "sep-id", "mask-id", "start-id"),
    *("vocabulary", "length-cuts", "length-too-long"),
    *("tensors", "tokenizer", "files"),
)


@dataclasses.dataclass(frozen=True)
class Change:
    """What a repair does about a finding.

    Attributes:
      renamed: new names of tensors by old ones.
      copied: the tensors, by new names, that are copies of another one.
      dropped: tensors that are left out: others have the same numbers.
      settings: what keys of a file of JSON become; None takes the key away.
      left_out: formats of weights that are left out.
      rewrites: whether the weights are written under the names that were read, without those of wrappers.
    """

    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    copied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dropped: Sequence[str] = ()
    settings: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    left_out: Sequence[str] = ()
    rewrites: bool = False

    @property
    def is_of_tensors(self) -> bool:
        return bool(self.renamed or self.copied or self.dropped or self.rewrites)

    def described(self, files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
        """Clauses about it, for a folder with these files of JSON."""
        yield from (f"{cut(old)} is named {new}" for old, new in self.renamed.items())
        yield from (f"{new} is a copy of {cut(old)}" for new, old in self.copied.items())
        if self.dropped:
            yield f"{', '.join(map(cut, self.dropped))}, the same numbers once more, left out"
        if self.rewrites:
            yield "tensors are written again, under the model's own names"
        for file, keys in self.settings.items():
            for key, value in keys.items():
                before = files[file].get(key)
                yield f"{key} of {file} is {'left out' if value is None else shown(value)}, before {shown(before)}"
        yield from (f"the weights in the format {format_} are left out" for format_ in self.left_out)


@dataclasses.dataclass(frozen=True)
class Line:
    """Something that was looked at, or could not be.

    Attributes:
      code: one of `CODES`.
      is_right: None where it was not looked at.
      found: what was found, and in which file; or why it was not looked at.
      remedy: of a finding, a sentence. A repair does it if there is a change.
      change: what `limba convert repair` does about it; None if it cannot.
      is_note: whether it is nothing wrong by itself, and still something to know before the model is used.
    """

    code: str
    is_right: bool | None
    found: str
    remedy: str = ""
    change: Change | None = None
    is_note: bool = False

    def __post_init__(self) -> None:
        assert self.code in CODES, self.code


def right(code: str, found: str = "") -> Line:
    return Line(code, True, found)


def note(code: str, found: str, remedy: str) -> Line:
    return Line(code, True, found, remedy, is_note=True)


def wrong(code: str, found: str, remedy: str, change: Change | None = None) -> Line:
    return Line(code, False, found, remedy, change)


def not_looked_at(code: str, reason: str) -> Line:
    return Line(code, None, reason)


def table(lines: Iterable[Line]) -> str:
    """The lines as text, in the order of the codes; below a finding its remedy."""
    ordered = sorted(lines, key=lambda line: CODES.index(line.code))
    width = max(map(len, CODES))
    rows = []
    for line in ordered:
        verdict = "NOTE " if line.is_note else {True: "ok   ", False: "WRONG", None: "  –  "}[line.is_right]
        found = f"not looked at: {line.found}" if line.is_right is None else line.found
        rows.append(f"{verdict} {line.code:{width}}  {found}".rstrip())
        if line.remedy:
            rows.append(f"{'':{width + 6}}  {line.remedy}")
    return "\n".join(rows)
