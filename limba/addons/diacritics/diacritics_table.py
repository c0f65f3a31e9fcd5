"""A run's metrics on `limba.addons.diacritics.romanian_sentences`, beside what the ambiguity of these sentences allows.

python -m limba.addons.diacritics.diacritics_table --corpus runs/diacritics/corpus --run runs/diacritics/model
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping

from limba.addons.diacritics import romanian_sentences

_TASK = "diacritics_demo"


@dataclasses.dataclass(frozen=True)
class Row:
    """A metric in percent: of the text as it is typed, of the model, and of the likeliest forms."""

    metric: str
    typed: float
    model: float
    ceiling: float

    @property
    def ratio(self) -> float:
        """The model's share of what is possible, in percent; of an error rate that of what is right."""
        if self.metric.endswith("_error_rate"):
            return 100 * (100 - self.model) / (100 - self.ceiling)
        return 100 * self.model / self.ceiling


def rows(corpus: str | pathlib.Path, metrics: Mapping[str, float]) -> list[Row]:
    """The rows of all metrics of a model on the validation split of a corpus."""
    bounds = romanian_sentences.ceilings(corpus)
    return [Row(name, bounds["copy"][name], metrics[name], ceiling) for name, ceiling in bounds["best"].items()]


def read_metrics(run: str | pathlib.Path, task: str = _TASK) -> tuple[int, dict[str, float]]:
    """The step and the metrics of a run's last predictions.

    Raises:
      FileNotFoundError: if the run has made none.
    """
    file = pathlib.Path(run) / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []
    found = [line for line in lines if line["dataset"] == f"inference_eval/{task}"]
    if not found:
        raise FileNotFoundError(
            f"{str(file)!r} has no predictions of the task {task!r}; `bash launch/diacritics.sh` makes them."
        )
    metrics = {name.removeprefix("eval/"): value for name, value in found[-1].items() if name.startswith("eval/")}
    return found[-1]["step"], metrics


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m limba.addons.diacritics.diacritics_table", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--corpus", required=True, help="what `python -m limba.addons.diacritics.romanian_sentences` wrote"
    )
    parser.add_argument("--run", required=True, help="the MODEL_DIR of gin/recipes/diacritics_small.gin")
    args = parser.parse_args(argv)
    try:
        step, metrics = read_metrics(args.run)
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
    print(f"step {step}; percent of held-out words, letters or sentences")
    print(f"{'metric':<22}{'as typed':>10}{'model':>10}{'ceiling':>10}{'ratio':>10}")
    for row in rows(args.corpus, metrics):
        print(f"{row.metric:<22}{row.typed:>10.2f}{row.model:>10.2f}{row.ceiling:>10.2f}{row.ratio:>10.2f}")


if __name__ == "__main__":
    main()
