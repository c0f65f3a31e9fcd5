"""Writers of metrics: TensorBoard and a JSON-lines file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from limba.devices import library_patches
from limba.files import storage, written_files
from limba.files.storage import AnyPath
from limba.reports import json_lines

Scalars = Mapping[str, float]
METRICS_FILE = "metrics.jsonl"
# What TensorBoard shows first, because groups of tags are sorted.
_FIRST = {f"0_first/{name.rpartition('/')[2]}": name for name in ("loss", "learning_rate", "timing/tokens_per_second")}


class MetricWriter(Protocol):
    """Writes the scalars of one dataset ("train", "training_eval/<task>", "inference_eval/<task>") at one step."""

    def write_scalars(self, step: int, dataset: str, scalars: Scalars) -> None: ...

    def write_text(self, step: int, dataset: str, name: str, text: str) -> None: ...

    def close(self) -> None: ...


class TensorBoardWriter:
    """Event files in T5X's folders: `<model_dir>/train`, `<model_dir>/training_eval/<task>`.

    Earlier events after step `keep_until` are hidden (-1 hides all, None hides none).
    """

    def __init__(self, model_dir: Path, keep_until: int | None = -1):
        self._model_dir = model_dir
        self._purge_step = None if keep_until is None else keep_until + 1
        self._writers: dict[str, Any] = {}

    def _writer(self, dataset: str) -> Any:
        if dataset not in self._writers:
            # TensorBoard drops earlier events from purge_step on.
            folder = written_files.make_folder(self._model_dir, dataset)
            self._writers[dataset] = _tensorboardx().SummaryWriter(str(folder), purge_step=self._purge_step)
        return self._writers[dataset]

    def write_scalars(self, step: int, dataset: str, scalars: Scalars) -> None:
        writer = self._writer(dataset)
        first = {shown: scalars[name] for shown, name in _FIRST.items() if name in scalars}
        for name, value in {**first, **scalars}.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def write_text(self, step: int, dataset: str, name: str, text: str) -> None:
        # In Markdown, four spaces keep the line breaks.
        written = _tensorboardx().summary.text(name, "\n".join(f"    {line}" for line in text.splitlines()))
        written.value[0].tag = name  # tensorboardX appends "/text_summary", and T5X does not.
        self._writer(dataset).file_writer.add_summary(written, step)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _tensorboardx() -> Any:
    """tensorboardX, imported without PyTorch, which would take seconds and 200 MB for types that Limba never writes.

    The import is in this function because only training needs it.
    """
    with library_patches.without_torch():
        import tensorboardX
        import tensorboardX.summary
    return tensorboardX


class SummaryWriter:
    """The writers of one dataset with the methods of clu's `MetricWriter`, for a `summarize_config_fn`."""

    def __init__(self, writers: Sequence[MetricWriter], dataset: str):
        self._writers = writers
        self._dataset = dataset

    def write_scalars(self, step: int, scalars: Scalars) -> None:
        for writer in self._writers:
            writer.write_scalars(step, self._dataset, scalars)

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        for writer in self._writers:
            for name, text in texts.items():
                writer.write_text(step, self._dataset, name, text)

    def flush(self) -> None:
        """Each write is flushed."""


def write_timing(writers: Sequence[MetricWriter], step: int, name: str, seconds: float) -> None:
    """Writes a duration to TensorBoard's `train` only: `metrics.jsonl` has one line for each step and dataset."""
    for writer in writers:
        if isinstance(writer, TensorBoardWriter):
            writer.write_scalars(step, "train", {f"timing/{name}": seconds})


class JsonLinesWriter:
    """`<model_dir>/metrics.jsonl`, one line for each step and dataset: `{"step": 100, "dataset": "train", "loss": …}`.

    Earlier lines after step `keep_until` are removed (-1 removes all).
    """

    def __init__(self, model_dir: Path, keep_until: int = -1):
        path = model_dir / METRICS_FILE
        kept = [line for line in json_lines.read_and_repair(path, is_metrics) if line["step"] <= keep_until]
        storage.replace_text(path, "".join(map(json_lines.to_line, kept)))
        self._file = path.open("a", encoding="utf-8")

    def write_scalars(self, step: int, dataset: str, scalars: Scalars) -> None:
        self._file.write(json_lines.to_line({"step": step, "dataset": dataset, **scalars}))
        self._file.flush()

    def write_text(self, step: int, dataset: str, name: str, text: str) -> None:
        """Writes nothing: texts have files of their own."""

    def close(self) -> None:
        self._file.close()


def is_metrics(line: json_lines.Record) -> bool:
    """Whether a line of `metrics.jsonl` is what `JsonLinesWriter` writes: a step, a dataset, and numbers."""
    step, dataset = line.get("step"), line.get("dataset")
    values = (value for name, value in line.items() if name != "dataset")
    return (
        isinstance(step, int)
        and json_lines.is_number(step)
        and isinstance(dataset, str)
        and all(value is None or json_lines.is_number(value) for value in values)
    )


def read_metrics(model_dir: AnyPath, dataset_prefix: str = "") -> list[dict]:
    """The lines of `metrics.jsonl` whose dataset begins with `dataset_prefix`, in the file's order."""
    lines = json_lines.read(model_dir / METRICS_FILE, is_metrics)
    return [line for line in lines if line["dataset"].startswith(dataset_prefix)]
