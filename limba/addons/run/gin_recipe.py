"""The gin file for the keys of a Hugging Face script: `limba run` prints it and trains with it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.run import gin_best, gin_optimizer, script_data, trackers, trainer_checkpoints
from limba.addons.run.keys import period_keys
from limba.addons.run.keys.request import Request
from limba.addons.run.keys.row_answers import TEXT
from limba.addons.run.script_data import Corpus
from limba.files.shell_words import quoted
from limba.gin_config import gin_names
from limba.gin_config.recipe import Binding, Block, Include, Reference, Statement, as_text, given
from limba.network.encoders.config import EncoderConfig


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a gin file needs beside the keys.

    Attributes:
      out: the folder of the run, as the gin file names it.
      examples: of an epoch of training.
      steps, how_many: updates, and how that number came about, for the comment.
      dropout_rate, has_weights: of the model to begin with; whether it is an initial checkpoint.
      vocab_size: of the network.
      encoder: the network, where it is an encoder and no T5.
      labels, head: those of an encoder with labels, and the fields of its network that the head has.
      shared_modules: of that head, which begin with modules of the initial checkpoint that have other names.
      frame: of an encoder's documents, that of `objectives.MaskedLM`.
    """

    corpus: Corpus
    out: Path
    examples: script_data.Counted
    devices: int
    steps: int
    how_many: str
    dropout_rate: float
    has_weights: bool
    vocab_size: int = 0
    encoder: EncoderConfig | None = None
    labels: Sequence[str] = ()
    head: Mapping[str, Any] | None = None
    shared_modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    frame: tuple[int, int] = (1, 1)


def batch_size(request: Request, devices: int) -> int:
    """Rows of one update on all devices."""
    return request.per_device_train_batch_size * devices * request.gradient_accumulation_steps


def steps_of_epochs(request: Request, examples: script_data.Counted, devices: int) -> int:
    """Updates in `num_train_epochs`, at least one, as the scripts count them; the examples are counted."""
    assert examples.number is not None
    dropped = examples.number % (request.per_device_train_batch_size * devices)
    batches = (examples.number - request.dataloader_drop_last * dropped) / batch_size(request, devices)
    whole = max(1, math.floor(batches) if examples.drops_last else math.ceil(batches))
    return math.ceil(whole * request.num_train_epochs)


def compose(request: Request, plan: Plan) -> str:
    """The gin file."""
    writers = [trackers.gin_name(name) for name in request.trackers if name not in ("tensorboard", "none")]
    chapters = [
        _header(request, plan, [name.partition(".")[0] for name in writers]),
        _rows(request, plan) if request.is_finetuning else _documents(request, plan),
        _training(request, plan),
        [
            "# the mean loss of the batch's targets, and nothing else",
            Binding("Z_LOSS", 0.0),
            Binding("LOSS_NORMALIZING_FACTOR", "NUM_REAL_TARGET_TOKENS"),
            *_smoothing(request, plan),
        ],
        gin_optimizer.optimizer(request),
        gin_optimizer.schedule(request, plan.steps),
        _periods(request, plan),
    ]
    if _writes(request):
        chapters.append(_decoding(request))
    if writers:
        names = [Binding(f"{name}.name", request.run_name) for name in writers if request.run_name]
        all_of_them = Binding("train_script.train.metric_writers", [Reference(f"@{name}") for name in writers])
        chapters.append([all_of_them, *names])
    return "\n\n".join(map(as_text, chapters)) + "\n"


def _header(request: Request, plan: Plan, writers: Sequence[str]) -> list[Statement]:
    out = plan.out
    modules = ["actions", "checkpoints", "data", "encoder" if plan.encoder else "network", "schedules", "trainer"]
    modules += ["adafactor"] if request.uses_adafactor else ["optimizers"]
    modules += [] if request.uses_adafactor or request.decay_all_parameters else ["weight_decay"]
    modules += ["models"] if _writes(request) else []
    modules += ["decoding"] if _writes(request) and not _searches(request) else []
    modules += ["classifier"] if plan.labels else []
    modules += writers
    tuning = request.is_finetuning
    task = ["from tasks.supervised import script_task"] if tuning else ["from tasks import objectives"]
    task += [] if tuning else ["from tasks.pretraining import masked_text"]
    return [
        f"# {'Fine-tuning' if tuning else 'Pre-training'} as a Hugging Face script was asked for it. Every "
        "`limba run` overwrites this file.",
        f"#   limba train --gin_file={quoted(f'{out}/run.gin')}",
        "from __gin__ import dynamic_registration",
        "",
        *map(gin_names.import_line, modules),
        "from limba import train as train_script",
        *task,
        *([] if request.uses_adafactor else ["import optax"]),
        "",
        Include(str(out / "initial" / "model.gin")),
        *([Include("gin/models/encoder_pairs.gin")] if request.use_nsp else []),
        Include(f"gin/runs/{request.row_answers.recipe if tuning else 'pretrain'}.gin"),
    ]


def _writes(request: Request) -> bool:
    """Whether answers are generated."""
    return request.is_finetuning and request.answers == TEXT


def _searches(request: Request) -> bool:
    return (request.generation_num_beams or 1) > 1


def _decoding(request: Request) -> list[Statement]:
    """One beam is greedy in the scripts; T5X's search would end a long answer early for its length penalty."""
    if _searches(request):
        params = Reference("@models.DecoderParams()")
        return [
            Binding("models.EncoderDecoderModel.default_decoder_params", params),
            Binding("models.DecoderParams.num_decodes", request.generation_num_beams),
        ]
    sample, note = "decoding.temperature_sample", "greedy, as the scripts' one beam"
    return [
        Binding("models.EncoderDecoderModel.decode_fn", Reference(f"@{sample}"), note),
        Block(sample, given(temperature=0.0, rescale_log_probs=False)),
    ]


def _documents(request: Request, plan: Plan) -> list[Statement]:
    spans = {"noise_density": request.mlm_probability, "mean_noise_span_length": request.mean_noise_span_length}
    length, column = request.inputs_length, {"text_column": request.text_column}
    if objective := "MaskedLM" if plan.encoder else {"prefix_lm": "PrefixLM"}.get(request.task or ""):
        of_task: dict[str, Any] = {"objective": Reference(f"@objectives.{objective}()")}
        function, of_lengths = "lengths", {**of_task, "length": length}
    else:
        of_task = spans
        function, of_lengths = "span_corruption_lengths", {"inputs_length": length, **spans}
    if plan.encoder and request.line_by_line:
        of_task["line_by_line"] = True
    masks = given(
        noise_density=request.mlm_probability,
        whole_words=request.whole_word_mask or None,
        pairs="next_sentence" if request.use_nsp else None,
        frame=plan.frame if plan.frame != (1, 1) else None,
    )
    return [
        "# data",
        *_task("masked_text.task", plan, **_data(plan), **column, shuffle_buffer_size=plan.examples.buffer, **of_task),
        *([Block("objectives.MaskedLM", masks)] if plan.encoder else []),
        Binding("TASK_FEATURE_LENGTHS", Reference(f"@objectives.{function}()")),
        Block(f"objectives.{function}", given(**of_lengths)),
    ]


def _task(function: str, plan: Plan, **parameters: Any) -> list[Statement]:
    """The function that registers the task."""
    values = given(name=plan.corpus.name, vocabulary=Reference("%VOCABULARY"), **parameters)
    return [Binding("MIXTURE_OR_TASK_NAME", Reference(f"@{function}()")), Block(function, values)]


def _data(plan: Plan) -> dict[str, Any]:
    corpus = plan.corpus
    of_hub = {"dataset": corpus.dataset, "dataset_config": corpus.dataset_config}
    return {"files": _plain(corpus.files), **of_hub, "splits": _plain(corpus.splits)}


def _rows(request: Request, plan: Plan) -> list[Statement]:
    answers = request.row_answers
    names: Sequence[str]
    values: Sequence[Any]
    if answers.targets == "inputs":
        names, values = ("tokens", "tags", "labels", "by_kind", "all_pieces"), script_data.word_values(request)
    else:
        names = ("entry", "inputs", "label_column", "labels", "languages", "metric_names", "questions", "answers")
        names += ("drops_empty",)
        values = script_data.row_values(request)
    form = {name: x for name, x in zip(names, values, strict=True) if x != "" and x is not False}
    if request.answers == TEXT:
        del form["answers"]
    head = Block(f"classifier.{answers.network}", given(**plan.head or {}))
    of_labels: list[Statement] = [Binding("LABELS", list(plan.labels)), head] if plan.labels else []
    return [
        "# data",
        *_task(f"script_task.{answers.task}", plan, **form, **_data(plan), shuffle_buffer_size=plan.examples.buffer),
        Binding("TASK_FEATURE_LENGTHS", feature_lengths(request, request.target_length)),
        Binding("PACK", False, "one row of the batch for each example, as in the scripts"),
        *of_labels,
    ]


def feature_lengths(request: Request, targets: int) -> dict[str, int]:
    """Of rows with answers, those of a T5 with so many tokens."""
    return request.row_answers.feature_lengths(request.inputs_length, targets)


def _training(request: Request, plan: Plan) -> list[Statement]:
    # gin/runs/finetune.gin asks for an initial checkpoint.
    from_scratch = [
        Binding("INITIAL_CHECKPOINT_PATH", ""),
        Binding("checkpoints.CheckpointConfig.restore", None, "from scratch"),
    ]
    restore, reset, note = "checkpoints.RestoreCheckpointConfig", ["step"], "steps count from 0, as in the scripts"
    if trainer_checkpoints.is_taken(request):
        reset, note = [], "steps count on from those of Hugging Face's Trainer"
    with_weights = [
        Binding("INITIAL_CHECKPOINT_PATH", str(plan.out / "initial")),
        Binding(f"{restore}.reset", [*reset, "optimizer"], note),
    ]
    if request.use_nsp:  # which most published encoders have no head for
        with_weights.append(Binding(f"{restore}.initialize", ["target/classifier_head/.*", "target/pair_head/.*"]))
    if plan.shared_modules:
        pairs = [(f"target/{ours}/(.*)", rf"target/{found}/\1") for ours, found in plan.shared_modules.items()]
        with_weights.append(Binding(f"{restore}.assignment_map", pairs, "as in transformers' class"))
    no_weights = from_scratch if request.is_finetuning else []
    network = "encoder.EncoderConfig" if plan.encoder else "network.T5Config"
    passes = request.gradient_accumulation_steps
    rows = f"{request.per_device_train_batch_size} a device x {plan.devices} devices x {passes} forward passes"
    return [
        "# training",
        Binding("TRAIN_STEPS", plan.steps, plan.how_many),
        Binding("BATCH_SIZE", batch_size(request, plan.devices), rows),
        Binding("trainer.Trainer.num_microbatches", passes),
        Binding("MODEL_DIR", str(plan.out / "run")),
        *(with_weights if plan.has_weights else no_weights),
        Binding("RANDOM_SEED", request.seed),
        Binding("DATASET_SEED", request.seed if request.data_seed is None else request.data_seed),
        Binding("DROPOUT_RATE", plan.dropout_rate, "config.json's"),
        *_dropout_of_attention(plan),
        Binding(f"{network}.dtype", request.compute_dtype),
        *([Binding(f"{network}.remat_policy", "full")] if request.gradient_checkpointing else []),
    ]


def _dropout_of_attention(plan: Plan) -> list[Statement]:
    """Where an encoder has another one there."""
    if plan.encoder is None or plan.encoder.attention_dropout_rate == plan.dropout_rate:
        return []
    return [Binding("encoder.EncoderConfig.attention_dropout_rate", plan.encoder.attention_dropout_rate)]


def _periods(request: Request, plan: Plan) -> list[Statement]:
    eval_rows = request.per_device_eval_batch_size * plan.devices
    roles = ["train", "infer"] if request.is_finetuning else ["train"]
    evaluation = [Binding(f"{role}_eval/data.DatasetConfig.batch_size", eval_rows) for role in roles]
    if request.is_finetuning:  # Questions are cut as in training.
        for role, targets in (("train", request.eval_target_length), ("infer", request.answer_length)):
            lengths = feature_lengths(request, targets)
            evaluation.append(Binding(f"{role}_eval/data.DatasetConfig.task_feature_lengths", lengths))
    none = [Binding(f"train_script.train.{role}_eval_dataset_cfg", None) for role in roles]
    logging, keep = _period("logging", request, plan), max(request.save_total_limit or 0, 0) or None
    shows = request.logging_strategy == "steps" and request.logging_steps is not None
    if request.save_strategy == "best":
        keep = keep or 1
    return [
        "# periods",
        Binding("train_script.train.stats_period", logging),
        *([Binding("train_script.train.log_every", logging)] if shows else []),
        *_delay(request, plan),
        Binding("EVAL_PERIOD", _period("eval", request, plan)),
        Binding("EVAL_STEPS", None, "the whole validation split"),
        Block("checkpoints.SaveCheckpointConfig", given(period=_period("save", request, plan), keep=keep)),
        *gin_best.best_checkpoints(request, plan.corpus.name),
        *gin_best.actions(request, plan.corpus.name),
        *(evaluation if request.do_eval and request.do_train else none),
    ]


def _period(what: str, request: Request, plan: Plan) -> int:
    """Steps between checkpoints ("save"), evaluations ("eval") or lines of training metrics ("logging")."""
    strategy = getattr(request, f"{what}_strategy")
    if strategy == "no" or not request.do_train:  # The last step has all three in any case.
        return max(plan.steps, 1)
    if strategy == "best":  # The checkpointer keeps those of the best evaluations.
        return _period("eval", request, plan)
    if strategy != "epoch":
        return period_keys.steps_of(request, what, plan.steps)
    return _steps_of_one_epoch(what, request, plan)


def _steps_of_one_epoch(what: str, request: Request, plan: Plan) -> int:
    """Raises ValueError if the examples of an epoch are not known."""
    if plan.examples.number is None:
        raise ValueError(
            f"{what}_strategy is 'epoch', and the examples of an epoch are not known: with max_steps only files on "
            f"this machine are counted, because a data set elsewhere would be read to its end. Write {what}_steps, or "
            "num_train_epochs in place of max_steps."
        )
    return steps_of_epochs(dataclasses.replace(request, num_train_epochs=1.0), plan.examples, plan.devices)


def _delay(request: Request, plan: Plan) -> list[Statement]:
    """The lines of `eval_delay`, which counts epochs where evaluations do, and of early stopping.

    The first evaluation of transformers' Trainer, which early stopping is to beat, comes after some steps.
    """
    if not request.do_train or not (request.eval_delay or request.early_stopping_patience):
        return []
    delay = []
    if request.eval_delay:
        epoch = _steps_of_one_epoch("eval", request, plan) if request.eval_strategy == "epoch" else 1
        delay = [Binding("train_script.train.eval_delay", math.ceil(request.eval_delay * epoch))]
    return [*delay, Binding("train_script.train.run_eval_before_training", False)]


def _smoothing(request: Request, plan: Plan) -> list[Statement]:
    """transformers gives the target a part of what is spread over all tokens, T5X gives it to the others alone."""
    if not (factor := request.label_smoothing_factor):
        return []
    others = factor * (1 - 1 / (len(plan.labels) or plan.vocab_size))
    return [Binding("LABEL_SMOOTHING", others, f"{factor} of transformers'")]


def _plain(mapping: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if mapping is None else {k: x if isinstance(x, str) else list(x) for k, x in mapping.items()}
