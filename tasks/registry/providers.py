"""Finds tasks and mixtures by the names in a configuration."""

import sys
from typing import Any

from limba.files import repository
from limba.gin_config import closed_list, import_errors, importing
from limba.tasks.registry import tasks
from limba.tasks.sources import tfds_files

# Names in a message, where none is near.
_MOST_NAMED = 5


def find_provider(name: Any, module: str | None = None) -> Any:
    """The task or mixture of that name, after importing the module that registers it; a task or mixture is itself.

    One that was registered with SeqIO, of parts of ours only, is given as ours (`tasks.as_ours`).

    Raises:
      ValueError: if the module cannot be imported, or the name does not exist, where the message has the nearest
        names; or as `tfds_files.check`.
    """
    provider = _find(name, module)
    for task in tasks.get_subtasks(provider):
        tfds_files.check(getattr(task, "source", None))
    return provider


def _find(name: Any, module: str | None) -> Any:
    if not isinstance(name, str):
        return tasks.as_ours(name)
    if module:
        _import(module)
    names = tasks.all_names()
    if name not in names:
        known = tasks.nearest(name, names)
        if not known and names:
            known = f" There are {', '.join(sorted(names)[:_MOST_NAMED])}{' …' * (len(names) > _MOST_NAMED)}."
        raise ValueError(
            f"There is no task or mixture {name!r}.{known} If a module of yours registers it, name that module: "
            "--module my_module, `import my_module` in the gin file, or DatasetConfig.module."
            + _hint_of_tasks()
            + _hint_of_t5()
        )
    return tasks.as_ours(tasks.get_mixture_or_task(name))


def _import(module: str) -> None:
    try:
        importing.load(module)
    except closed_list.RefusedNameError:
        raise
    except Exception as error:  # A module of the user's may raise anything.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ValueError(
                f"There is no module {module!r} (DatasetConfig.module, --module); check its name and PYTHONPATH."
                f"{import_errors.did_you_mean(module)}{import_errors.where_it_was(module)}"
            ) from error
        why = import_errors.describe(error) or f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{module!r} (DatasetConfig.module, --module) cannot be imported: {why}"
            f"{import_errors.describe_hidden(error)}"
        ) from error


def tasks_with_split(provider: Any, split: str) -> list[Any]:
    """Those of a mixture, in its order, that have a split: the others are left out."""
    return [task for task in tasks.get_subtasks(provider) if split in task.splits]


def with_split(provider: Any, split: str) -> list[Any]:
    """As `tasks_with_split`; raises ValueError if there is none."""
    found = tasks_with_split(provider, split)
    if not found:
        has = ", ".join(map(repr, sorted(provider.splits)))
        raise ValueError(f"{provider.name!r} has no split {split!r}; it has {has}.")
    return found


def _hint_of_tasks() -> str:
    """What `import tasks` found, where a module of the user's may be meant."""
    hidden = repository.hidden_modules()
    found = ""
    if repository.IN_CLONE and "tasks" in importing.of_gin_files():
        found = f" `import tasks` found Limba's own package, {repository.REPOSITORY / 'tasks'}."
        if not hidden:
            found += " A tasks.py of yours needs another name, such as my_tasks.py."
    return found + "".join(f" {repository.remedy_of_hidden(file)}" for file in hidden)


def _hint_of_t5() -> str:
    """The hint for a file that has imported T5's own mixtures where T5 is not installed."""
    if not type(sys.modules.get("t5.data.mixtures")).__module__.startswith("limba."):
        return ""
    return (
        " The mixtures of t5.data.mixtures come with T5 (pip install t5), not with Limba; a task of your own over the "
        "same data is registered as docs/data.md shows."
    )
