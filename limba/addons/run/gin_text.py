"""The gin file of a run, as text: `limba run` prints it and trains with it. Nothing is looked up here.

Optimizer, schedule and periods are those of transformers' Trainer.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from limba.addons.run import trackers
from limba.addons.run.keys import script_names
from limba.addons.run.keys.row_answers import TEXT
from limba.addons.run.plan import Plan
from limba.files.shell_words import quoted
from limba.gin_config import gin_names
from limba.gin_config.recipe import Binding, Block, Include, Reference, Statement, as_text, given

# transformers' name of a schedule: the function of `limba.optimizers.schedules`.
_FUNCTIONS = {
    "linear": "warmup_linear",
    "cosine": "warmup_cosine",
    "cosine_with_restarts": "warmup_cosine_restarts",
    "cosine_with_min_lr": "warmup_cosine",
    "cosine_warmup_with_min_lr": "early_cosine",
    "polynomial": "warmup_polynomial",
    "constant": "warmup_constant",
    "constant_with_warmup": "warmup_constant",
    "inverse_sqrt": "warmup_inverse_sqrt",
    "warmup_stable_decay": "stages",
}
# Schedules without an end.
_ENDLESS = ("warmup_constant", "warmup_inverse_sqrt")
# transformers' names of the numbers of schedules.
_NUMBERS = {"lr_end": "final_learning_rate", "min_lr": "final_learning_rate", "warmup_lr_rate": "warmup_rate"}


def compose(plan: Plan) -> str:
    """The gin file."""
    request = plan.keys
    writers = [trackers.gin_name(name) for name in request.trackers if name not in ("tensorboard", "none")]
    chapters = [
        _header(plan, [name.partition(".")[0] for name in writers]),
        _rows(plan) if request.is_finetuning else _documents(plan),
        _training(plan),
        [
            "# the mean loss of the batch's targets, and nothing else",
            Binding("Z_LOSS", 0.0),
            Binding("LOSS_NORMALIZING_FACTOR", "NUM_REAL_TARGET_TOKENS"),
            *_smoothing(plan),
        ],
        _optimizer(plan),
        _schedule(plan),
        _periods(plan),
    ]
    if request.writes_texts:
        chapters.append(_decoding(plan))
    if writers:
        names = [Binding(f"{name}.name", request.run_name) for name in writers if request.run_name]
        all_of_them = Binding("train_script.train.metric_writers", [Reference(f"@{name}") for name in writers])
        chapters.append([all_of_them, *names])
    return "\n\n".join(map(as_text, chapters)) + "\n" + plan.held


def _header(plan: Plan, writers: Sequence[str]) -> list[Statement]:
    request, folder = plan.keys, plan.named
    modules = ["actions", "checkpoints", "data", "encoder" if plan.is_encoder else "network", "schedules", "trainer"]
    modules += ["adafactor"] if request.uses_adafactor else ["optimizers"]
    modules += [] if request.uses_adafactor or request.decay_all_parameters else ["weight_decay"]
    modules += ["models"] if request.writes_texts else []
    modules += ["decoding"] if request.writes_texts and not request.searches else []
    modules += ["classifier"] if plan.labels else []
    modules += writers
    tuning = request.is_finetuning
    task = ["from limba.addons.run import script_task"] if tuning else ["from tasks import objectives"]
    task += [] if tuning else ["from tasks.pretraining import masked_text"]
    return [
        f"# {'Fine-tuning' if tuning else 'Pre-training'} as a Hugging Face script was asked for it. Every "
        "`limba run` overwrites this file.",
        f"#   limba train --gin_file={quoted(f'{folder}/run.gin')}",
        "from __gin__ import dynamic_registration",
        "",
        *map(gin_names.import_line, modules),
        "from limba import train as train_script",
        *task,
        *([] if request.uses_adafactor else ["import optax"]),
        "",
        Include(str(folder / "initial" / "model.gin")),
        *([Include("gin/models/encoder_pairs.gin")] if request.use_nsp else []),
        Include(f"gin/runs/{request.row_answers.recipe if tuning else 'pretrain'}.gin"),
    ]


def _decoding(plan: Plan) -> list[Statement]:
    """One beam is greedy in the scripts; T5X's search would end a long answer early for its length penalty."""
    request = plan.keys
    if request.searches:
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


def _documents(plan: Plan) -> list[Statement]:
    request = plan.keys
    spans = {"noise_density": request.mlm_probability, "mean_noise_span_length": request.mean_noise_span_length}
    length, column = request.inputs_length, {"text_column": request.text_column}
    if objective := "MaskedLM" if plan.is_encoder else {"prefix_lm": "PrefixLM"}.get(request.task or ""):
        of_task: dict[str, Any] = {"objective": Reference(f"@objectives.{objective}()")}
        function, of_lengths = "lengths", {**of_task, "length": length}
    else:
        of_task = spans
        function, of_lengths = "span_corruption_lengths", {"inputs_length": length, **spans}
    if plan.is_encoder and request.line_by_line:
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
        *([Block("objectives.MaskedLM", masks)] if plan.is_encoder else []),
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


def _rows(plan: Plan) -> list[Statement]:
    request = plan.keys
    answers = request.row_answers
    names: Sequence[str]
    values: Sequence[Any]
    if answers.targets == "inputs":
        names, values = ("tokens", "tags", "labels", "by_kind", "all_pieces"), request.word_values
    else:
        names = ("entry", "inputs", "label_column", "labels", "languages", "metric_names", "questions", "answers")
        names += ("drops_empty",)
        values = request.row_values
    form = {name: x for name, x in zip(names, values, strict=True) if x != "" and x is not False}
    if request.answers == TEXT:
        del form["answers"]
    head = Block(f"classifier.{answers.network}", given(**plan.head or {}))
    of_labels: list[Statement] = [Binding("LABELS", list(plan.labels)), head] if plan.labels else []
    return [
        "# data",
        *_task(f"script_task.{answers.task}", plan, **form, **_data(plan), shuffle_buffer_size=plan.examples.buffer),
        Binding("TASK_FEATURE_LENGTHS", plan.feature_lengths(request.target_length)),
        Binding("PACK", False, "one row of the batch for each example, as in the scripts"),
        *of_labels,
    ]


def _training(plan: Plan) -> list[Statement]:
    request = plan.keys
    # gin/runs/finetune.gin asks for an initial checkpoint.
    from_scratch = [
        Binding("INITIAL_CHECKPOINT_PATH", ""),
        Binding("checkpoints.CheckpointConfig.restore", None, "from scratch"),
    ]
    restore, reset, note = "checkpoints.RestoreCheckpointConfig", ["step"], "steps count from 0, as in the scripts"
    if request.of_trainer:
        reset, note = [], "steps count on from those of Hugging Face's Trainer"
    with_weights = [
        Binding("INITIAL_CHECKPOINT_PATH", str(plan.named / "initial")),
        Binding(f"{restore}.reset", [*reset, "optimizer"], note),
    ]
    if request.use_nsp:  # which most published encoders have no head for
        with_weights.append(Binding(f"{restore}.initialize", ["target/classifier_head/.*", "target/pair_head/.*"]))
    if plan.shared_modules:
        pairs = [(f"target/{ours}/(.*)", rf"target/{found}/\1") for ours, found in plan.shared_modules.items()]
        with_weights.append(Binding(f"{restore}.assignment_map", pairs, "as in transformers' class"))
    no_weights = from_scratch if request.is_finetuning else []
    network = "encoder.EncoderConfig" if plan.is_encoder else "network.T5Config"
    passes = request.gradient_accumulation_steps
    rows = f"{request.per_device_train_batch_size} a device x {plan.devices} devices x {passes} forward passes"
    return [
        "# training",
        Binding("TRAIN_STEPS", plan.steps, plan.how_many),
        Binding("BATCH_SIZE", plan.rows, rows),
        Binding("trainer.Trainer.num_microbatches", passes),
        Binding("MODEL_DIR", str(plan.named / "run")),
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
    if not plan.is_encoder or plan.attention_dropout_rate == plan.dropout_rate:
        return []
    return [Binding("encoder.EncoderConfig.attention_dropout_rate", plan.attention_dropout_rate)]


def _periods(plan: Plan) -> list[Statement]:
    request = plan.keys
    roles = ["train", "infer"] if request.is_finetuning else ["train"]
    evaluation = [Binding(f"{role}_eval/data.DatasetConfig.batch_size", plan.eval_rows) for role in roles]
    if request.is_finetuning:  # Questions are cut as in training.
        for role, targets in (("train", request.eval_target_length), ("infer", request.answer_length)):
            lengths = plan.feature_lengths(targets)
            evaluation.append(Binding(f"{role}_eval/data.DatasetConfig.task_feature_lengths", lengths))
    none = [Binding(f"train_script.train.{role}_eval_dataset_cfg", None) for role in roles]
    logging, keep = plan.period("logging"), max(request.save_total_limit or 0, 0) or None
    shows = request.logging_strategy == "steps" and request.logging_steps is not None
    if request.save_strategy == "best":
        keep = keep or 1
    return [
        "# periods",
        Binding("train_script.train.stats_period", logging),
        *([Binding("train_script.train.log_every", logging)] if shows else []),
        *_delay(plan),
        Binding("EVAL_PERIOD", plan.period("eval")),
        Binding("EVAL_STEPS", None, "the whole validation split"),
        Block("checkpoints.SaveCheckpointConfig", given(period=plan.period("save"), keep=keep)),
        *_best_checkpoints(plan),
        *_actions(plan),
        *(evaluation if request.do_eval and request.do_train else none),
    ]


def _delay(plan: Plan) -> list[Statement]:
    """The lines of `eval_delay`, which counts epochs where evaluations do, and of early stopping.

    The first evaluation of transformers' Trainer, which early stopping is to beat, comes after some steps.
    """
    request = plan.keys
    if not request.do_train or not (request.eval_delay or request.early_stopping_patience):
        return []
    delay = []
    if request.eval_delay:
        epoch = plan.steps_of_epoch_for("eval") if request.eval_strategy == "epoch" else 1
        delay = [Binding("train_script.train.eval_delay", math.ceil(request.eval_delay * epoch))]
    return [*delay, Binding("train_script.train.run_eval_before_training", False)]


def _smoothing(plan: Plan) -> list[Statement]:
    """transformers gives the target a part of what is spread over all tokens, T5X gives it to the others alone."""
    if not (factor := plan.keys.label_smoothing_factor):
        return []
    others = factor * (1 - 1 / (len(plan.labels) or plan.vocab_size))
    return [Binding("LABEL_SMOOTHING", others, f"{factor} of transformers'")]


def _plain(mapping: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if mapping is None else {k: x if isinstance(x, str) else list(x) for k, x in mapping.items()}


# ------------------------------------------- the optimizer and the learning rate ------------------------------------


def _optimizer(plan: Plan) -> list[Statement]:
    """OPTIMIZER, with the gradient clipped as the Trainer does it before any optimizer."""
    request = plan.keys
    if request.uses_adafactor:
        return _adafactor(plan)
    by_value = request.clip_grad_value or None
    clipped = request.max_grad_norm > 0 and by_value is None
    clip = [Binding("optax.clip.max_delta", by_value)] if by_value else []
    clip += [Binding("optax.clip_by_global_norm.max_norm", request.max_grad_norm)] if clipped else []
    chain = [*(f"@optax.{x.function}()" for x in clip), "@optimizers.adamw()"]
    of_adamw = given(
        b1=request.adam_beta1,
        b2=request.adam_beta2,
        eps=request.adam_epsilon,
        weight_decay=request.weight_decay,
        mask=None if request.decay_all_parameters else Reference("@weight_decay.matrices"),
    )
    return [
        Binding("OPTIMIZER", Reference("@optimizers.chain()")),
        Binding("optimizers.chain.transformations", list(map(Reference, chain))),
        *clip,
        Block("optimizers.adamw", of_adamw),
    ]


def _adafactor(plan: Plan) -> list[Statement]:
    """As the Trainer makes it: steps are not relative to the parameters, and every matrix is factored.

    That of the Flax scripts, optax's, has the defaults of T5X.
    """
    request = plan.keys
    is_optax = request.optim == script_names.OPTAX_ADAFACTOR
    decay = request.weight_decay
    exempt = [] if request.decay_all_parameters else [("scale|bias|rel_embedding", 0.0)]
    of_adafactor = given(
        multiply_by_parameter_scale=request.scale_parameter or is_optax,
        min_dim_size_to_factor=None if is_optax else 1,
        global_norm_clip_threshold=request.max_grad_norm or None,
        weight_decay_rate_lr_exponent=1.0 if decay else None,
        weight_decay_rate=Reference("@adafactor.HParamMap()") if decay else None,
    )
    return [
        Binding("OPTIMIZER", Reference("@adafactor.Adafactor()")),
        Block("adafactor.Adafactor", of_adafactor),
        *([Binding("adafactor.HParamMap.rules", [*exempt, (".*", decay)])] if decay else []),
    ]


def _schedule(plan: Plan) -> list[Statement]:
    """The learning rate: warm-up to `learning_rate`, then the decay, step for step that of transformers."""
    request, steps = plan.keys, plan.steps
    if request.relative_step:
        name = "relative_step"
        values: dict[str, Any] = {"warmup_init": request.warmup_init}
    elif not request.learning_rate:  # The other schedules are shares of a rate above 0.
        name = "create_learning_rate_scheduler"
        values = {"factors": "constant", "base_learning_rate": 0.0, "min_learning_rate": 0.0}
    else:
        name = _FUNCTIONS[request.lr_scheduler_type]
        warmup = request.warmup_steps or math.ceil(request.warmup_ratio * steps)
        # A warm-up longer than the training ends with it, below its peak: its decay would begin later.
        total = max(request.num_training_steps or steps, warmup + 1)
        keys = dict(request.lr_scheduler_kwargs or {})
        for share in ("min_lr_rate", "min_lr_ratio"):
            if share in keys:
                keys["min_lr"] = keys.pop(share) * request.learning_rate
        values = {
            "base_learning_rate": request.learning_rate,
            "warmup_steps": 0 if request.lr_scheduler_type == "constant" else warmup,
            "total_steps": None if name in (*_ENDLESS, "stages") else total,
        }
        if name == "stages":
            decay, stable = int(keys.pop("num_decay_steps")), keys.pop("num_stable_steps", None)
            values |= {"stable_steps": max(total - warmup - decay, 0) if stable is None else int(stable)}
            values |= {"decay_steps": decay}
        values |= {_NUMBERS.get(key, key): value for key, value in keys.items()}
    return [
        "# learning rate",
        Binding("trainer.Trainer.learning_rate_fn", Reference(f"@schedules.{name}()")),
        Block(f"schedules.{name}", given(**values)),
    ]


# ------------------------------------------- what follows evaluations -----------------------------------------------


def _best_checkpoints(plan: Plan) -> list[Statement]:
    """Which checkpoints are kept; nothing where the newest are."""
    request = plan.keys
    if not request.load_best_model_at_end and request.save_strategy != "best":
        return []
    folder, name = request.measured
    values = given(
        metric_name_to_monitor=f"{folder}/{plan.corpus.name}/{name}",
        metric_mode=request.best_mode,
        # Before the first evaluation there is no best.
        keep_checkpoints_without_metrics=False if request.save_strategy == "best" else None,
    )
    best = "checkpoints.SaveBestCheckpointer"
    return [Binding("checkpoints.SaveCheckpointConfig.checkpointer_cls", Reference(f"@{best}")), Block(best, values)]


def _actions(plan: Plan) -> list[Statement]:
    """What follows an evaluation."""
    request = plan.keys
    folder, name = request.measured
    name = name.removeprefix("eval/")
    of_both = {"metric": (plan.corpus.name, name), "mode": request.best_mode}
    blocks = []
    if request.early_stopping_patience is not None:
        limits = {"patience": request.early_stopping_patience, "atol": request.early_stopping_threshold or None}
        blocks.append(Block("actions.StopOnPlateauAction", given(**of_both, **limits)))
    if request.use_lr_drop:
        is_relative = request.lr_drop_threshold_mode == "rel"
        threshold = {"rtol" if is_relative else "atol": request.lr_drop_threshold}
        least = request.lr_drop_min_lr / request.learning_rate
        # PyTorch's ReduceLROnPlateau lowers the rate at the evaluation after `patience` bad ones.
        limits = {"patience": request.lr_drop_patience + 1, "min_scale": least or 1e-8}
        values = given(**of_both, factor=request.lr_drop_factor, **threshold, **limits)
        blocks.append(Block("actions.DropOnPlateauAction", values))
    if not blocks:
        return []
    mode = "TRAIN_EVAL" if folder == "training_eval" else "INFER_EVAL"
    return [Binding("train_script.train.actions", {mode: [Reference(f"@{x.name}()") for x in blocks]}), *blocks]
