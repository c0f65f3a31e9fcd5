"""Compares a cache with the task of its name, as far as this process and this machine know it."""

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from limba.data import contract


def differences(manifest: Mapping[str, Any], config: contract.DatasetConfig) -> list[str]:
    """What the task makes today and the cache does not hold; nothing of a task that is not registered, or SeqIO's."""
    name, module = config.mixture_or_task_name, config.module
    # The reader of a cache needs no task, and what tasks import is then not imported.
    if isinstance(name, str) and not module and "limba.tasks.registry.tasks" not in sys.modules:
        return []
    from limba.tasks.pipeline import fingerprints
    from limba.tasks.registry import providers, tasks
    from limba.tasks.sources.sharded import ShardedSource

    before = manifest["fingerprint"].get("tasks", {}).get(config.name)
    if before is None or (isinstance(name, str) and not module and name not in tasks.all_names()):
        return []
    task = providers.find_provider(name, module)
    if not isinstance(task, tasks.Task):
        return []
    now: dict[str, Any] = {"preprocessors": [fingerprints.describe(step) for step in task.preprocessors]}
    with contextlib.suppress(FileNotFoundError):
        now["vocabulary"] = fingerprints.of_vocabulary(task.output_features["targets"].vocabulary)
        if isinstance(task.source, ShardedSource) and not task.source.needs_network:
            now["source"] = task.source.fingerprint(config.split)
    return list(fingerprints.differences({key: before.get(key) for key in now}, now))
