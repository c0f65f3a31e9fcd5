"""`limba train`: trains a model as gin files say, and resumes a run that was stopped.

limba train --gin_file=gin/recipes/quickstart.gin --gin.TRAIN_STEPS=2000
"""

import contextlib
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from limba import command_line
from limba.checkpoints import checkpointing, disk_space, run_description
from limba.checkpoints.train_state import TrainState, TrainStateInitializer
from limba.data import contract
from limba.data.contract import DatasetConfig, GetDatasetFn, GetEvalDatasetFn
from limba.devices import accelerators, freed_memory, native_logs
from limba.files import storage
from limba.gin_config import gin_files, model_file
from limba.inference import tasks_door
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner
from limba.reports import run_end, run_lock, writers
from limba.reports.goodput import Goodput
from limba.reports.run_directory import BucketWriter, RunDirectory
from limba.training import actions as actions_lib
from limba.training import (
    configured_trainer,
    inputs,
    kept_values,
    loop,
    rescue,
    run_report,
    spike_guard,
    start_checks,
    training_length,
)
from limba.training.baselines import NgramBaselines
from limba.training.beginning import Beginning, InitialValues, check_initial_values
from limba.training.loop import NanLossError as NanLossError
from limba.training.periodic_evaluation import TrainingEvaluation, measured_tasks
from limba.training.run import Periods, Run
from limba.training.spike_guard import SpikeGuard
from limba.training.trainer import BaseTrainer, StepAhead, Trainer
from limba.workers import handshake, watchdog

logger = logging.getLogger(__name__)

_WATCHDOG = watchdog.WatchdogConfig()
PyTree = Any
ConfigSummary = Callable[[str, writers.SummaryWriter, int], None]
MakeWriter = Callable[[Path, int], writers.MetricWriter]


# T5X's gin files bind these arguments by their names: they stay one flat list.
@loop.start_again_after_spikes
def train(
    *,
    model: BaseTransformerModel,
    train_dataset_cfg: DatasetConfig,
    train_eval_dataset_cfg: DatasetConfig | None = None,
    infer_eval_dataset_cfg: DatasetConfig | None = None,
    checkpoint_cfg: checkpointing.CheckpointConfig,
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
    summarize_config_fn: ConfigSummary = gin_files.summarize_gin_config,
    inference_evaluator_cls: Callable[..., Any] | None = None,
    get_dataset_fn: GetDatasetFn | None = tasks_door.get_dataset,
    concurrent_metrics: bool = True,
    actions: Mapping[str, Sequence[actions_lib.BaseAction]] | None = None,
    train_eval_get_dataset_fn: GetEvalDatasetFn | None = tasks_door.get_training_eval_datasets,
    run_eval_before_training: bool = False,
    train_state_initializer_cls: Callable[..., TrainStateInitializer] = TrainStateInitializer,
    use_orbax: bool = True,
    verify_matching_vocabs_fn: Callable[[DatasetConfig, Any], None] | None = tasks_door.verify_matching_vocabs,
    prepare_train_iter_fn: Callable[..., Any] | None = None,
    gc_period: int = 0,
    training_eval_average_metrics: Mapping[str, Sequence[str]] | None = None,
    infer_eval_average_metrics: Mapping[str, Sequence[str]] | None = None,
    watchdog_cfg: watchdog.WatchdogConfig | None = _WATCHDOG,
    metric_writers: Sequence[MakeWriter] = (),
    log_every: int | None = None,
    eval_delay: int = 0,
    baselines: NgramBaselines | None = None,
    initial_values_fn: InitialValues | None = None,
    spikes: SpikeGuard | None = None,
    checks_only: bool = False,
) -> tuple[int, TrainState]:
    """Trains until `total_steps`, or until an action ends it. T5X's arguments, but for `epochs` and the last eight.

    A `model_dir` with checkpoints is resumed from the newest whole one: same parameters, same optimizer state, same
    position in the data. Otherwise training starts from `checkpoint_cfg.restore`, or from scratch.

    The chapters before "state" look for what would end the run before its first step, and write nothing.

    Args:
      train_eval_dataset_cfg: the batches of teacher-forced evaluation, or None.
      infer_eval_dataset_cfg: the examples that are predicted and scored with the task's own metrics, or None.
      checkpoint_cfg: saving, and the initial checkpoint.
      trainer_cls: called with `model`, `partitioner`, `rng`, and the shapes and shardings of the state as
        `train_state` and `train_state_axes`; gin binds the rest.
      total_steps: the step to end at; it counts the steps of the initial checkpoint.
      eval_steps: batches of each teacher-forced evaluation; None takes the whole split.
      eval_period: steps between evaluations; one more is made at the end.
      relative_steps: steps to train after the initial checkpoint; `total_steps` is then ignored. A resumed run ends at
        the same step as one that was never stopped.
      epochs: epochs to train after the initial checkpoint; `total_steps` is then ignored. The rows of the training
        split are counted before the first step, with `train_eval_get_dataset_fn`; see
        `limba.training.training_length`.
      stats_period: steps that each line of training metrics sums up; None is the shortest of the periods of
        evaluation, checkpoints and garbage collection.
      random_seed: of initialization and dropout. None draws one; a resumed run keeps the one it has.
      use_hardware_rng: draw dropout with XLA's RngBitGenerator (`unsafe_rbg`): faster on TPUs, but the numbers depend
        on the mesh. Initial parameters are the same either way.
      summarize_config_fn: called with `model_dir`, a `writers.SummaryWriter` and the first step.
      inference_evaluator_cls: for `infer_eval_dataset_cfg`; None is `seqio.Evaluator`.
      get_dataset_fn, train_eval_get_dataset_fn: open the training stream and the evaluation batches.
      concurrent_metrics: accepted for T5X's files and ignored: metrics are ready before the next step.
      actions: of the modes "TRAIN", "TRAIN_EVAL", "INFER_EVAL"; see `limba.training.actions`.
      run_eval_before_training: evaluate the initial model too, so that there is something to compare with.
      train_state_initializer_cls: makes the state of a run that starts from scratch.
      use_orbax: False writes T5X's classic checkpoint format.
      verify_matching_vocabs_fn: called with each dataset's configuration and the model; None checks nothing.
      prepare_train_iter_fn: called with what `get_dataset_fn` returned, `partitioner` and `checkpoint_cfg`.
      gc_period: steps between two runs of Python's garbage collector, which then runs at no other time, so that all
        hosts pause together; 0 leaves it to Python.
      training_eval_average_metrics: `{"task_average/accuracy": ["task_a", "task_b"]}` adds means over tasks.
      infer_eval_average_metrics: likewise, of the tasks' own metrics.
      watchdog_cfg: when a step that hangs is reported, and ends the run; None watches nothing.
      metric_writers: besides TensorBoard and `metrics.jsonl`, such as `wandb_writer.WandbWriter`: called in process 0
        with the run's directory and the step that it resumes from, -1 for a new run.
      log_every: steps between plain lines; None is a bar in a terminal, and a line about every 15 s in a log file.
      eval_delay: no evaluation comes before this step; one is made at the end in any case.
      baselines: n-grams of the training split, which each evaluation has beside the model's metrics; None has none.
      initial_values_fn: changes the random parameters of a run that begins without a checkpoint, such as
        `start_from_counts.StartFromCounts()`: called with whole arrays, the model and `train_dataset_cfg`.
      spikes: when the run goes back to a checkpoint by itself; None ends it at a loss that is not finite.
      checks_only: returns before the chapter "state"; `limba.training.start_checks` says what is left to a run.

    Returns:
      The last step and state; with `checks_only`, the step to begin at, as far as it is known, and the state's shapes.

    Raises:
      ValueError: for a configuration that cannot work, before anything is compiled.
      NanLossError: when the loss is not finite.
    """
    # --------------------------------------------------- checks -------------------------------------------------------
    began, scope = time.monotonic(), start_checks.Scope(checks_only)
    training_length.check_step_counts(
        total_steps, relative_steps, epochs, eval_steps, eval_period, stats_period, log_every
    )
    training_length.check_stages(epochs, train_dataset_cfg)
    contract.check_seed("train.random_seed (RANDOM_SEED)", random_seed)
    directory = RunDirectory(model_dir, fetches=not checks_only)
    reads_vocabularies = scope.reaches("model: vocabularies", model.input_vocabulary, model.output_vocabulary)
    configured_trainer.check_model(model, partitioner, reads_vocabularies)
    _check_batch_sizes(partitioner, train_dataset_cfg, train_eval_dataset_cfg, infer_eval_dataset_cfg)
    start_checks.check_rows(model, train_eval_dataset_cfg)
    for writer in metric_writers:
        getattr(writer, "check", lambda: None)()  # what it needs is missing now as it would be after the data are open

    # ----------------------------------------------- seeds and trainer ------------------------------------------------
    record = run_description.recorded(directory.home) if scope.reaches("model_dir", directory.home) else {}
    seeds = run_description.choose_seeds(record, random_seed, train_dataset_cfg.seed)
    train_dataset_cfg = dataclasses.replace(train_dataset_cfg, seed=seeds["dataset"])
    data_facts = functools.partial(tasks_door.facts_of, get_dataset_fn, train_dataset_cfg)
    handshake.compare_data(model, train_dataset_cfg, data_facts, directory.home)
    init_rng, dropout_rng = _random_keys(seeds["random"], use_hardware_rng)
    initializer = train_state_initializer_cls(
        optimizer_def=model.optimizer_def, init_fn=model.initial_variables, partitioner=partitioner
    )
    check_initial_values(initial_values_fn, model, get_dataset_fn, initializer)
    trainer = configured_trainer.make_trainer(
        trainer_cls, model, partitioner, initializer, dropout_rng, str(directory.local)
    )
    for stage in train_dataset_cfg.by_stage():
        partitioner.check_batch_size(stage.batch_size, "batch_size", trainer.num_microbatches)
        start_checks.check_rows(model, stage, trainer.num_microbatches)

    # ---------------------------------------------------- data --------------------------------------------------------
    with native_logs.filtered():
        start_checks.check_vocabularies(
            scope=scope,
            verify_fn=verify_matching_vocabs_fn,
            model=model,
            train_dataset_cfg=train_dataset_cfg,
            train_eval_dataset_cfg=train_eval_dataset_cfg,
            infer_eval_dataset_cfg=infer_eval_dataset_cfg,
        )
        batches = inputs.open_stream(
            scope, model, train_dataset_cfg, get_dataset_fn, prepare_train_iter_fn, partitioner, checkpoint_cfg
        )
        eval_batches = inputs.open_eval_batches(
            scope, model, train_eval_dataset_cfg, train_eval_get_dataset_fn, eval_steps, partitioner
        )
        evaluator, predicted = inputs.open_evaluator(
            scope, model, infer_eval_dataset_cfg, inference_evaluator_cls, partitioner, directory.local
        )
        has_blanks = batches is not None and tasks_door.has_blanks(get_dataset_fn, train_dataset_cfg, batches)

    # ------------------------------------------------- beginning ------------------------------------------------------
    save, is_first_process = checkpoint_cfg.save, jax.process_index() == 0
    checkpointer = (save or checkpointing.SaveCheckpointConfig()).make_checkpointer(directory.home, use_orbax)
    beginning = Beginning(checkpointer, checkpoint_cfg.restore, initializer, init_rng, trainer, batches)
    place = beginning.check(scope)
    find_length = functools.partial(
        training_length.find_length,
        total_steps=total_steps,
        relative_steps=relative_steps,
        epochs=epochs,
        record=record,
        batch_size=train_dataset_cfg.batch_size,
        count=functools.partial(
            training_length.count_rows, train_dataset_cfg, train_eval_get_dataset_fn, model.FEATURE_CONVERTER_CLS
        ),
    )
    if place.resumes:
        spike_guard.check(spikes, place.checkpoint)
    length = None
    if place.is_known and training_length.is_known(epochs, record):
        length = find_length(first_step=place.step, resumed=place.resumes)
    averages = training_eval_average_metrics or {}, infer_eval_average_metrics or {}
    if scope.knows("train_eval_dataset_cfg", "infer_eval_dataset_cfg"):
        measured = measured_tasks(trainer, list(eval_batches), predicted, *averages)
        prepared_actions = actions_lib.Actions(actions, measured)
    run_lock.check_free(directory.home)
    if checks_only:
        scope.tell()
        return place.step, trainer.sharded_state_shapes()

    # ---------------------------------------------------- state -------------------------------------------------------
    assert batches is not None  # only checks leave it out
    will_train = length is None or place.step < length.total_steps
    with contextlib.ExitStack() as opened:  # the lock is released last
        lock = opened.enter_context(run_lock.held(directory.home))
        opened.enter_context(run_end.recorded(directory.home, writes=is_first_process))
        opened.enter_context(rescue.stopping_before_steps(directory.home))
        checkpointer.begin()
        opened.enter_context(rescue.explaining_full_disks(checkpointer))
        opened.enter_context(rescue.closing(checkpointer))
        goodput = Goodput(directory.local, place.step, began, writes=is_first_process and will_train)
        goodput.write()  # a start counts, also if it ends before the first step
        if is_first_process and not place.resumes:
            run_description.keep_seeds(directory.home, seeds)
        first_batch = inputs.FirstBatch(batches)
        step_ahead = StepAhead(
            trainer, functools.partial(configured_trainer.next_shapes, trainer, batches, train_dataset_cfg)
        )
        prepare = functools.partial(_begin, first_batch, step_ahead)
        change = None
        if initial_values_fn is not None:
            facts = {"data": data_facts(), "seeds": seeds}
            change = kept_values.change(initial_values_fn, model, train_dataset_cfg, facts, save and directory.home)
        if place.checkpoint is None and not checkpointing.checkpoint_steps(directory.home):
            prepare()  # while the state is made: the batches stay at their beginning
        state, resumed = beginning.make(change)
        first_step = int(state.step)
        watched = spike_guard.begin(
            spikes,
            directory=directory.local,
            checkpointer=checkpointer,
            save=save,
            trainer=trainer,
            batches=batches,
            step=first_step,
            resumed=resumed,
        )
        if length is None or first_step != place.step:
            length = find_length(first_step=first_step, resumed=resumed)
            goodput.begin_at(first_step)
        trains = first_step < length.total_steps
        if trains:
            _warn_of_full_disk(directory, save, state, first_step, length.total_steps)
            prepare()

        # -------------------------------------------------- loop -----------------------------------------------------
        opened_writers = _open_writers(opened, directory, first_step, resumed, metric_writers)
        evaluation = TrainingEvaluation(
            trainer=trainer,
            batches=eval_batches,
            max_batches=eval_steps,
            inference_evaluator=evaluator,
            training_eval_averages=averages[0],
            infer_eval_averages=averages[1],
            measured_tasks=measured,
            metric_writers=opened_writers,
            baselines=None
            if baselines is None
            else baselines.of_run(
                model=model,
                model_dir=directory.local,
                train_config=train_dataset_cfg,
                eval_config=train_eval_dataset_cfg,
                eval_steps=eval_steps,
                opens=(get_dataset_fn, train_eval_get_dataset_fn),
            ),
        )
        opened.enter_context(rescue.closing(evaluation))
        if resumed:
            prepared_actions.resume(directory.local, first_step)
        run = Run(
            trainer=trainer,
            dataset=train_dataset_cfg,
            batches=batches,
            first_batch=first_batch,
            step_ahead=step_ahead,
            evaluation=evaluation,
            actions=prepared_actions,
            checkpointer=checkpointer,
            lock=lock,
            writers=opened_writers,
            run_files=run_description.run_files(
                model=model,
                dataset_config=train_dataset_cfg,
                seeds=seeds,
                save=save,
                **dataclasses.asdict(length),
                has_blanks=has_blanks,
                machines=run_report.record(trainer),
            ),
            model_dir=directory.home,
            periods=Periods(length.total_steps, eval_period, stats_period, save, gc_period, eval_delay),
            goodput=goodput,
            log_every=log_every,
            watchdog=watchdog_cfg,
            spikes=watched,
        )
        _write_configuration(directory, summarize_config_fn, opened_writers, first_step)
        writers.write_timing(opened_writers, first_step, "init_or_restore_seconds", time.monotonic() - began)
        run_report.log_start(run, first_step)
        if resumed and trains:
            run_report.warn_of_another_schedule(run, first_step)
        last_step, state = loop.train_loop(run, state, resumed, run_eval_before_training)
        run_report.show_end(run.goodput if trains else None, directory.local)
        return last_step, state


def _check_batch_sizes(partitioner: PjitPartitioner, *configs: DatasetConfig | None) -> None:
    names = ("batch_size", "the evaluation batch_size", "the inference evaluation batch_size")
    for name, config in zip(names, configs, strict=True):
        if config is not None:
            partitioner.check_batch_size(config.batch_size, name)


def _begin(*ahead: inputs.FirstBatch | StepAhead) -> None:
    for work in ahead:
        work.begin()


def _random_keys(seed: int, use_hardware_rng: bool) -> tuple[jax.Array, jax.Array]:
    """The keys of initialization and dropout, split as T5X does: the same seed gives its initial parameters."""
    init_rng, dropout_rng = jax.random.split(jax.random.key(seed))
    if use_hardware_rng:
        dropout_rng = jax.random.split(jax.random.key(seed, impl="unsafe_rbg"))[1]
        logger.info("Dropout comes from XLA's RngBitGenerator: repeatable on this mesh and version only.")
    return init_rng, dropout_rng


def _warn_of_full_disk(
    directory: RunDirectory,
    save: checkpointing.SaveCheckpointConfig | None,
    state: TrainState,
    first_step: int,
    total_steps: int,
) -> None:
    if save is None:
        return
    need = disk_space.need(directory.home, save, state, first_step, total_steps)
    if need.is_short:
        logger.warning(
            "The disk will be full before the end: %s, need %s, and %s has %s free. SaveCheckpointConfig.keep, a "
            "longer period or dtype = 'bfloat16' need less.",
            need,
            disk_space.gigabytes(need.needed),
            directory.home,
            disk_space.gigabytes(need.free or 0),
        )


def _write_configuration(
    directory: RunDirectory, summarize_fn: ConfigSummary, to: Sequence[writers.MetricWriter], first_step: int
) -> None:
    if jax.process_index() == 0:
        summarize_fn(str(directory.local), writers.SummaryWriter(to, "train"), first_step)
        if model_gin := model_file.text():
            storage.replace_text(directory.local / model_file.NAME, model_gin)


def _open_writers(
    opened: contextlib.ExitStack, directory: RunDirectory, first_step: int, resumed: bool, more: Sequence[MakeWriter]
) -> list[writers.MetricWriter]:
    if jax.process_index() != 0:
        return []
    # An interrupted run writes again what it wrote after its last checkpoint, all of it if it had none.
    keep_until = first_step if resumed else -1
    makers: list[MakeWriter] = [writers.TensorBoardWriter, writers.JsonLinesWriter, *more]
    if directory.is_remote:
        makers.append(lambda *_: BucketWriter(directory))
    return [opened.enter_context(rescue.closing(make(directory.local, keep_until))) for make in makers]


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and trains."""
    parser = command_line.argument_parser("train", __doc__ or "")
    parser.add_argument(
        "--log_every",
        type=int,
        metavar="N",
        help="a plain line every N steps; else a bar in a terminal, and in a log file a line about every 15 seconds",
    )
    flags = command_line.parse_flags(parser, argv)
    if flags.dry_run:
        accelerators.take_no_memory(os.environ)  # perhaps a training has it
    else:
        accelerators.prepare_gpu(os.environ)  # before JAX opens one
        freed_memory.keep(os.environ)
    if not flags.gin_file:
        parser.error("give at least one gin file, for example gin/recipes/quickstart.gin")
    configured = gin_files.configurable(train, module="limba.train")
    if flags.log_every is not None:
        flags.gin_bindings.append(f"{gin_files.registered_name(train)}.log_every = {flags.log_every}")
    gin_files.parse_gin_flags(flags.gin_file, flags.gin_bindings, flags.gin_search_paths)
    gin_files.require_training_bindings()
    gin_files.require_a_run(
        configured, flags.gin_file, "give a recipe before it, such as gin/recipes/pretrain_laptop.gin"
    )
    if flags.dry_run:
        configured(checks_only=True)
    if command_line.goes_on(flags):
        configured()
    return 0


if __name__ == "__main__":
    # `python -m` makes a second copy of this module; gin must see the functions of the first.
    from limba import train as _this

    command_line.run_command(_this.main)
