"""`limba train`: trains a model as gin files say, and goes on where an earlier run stopped.

limba train --gin_file=gin/recipes/quickstart.gin --gin.TRAIN_STEPS=2000
"""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from limba import actions as actions_lib
from limba import (
    checkpoints,
    commands,
    data,
    distributed,
    freezing,
    gin_utils,
    handshake,
    native_logs,
    run_description,
    training_data,
    training_loop,
    watchdog,
    writers,
)
from limba import epochs as epochs_lib
from limba.data import BatchIterator, DatasetConfig, GetDatasetFn, GetEvalDatasetFn
from limba.goodput import Goodput
from limba.models import EncoderDecoderModel
from limba.partitioning import PjitPartitioner
from limba.run_directory import BucketWriter, RunDirectory
from limba.train_state import TrainState, TrainStateInitializer
from limba.trainer import BaseTrainer, Trainer
from limba.training_evaluation import TrainingEvaluation
from limba.training_loop import NanLossError as NanLossError

logger = logging.getLogger(__name__)

_WATCHDOG = watchdog.WatchdogConfig()
ConfigSummary = Callable[[str, writers.SummaryWriter, int], None]


def train(
    *,
    model: EncoderDecoderModel,
    train_dataset_cfg: DatasetConfig,
    train_eval_dataset_cfg: DatasetConfig | None = None,
    infer_eval_dataset_cfg: DatasetConfig | None = None,
    checkpoint_cfg: checkpoints.CheckpointConfig,
    partitioner: PjitPartitioner,
    trainer_cls: Callable[..., BaseTrainer] = Trainer,
    model_dir: str,
    total_steps: int,
    eval_steps: int | None = None,
    eval_period: int = 1000,
    relative_steps: int | None = None,
    epochs: float | None = None,
    stats_period: int | None = None,
    random_seed: int | None = None,
    use_hardware_rng: bool = False,
    summarize_config_fn: ConfigSummary = gin_utils.summarize_gin_config,
    inference_evaluator_cls: Callable[..., Any] | None = None,
    get_dataset_fn: GetDatasetFn | None = data.get_dataset,
    concurrent_metrics: bool = True,
    actions: Mapping[str, Sequence[actions_lib.BaseAction]] | None = None,
    train_eval_get_dataset_fn: GetEvalDatasetFn | None = data.get_training_eval_datasets,
    run_eval_before_training: bool = False,
    train_state_initializer_cls: Callable[..., TrainStateInitializer] = TrainStateInitializer,
    use_orbax: bool = True,
    verify_matching_vocabs_fn: Callable[[DatasetConfig, Any], None] | None = data.verify_matching_vocabs,
    prepare_train_iter_fn: Callable[..., Any] | None = None,
    gc_period: int = 0,
    training_eval_average_metrics: Mapping[str, Sequence[str]] | None = None,
    infer_eval_average_metrics: Mapping[str, Sequence[str]] | None = None,
    watchdog_cfg: watchdog.WatchdogConfig | None = _WATCHDOG,
    metric_writers: Sequence[Callable[[Path, int], writers.MetricWriter]] = (),
) -> tuple[int, TrainState]:
    """Trains until `total_steps`, or until an action ends it. T5X's arguments, but for `epochs` and the last two.

    A `model_dir` with checkpoints is gone on with, from the newest whole one: same parameters, same optimizer state,
    same place in the data. Otherwise training starts from `checkpoint_cfg.restore`, or from scratch.

    Args:
      model: network, loss and optimizer definition.
      train_dataset_cfg: the training stream.
      train_eval_dataset_cfg: the batches of teacher-forced evaluation, or None.
      infer_eval_dataset_cfg: the examples that are predicted and scored with the task's own metrics, or None.
      checkpoint_cfg: saving, and the initial checkpoint.
      partitioner: mesh and rules.
      trainer_cls: called with `model`, `partitioner`, `rng`, and the shapes and shardings of the state as
        `train_state` and `train_state_axes`; gin binds the rest.
      model_dir: where everything goes.
      total_steps: the step to end at; it counts the steps of the initial checkpoint.
      eval_steps: batches of each teacher-forced evaluation; None takes the whole split.
      eval_period: steps between evaluations; one more is made at the end.
      relative_steps: train so many steps after the initial checkpoint; `total_steps` then means nothing. A run that is
        resumed still ends where it would have.
      epochs: train so many epochs after the initial checkpoint; `total_steps` then means nothing. The rows of the
        training split are counted before the first step, with `train_eval_get_dataset_fn`; see `limba.epochs`.
      stats_period: steps that each line of training metrics sums up; None is the shorter of the periods of
        evaluation, checkpoints and garbage collection.
      random_seed: of initialization and dropout. None draws one; a resumed run keeps its own.
      use_hardware_rng: draw dropout with XLA's RngBitGenerator (`unsafe_rbg`): faster on TPUs, and other numbers on
        another mesh. Initial parameters are the same either way.
      summarize_config_fn: called with `model_dir`, a `writers.SummaryWriter` and the first step.
      inference_evaluator_cls: for `infer_eval_dataset_cfg`; None is `seqio.Evaluator`.
      get_dataset_fn: opens the training stream.
      concurrent_metrics: accepted for T5X's files; metrics are ready before the next step, and every action runs.
      actions: of the modes "TRAIN", "TRAIN_EVAL", "INFER_EVAL"; see `limba.actions`.
      train_eval_get_dataset_fn: opens the evaluation batches.
      run_eval_before_training: evaluate the initial model too, so that there is something to compare with.
      train_state_initializer_cls: makes the state of a run that starts from scratch.
      use_orbax: False writes T5X's classic checkpoint format.
      verify_matching_vocabs_fn: called with each dataset's configuration and the model; None checks nothing.
      prepare_train_iter_fn: called with what `get_dataset_fn` returned, `partitioner` and `checkpoint_cfg`.
      gc_period: run Python's garbage collector every so many steps and never else, so that hosts pause together; 0
        leaves it alone.
      training_eval_average_metrics: `{"task_average/accuracy": ["task_a", "task_b"]}` adds means over tasks.
      infer_eval_average_metrics: likewise, of the tasks' own metrics.
      watchdog_cfg: when a step that hangs is reported, and ends the run; None watches nothing.
      metric_writers: besides TensorBoard and `metrics.jsonl`, such as `wandb_writer.WandbWriter`: called in process 0
        with the run's directory and the step that it goes on from, -1 for a new run.

    Returns:
      The last step and state.

    Raises:
      ValueError: for a configuration that cannot work, before anything is compiled.
      NanLossError: when the loss is not finite.
    """
    # --------------------------------------------------- checks -------------------------------------------------------
    began = time.monotonic()
    check_numbers(total_steps, relative_steps, epochs, eval_steps, eval_period, stats_period)
    run_directory = RunDirectory(model_dir)
    directory = run_directory.local
    network_config = getattr(model.module, "config", None)
    for vocabulary in (model.input_vocabulary, model.output_vocabulary):
        check_vocabulary(vocabulary, getattr(network_config, "vocab_size", None))
    if network_config is not None:
        partitioner.check_heads(network_config.num_heads)
    for name, config in (
        ("batch_size", train_dataset_cfg),
        ("the evaluation batch_size", train_eval_dataset_cfg),
        ("the inference evaluation batch_size", infer_eval_dataset_cfg),
    ):
        if config is not None:
            partitioner.check_batch_size(config.batch_size, name)

    # ----------------------------------------------- seeds and trainer ------------------------------------------------
    before = run_description.recorded(run_directory.home)
    seeds = run_description.choose_seeds(before, random_seed, train_dataset_cfg.seed)
    train_dataset_cfg = dataclasses.replace(train_dataset_cfg, seed=seeds["dataset"])
    handshake.compare_data(model, train_dataset_cfg, get_dataset_fn, run_directory.home)
    # Split as T5X does: the same seed gives its initial parameters.
    init_rng, dropout_rng = jax.random.split(jax.random.key(seeds["random"]))
    if use_hardware_rng:
        dropout_rng = jax.random.split(jax.random.key(seeds["random"], impl="unsafe_rbg"))[1]
        logger.info("Dropout comes from XLA's RngBitGenerator: repeatable on this mesh and version only.")
    initializer = train_state_initializer_cls(
        optimizer_def=model.optimizer_def, init_fn=model.initial_variables, partitioner=partitioner
    )
    trainer = trainer_cls(
        model=model,
        partitioner=partitioner,
        rng=dropout_rng,
        train_state=initializer.train_state_shapes,
        train_state_axes=initializer.train_state_axes,
        eval_names=(),
        summary_dir=str(directory),
    )
    partitioner.check_batch_size(train_dataset_cfg.batch_size, "batch_size", getattr(trainer, "num_microbatches", 1))

    # ---------------------------------------------------- data --------------------------------------------------------
    with native_logs.filtered():
        if verify_matching_vocabs_fn is not None and hasattr(model, "input_vocabulary"):
            for config in filter(None, (train_dataset_cfg, train_eval_dataset_cfg, infer_eval_dataset_cfg)):
                verify_matching_vocabs_fn(config, model)
        prepare = functools.partial(
            prepare_train_iter_fn or _keep, partitioner=partitioner, checkpoint_cfg=checkpoint_cfg
        )
        batches = training_data.open_stream(model, train_dataset_cfg, get_dataset_fn, prepare, partitioner)
        eval_batches = training_data.open_eval_batches(
            model, train_eval_dataset_cfg, train_eval_get_dataset_fn, eval_steps, partitioner
        )
        evaluator = training_data.open_evaluator(
            model, infer_eval_dataset_cfg, inference_evaluator_cls, partitioner, directory
        )

    # ---------------------------------------------------- state -------------------------------------------------------
    save = checkpoint_cfg.save
    checkpointer = (save or checkpoints.SaveCheckpointConfig()).make_checkpointer(run_directory.home, use_orbax)
    state, resumed = _restore_or_initialize(initializer, checkpointer, checkpoint_cfg.restore, batches, init_rng)
    first_step = int(state.step)
    initial_step = before.get("initial_step", first_step) if resumed else first_step
    rows_per_epoch: int | None = None
    if epochs is not None:
        # Counted again only where a checkpoint does not say it.
        rows_per_epoch = before.get("rows_per_epoch") or distributed.from_first(
            "rows of an epoch",
            lambda: epochs_lib.count_rows(train_dataset_cfg, train_eval_get_dataset_fn, model.FEATURE_CONVERTER_CLS),
        )
        relative_steps = epochs_lib.steps_of(epochs, rows_per_epoch, train_dataset_cfg.batch_size)
        logger.info(
            "%g epochs of %s rows in batches of %d are %s steps.",
            *(epochs, f"{rows_per_epoch:,}", train_dataset_cfg.batch_size, f"{relative_steps:,}"),
        )
    if relative_steps is not None:
        total_steps = initial_step + relative_steps
    elif first_step > total_steps and not resumed:
        raise ValueError(
            f"train.total_steps (TRAIN_STEPS) is {total_steps}, and the initial checkpoint is at step {first_step}: "
            "it counts. Give a later step, or the steps to add as relative_steps (TRAIN_STEPS_RELATIVE)."
        )

    # ---------------------------------------------------- loop --------------------------------------------------------
    periods = (eval_period, save.period if save is not None else None, gc_period, total_steps)
    stats_period = stats_period or min(filter(None, periods))
    opened_writers = _open_writers(run_directory, first_step, resumed, metric_writers)
    evaluations = TrainingEvaluation(
        trainer,
        eval_batches,
        eval_steps,
        evaluator,
        training_eval_average_metrics or {},
        infer_eval_average_metrics or {},
        opened_writers,
    )
    lengths = train_dataset_cfg.task_feature_lengths or {}
    run = training_loop.Run(
        trainer=trainer,
        batches=batches,
        evaluation=evaluations,
        actions=_prepare_actions(actions, evaluations, directory, first_step if resumed else None),
        checkpointer=checkpointer,
        writers=opened_writers,
        run_files=run_description.run_files(
            model,
            train_dataset_cfg,
            seeds,
            initial_step,
            total_steps,
            position_saved=save is not None and save.save_dataset,
            rows_per_epoch=rows_per_epoch,
        ),
        model_dir=run_directory.home,
        batch_size=train_dataset_cfg.batch_size,
        tokens_per_step=train_dataset_cfg.batch_size * sum(lengths.values()),
        periods=training_loop.Periods(
            total_steps=total_steps,
            evaluation=eval_period,
            statistics=stats_period,
            save=save,
            garbage_collection=gc_period,
        ),
        goodput=Goodput(directory, first_step, began, resumed, writes=jax.process_index() == 0),
        watchdog=watchdog_cfg,
    )
    if jax.process_index() == 0:
        summarize_config_fn(str(directory), writers.SummaryWriter(opened_writers, "train"), first_step)
    writers.write_timing(opened_writers, first_step, "init_or_restore_seconds", time.monotonic() - began)
    _announce(run, lengths, first_step)
    try:
        ended = False
        training_loop.follow_rate(run)  # where an earlier start of this run left it
        if _evaluation_is_due(run, first_step, resumed, run_eval_before_training):
            ended = training_loop.evaluate(run, state, first_step, logger.info)
        last_step = first_step
        if ended:
            logger.info("An action ended training before its first step, at step %d.", first_step)
        else:
            last_step, state = training_loop.train_loop(run, state, first_step)
    finally:
        checkpointer.close()
        if evaluator is not None:
            evaluator.close()
        for writer in opened_writers:
            writer.close()
    if jax.process_index() == 0:
        logger.info("%s", run.goodput.table())
        _report(directory)
    return last_step, state


# ----------------------------------------------------- the chapters ---------------------------------------------------


def _keep(batches: Any, **_: Any) -> Any:
    return batches


def check_numbers(
    total_steps: Any, relative_steps: Any, epochs: Any, eval_steps: Any, eval_period: Any, stats_period: Any
) -> None:
    """Raises ValueError unless `train()`'s numbers of steps are whole and at least 1, or None where they may be."""
    if epochs is not None:
        epochs_lib.check_epochs(epochs, relative_steps)
    numbers = {"total_steps": total_steps} if relative_steps is None and epochs is None else {}
    numbers["eval_period"] = eval_period
    optional = {"relative_steps": relative_steps, "stats_period": stats_period, "eval_steps": eval_steps}
    numbers |= {name: value for name, value in optional.items() if value is not None}
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"train.{name} is {value!r}; it must be a whole number of at least 1.")


def check_vocabulary(vocabulary: Any, rows: int | None) -> None:
    """Cheap checks of a model's vocabulary that need no data; the sentinels are checked with the task.

    Args:
      vocabulary: of SeqIO.
      rows: of the embedding, None if the network does not say.

    Raises:
      FileNotFoundError: if its SentencePiece model is missing.
      ValueError: if it has more ids than the embedding has rows.
    """
    file = getattr(vocabulary, "sentencepiece_model_file", None)
    if file and "://" not in file and not Path(file).is_file():
        raise FileNotFoundError(
            f"The vocabulary {file} does not exist (working directory {Path.cwd()}). Build one with `limba vocab "
            f"build --data_files … --out {file}`, or bind VOCABULARY_FILE."
        )
    size = vocabulary.vocab_size
    if rows is not None and size > rows:
        raise ValueError(
            f"The vocabulary has {size} tokens and the embedding {rows} rows (T5Config.vocab_size): the last "
            f"{size - rows}, the sentinels first of all, would be lost. Set T5Config.vocab_size to at least "
            f"{-(-size // 128) * 128}."
        )


def _restore_or_initialize(
    initializer: TrainStateInitializer,
    checkpointer: checkpoints.Checkpointer,
    restore: checkpoints.RestoreCheckpointConfig | None,
    batches: BatchIterator,
    init_rng: jax.Array,
) -> tuple[TrainState, bool]:
    """The state to begin with, and whether it is this run's own."""
    shapes = initializer.sharded_shapes()
    resumed = checkpointer.restore_latest(shapes, restore)
    if resumed is not None:
        state, dataset_state = resumed
        _restore_position(batches, dataset_state)
        logger.info("Going on from step %d in %s.", int(state.step), checkpointer.model_dir)
        return state, True
    initial = distributed.from_first("initial checkpoint", lambda: restore.checkpoint) if restore is not None else None
    if restore is not None and initial is not None:
        if restore.dtype not in (None, "float32"):
            raise ValueError(f"RestoreCheckpointConfig.dtype is {restore.dtype!r}; training is in float32.")
        state = checkpoints.load_state(initial, shapes, restore, functools.partial(initializer.new_state, init_rng))
        if restore.restore_dataset:
            _restore_position(batches, checkpoints.load_dataset_state(initial))
        logger.info("Starting from %s at step %d.", initial, int(state.step))
        return state, False
    return initializer.from_scratch(init_rng), False


def _restore_position(batches: BatchIterator, dataset_state: Mapping[str, bytes]) -> None:
    if dataset_state:
        batches.restore_state(dataset_state)
    else:
        logger.warning(
            "The checkpoint does not say where Limba's data stood: they start anew. "
            "SaveCheckpointConfig.save_dataset = True keeps the place."
        )


def _open_writers(
    directory: RunDirectory,
    first_step: int,
    resumed: bool,
    more: Sequence[Callable[[Path, int], writers.MetricWriter]],
) -> list[writers.MetricWriter]:
    if jax.process_index() != 0:
        return []
    # What an interrupted run wrote after its last checkpoint, all of it if it had none, is about to be written again.
    keep_until = first_step if resumed else -1
    opened: list[writers.MetricWriter] = [
        writers.TensorBoardWriter(directory.local, keep_until),
        writers.JsonLinesWriter(directory.local, keep_until),
        *(make(directory.local, keep_until) for make in more),
    ]
    return [*opened, BucketWriter(directory)] if directory.is_remote else opened


_FOLDERS = {
    actions_lib.ActionMode.TRAIN: "train",
    actions_lib.ActionMode.TRAIN_EVAL: "training_eval/",
    actions_lib.ActionMode.INFER_EVAL: "inference_eval/",
}


def _prepare_actions(
    by_mode: Mapping[str, Sequence[actions_lib.BaseAction]] | None,
    evaluation: TrainingEvaluation,
    directory: Path,
    resumed_at: int | None,
) -> actions_lib.Actions:
    """The actions, told what was measured before a run was resumed."""
    tasks = {actions_lib.ActionMode.TRAIN: [actions_lib.TRAIN_METRIC_KEY], **evaluation.measured_tasks}
    prepared = actions_lib.Actions(by_mode, tasks)
    if prepared.scale_rate and not hasattr(evaluation.trainer, "scale_rate"):
        raise ValueError(
            f"train.actions has a DropOnPlateauAction, and {type(evaluation.trainer).__name__} has no learning rate to "
            "scale; derive it from trainer.Trainer."
        )
    if resumed_at is not None:
        for mode, folder in _FOLDERS.items():
            past: dict[int, dict[str, dict[str, float]]] = {}
            for line in writers.read_metrics(directory, folder):
                task = line["dataset"].removeprefix(folder) or actions_lib.TRAIN_METRIC_KEY
                past.setdefault(line["step"], {})[task] = {name.removeprefix("eval/"): x for name, x in line.items()}
            prepared.resume(mode, [metrics for step, metrics in sorted(past.items()) if step <= resumed_at])
    return prepared


def _evaluation_is_due(run: training_loop.Run, first_step: int, resumed: bool, before_training: bool) -> bool:
    """Whether the state that a run begins with is to be evaluated: a new one, or one that was stopped just before."""
    folder = run.evaluation.last_folder
    if folder is None:
        return False
    if not resumed:
        return before_training
    if not (run.periods.evaluates(first_step) or first_step > run.periods.total_steps):
        return False

    def is_done() -> bool:
        return first_step in {line["step"] for line in writers.read_metrics(run.model_dir, folder)}

    return not distributed.from_first("last evaluation", is_done)


def _announce(run: training_loop.Run, feature_lengths: Mapping[str, int], first_step: int) -> None:
    trained, count = freezing.count_trained(run.trainer.model.optimizer_def, run.trainer.param_shapes)
    part = f" ({trained:,} of them trained, {trained / count:.2%})" if trained < count else ""
    logger.info(
        "%s: %s parameters%s, batch %d x %s, steps %d to %d, mesh %s on %s",
        run.model_dir,
        f"{count:,}",
        part,
        run.batch_size,
        dict(feature_lengths),
        first_step,
        run.periods.total_steps,
        dict(run.trainer.partitioner.mesh.shape),
        jax.devices()[0].platform,
    )


def _report(model_dir: Path) -> None:
    """Prints what the run reached, per task, from its own record."""
    evaluations: dict[str, list[dict]] = {}
    for line in writers.read_metrics(model_dir, "training_eval/"):
        evaluations.setdefault(line["dataset"].partition("/")[2], []).append(line)
    for task, lines in evaluations.items():
        first, last = lines[0], lines[-1]
        if not {"nats_per_target_token", "unigram_nats_per_target_token"} <= last.keys() & first.keys():
            continue  # An average over tasks, or a model with metrics of its own.
        change = 1 - last["nats_per_target_token"] / first["nats_per_target_token"]
        began = f"{first['nats_per_target_token']:.4f} at step {first['step']}, " if len(lines) > 1 else ""
        lower = f" ({change:.1%} lower)" if len(lines) > 1 else ""
        print(
            f"validation loss of {task}, nats per target token: {began}{last['nats_per_target_token']:.4f} at step "
            f"{last['step']}{lower}; best constant (unigram) predictor on the same targets: "
            f"{last['unigram_nats_per_target_token']:.4f}"
        )


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and trains."""
    parser = commands.argument_parser("train", __doc__ or "")
    flags = commands.parse_flags(parser, argv)
    if not flags.gin_file:
        parser.error("give at least one --gin_file, for example --gin_file=gin/recipes/quickstart.gin")
    configured = gin_utils.configurable(train, module="limba.train")
    gin_utils.parse_gin_flags(flags.gin_file, flags.gin_bindings, flags.gin_search_paths)
    gin_utils.require_training_bindings()
    commands.start(configured, flags)
    return 0


if __name__ == "__main__":
    # `python -m` makes a second copy of this module; gin must see the functions of the first.
    from limba import train as _this

    commands.run_command(_this.main)
