"""What a dry run of a training looks for: tasks, splits, the first rows of files, and the initial checkpoint."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gin

from limba.checkpoints import checkpointing
from limba.files import storage
from limba.inference import tasks_door

# The arguments of `train()` with data, what opens them, and whether they need the split.
_DATA: Mapping[str, tuple[str, Callable[..., Any] | None, bool]] = {
    "train_dataset_cfg": ("get_dataset_fn", tasks_door.get_dataset, True),
    "train_eval_dataset_cfg": ("train_eval_get_dataset_fn", tasks_door.get_training_eval_datasets, True),
    "infer_eval_dataset_cfg": ("", None, False),
}


def check(configured: Callable[..., Any]) -> None:
    """Checks what gin has bound to `train()`, as a run does before it reads; what needs the network is left to the run.

    Data that a function of the user's own opens are not looked for.

    Raises:
      ValueError, FileNotFoundError: for what the run refuses.
    """
    bound = gin.get_bindings(configured, resolve_references=False)
    for name, (opener, ours, needs_split) in _DATA.items():
        opened_by = _built(bound, opener)
        if (config := _built(bound, name)) is not None and (opened_by is None or inspect.unwrap(opened_by) is ours):
            tasks_door.check_files(config, needs_split)
    restore = getattr(_built(bound, "checkpoint_cfg"), "restore", None)
    if restore is not None and not _may_resume(_built(bound, "model_dir")):
        paths = [restore.path] if isinstance(restore.path, str) else list(restore.path)
        if not any(storage.is_remote(storage.as_path(path)) for path in paths if path):
            _ = restore.checkpoint


def _built(bound: Mapping[str, Any], name: str) -> Any:
    """A value that gin has bound; gin builds a reference when it is copied."""
    return copy.deepcopy(bound.get(name))


def _may_resume(model_dir: str) -> bool:
    """Whether a run has checkpoints of its own, or is in a bucket, where it may have some."""
    home = storage.as_path(model_dir)
    return storage.is_remote(home) or bool(checkpointing.checkpoint_steps(home))
