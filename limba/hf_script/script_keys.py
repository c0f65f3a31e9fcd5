"""The keys of Hugging Face's scripts that pre-train a T5: what `limba run` takes, as JSON and as flags.

`RunArguments` has the keys that mean something here, under the names and with the defaults that `HfArgumentParser` gave
them; `IGNORED` those that mean nothing, with the reason. Any other key is an error.
"""

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_NO_FP16 = (
    "{}: float16 overflows in T5's feed-forward layers, and the loss becomes NaN. Use bf16 (mixed_precision: bf16), "
    "which has float32's range, or no."
)
_SCHEDULES = ("linear", "cosine", "constant", "constant_with_warmup")


def _key(help_: str, default: Any = None) -> Any:
    return dataclasses.field(default=default, metadata={"help": help_})


@dataclasses.dataclass(frozen=True)
class RunArguments:
    """The keys and their values; `limba run --help` prints the help of each field.

    Raises:
      ValueError: for a value that cannot be, keys that contradict each other, or a missing one.
    """

    # ----------------------------------------------------- model -----------------------------------------------------
    model_name_or_path: str | None = _key("where to start: a folder of transformers', or a name on the hub")
    config_name: str | None = _key("a config.json, its folder or a name: the network of a training from scratch")
    tokenizer_name: str | None = _key("a tokenizer's folder, a spiece.model or a name, where it is not the model's")
    dtype: str = _key("of the computation: float32 or bfloat16; parameters are float32", "float32")
    mixed_precision: str = _key("no or bf16", "no")
    bf16: bool = _key("the same as mixed_precision: bf16", False)
    fp16: bool = _key("refused: T5 overflows in it", False)
    gradient_checkpointing: bool = _key("recompute activations to save memory", False)
    # ----------------------------------------------------- data ------------------------------------------------------
    dataset_name: str | None = _key("a data set on the hub, or a folder with train* and validation* files")
    dataset_config_name: str | None = _key("its configuration")
    train_file: str | None = _key("a file or pattern: txt, csv, json, jsonl or parquet")
    validation_file: str | None = _key("the same, for evaluation")
    text_column_name: str = _key("the column with the text", "text")
    validation_split_percentage: int = _key("of the training documents, where there is no validation split", 5)
    max_seq_length: int = _key("tokens of the inputs", 512)
    mlm_probability: float = _key("share of tokens that is masked", 0.15)
    mean_noise_span_length: float = _key("tokens of a masked span", 3.0)
    # --------------------------------------------------- training ----------------------------------------------------
    output_dir: str = _key("where everything goes", "")
    do_train: bool = _key("train", False)
    do_eval: bool = _key("evaluate every eval_steps and at the end", False)
    per_device_train_batch_size: int = _key("rows a device and forward pass", 8)
    per_device_eval_batch_size: int = _key("rows a device", 8)
    gradient_accumulation_steps: int = _key("forward passes an update", 1)
    learning_rate: float = _key("the highest of the schedule", 5e-5)
    lr_scheduler_type: str = _key(", ".join(_SCHEDULES), "linear")
    warmup_steps: int = _key("steps until learning_rate is reached", 0)
    warmup_ratio: float = _key("the same, as a share of all steps", 0.0)
    optim: str = _key("adamw_torch (all names of AdamW mean the same) or adafactor", "adamw_torch")
    adafactor: bool = _key("the same as optim: adafactor", False)
    adam_beta1: float = _key("of AdamW", 0.9)
    adam_beta2: float = _key("of AdamW", 0.999)
    adam_epsilon: float = _key("of AdamW", 1e-8)
    weight_decay: float = _key("of AdamW; not of norms and position biases", 0.0)
    max_grad_norm: float = _key("gradients are clipped to this global norm; 0 leaves them", 1.0)
    num_train_epochs: float = _key("passes over the training documents", 3.0)
    max_steps: int = _key("updates, in place of epochs; -1 goes by num_train_epochs", -1)
    logging_steps: int = _key("steps between lines of training metrics", 500)
    save_steps: int = _key("steps between checkpoints", 500)
    eval_steps: int | None = _key("steps between evaluations; save_steps if it is not given")
    save_total_limit: int | None = _key("newest checkpoints that are kept; all if it is not given")
    seed: int = _key("of parameters, dropout, order and masks", 42)
    report_to: str | Sequence[str] = _key("none, tensorboard (always written) or wandb", "tensorboard")
    run_name: str | None = _key("the run's name on W&B")
    # ----------------------------------------------------- hub -------------------------------------------------------
    push_to_hub: bool = _key("upload the exported model at the end", False)
    push_to_hub_final_step: bool = _key("the same: only the final model is uploaded in any case", False)
    hub_model_id: str | None = _key("NAME or ORG/NAME; the last part of output_dir if it is not given")
    hub_token: str | None = _key("better in HF_TOKEN; it is written nowhere")
    hub_private_repo: bool = _key("whether a new repository is private", True)

    def __post_init__(self) -> None:
        if not self.output_dir:
            raise ValueError("output_dir is missing: name the folder for checkpoints and the exported model.")
        if not self.do_train:
            raise ValueError(
                "do_train is not true, and `limba run` trains. To evaluate a model: `limba convert from-hf`, then "
                "`limba eval` (docs/run.md)."
            )
        self._check_precision()
        if (self.model_name_or_path is None) == (self.config_name is None):
            raise ValueError(
                f"model_name_or_path is {self.model_name_or_path!r} and config_name {self.config_name!r}; give the "
                "first to train a model further, the second (with tokenizer_name) to train from scratch."
            )
        if (self.dataset_name is None) == (self.train_file is None):
            raise ValueError(
                f"dataset_name is {self.dataset_name!r} and train_file {self.train_file!r}; give one of them."
            )
        if self.dataset_name is not None and self.validation_file is not None:
            raise ValueError(f"validation_file {self.validation_file!r} goes with train_file, not with dataset_name.")
        for name, value in vars(self).items():
            if value == "":
                raise ValueError(f"{name} is empty; leave it out, or give a value.")
        self._check_numbers()
        if self.lr_scheduler_type not in _SCHEDULES:
            raise ValueError(f"lr_scheduler_type is {self.lr_scheduler_type!r}; use one of {', '.join(_SCHEDULES)}.")
        if not (self.optim.startswith("adamw") or self.optim == "adafactor"):
            raise ValueError(f"optim is {self.optim!r}; AdamW (adamw_torch …) and adafactor are here.")
        for name in self.trackers:
            if name not in ("tensorboard", "wandb", "none", "all"):
                raise ValueError(f"report_to is {name!r}; use none, tensorboard or wandb.")

    def _check_precision(self) -> None:
        for name, refused in (("fp16", True), ("mixed_precision", "fp16"), ("dtype", "float16")):
            if getattr(self, name) == refused:
                raise ValueError(_NO_FP16.format(f"{name}: {str(refused).lower()}"))
        if self.mixed_precision not in ("no", "bf16"):
            raise ValueError(f"mixed_precision is {self.mixed_precision!r}; use no or bf16.")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype is {self.dtype!r}; use float32 or bfloat16.")

    def _check_numbers(self) -> None:
        least = {
            **dict.fromkeys(("max_seq_length", "per_device_train_batch_size", "per_device_eval_batch_size"), 1),
            **dict.fromkeys(("gradient_accumulation_steps", "logging_steps", "save_steps"), 1),
            **dict.fromkeys(("eval_steps", "save_total_limit"), 1),
            **dict.fromkeys(("warmup_steps", "warmup_ratio", "weight_decay", "max_grad_norm"), 0),
            **dict.fromkeys(("seed", "adam_beta1", "adam_beta2", "adam_epsilon"), 0),
            "mean_noise_span_length": 1,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise ValueError(f"{name} is {value}; it must be at least {low}.")
        if self.warmup_ratio > 1:
            raise ValueError(f"warmup_ratio is {self.warmup_ratio}; it is a share of all steps, from 0 to 1.")
        for name, high in (("adam_beta1", 1), ("adam_beta2", 1), ("seed", 2**32)):
            if getattr(self, name) >= high:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be below {high}.")
        for name in ("learning_rate", "num_train_epochs"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0.")
        if self.max_steps != -1 and self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}; it must be at least 1, or -1 to go by num_train_epochs.")
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"mlm_probability is {self.mlm_probability}; it must be between 0 and 1, such as 0.15.")
        if not 0 < self.validation_split_percentage < 100:
            raise ValueError(
                f"validation_split_percentage is {self.validation_split_percentage}; it must be between 1 and 99."
            )

    @property
    def trackers(self) -> tuple[str, ...]:
        """`report_to` as names."""
        return (self.report_to,) if isinstance(self.report_to, str) else tuple(self.report_to)

    @property
    def compute_dtype(self) -> str:
        return "bfloat16" if self.bf16 or self.mixed_precision == "bf16" else self.dtype

    @property
    def uses_adafactor(self) -> bool:
        return self.adafactor or self.optim == "adafactor"

    @property
    def pushes(self) -> bool:
        return self.push_to_hub or self.push_to_hub_final_step

    def without_secrets(self) -> dict[str, Any]:
        """All keys but the token, for the file that is kept beside a run."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "hub_token"}


FIELDS = {field.name: field for field in dataclasses.fields(RunArguments)}
_TYPES = typing.get_type_hints(RunArguments)

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
}


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
        values |= _read_json(Path(rest.pop(0)).expanduser())
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
            while name == "report_to" and rest and not rest[0].startswith("--"):
                words.append(rest.pop(0))
            values[name] = words[0] if len(words) == 1 else words
        else:
            values[name] = True
    return from_values(values)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file} (working directory {Path.cwd()}).")
    try:
        content = json.loads(file.read_text("utf-8-sig"))  # Some editors put a mark before the text.
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds {type(content).__name__}; write one object of keys and values.")
    return content


def from_values(values: Mapping[str, Any]) -> tuple[RunArguments, list[str]]:
    """`from_command_line` of keys and values."""
    known = [*FIELDS, *IGNORED]
    for name in values:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"`limba run` has no key {name!r}; the nearest is {nearest!r}. `limba run --help` lists all. What "
                "belongs to gin is given to `limba train --gin_file=OUTPUT_DIR/run.gin --gin.NAME=VALUE`."
            )
    notes = [f"{name} is ignored because {IGNORED[name]}." for name in values if name in IGNORED]
    used = {name: _typed(name, value) for name, value in values.items() if name in FIELDS}
    return RunArguments(**used), notes


def _typed(name: str, value: Any) -> Any:
    """A value of JSON or of the command line as the type of its key."""
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
    raise ValueError(f"{name} is {value!r}; it must be {wanted}.")


def help_text() -> str:
    """A line for every key."""
    lines = []
    for name, field in FIELDS.items():
        default = "" if field.default in (None, "", False) else f" ({field.default})"
        lines.append(f"  --{name:30} {field.metadata['help']}{default}")
    lines += ["", "accepted and ignored, with a warning: " + ", ".join(IGNORED)]
    return "\n".join(lines)
