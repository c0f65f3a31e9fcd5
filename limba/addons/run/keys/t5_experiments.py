"""What a command of t5-experiments' trainer means where it says nothing: that trainer's defaults, not transformers'.

Every command of it has `iters`, the number of its updates, which no script of transformers has.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DEFAULTS: Mapping[str, Any] = {
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "per_device_train_batch_size": 1,
    "max_seq_length": 128,
    "decay_all_parameters": True,
}
# What asks for evaluations, beside validation data.
_LOOK_AT_EVALUATIONS = (
    *("do_eval", "eval_steps", "eval_strategy", "load_best_model_at_end"),
    *("early_stopping_patience", "use_lr_drop"),
)
# Of run_bert_pretraining.py, which predicts next sentences unless it is told not to.
_OF_BERT = ("tokenizer", "mlm_prob", "short_seq_prob", "data_impl", "data_name")


def complete(values: Mapping[str, Any], used: dict[str, Any]) -> list[str]:
    """Adds the trainer's defaults to the arguments `used`, where the keys and `values` are from one of its commands.

    Returns:
      A note of what was added.
    """
    if "iters" not in values:
        return []
    added = {name: value for name, value in _DEFAULTS.items() if name not in used}
    notes = [f"{name} {str(value).lower()}" for name, value in added.items()]
    used |= added
    for key, name in (("dataset_name", "train_file"), ("validation_file", "validation_file")):
        folder = Path(str(used.get(key))).expanduser()
        if folder.is_dir() and any(folder.glob("*.jsonl")):
            used.pop(key)
            used[name] = f"{folder}/*.jsonl"
            notes.append(f"{name} {used[name]}")
    if used.get("validation_file"):
        used.setdefault("eval_steps", used.get("logging_steps"))
    is_evaluated = used.get("validation_file") or any(used.get(name) for name in _LOOK_AT_EVALUATIONS)
    if "do_train" not in used:
        used |= {"do_train": True, "do_eval": bool(is_evaluated)}
    if not is_evaluated:
        notes.append("no validation, for which valid_data_path is not given")
    if "use_nsp" not in values and any(name in values for name in _OF_BERT):
        notes.append("next sentences are not predicted without use_nsp")
    return [f"iters is a key of t5-experiments: what is not given is as in its trainer: {', '.join(notes)}."]
