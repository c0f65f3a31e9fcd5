"""The metrics of a run as arrays: for each dataset its steps, and a column for each metric."""

import array
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from limba.files import storage
from limba.files.storage import AnyPath
from limba.files.untrusted_files import cut
from limba.reports import json_lines, text_figures, writers

TRAIN, TEACHER_FORCED, PREDICTED = "train", "training_eval/", "inference_eval/"
# Loss of a target token, as training and evaluations call it: the first that a line has.
LOSSES = ("nats_per_target_token", "mean_squared_error", "loss", "cross_ent_loss")
TOKENS_PER_SECOND = "timing/tokens_per_second"
# `trainer.WeightMetricsComputer` has these of each parameter.
OF_PARAMETERS = ("weight_update_rms", "weight_rms")
# What is read at a time from the end of a file.
_BLOCK = 1 << 20
_MOST_BLOCKS = 64
# Of the columns of a dataset together: a line may name a metric that no other line has, and a column has all lines.
_MOST_NUMBERS = 2**27


@dataclasses.dataclass(frozen=True)
class Curves:
    """The lines of one dataset.

    Attributes:
      steps: `[lines]`.
      columns: by metric, `[lines]`; NaN where a line has none, or has null.
    """

    steps: np.ndarray
    columns: Mapping[str, np.ndarray]

    def known(self, name: str) -> bool:
        """Whether a metric has a number in any line."""
        return name in self.columns and bool(np.isfinite(self.columns[name]).any())

    def last(self, name: str) -> float | None:
        """The newest number of a metric; None without one."""
        if not self.known(name):
            return None
        column = self.columns[name]
        return float(column[np.isfinite(column)][-1])


class _Growing:
    def __init__(self) -> None:
        self._steps, self._columns = array.array("q"), dict[str, array.array]()

    def __len__(self) -> int:
        return len(self._steps) * len(self._columns)

    def add(self, record: json_lines.Record) -> None:
        for name, value in record.items():
            if name in ("step", "dataset"):
                continue
            if name not in self._columns:
                self._columns[name] = array.array("d", [math.nan]) * len(self._steps)
            self._columns[name].append(math.nan if value is None else value)
        self._steps.append(record["step"])
        for column in self._columns.values():
            if len(column) < len(self._steps):
                column.append(math.nan)

    def curves(self) -> Curves:
        return Curves(np.array(self._steps), {name: np.array(column) for name, column in self._columns.items()})


def read(run: AnyPath) -> tuple[dict[str, Curves], int]:
    """The curves of a run by dataset, and how many lines of its file are damaged.

    Raises:
      ValueError: if they have more numbers than a memory holds.
    """
    growing: dict[str, _Growing] = {}
    damaged = 0
    for _, record in json_lines.each(run / writers.METRICS_FILE, writers.is_metrics):
        if record is None:
            damaged += 1
        else:
            found = growing.setdefault(record["dataset"], _Growing())
            found.add(record)
            if len(found) > _MOST_NUMBERS:
                raise ValueError(
                    f"{run / writers.METRICS_FILE}: the lines of {cut(record['dataset'])} have so many names of "
                    f"metrics that their table has more than {_MOST_NUMBERS:,} numbers; remove the file."
                )
    return {dataset: found.curves() for dataset, found in growing.items()}, damaged


def newest_lines(run: Path, task: str | None) -> dict[str, json_lines.Record]:
    """The newest lines of training ("train") and of a validation ("validation"), read from the end of the file.

    Args:
      task: whose validation is wanted; another one is taken where the run has none of it.
    """
    found: dict[str, json_lines.Record] = {}
    for line in _backwards(run / writers.METRICS_FILE):
        ((_, record),) = tuple(json_lines.parsed([line], writers.is_metrics)) or ((b"", None),)
        if record is None:
            continue
        kind = "validation" if record["dataset"].startswith(TEACHER_FORCED) else record["dataset"]
        if kind == "validation" and kind in found and record["step"] == found[kind]["step"]:
            if record["dataset"] == f"{TEACHER_FORCED}{task}" or of_average(found[kind]["dataset"]):
                found[kind] = record
        elif kind in (TRAIN, "validation"):
            found.setdefault(kind, record)
        # The lines of an evaluation stand together, before that of training.
        if found.keys() >= {TRAIN, "validation"} and record["step"] < found["validation"]["step"]:
            break
    return found


def of_average(dataset: str) -> bool:
    """Whether an evaluation is one of averaged parameters, beside that of the parameters themselves."""
    return dataset.endswith("_average")


def _backwards(file: Path) -> Iterator[bytes]:
    """The lines of a file, the last first."""
    if not storage.is_file(file):
        return
    with file.open("rb") as stream:
        end, rest = stream.seek(0, 2), b""
        for _ in range(_MOST_BLOCKS):
            begin = max(0, end - _BLOCK)
            stream.seek(begin)
            first, *lines = (stream.read(end - begin) + rest).split(b"\n")
            yield from reversed(lines)
            rest, end = first, begin
            if end == 0:
                yield rest
                return


def loss_of(record: Mapping[str, float | None], names: tuple[str, ...] = LOSSES) -> float | None:
    """The loss of a line; None without one."""
    return next((x for name in names if (x := record.get(name)) is not None), None)


def with_parameters(curves: Curves) -> Curves:
    """Adds, of metrics that each parameter has, the least, the median and the greatest over parameters."""
    columns = dict(curves.columns)
    for prefix in OF_PARAMETERS:
        names = [name for name in curves.columns if name.startswith(f"{prefix}/")]
        if not names:
            continue
        table = np.stack([np.where(np.isfinite(x := curves.columns[name]), x, np.nan) for name in names])
        is_known = np.isfinite(table).any(axis=0)
        for name, share in (("least", 0.0), ("median", 0.5), ("greatest", 1.0)):
            column = np.full(len(curves.steps), np.nan)
            column[is_known] = np.nanquantile(table[:, is_known], share, axis=0)
            columns[f"{prefix}:{name}"] = column
    return Curves(curves.steps, columns)


def with_baselines(curves: Curves) -> Curves:
    """Fills figures of n-grams in where an evaluation lacks them: they are the same at each step."""
    columns = dict(curves.columns)
    for name in curves.columns:
        if name.partition("/")[0] in text_figures.PREDICTORS and (value := curves.last(name)) is not None:
            columns[name] = np.where(np.isfinite(columns[name]), columns[name], value)
    return Curves(curves.steps, columns)
