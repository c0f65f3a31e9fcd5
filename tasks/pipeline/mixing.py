"""Several tasks in one stream: their rows at their rates, and the groups that their losses are reported by."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from limba.tasks.pretraining.denoising import Denoise
from limba.tasks.registry import philox, rows
from limba.tasks.registry.rows import Columns
from limba.tasks.registry.tasks import is_mixture, registries

_CHOICES_PER_BLOCK = 1024


def mix(
    parts: Sequence[Iterable[Columns]], rates: Sequence[float], size: int, seed: int, drawn: int
) -> Iterator[Columns]:
    """Rows of several streams at their rates, `size` at a time, until one of them ends; the last may be fewer.

    Args:
      seed: of the choices.
      drawn: rows that were drawn before.
    """
    streams = [_RowStream(part) for part in parts]
    chosen = _choices(rates, seed, drawn)
    while True:
        task = np.fromiter(itertools.islice(chosen, size), np.int64, size)
        places = [np.flatnonzero(task == number) for number in range(len(streams))]
        taken = [stream.take(len(place)) for stream, place in zip(streams, places, strict=True)]
        # A stream with too few rows ends the mixture at the first row that it lacks.
        missing = [
            place[rows.num_rows(got) if got else 0]
            for place, got in zip(places, taken, strict=True)
            if len(place) > (rows.num_rows(got) if got else 0)
        ]
        count = min(missing, default=size)
        found = [(place[place < count], got) for place, got in zip(places, taken, strict=True) if got]
        if count:
            yield _place(found, int(count))
        if missing:
            return


def _place(parts: Sequence[tuple[np.ndarray, Columns]], count: int) -> Columns:
    """Rows of several parts, each part's in its places."""
    placed: Columns = {}
    for name, column in parts[0][1].items():
        placed[name] = np.empty((count, *column.shape[1:]), column.dtype)  # type: ignore[union-attr]
        for place, part in parts:
            placed[name][place] = part[name][: len(place)]
    return placed


def _choices(rates: Sequence[float], seed: int, drawn: int) -> Iterator[int]:
    """The number of the stream that each row comes from."""
    bounds = (np.cumsum(rates) / sum(rates))[:-1]
    first, skipped = divmod(drawn, _CHOICES_PER_BLOCK)
    for number in itertools.count(first):
        values = philox.stateless_uniform((seed, number), _CHOICES_PER_BLOCK)
        yield from np.searchsorted(bounds, values, side="right")[skipped if number == first else 0 :].tolist()


class _RowStream:
    """A stream of blocks, of which any number of rows can be taken."""

    def __init__(self, blocks: Iterable[Columns]):
        self._blocks = iter(blocks)
        self._kept: Columns | None = None

    def take(self, count: int) -> Columns | None:
        """The next rows; fewer where the stream ends, None where there are none."""
        parts: list[Columns] = []
        while count:
            if self._kept is None:
                self._kept = next(self._blocks, None)
                if self._kept is None:
                    break
            parts.append(rows.take(self._kept, slice(0, count)))
            taken = rows.num_rows(parts[-1])
            rest = rows.take(self._kept, slice(taken, None))
            self._kept = rest if rows.num_rows(rest) else None
            count -= taken
        return rows.concatenate(parts) if parts else None


def task_groups(provider: Any, tasks: Sequence[Any]) -> dict[str, list[int]]:
    """The groups that losses are reported by: tasks, and the mixtures and objectives that several tasks share."""
    if len(tasks) == 1:
        return {}
    groups: dict[str, list[int]] = {}
    for number, task in enumerate(tasks):
        for step in task.preprocessors:
            if isinstance(step, Denoise):
                groups.setdefault(f"objective_{step.objective.name}", []).append(number)
    for name in provider.rate_per_task_name:
        if (mixture := _find_mixture(name)) is not None:
            inner = {task.name for task in mixture.tasks}
            groups[name] = [number for number, task in enumerate(tasks) if task.name in inner]
    # A group of all tasks, or of one, adds nothing.
    groups = {name: numbers for name, numbers in groups.items() if 1 < len(numbers) < len(tasks)}
    return {task.name: [number] for number, task in enumerate(tasks)} | groups


def _find_mixture(name: str) -> Any:
    """The mixture of that name, ours or SeqIO's; None if it is a task's."""
    return next((x.get(name) for x in registries() if name in x.names() and is_mixture(x.get(name))), None)
