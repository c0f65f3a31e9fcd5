"""What names in a configuration stand for: tasks and mixtures, feature converters."""

import difflib
import importlib
import sys

import seqio
import tensorflow as tf

from limba import import_errors

# The accelerators belong to JAX, in whatever reads a task.
if tf.config.get_visible_devices("GPU"):
    tf.config.set_visible_devices([], "GPU")

FeatureConverter = str | type[seqio.FeatureConverter]


def find_provider(name: str | seqio.Task | seqio.Mixture, module: str | None = None) -> seqio.Task | seqio.Mixture:
    """The task or mixture of that name, after importing the module that registers it; a task or mixture is itself.

    Raises:
      ValueError: if the module cannot be imported, or the name does not exist; says which names are near.
    """
    if not isinstance(name, str):
        return name
    if module:
        _import(module)
    names = [*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()]
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.3)
        known = f"The nearest are {', '.join(map(repr, nearest))}." if nearest else f"There are {len(names)} others."
        raise ValueError(
            f"There is no task or mixture {name!r}. {known} If a module of yours registers it, import that module: "
            "`import my_module` in the gin file, or DatasetConfig.module." + _of_t5()
        )
    return seqio.get_mixture_or_task(name)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:  # A module of the user's may raise anything.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ValueError(
                f"There is no module {module!r} (DatasetConfig.module, --module); check its name and PYTHONPATH."
            ) from error
        why = import_errors.describe(error) or f"{type(error).__name__}: {error}"
        raise ValueError(f"{module!r} (DatasetConfig.module, --module) cannot be imported: {why}") from error


def tasks_with_split(provider: seqio.Task | seqio.Mixture, split: str) -> list[seqio.Task]:
    """Those of a mixture, in its order, that have a split: the others are left out."""
    return [task for task in seqio.get_subtasks(provider) if split in task.splits]


def _of_t5() -> str:
    """What to say where a file has imported T5's own mixtures, and T5 is not installed."""
    if not type(sys.modules.get("t5.data.mixtures")).__module__.startswith("limba."):
        return ""
    return (
        " The mixtures of t5.data.mixtures come with T5 (pip install t5), not with Limba; a task of your own over the "
        "same data is registered as docs/data.md shows."
    )


def converter_class(feature_converter: FeatureConverter) -> type[seqio.FeatureConverter]:
    if not isinstance(feature_converter, str):
        return feature_converter
    known = [name for name in dir(seqio) if name.endswith("FeatureConverter")]
    if feature_converter not in known:
        nearest = difflib.get_close_matches(feature_converter, known, n=1, cutoff=0.0)[0]
        raise ValueError(f"SeqIO has no feature converter {feature_converter!r}; did you mean {nearest!r}?")
    return getattr(seqio, feature_converter)
