"""Compares a cache with the task of its name, as far as this process and this machine know it."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from limba.data import contract


def differences(manifest: Mapping[str, Any], config: contract.DatasetConfig) -> list[str]:
    """What the task makes today and the cache does not hold; nothing of a task that is not registered, or SeqIO's.

    Its files are compared where they are on this machine, by name and size; their contents are the cache's own matter.
    """
    is_named = isinstance(config.mixture_or_task_name, str) and not config.module
    # The reader of a cache needs no task, and what tasks import is then not imported.
    if is_named and "tasks.registry.tasks" not in sys.modules:
        return []
    from tasks.registry import providers, tasks

    if is_named and config.mixture_or_task_name not in tasks.all_names():
        return []
    task = providers.find_provider(config.mixture_or_task_name, config.module)
    before = manifest["fingerprint"].get("tasks", {}).get(config.name)
    if before is None or not isinstance(task, tasks.Task):
        return []
    from tasks.pipeline import fingerprints

    now = dict(_facts(task, config.split))
    return list(fingerprints.differences({name: before.get(name) for name in now}, now))


def _facts(task: Any, split: str) -> Iterator[tuple[str, Any]]:
    """As `fingerprints.of_stream` has them, without what cannot be read here."""
    from tasks.pipeline import fingerprints
    from tasks.sources.sharded import ShardedSource

    yield "preprocessors", [fingerprints.describe(step) for step in task.preprocessors]
    try:
        yield "vocabulary", fingerprints.of_vocabulary(task.output_features["targets"].vocabulary)
        if isinstance(task.source, ShardedSource) and not task.source.needs_network:
            yield "source", task.source.fingerprint(split)
    except FileNotFoundError:
        return
