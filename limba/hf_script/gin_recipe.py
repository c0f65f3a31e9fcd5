"""The gin file for the keys of a Hugging Face script: `limba run` prints it and trains with it."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.gin_config import gin_names
from limba.hf_script.script_keys import RunArguments
from limba.machine.local_paths import local_path

# Examples in the shuffle buffers of a task, where there are as many.
_BUFFER = 4096


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The arguments of `masked_text.open_source`, and the task's name."""

    name: str
    files: Mapping[str, Sequence[str]] | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    splits: Mapping[str, str] | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a gin file needs beside the keys.

    Attributes:
      num_examples: training examples of an epoch; None if they were not counted.
      steps, how_many: updates, and how that number came about, for the comment.
      first_step, dropout_rate, has_weights: of the model to begin with; whether it is an initial checkpoint.
    """

    corpus: Corpus
    num_examples: int | None
    devices: int
    steps: int
    how_many: str
    first_step: int
    dropout_rate: float
    has_weights: bool


def batch_size(arguments: RunArguments, devices: int) -> int:
    """Rows of one update on all devices."""
    return arguments.per_device_train_batch_size * devices * arguments.gradient_accumulation_steps


def steps_of_epochs(arguments: RunArguments, num_examples: int, devices: int) -> int:
    """Updates in `num_train_epochs`: whole batches of an epoch, at least one, as the scripts count."""
    # Not `epochs.steps_of`, in which the next epoch fills up the last batch: 10 rows by 4 are 2 steps here and 3 there.
    return math.ceil(max(1, num_examples // batch_size(arguments, devices)) * arguments.num_train_epochs)


def task_name(corpus: str) -> str:
    """A name for SeqIO, of letters, digits and underscores."""
    return re.sub(r"\W+", "_", corpus).strip("_") or "corpus"


def compose(arguments: RunArguments, plan: Plan) -> str:
    """The gin file."""
    out = local_path(arguments.output_dir)
    wandb = any(name in ("wandb", "all") for name in arguments.trackers)
    chapters = [
        _header(arguments, out, wandb),
        _data(arguments, plan),
        _training(arguments, plan, out),
        [
            "# the mean cross-entropy of the batch's target tokens, and nothing else",
            "Z_LOSS = 0.0",
            "LOSS_NORMALIZING_FACTOR = 'NUM_REAL_TARGET_TOKENS'",
        ],
        _optimizer(arguments),
        _schedule(arguments, plan),
        _periods(arguments, plan),
    ]
    if wandb:
        chapters.append(["train_script.train.metric_writers = [@wandb_writer.WandbWriter]"])
        chapters[-1] += [f"wandb_writer.WandbWriter.name = {arguments.run_name!r}"] if arguments.run_name else []
    return "\n\n".join("\n".join(lines) for lines in chapters) + "\n"


def _header(arguments: RunArguments, out: Path, wandb: bool) -> list[str]:
    modules = ["checkpoints", "data", "network", "schedules", "trainer"]
    modules += ["adafactor"] if arguments.uses_adafactor else ["optimizers", "weight_decay"]
    modules += ["wandb_writer"] if wandb else []
    return [
        "# Span corruption as a Hugging Face script was asked for it. Every `limba run` overwrites this file.",
        f"#   limba train --gin_file={out}/run.gin",
        "from __gin__ import dynamic_registration",
        "",
        *map(gin_names.import_line, modules),
        "from limba import train as train_script",
        "from tasks import objectives",
        "from tasks.pretraining import masked_text",
        *([] if arguments.uses_adafactor else ["import optax"]),
        "",
        f"include {str(out / 'initial' / 'model.gin')!r}",
        "include 'gin/runs/pretrain.gin'",
    ]


def _data(arguments: RunArguments, plan: Plan) -> list[str]:
    noise = {"noise_density": arguments.mlm_probability, "mean_noise_span_length": arguments.mean_noise_span_length}
    return [
        "# data",
        "MIXTURE_OR_TASK_NAME = @masked_text.task()",
        "masked_text.task:",
        f"  name = {plan.corpus.name!r}",
        "  vocabulary = %VOCABULARY",
        *_bindings(
            files=_plain(plan.corpus.files),
            dataset=plan.corpus.dataset,
            dataset_config=plan.corpus.dataset_config,
            splits=_plain(plan.corpus.splits),
            text_column=arguments.text_column_name,
            **noise,
            # A buffer of several epochs would mix them.
            shuffle_buffer_size=min(_BUFFER, plan.num_examples) if plan.num_examples else None,
        ),
        "TASK_FEATURE_LENGTHS = @objectives.span_corruption_lengths()",
        "objectives.span_corruption_lengths:",
        *_bindings(inputs_length=arguments.max_seq_length, **noise),
    ]


def _training(arguments: RunArguments, plan: Plan, out: Path) -> list[str]:
    return [
        "# training",
        f"TRAIN_STEPS = {plan.first_step + plan.steps}  # {plan.how_many}",
        f"BATCH_SIZE = {batch_size(arguments, plan.devices)}  # {arguments.per_device_train_batch_size} a device x "
        f"{plan.devices} devices x {arguments.gradient_accumulation_steps} forward passes",
        f"trainer.Trainer.num_microbatches = {arguments.gradient_accumulation_steps}",
        f"MODEL_DIR = {str(out / 'run')!r}",
        *([f"INITIAL_CHECKPOINT_PATH = {str(out / 'initial')!r}"] if plan.has_weights else []),
        f"RANDOM_SEED = {arguments.seed}",
        f"DATASET_SEED = {arguments.seed}",
        f"DROPOUT_RATE = {plan.dropout_rate}  # config.json's",
        f"network.T5Config.dtype = {arguments.compute_dtype!r}",
        *(["network.T5Config.remat_policy = 'full'"] if arguments.gradient_checkpointing else []),
    ]


def _periods(arguments: RunArguments, plan: Plan) -> list[str]:
    eval_rows = arguments.per_device_eval_batch_size * plan.devices
    evaluation = f"train_eval/data.DatasetConfig.batch_size = {eval_rows}"
    return [
        "# periods",
        f"train_script.train.stats_period = {arguments.logging_steps}",
        f"EVAL_PERIOD = {arguments.eval_steps or arguments.save_steps}",
        "EVAL_STEPS = None  # the whole validation split",
        "checkpoints.SaveCheckpointConfig:",
        *_bindings(period=arguments.save_steps, keep=arguments.save_total_limit),
        evaluation if arguments.do_eval else "train_script.train.train_eval_dataset_cfg = None",
    ]


def _bindings(**values: Any) -> list[str]:
    """Indented lines of a gin block; None is left out."""
    return [f"  {name} = {value!r}" for name, value in values.items() if value is not None]


def _plain(mapping: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if mapping is None else {k: x if isinstance(x, str) else list(x) for k, x in mapping.items()}


def _optimizer(arguments: RunArguments) -> list[str]:
    if arguments.uses_adafactor:
        return ["OPTIMIZER = @adafactor.Adafactor()  # clips its updates itself"]
    clipped = arguments.max_grad_norm > 0
    betas = {"b1": arguments.adam_beta1, "b2": arguments.adam_beta2}
    chain = [*(["@optax.clip_by_global_norm()"] if clipped else []), "@optimizers.adamw()"]
    return [
        "OPTIMIZER = @optimizers.chain()",
        f"optimizers.chain.transformations = [{', '.join(chain)}]",
        *([f"optax.clip_by_global_norm.max_norm = {arguments.max_grad_norm}"] if clipped else []),
        "optimizers.adamw:",
        *_bindings(**betas, eps=arguments.adam_epsilon, weight_decay=arguments.weight_decay),
        "  mask = @weight_decay.matrices",
    ]


def _schedule(arguments: RunArguments, plan: Plan) -> list[str]:
    """The learning rate: warm-up to `learning_rate`, then the decay to 0 at the last step, as transformers has them."""
    warmup = arguments.warmup_steps or math.ceil(arguments.warmup_ratio * plan.steps)
    # The function of `limba.optimizers.schedules`: warmup_linear, warmup_cosine or warmup_constant.
    shape = f"warmup_{arguments.lr_scheduler_type.removesuffix('_with_warmup')}"
    return [
        "# learning rate",
        f"trainer.Trainer.learning_rate_fn = @schedules.{shape}()",
        f"schedules.{shape}:",
        *_bindings(
            base_learning_rate=arguments.learning_rate,
            warmup_steps=0 if arguments.lr_scheduler_type == "constant" else warmup,
            # A warm-up longer than the training ends with it, below its peak: its decay would begin later.
            total_steps=None if shape == "warmup_constant" else max(plan.steps, warmup + 1),
            step_offset=plan.first_step,
        ),
    ]
