"""The packages of the extra `metrics` that some metrics need, which are imported when a metric is computed."""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_EXTRA = "pip install 'limba[metrics]'"
_Metric = TypeVar("_Metric", bound=Callable[..., Any])


def optional(module: str) -> Any:
    """A module of the extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"This metric needs {module}: {_EXTRA}.", name=module) from error


def needs(*packages: str) -> Callable[[_Metric], _Metric]:
    """Marks a metric with the packages that it imports, so that one that is missing is found before the training."""

    def mark(metric: _Metric) -> _Metric:
        vars(metric)["packages"] = packages
        return metric

    return mark


def like(*metrics: Callable[..., Any]) -> Callable[[_Metric], _Metric]:
    """Marks a metric with the packages of those that it calls."""
    return needs(*dict.fromkeys(package for metric in metrics for package in _packages(metric)))


def _packages(metric: Any) -> tuple[str, ...]:
    while isinstance(metric, functools.partial):
        metric = metric.func
    return getattr(metric, "packages", ())


def check(task: str, metrics: Iterable[Callable[..., Any]]) -> None:
    """Raises ValueError if a metric of a task needs a package that is not installed."""
    for metric in metrics:
        for package in _packages(metric):
            if importlib.util.find_spec(package) is None:
                while isinstance(metric, functools.partial):
                    metric = metric.func
                raise ValueError(
                    f"Task {task!r} has the metric {getattr(metric, '__name__', metric)}, which needs the package "
                    f"{package}: {_EXTRA}, or leave the metric out of the task's metric_fns."
                )
