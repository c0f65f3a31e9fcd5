"""Tasks, mixtures and their registries under SeqIO's names, without TensorFlow.

What is registered here is also a SeqIO task or mixture for whoever imports `seqio`
(`limba.addons.table`, `seqio_registry`).
"""

import dataclasses
import difflib
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_0
from limba.tasks.registry.steps import Step
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.vocabularies import without_tensorflow

_BUFFER_SIZE = AT_LEAST_0._replace(or_none=True)


_NAME = re.compile(r"[\w.:#]+")  # SeqIO's rule
# SeqIO's default.
SHUFFLE_BUFFER_SIZE = 1000


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature that a task makes.

    Attributes:
      vocabulary: one of `tasks.vocabularies`, or of SeqIO.
      add_eos: whether EOS ends it.
      required: whether every example has it.
      dtype, rank: of its values.
    """

    vocabulary: Any
    add_eos: bool = True
    required: bool = True
    dtype: type = np.int32
    rank: int = 1


class Task:
    """A data set, what is made of its rows, and how answers are scored.

    Args:
      name: letters, digits, `_`, `.` and `:`.
      source: of `tasks.sources`, or any of SeqIO's.
      preprocessors: steps (`tasks.registry.steps.Step`), one after another.
      output_features: what the steps make, by name.
      postprocess_fn: `(decoded answer, example=…, is_target=…)` to what is scored.
      metric_fns: functions of `(targets, predictions)`, `(targets, scores)` or `(targets, predictions, aux_values)`.
      shuffle_buffer_size: examples that are shuffled together, of all readers; None shuffles files and documents only.

    Raises:
      ValueError: for a name with other characters, and for a preprocessor that is not a step.
    """

    supports_caching = False  # SeqIO's offline caches are made of its own tasks.

    def __init__(
        self,
        name: str,
        source: Any,
        output_features: Mapping[str, Any],
        preprocessors: Sequence[Step] = (),
        postprocess_fn: Callable[..., Any] | None = None,
        metric_fns: Sequence[Callable[..., Any]] | None = None,
        shuffle_buffer_size: int | None = SHUFFLE_BUFFER_SIZE,
    ):
        if not _NAME.fullmatch(name):
            raise ValueError(f"The task name {name!r} has other characters than letters, digits, '_', '.' and ':'.")
        number_ranges.check(f"shuffle_buffer_size of task {name!r}", shuffle_buffer_size, _BUFFER_SIZE)
        for step in preprocessors:
            if not isinstance(step, Step):
                raise ValueError(
                    f"The preprocessor {step!r} of task {name!r} is not a tasks.registry.steps.Step. Functions of "
                    "tf.data.Datasets belong to a task of SeqIO's: seqio.TaskRegistry.add."
                )
        self.name = name
        self.source = source
        self.output_features = dict(sorted(output_features.items()))  # as SeqIO sorts them
        self.preprocessors = tuple(preprocessors)
        self.postprocessor = postprocess_fn
        self.metric_fns = tuple(metric_fns or ())
        self.shuffle_buffer_size = shuffle_buffer_size

    @property
    def splits(self) -> Sequence[str]:
        return self.source.splits

    def postprocess_fn(self, answer: Any, **arguments: Any) -> Any:
        return answer if self.postprocessor is None else self.postprocessor(answer, **arguments)

    @functools.cached_property
    def _metric_fns_by_arguments(self) -> dict[tuple[str, ...], list[Callable[..., Any]]]:
        kinds = ("targets", "predictions"), ("targets", "scores"), ("targets", "predictions", "aux_values")
        found: dict[tuple[str, ...], list[Callable[..., Any]]] = {kind: [] for kind in kinds}
        for function in self.metric_fns:
            arguments = tuple(
                name
                for name, parameter in inspect.signature(function).parameters.items()
                if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            )
            if arguments not in found:
                raise ValueError(f"The metric {function!r} of task {self.name!r} takes {arguments}, not {kinds}.")
            found[arguments].append(function)
        return found

    @property
    def predict_metric_fns(self) -> list[Callable[..., Any]]:
        return self._metric_fns_by_arguments["targets", "predictions"]

    @property
    def score_metric_fns(self) -> list[Callable[..., Any]]:
        return self._metric_fns_by_arguments["targets", "scores"]

    @property
    def predict_with_aux_metric_fns(self) -> list[Callable[..., Any]]:
        return self._metric_fns_by_arguments["targets", "predictions", "aux_values"]

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {self.source!r})"


Rate = float | Callable[[Any], float]


class Mixture:
    """Tasks that are mixed at rates. A mixture inside it divides its rate between its own tasks.

    Args:
      name: as a task's.
      tasks: names, tasks or mixtures; with their rates, numbers or functions of the task, unless there is a default.
      default_rate: of those without a rate.

    Attributes:
      parts: tasks and mixtures directly inside it.

    Raises:
      ValueError: for an unknown name, without a rate or without a task, and for different features.
    """

    def __init__(self, name: str, tasks: Sequence[Any], default_rate: Rate | None = None):
        if not _NAME.fullmatch(name):
            raise ValueError(f"The mixture name {name!r} has other characters than letters, digits, '_', '.' and ':'.")
        self.name = name
        self.rate_per_task_name: dict[str, Rate] = {}
        self.parts: list[Any] = []
        for entry in tasks:
            part, rate = entry if isinstance(entry, tuple | list) else (entry, default_rate)
            if rate is None:
                raise ValueError(f"Mixture {name!r} has no rate for {part!r}; give (task, rate), or default_rate.")
            part = as_ours(get_mixture_or_task(part) if isinstance(part, str) else part)
            self.parts.append(part)
            self.rate_per_task_name[part.name] = rate
        if not self.parts:
            raise ValueError(f"Mixture {name!r} has no task.")
        features = {tuple(task.output_features) for task in self.tasks}
        if len(features) > 1:
            raise ValueError(f"Mixture {name!r} mixes tasks with different features: {sorted(features)}.")

    @functools.cached_property
    def tasks(self) -> list[Any]:
        """All tasks, those of inner mixtures included, each once, by name."""
        tasks = {task.name: task for part in self.parts for task in get_subtasks(part)}
        return [tasks[name] for name in sorted(tasks)]

    @property
    def total_rate(self) -> float:
        """Raises ValueError if it is 0."""
        total = sum(self._rate_of(part) for part in self.parts)
        if not total:
            raise ValueError(f"All rates of the mixture {self.name!r} are 0; give one task a rate above 0.")
        return total

    def get_rate(self, task: Any) -> float:
        """Of one of the tasks, relative to those of the others; one in several inner mixtures has the sum."""
        inner = [part for part in self.parts if is_mixture(part) and task.name in [x.name for x in part.tasks]]
        outer = [part for part in self.parts if not is_mixture(part) and part.name == task.name]
        shares = [self._rate_of(part) * part.get_rate(task) / part.total_rate for part in inner]
        return sum(shares, 0.0) + sum(map(self._rate_of, outer))

    def _rate_of(self, part: Any) -> float:
        rate = self.rate_per_task_name[part.name]
        if callable(rate) and is_mixture(part):
            raise ValueError(f"The rate of the mixture {part.name!r} in {self.name!r} must be a number.")
        try:
            found = float(rate(part) if callable(rate) else rate)
        except Exception as error:  # A function of a user's own may raise anything.
            raise ValueError(
                f"The rate of {part.name!r} in the mixture {self.name!r} cannot be computed ({error}). A rate by "
                "the number of examples needs a source that knows it (num_input_examples); a number is a rate, too."
            ) from error
        if not 0 <= found < math.inf:
            raise ValueError(f"The rate of {part.name!r} in the mixture {self.name!r} is {found}; it is at least 0.")
        return found

    @property
    def splits(self) -> Sequence[str]:
        return tuple({split: None for task in self.tasks for split in task.splits})

    @property
    def output_features(self) -> Mapping[str, Any]:
        return self.tasks[0].output_features

    def __repr__(self) -> str:
        return f"Mixture({self.name!r}, {self.rate_per_task_name!r})"


def is_mixture(provider: Any) -> bool:
    """Whether it is a mixture, ours or SeqIO's."""
    return hasattr(provider, "rate_per_task_name")


def get_subtasks(provider: Any) -> list[Any]:
    """The tasks of a mixture; a task alone."""
    return list(provider.tasks) if is_mixture(provider) else [provider]


_T = TypeVar("_T", Task, Mixture)


class Registry(Generic[_T]):
    """Tasks or mixtures by name.

    Attributes:
      copies: others that get a copy of whatever is added, by `add(task or mixture)`, and lose it by `remove(name)`.
    """

    def __init__(self, kind: type[_T]):
        self._kind: Any = kind
        self._registered: dict[str, _T] = {}
        self.copies: list[Any] = []

    def add(self, name: str, *args: Any, **kwargs: Any) -> _T:
        """Makes and registers one; the arguments are those of `Task` or `Mixture`.

        Raises:
          ValueError: if the name is taken; and what the constructor raises.
        """
        if name in self._registered:
            raise ValueError(f"A {self._kind.__name__.lower()} {name!r} is registered already; choose another name.")
        made = self._kind(name, *args, **kwargs)
        for copy in self.copies:
            copy.add(made)
        self._registered[name] = made
        return made

    def get(self, name: str) -> _T:
        """Raises ValueError, with the nearest names, for a name that is not registered."""
        if name not in self._registered:
            raise ValueError(f"There is no {self._kind.__name__.lower()} {name!r}.{nearest(name, self._registered)}")
        return self._registered[name]

    def names(self) -> list[str]:
        return list(self._registered)

    def remove(self, name: str) -> None:
        """Does nothing for a name that is not registered, as SeqIO."""
        if self._registered.pop(name, None) is not None:
            for copy in self.copies:
                copy.remove(name)

    def __contains__(self, name: object) -> bool:
        return name in self._registered

    def __iter__(self) -> Iterator[_T]:
        return iter(list(self._registered.values()))


TaskRegistry = Registry(Task)
MixtureRegistry = Registry(Mixture)


def nearest(name: str, known: Any) -> str:
    """The end of a message about an unknown name."""
    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.3)
    return f" The nearest are {', '.join(map(repr, found))}." if found else ""


def get_mixture_or_task(name: str) -> Any:
    """By name; from SeqIO's registries too, where SeqIO was imported.

    Raises:
      ValueError: with the nearest names, if there is none.
    """
    for registry in registries():
        if name in registry.names():
            return registry.get(name)
    raise ValueError(f"There is no task or mixture {name!r}.{nearest(name, all_names())}")


def all_names() -> list[str]:
    return list(dict.fromkeys(name for registry in registries() for name in registry.names()))


def registries() -> list[Any]:
    """Ours before SeqIO's, which has copies of ours; mixtures before tasks."""
    found: list[Any] = [MixtureRegistry, TaskRegistry]
    # Nobody has registered anything with SeqIO unless it was imported, with TensorFlow.
    if (seqio := sys.modules.get("seqio")) is not None and hasattr(seqio, "TaskRegistry"):
        found += [seqio.MixtureRegistry, seqio.TaskRegistry]
    return found


def as_ours(provider: Any) -> Any:
    """A task or mixture of SeqIO's as ours; a task with parts that need TensorFlow, and one of ours, is itself."""
    if isinstance(provider, Task | Mixture):
        return provider
    registry: Any = MixtureRegistry if is_mixture(provider) else TaskRegistry
    if provider.name in registry:  # SeqIO's copy of it
        return registry.get(provider.name)
    if is_mixture(provider):
        rates = provider.rate_per_task_name
        parts = [*provider._sub_mixtures, *provider._tasks]
        return Mixture(provider.name, [(part, _own_rate(rates[part.name], part)) for part in parts])
    if not isinstance(provider.source, ShardedSource) or not all(
        isinstance(step, Step) for step in provider.preprocessors
    ):
        return provider
    features = {
        name: Feature(without_tensorflow(feature.vocabulary), feature.add_eos, feature.required)
        for name, feature in provider.output_features.items()
    }
    return Task(
        provider.name,
        provider.source,
        features,
        provider.preprocessors,
        provider.postprocessor,
        provider.metric_fns,
        provider.shuffle_buffer_size,
    )


def _own_rate(rate: Any, task: Any) -> Rate:
    """A rate of SeqIO's; a function of its task gets SeqIO's task."""
    return (lambda _: rate(task)) if callable(rate) else rate
