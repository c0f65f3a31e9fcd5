"""Whether what an evaluation reads is held out: no file of the training, and no document of it."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from limba.data.lint_findings import Finding
from limba.files.untrusted_files import some
from limba.tasks.sources.sharded import ShardedSource

# Documents that are looked at: the first ones of the evaluation, and of the training up to a number of characters.
_NUM_HELD_OUT, _NUM_TRAINED, _NUM_CHARACTERS = 1000, 50_000, 50_000_000
# Shorter ones, such as titles, are the same by chance; so is a small share, such as copies in texts of the web.
_SHORTEST, _FEWEST, _SHARE = 20, 3, 0.05
_COST = "the evaluation measures what was learned by heart, not what the model can do"


def check(task: Any, split: str) -> Iterator[Finding]:
    """Findings about a task of ours with the splits "train" and `split`; what cannot be read is the training's."""
    try:
        shared = task.source.shared_files("train", split)
        if shared:
            yield _of_files(task.name, split, shared)
        elif not task.source.needs_network:
            yield from _of_documents(task, split)
    except (ValueError, OSError, RuntimeError):
        return


def _of_files(task: str, split: str, shared: list[str]) -> Finding:
    return Finding(
        "seen_in_training",
        "warning",
        f"The splits 'train' and {split!r} of task {task!r} both read {some(shared, 3)}.",
        _COST,
        "Give each split its own files (such as 'train-*', not '*'), or use tasks.sources.splits.held_out.",
    )


def _of_documents(task: Any, split: str) -> Iterator[Finding]:
    held_out: dict[tuple[Any, ...], str] = {}
    for content, place in _contents(task.source, split, _NUM_HELD_OUT):
        held_out.setdefault(content, place)
    seen = {content for content, _ in _contents(task.source, "train", _NUM_TRAINED) if content in held_out}
    if len(seen) < max(_FEWEST, _SHARE * len(held_out)):
        return
    place = next(place for content, place in held_out.items() if content in seen)
    yield Finding(
        "seen_in_training",
        "warning",
        f"{len(seen):,} of the first {len(held_out):,} different documents of split {split!r} of task {task.name!r} "
        f"are in split 'train', too. The first is {place}.",
        _COST,
        "Leave them out of the training's files.",
    )


def _contents(source: ShardedSource, split: str, most: int) -> Iterator[tuple[tuple[Any, ...], str]]:
    """What documents have in their columns, the long ones, and their places."""
    left = _NUM_CHARACTERS
    for file, row, document in itertools.islice(source.numbered_documents(split), most):
        length = sum(len(text) for text in document.values() if isinstance(text, str))
        if length >= _SHORTEST:
            yield _values(document), f"row {row} (counted from 0) of {file}"
        left -= length
        if left <= 0:
            return


def _values(document: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(x if isinstance(x, str) else repr(x) for _, x in sorted(document.items()))
