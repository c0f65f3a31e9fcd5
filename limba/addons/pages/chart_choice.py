"""Which charts a page has, and which curves are in them: those that the runs have numbers for."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

from limba.addons.pages import run_curves
from limba.addons.pages.run_curves import PREDICTED, TEACHER_FORCED, TRAIN, Curves
from limba.addons.pages.run_record import RunRecord
from limba.reports import text_figures

_NATS = "nats_per_text_token"
_RENORMALIZED = f"{_NATS}_renormalized"
# Where tasks are many, a chart has so many curves of a run, and its note says how many more there are.
_MOST_CURVES = 8
_NORMS = ("gradient_norm", "weight_gradient_norm")
_OF_PARAMETERS = dict(zip(run_curves.OF_PARAMETERS, ("RMS of updates", "RMS of weights"), strict=True))
_OF_LABELS = re.compile(r".+_(precision|recall|f1|number)")
_OF_ALL_LABELS = ("macro_", "micro_", "weighted_", "overall_")
# What other charts or tables have, and what says nothing more than they.
_KNOWN = re.compile(
    r"(timing|goodput|epochs|loss|target_tokens|non_padding_fraction|effective_batch_size|learning_rate|weight_\w+)/.*|"
    r"(cross_ent_|z_)?loss(_per_.*)?|accuracy|learning_rate|num_\w+|nats_per_target_token|.*gradient_norm|weight_.*"
)


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve of a chart.

    Attributes:
      run: number of the run on the page.
      low, high: metrics of the edges of its band; None for those of `metric` itself.
      is_dashed: it stands beside another one of the same run.
      has_dots: its points are few, and each is a measurement.
      is_shared: it is the same in all runs of the page, and stands there once.
    """

    label: str
    run: int
    dataset: str
    metric: str
    low: str | None = None
    high: str | None = None
    is_dashed: bool = False
    has_dots: bool = False
    is_shared: bool = False

    @property
    def band(self) -> tuple[str, str]:
        return self.low or self.metric, self.high or self.metric


@dataclasses.dataclass(frozen=True)
class Chart:
    section: str
    title: str
    y_label: str
    lines: Sequence[Line]
    note: str = ""


def charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """The charts of a page, without empty ones."""
    found = [
        _losses(runs),
        _by_task(runs),
        _text(runs),
        _per_character(runs),
        _accuracy(runs),
        *_task_metrics(runs),
        _of_training(runs, "Optimizer", "Learning rate", "", ("learning_rate/current", "learning_rate")),
        _of_training(runs, "Optimizer", "Norm of the gradient", "L2 norm", _NORMS),
        *(_of_parameters(runs, prefix, title) for prefix, title in _OF_PARAMETERS.items()),
        _of_training(runs, "Speed", "Tokens a second", "input and target positions", (run_curves.TOKENS_PER_SECOND,)),
        _of_training(runs, "Speed", "Goodput", "share of the time", ("goodput/fraction",)),
        _epochs(runs),
        *_others(runs),
    ]
    return [chart for chart in found if chart.lines]


# ------------------------------------------------------- losses ------------------------------------------------------


def _losses(runs: Sequence[RunRecord]) -> Chart:
    lines, left_out = [], 0
    for number, run in enumerate(runs):
        if metric := _first(run.curves.get(TRAIN), ("loss", *run_curves.LOSSES)):
            lines.append(Line(_label(runs, run, "train"), number, TRAIN, metric))
        datasets = [name for name in run.curves if name.startswith(TEACHER_FORCED)]
        datasets.sort(key=lambda name: name.removeprefix(TEACHER_FORCED) not in (run.task, f"{run.task}_average"))
        left_out += len(datasets[_MOST_CURVES:])
        for dataset in datasets[:_MOST_CURVES]:
            if metric := _first(run.curves[dataset], run_curves.LOSSES):
                lines.append(
                    Line(_label(runs, run, _task(dataset)), number, dataset, metric, is_dashed=True, has_dots=True)
                )
    note = "Of a target token, in nats. Training has the term of z_loss on top, and dropout, where they are configured."
    return Chart("Losses", "Loss of training and validation", "loss", lines, note + _left_out(left_out, "validations"))


def _by_task(runs: Sequence[RunRecord]) -> Chart:
    lines, left_out = [], 0
    for number, run in enumerate(runs):
        names = _known(run.curves.get(TRAIN), "loss/")
        left_out += len(names[_MOST_CURVES:])
        lines += [
            Line(_label(runs, run, name.partition("/")[2]), number, TRAIN, name, is_dashed=i > 0)
            for i, name in enumerate(names[:_MOST_CURVES])
        ]
    return Chart("Losses", "Loss of training by task", "loss", lines, _left_out(left_out, "tasks"))


def _text(runs: Sequence[RunRecord]) -> Chart:
    """The model beside n-grams, which runs on the same texts share."""
    lines: list[Line] = []
    for number, run in enumerate(runs):
        for dataset, curves in _evaluations(run):
            names = {_RENORMALIZED: "model", _NATS: text_figures.AMONG_ALL.removeprefix("the ")}
            names |= {f"{key}/{_NATS}": name for key, name in text_figures.PREDICTORS.items()}
            known = [metric for metric in names if curves.known(metric)]
            for metric in known[:1] if run_curves.of_average(dataset) else known:
                name = names[metric]
                of = name if len(_evaluations(run)) == 1 else f"{name}, {dataset.removeprefix(TEACHER_FORCED)}"
                if metric.startswith(_NATS):
                    lines.append(Line(_label(runs, run, of), number, dataset, metric, has_dots=True))
                elif len(runs) == 1 or not _have_the_same(runs, dataset, metric):
                    lines.append(Line(_label(runs, run, of), number, dataset, metric, is_dashed=True))
                elif number == 0:
                    lines.append(Line(of, number, dataset, metric, is_dashed=True, is_shared=True))
    note = (
        f"Targets that are text, without sentinels and EOS. {text_figures.EXPLAINED} N-grams are of the training texts."
    )
    return Chart("Losses", "Nats per token of text", "nats", lines[: 4 * _MOST_CURVES], note)


def _have_the_same(runs: Sequence[RunRecord], dataset: str, metric: str) -> bool:
    """Whether all runs have one and the same number under a name."""
    found = {None if (curves := run.curves.get(dataset)) is None else curves.last(metric) for run in runs}
    return len(found) == 1 and None not in found


def _per_character(runs: Sequence[RunRecord]) -> Chart:
    lines = [
        Line(_label(runs, run, _task(dataset)), number, dataset, "nats_per_character", has_dots=True)
        for number, run in enumerate(runs)
        for dataset, curves in _evaluations(run)
        if curves.known("nats_per_character") and len(runs) > 1
    ]
    return Chart("Losses", "Nats per character", "nats", lines, "Compares runs with different vocabularies.")


def _accuracy(runs: Sequence[RunRecord]) -> Chart:
    lines = []
    for number, run in enumerate(runs):
        if run.curves.get(TRAIN) is not None and run.curves[TRAIN].known("accuracy"):
            lines.append(Line(_label(runs, run, "train"), number, TRAIN, "accuracy"))
        for dataset, curves in _evaluations(run):
            if curves.known("accuracy"):
                lines.append(
                    Line(_label(runs, run, _task(dataset)), number, dataset, "accuracy", is_dashed=True, has_dots=True)
                )
    return Chart("Losses", "Accuracy of tokens", "share of right tokens", lines, "By teacher forcing.")


def _task_metrics(runs: Sequence[RunRecord]) -> Iterator[Chart]:
    datasets = dict.fromkeys(name for run in runs for name in run.curves if name.startswith(PREDICTED))
    for dataset in datasets:
        lines, left_out = [], 0
        for number, run in enumerate(runs):
            names = [name for name in _known(run.curves.get(dataset), "eval/") if not _is_of_label(name[5:])]
            left_out += len(names[_MOST_CURVES:])
            lines += [
                Line(_label(runs, run, name[5:]), number, dataset, name, is_dashed=i > 0, has_dots=True)
                for i, name in enumerate(names[:_MOST_CURVES])
            ]
        task = dataset.removeprefix(PREDICTED)
        yield Chart("Metrics", f"Metrics of {task}", "", lines, f"Of predictions.{_left_out(left_out, 'metrics')}")


# ----------------------------------------------- optimizer, speed, the rest ------------------------------------------


def _of_training(runs: Sequence[RunRecord], section: str, title: str, y_label: str, metrics: Sequence[str]) -> Chart:
    """The first of some metrics that a run has, of all runs."""
    lines = [
        Line(run.name if len(runs) > 1 else title.lower(), number, TRAIN, metric)
        for number, run in enumerate(runs)
        if (metric := _first(run.curves.get(TRAIN), metrics))
    ]
    return Chart(section, title, y_label, lines)


def _of_parameters(runs: Sequence[RunRecord], prefix: str, title: str) -> Chart:
    lines = [
        Line(_label(runs, run, "median"), number, TRAIN, f"{prefix}:median", f"{prefix}:least", f"{prefix}:greatest")
        for number, run in enumerate(runs)
        if run.curves.get(TRAIN) is not None and run.curves[TRAIN].known(f"{prefix}:median")
    ]
    return Chart("Optimizer", title, "RMS", lines, "The median of all parameters, and from the least to the greatest.")


def _epochs(runs: Sequence[RunRecord]) -> Chart:
    lines = [
        Line(_label(runs, run, name.partition("/")[2]), number, TRAIN, name, is_dashed=i > 0)
        for number, run in enumerate(runs)
        for i, name in enumerate(_known(run.curves.get(TRAIN), "epochs/")[:_MOST_CURVES])
        if (run.curves[TRAIN].last(name) or 0) > 0
    ]
    return Chart("Data", "Passes over the data", "epochs", lines)


def _others(runs: Sequence[RunRecord]) -> Iterator[Chart]:
    """Metrics of training that no chart above has, such as those of an optimizer or model of a user's own."""
    names = dict.fromkeys(
        name
        for run in runs
        for name in _known(run.curves.get(TRAIN), "")
        if not _KNOWN.fullmatch(name) and ":" not in name
    )
    for name in list(names)[: 2 * _MOST_CURVES]:
        yield _of_training(runs, "Other metrics of training", name, "", (name,))


# ------------------------------------------------------- helpers -----------------------------------------------------


def _first(curves: Curves | None, metrics: Sequence[str]) -> str | None:
    return None if curves is None else next((name for name in metrics if curves.known(name)), None)


def _known(curves: Curves | None, prefix: str) -> list[str]:
    return [] if curves is None else [x for x in curves.columns if x.startswith(prefix) and curves.known(x)]


def _evaluations(run: RunRecord) -> list[tuple[str, Curves]]:
    found = [(name, curves) for name, curves in run.curves.items() if name.startswith(TEACHER_FORCED)]
    return found[:_MOST_CURVES]


def _task(dataset: str) -> str:
    name = dataset.removeprefix(TEACHER_FORCED)
    return f"{name.removesuffix('_average')}, averaged weights" if run_curves.of_average(dataset) else name


def _label(runs: Sequence[RunRecord], run: RunRecord, what: str) -> str:
    return what if len(runs) == 1 else f"{run.name}: {what}"


def _is_of_label(name: str) -> bool:
    return bool(_OF_LABELS.fullmatch(name)) and not name.startswith(_OF_ALL_LABELS)


def _left_out(count: int, what: str) -> str:
    return f" {count} more {what} are in metrics.jsonl." if count else ""
