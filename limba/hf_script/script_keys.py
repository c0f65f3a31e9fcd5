"""The keys of Hugging Face's scripts that pre-train and fine-tune a T5: what `limba run` takes, as JSON and as flags.

`RunArguments` has the keys that mean something here, `ALIASES` other scripts' names of them, and `IGNORED` those that
mean nothing, with the reason. Any other key is an error.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.hf_script.run_arguments import BENCHMARK_MODEL, RunArguments
from limba.machine import untrusted_json
from limba.machine.untrusted_files import shown

FIELDS = {field.name: field for field in dataclasses.fields(RunArguments)}
_TYPES = typing.get_type_hints(RunArguments)

# Other scripts' names of these keys.
ALIASES: Mapping[str, str] = {
    "batch_size": "per_device_train_batch_size",
    "training_accumulation_steps": "gradient_accumulation_steps",
    "iters": "max_steps",
    "lr": "learning_rate",
    "lr_scheduler": "lr_scheduler_type",
    "num_warmup_steps": "warmup_steps",
    "optimizer": "optim",
    "save_interval": "save_steps",
    "save_best": "load_best_model_at_end",
    "optimize_metric": "metric_for_best_model",
    "mlm_prob": "mlm_probability",
    "log_interval": "logging_steps",
    "valid_interval": "eval_steps",
    "clip_grad_norm": "max_grad_norm",
    "input_seq_len": "max_seq_length",
    "max_source_length": "max_seq_length",
    "target_seq_len": "max_target_length",
    **dict.fromkeys(("text_column", "input_column"), "text_column_name"),
    **dict.fromkeys(("label_column", "summary_column", "target_column"), "label_column_name"),
    "num_train_examples": "max_train_samples",
    "num_validation_examples": "max_eval_samples",
    "data_path": "dataset_name",
    "valid_data_path": "validation_file",
    **dict.fromkeys(("tokenizer", "vocab"), "tokenizer_name"),
    "model_path": "output_dir",
    "model_cfg": "config_name",
    "init_checkpoint": "model_name_or_path",
}

_STREAMED = "text is tokenized and masked while it is read, and there is no cache"
_RESUMES = "a run always resumes from its newest checkpoint; for a new one name another output_dir"
# Keys of these scripts that need nothing here, or have no meaning.
IGNORED: Mapping[str, str] = {
    **dict.fromkeys(("preprocessing_num_workers", "overwrite_cache", "dataloader_num_workers"), _STREAMED),
    **dict.fromkeys(("overwrite_output_dir", "resume_from_checkpoint", "ignore_data_skip"), _RESUMES),
    **dict.fromkeys(("eval_strategy", "evaluation_strategy"), "do_eval and eval_steps control it"),
    **dict.fromkeys(("train_ref_file", "validation_ref_file"), "only whole-word masking of Chinese reads them"),
    "save_strategy": "save_steps sets the period",
    "logging_strategy": "logging_steps sets the period",
    "logging_dir": "TensorBoard's events are in output_dir/run",
    "logging_first_step": "the first line of metrics comes with the first logging_steps",
    "cache_dir": "HF_HOME is the folder of the hub's files",
    "model_type": "config.json has it",
    "use_fast_tokenizer": "there is one tokenizer, SentencePiece itself",
    "trust_remote_code": "no code of a repository is run",
    "streaming": "data are streamed in any case",
    "line_by_line": "documents are joined and cut, as T5 does",
    "pad_to_max_length": "rows are full",
    "dataloader_drop_last": "batches cross the ends of epochs, and no row is dropped",
    "dataloader_pin_memory": "JAX moves the batches",
    "disable_tqdm": "a log file gets few lines of progress anyway",
    "remove_unused_columns": "only the column of the text is read",
    "prediction_loss_only": "an evaluation measures loss and accuracy, and decodes nothing",
    "fp16_full_eval": "evaluation computes as training does",
    "bf16_full_eval": "evaluation computes as training does",
    "tf32": "XLA decides",
    "torch_compile": "everything is compiled",
    "ddp_find_unused_parameters": "JAX shards the batch over all devices of this machine",
    "local_rank": "one process drives all devices of this machine",
    "no_cuda": "JAX takes the accelerator that is there; JAX_PLATFORMS=cpu forbids it",
    "use_cpu": "JAX takes the accelerator that is there; JAX_PLATFORMS=cpu forbids it",
    "hub_strategy": "the final model is uploaded",
    "predict_with_generate": "answers are generated wherever a task has metrics of them",
    "ignore_pad_token_for_loss": "padding never counts",
    "eval_accumulation_steps": "an evaluation keeps sums only",
    "model_cls": "the network is Limba's; docs/networks.md shows how to change a layer",
    **dict.fromkeys(("fp32", "fp16_allreduce"), "gradients are summed in float32"),
    **dict.fromkeys(("min_loss_scale", "max_loss_scale"), "bf16 needs no scaled loss"),
    **dict.fromkeys(("reset_optimizer", "reset_lr", "reset_iteration"), "training begins anew from init_checkpoint"),
    **dict.fromkeys(("data_impl", "data_name", "data_n_workers", "data_skip_warmup"), _STREAMED),
    **dict.fromkeys(("lr_drop_eps", "lr_drop_cooldown"), "a drop of the rate has no other conditions"),
    "working_dir": "paths begin where the command runs",
    "base_model": "the network is that of config_name or model_name_or_path",
    "show_valid_examples": "`limba preview` shows examples",
    "use_generate_on_valid": "answers are generated wherever a task has metrics of them",
    "short_seq_prob": "rows are full",
}
# Keys of other scripts for what is not here: the values that ask for nothing, and what to do in place of others.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "apex_opt_lvl": (("O0",), "APEX computes in float16, which overflows; write bf16"),
    "skip_used_data": ((), "a new run begins at the start of its corpus, and the same run resumes at its exact place"),
    "data_n_samples": ((None,), "text is not sampled before; write max_train_samples or max_steps"),
    "validate_only": ((), "write do_eval alone"),
}


# Keys that are read in a way of their own.
_OF_OWN_FORM = ("task_name", "optimize_mode", "optimizer_parameters", "data_n_epochs")
# Keys whose values are lists or objects, and those that take several words of the command line.
_JSON = ("labels", "lr_scheduler_kwargs")
_LISTS = ("report_to", "metric_names", "ignore_config_keys")


def from_command_line(argv: Sequence[str]) -> tuple[RunArguments, list[str]]:
    """Reads `[CONFIG.json] [--key value | --key=value | --switch] …`; flags override the file.

    Returns:
      The arguments, and a note for each key that is ignored.

    Raises:
      FileNotFoundError: if the file does not exist.
      ValueError: for an unknown key, with the nearest known one, or a value of the wrong type.
    """
    values: dict[str, Any] = {}
    rest = list(argv)
    if rest and not rest[0].startswith("--"):
        values |= untrusted_json.read_object(Path(rest.pop(0)).expanduser())
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise ValueError(f"{flag!r} belongs to no flag; write CONFIG.json first, and then --key value.")
        name, equals, value = flag.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if equals:
            values[name] = value
        elif rest and not rest[0].startswith("--"):
            words = [rest.pop(0)]
            while name in _LISTS and rest and not rest[0].startswith("--"):
                words.append(rest.pop(0))
            values[name] = words[0] if len(words) == 1 else words
        else:
            values[name] = True
    return from_values(values)


def from_values(values: Mapping[str, Any]) -> tuple[RunArguments, list[str]]:
    """`from_command_line` of keys and values."""
    for name in values:
        check_key(name)
    values = _flat(values)
    notes = [f"{name} is ignored because {IGNORED[name]}." for name in values if name in IGNORED]
    used: dict[str, Any] = {}
    for name, value in values.items():
        key = ALIASES.get(name, name)
        if key not in FIELDS:
            continue
        typed = _typed(key, value)
        if used.setdefault(key, typed) != typed:
            other = next(other for other in values if ALIASES.get(other, other) == key)
            raise ValueError(
                f"{other} is {shown(values[other])} and {name} is {shown(value)}: they are names of one key, "
                f"{key}; give one value."
            )
    if "task_name" in values:  # of the script for GLUE
        used |= {"benchmark": "glue", "dataset_name": str(values["task_name"]).lower()}
    if not {"do_train", "do_eval", "do_predict"} & used.keys():
        used |= {"do_train": True, "do_eval": True}
    if used.get("benchmark") and not used.get("model_name_or_path") and not used.get("config_name"):
        used["model_name_or_path"] = BENCHMARK_MODEL
        notes.append(f"model_name_or_path is not given; {BENCHMARK_MODEL} is trained.")
    if "optimize_mode" in values:
        used["greater_is_better"] = _is_max(values["optimize_mode"])
    if "optim" in used:
        used["optim"] = used["optim"].lower()
    arguments = RunArguments(**used)
    if not arguments.is_finetuning:
        lengths = ("target_seq_len", "max_target_length", "val_max_target_length", "generation_max_length")
        of_answers = [name for name in lengths if values.get(name) is not None]
        notes += [f"{name} is ignored because targets are as long as the masked spans need." for name in of_answers]
    return arguments, notes


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys and values without objects of keys, and without those that ask for nothing.

    Raises:
      ValueError: for what is not here.
    """
    inner = values.get("optimizer_parameters") or {}
    if not isinstance(inner, Mapping):
        raise ValueError(f'optimizer_parameters is {shown(inner)}; it is an object such as {{"lr": 1e-3}}.')
    for name in inner:
        check_key(name)
    flat = {name: value for name, value in values.items() if name != "optimizer_parameters"}
    for name, value in inner.items():
        if name in flat:
            raise ValueError(f"{name} is given twice: once in optimizer_parameters.")
        flat[name] = value
    if "data_n_epochs" in flat:
        epochs = flat.pop("data_n_epochs")
        if "max_steps" not in flat and "iters" not in flat:
            flat["num_train_epochs"] = epochs
    for name, (harmless, remedy) in REFUSED.items():
        value = flat.pop(name, None)
        if value not in (None, False, "false", "False", *harmless):
            raise ValueError(f"{name} is {shown(value)}: {remedy}.")
    return flat


def _is_max(mode: Any) -> bool:
    if mode not in ("min", "max"):
        raise ValueError(f"optimize_mode is {shown(mode)}; use min or max.")
    return mode == "max"


def check_key(name: str) -> None:
    """Raises ValueError, with the nearest key, if there is no such key."""
    if name not in (*FIELDS, *ALIASES, *IGNORED, *REFUSED, *_OF_OWN_FORM):
        raise ValueError(
            f"`limba run` has no key {shown(name)}; the nearest is {_nearest(name)!r}. `limba run --help` lists all. "
            "What belongs to gin is given to `limba train --gin_file=OUTPUT_DIR/run.gin --gin.NAME=VALUE`."
        )


def _nearest(name: str) -> str:
    """The nearest key: one that is almost the same, else one of training, if any of those is near enough."""
    all_keys = [*FIELDS, *ALIASES, *IGNORED]
    of_training = [key for key in (*FIELDS, *ALIASES) if not key.startswith(("eval", "hub", "push", "per_device_eval"))]
    for keys, cutoff in ((all_keys, 0.93), (of_training, 0.6), (all_keys, 0.0)):
        if found := difflib.get_close_matches(name[:100].lower(), keys, n=1, cutoff=cutoff):
            return found[0]
    raise AssertionError(name)


def _typed(name: str, value: Any) -> Any:
    """A value of JSON or of the command line as the type of its key."""
    if name in _JSON:
        try:
            return untrusted_json.parse(value, name) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(
                f'{name} is {shown(value)}; it must be JSON, such as \'["bad", "good"]\' ({error}).'
            ) from error
    kind = _TYPES[name]
    kinds = kind.__args__ if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in kinds and value in (None, "None", "null"):
        return None
    choices = [k for k in kinds if k is not type(None)]
    if choices[0] is bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if isinstance(value, bool) or str(value).lower() in words:
            return value if isinstance(value, bool) else words[str(value).lower()]
    elif choices[0] in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
            if choices[0] is float:
                return number
            if number == int(number):
                return int(number)
        except (TypeError, ValueError, OverflowError):
            pass
    elif choices[0] is str:
        if isinstance(value, str):
            return value
        if len(choices) > 1 and isinstance(value, list) and all(isinstance(word, str) for word in value):
            return tuple(value)
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[choices[0]]
    raise ValueError(f"{name} is {shown(value)}; it must be {wanted}.")


def help_text() -> str:
    """A line for every key."""
    lines = []
    for name, field in FIELDS.items():
        default = "" if field.default in (None, "", False) else f" ({field.default})"
        lines.append(f"  --{name:30} {field.metadata['help']}{default}")
    lines += ["", "other names of the same: " + ", ".join(f"--{name} ({key})" for name, key in ALIASES.items())]
    lines += ["", "accepted and ignored, with a warning: " + ", ".join(f"--{name}" for name in IGNORED)]
    lines += ["", "refused, with the remedy: " + ", ".join(f"--{name}" for name in REFUSED)]
    return "\n".join(lines)
