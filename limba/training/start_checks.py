"""What a dry run of a training looks for: vocabularies, tasks, splits, metrics, rows, and the initial checkpoint."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin

from limba.checkpoints import checkpointing
from limba.data import contract
from limba.files import storage
from limba.inference import tasks_door
from limba.training import configured_trainer

# The arguments of `train()` with data, what opens them, and whether they are predicted and measured.
_DATA: Mapping[str, tuple[str, Callable[..., Any] | None, bool]] = {
    "train_dataset_cfg": ("get_dataset_fn", tasks_door.get_dataset, False),
    "train_eval_dataset_cfg": ("train_eval_get_dataset_fn", tasks_door.get_training_eval_datasets, False),
    "infer_eval_dataset_cfg": ("", None, True),
}
_OURS = tasks_door.verify_matching_vocabs


def check(configured: Callable[..., Any]) -> None:
    """Checks what gin has bound to `train()`, as a run does before it reads; what needs the network is left to the run.

    Data that a function of the user's own opens are not looked for.

    Raises:
      ValueError, FileNotFoundError: for what the run refuses.
    """
    bound = gin.get_bindings(configured, resolve_references=False)
    model = _built(bound, "model")
    configs = {name: config for name in _DATA if (config := _built(bound, name)) is not None}
    if hasattr(model, "input_vocabulary"):
        _check_vocabularies(model, list(configs.values()), _built(bound, "verify_matching_vocabs_fn", _OURS))
    for stage in configs["train_dataset_cfg"].by_stage() if "train_dataset_cfg" in configs else ():
        check_rows(model, stage, _microbatches(bound.get("trainer_cls")))
    check_rows(model, configs.get("train_eval_dataset_cfg"))
    for name, config in configs.items():
        opener, ours, is_measured = _DATA[name]
        opened_by = _built(bound, opener)
        if opened_by is None or inspect.unwrap(opened_by) is ours:
            converter = getattr(model, "FEATURE_CONVERTER_CLS", "EncDecFeatureConverter")
            tasks_door.check_files(config, converter, is_measured)
    restore = getattr(_built(bound, "checkpoint_cfg"), "restore", None)
    if restore is not None and not _may_resume(_built(bound, "model_dir")):
        paths = [restore.path] if isinstance(restore.path, str) else list(restore.path)
        if not any(storage.is_remote(storage.as_path(path)) for path in paths if path):
            _ = restore.checkpoint


def _microbatches(trainer: Any) -> int:
    """Those of a reference to a trainer; 1 where gin binds none."""
    if not hasattr(trainer, "config_key"):
        return 1
    return gin.get_bindings("/".join(filter(None, trainer.config_key))).get("num_microbatches") or 1


def check_rows(model: Any, config: contract.DatasetConfig | None, num_microbatches: int = 1) -> None:
    """Raises ValueError if the loss of the model needs more rows in a forward pass than a data set gives it."""
    if config is not None and hasattr(model, "check_rows"):
        model.check_rows(config.batch_size // num_microbatches)


def _check_vocabularies(
    model: Any, configs: Sequence[contract.DatasetConfig], verify_fn: Callable[..., Any] | None
) -> None:
    """Whether the model's vocabularies fit its network and are those of the tasks; those in buckets are left out."""
    if contract.is_far(model.input_vocabulary) or contract.is_far(model.output_vocabulary):
        return
    for vocabulary in (model.input_vocabulary, model.output_vocabulary):
        configured_trainer.check_vocabulary(vocabulary, getattr(model.module, "config", None))
    if verify_fn is not None and inspect.unwrap(verify_fn) is _OURS:
        for config in configs:
            if not tasks_door.has_far_vocabulary(config):
                tasks_door.verify_matching_vocabs(config, model)


def _built(bound: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A value that gin has bound; gin builds a reference when it is copied."""
    return copy.deepcopy(bound.get(name, default))


def _may_resume(model_dir: str) -> bool:
    """Whether a run has checkpoints of its own, or is in a bucket, where it may have some."""
    home = storage.as_path(model_dir)
    return storage.is_remote(home) or bool(checkpointing.checkpoint_steps(home))
