"""Where the metrics of tasks are written: the log, TensorBoard's event files, JSON lines. Files and tags are SeqIO's.

A logger is called with the name of a task, the step, its metrics by name, its examples, the model's results by kind and
the targets; one of your own is a class with an `output_dir`.
"""

import base64
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.files import json_text, storage
from limba.reports import writers

logger = logging.getLogger(__name__)

# Longer arrays are written as a summary.
_MOST_VALUES = 32


@dataclasses.dataclass
class Scalar:
    """A metric that is a number; SeqIO's class of this name is taken too."""

    value: Any


class PyLoggingLogger:
    """Writes to the log what is no number: the lines of training and the table of `limba eval` have the numbers."""

    def __init__(self, output_dir: str, level: int = logging.INFO):
        self.output_dir = output_dir
        self._level = level

    def __call__(self, task_name: str, step: int | None, metrics: Mapping[str, Any], **others: Any) -> None:
        del others
        for name, metric in metrics.items():
            if not hasattr(metric, "value"):
                logger.log(self._level, "%s/%s at step %s: %s", task_name, name, step, _text(metric))


class TensorBoardLogger:
    """Event files in `<output_dir>/<task>`, with the tags `eval/<metric>`."""

    def __init__(self, output_dir: str):
        self.output_dir = output_dir
        self._writer = writers.TensorBoardWriter(Path(output_dir), keep_until=None)

    def __call__(self, task_name: str, step: int | None, metrics: Mapping[str, Any], **others: Any) -> None:
        del others
        scalars = {}
        for name, metric in metrics.items():
            if hasattr(metric, "value"):
                scalars[f"eval/{name}"] = float(np.asarray(metric.value))
            elif hasattr(metric, "textdata"):
                self._writer.write_text(step or 0, task_name, f"eval/{name}", str(metric.textdata))
            else:
                logger.warning("%s/%s is a %s, which is not written to TensorBoard.", task_name, name, type(metric))
        self._writer.write_scalars(step or 0, task_name, scalars)

    def close(self) -> None:
        self._writer.close()


class JSONLogger:
    """`<task>-metrics.jsonl`, to which every evaluation adds a line, and `<task>-<step>.jsonl`, a line an example.

    Args:
      write_n_results: examples to write; None writes all, 0 none.
    """

    def __init__(self, output_dir: str, write_n_results: int | None = None):
        self.output_dir = output_dir
        self._write_n_results = write_n_results

    def __call__(
        self,
        task_name: str,
        step: int | None,
        metrics: Mapping[str, Any],
        dataset: Any,
        inferences: Mapping[str, Any] | None,
        targets: Sequence[Any] | None,
    ) -> None:
        step = -1 if step is None else step
        if metrics:
            line = {name: x.value if hasattr(x, "value") else _text(x) for name, x in metrics.items()}
            file = Path(self.output_dir) / f"{task_name}-metrics.jsonl"
            before = file.read_text(encoding="utf-8") if file.exists() else ""
            storage.replace_text(file, f"{before}{_json({'step': step, **line})}\n")
        if self._write_n_results == 0 or not inferences or not targets:
            return
        kinds = [kind for kind in inferences if kind != "aux_value"]
        aux = inferences.get("aux_value", {})
        lines = []
        for i, (example, target) in enumerate(zip(dataset.as_numpy_iterator(), targets, strict=True)):
            if self._write_n_results and i == self._write_n_results:
                break
            texts_first = sorted(example.items(), key=lambda pair: not isinstance(pair[1], str | bytes))
            line = {"input": dict(texts_first), "target": target, **{kind: inferences[kind][i] for kind in kinds}}
            lines.append(_json(line | {f"aux_{name}": values[i] for name, values in aux.items()}))
        file = Path(self.output_dir) / f"{task_name}-{step:06}.jsonl"
        storage.replace_text(file, "".join(f"{line}\n" for line in lines))


def _text(metric: Any) -> str:
    return str(getattr(metric, "textdata", f"a {type(metric).__name__}, which is not written here"))


def _json(line: Mapping[str, Any]) -> str:
    return json_text.dumps(line, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value that JSON does not have, as `seqio.TensorAndNumpyEncoder` writes it."""
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= _MOST_VALUES else _summary(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: x for name, x in dataclasses.asdict(value).items() if x is not None}
    return str(value)


def _summary(array: np.ndarray) -> str:
    flat = array.reshape(-1)
    first, last = (str(part.tolist())[1:-1] for part in (flat[:5], flat[-5:]))
    return f"ndarray(shape={array.shape}, dtype={array.dtype}); summary: {first} ... {last}"
