"""`limba train`: trains a model as gin files say, and goes on where an earlier run stopped.

limba train --gin_file=gin/recipes/quickstart.gin --gin.TRAIN_STEPS=2000
"""

import dataclasses
import json
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

import limba
from limba import checkpoints, evaluation, gin_utils, native_logs, writers
from limba import metrics as metrics_lib
from limba.data import BatchIterator, DatasetConfig, EvalBatches, GetEvalBatches, GetTrainBatches
from limba.models import EncoderDecoderModel
from limba.partitioning import PjitPartitioner
from limba.preemption import PREEMPTED_EXIT_CODE, StopRequest
from limba.train_state import TrainState
from limba.train_statistics import TrainStatistics
from limba.trainer import Trainer

logger = logging.getLogger(__name__)


class NanLossError(RuntimeError):
    """The loss is not a number any more; training on would only spread it."""


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the loop needs, once the chapters before it have made it."""

    trainer: Trainer
    batches: BatchIterator
    eval_batches: EvalBatches
    checkpointer: checkpoints.Checkpointer
    writers: Sequence[writers.MetricWriter]
    run_files: Mapping[str, bytes]
    model_dir: Path
    batch_size: int
    tokens_per_step: int
    total_steps: int
    eval_steps: int | None
    eval_period: int
    stats_period: int
    save: checkpoints.SaveCheckpointConfig


def train(
    *,
    model: EncoderDecoderModel,
    train_dataset_cfg: DatasetConfig,
    train_eval_dataset_cfg: DatasetConfig | None = None,
    checkpoint_cfg: checkpoints.CheckpointConfig,
    partitioner: PjitPartitioner,
    trainer_cls: Callable[..., Trainer] = Trainer,
    model_dir: str,
    total_steps: int,
    eval_steps: int | None = None,
    eval_period: int = 1000,
    stats_period: int = 100,
    random_seed: int | None = None,
    run_eval_before_training: bool = True,
    get_dataset_fn: GetTrainBatches | None = None,
    train_eval_get_dataset_fn: GetEvalBatches | None = None,
) -> tuple[int, TrainState]:
    """Trains until `total_steps`.

    A `model_dir` with checkpoints is gone on with, from the newest whole one: same parameters, same optimizer state,
    same place in the data. Otherwise training starts from `checkpoint_cfg.restore`, or from scratch.

    Args:
      model: network, loss and optimizer definition.
      train_dataset_cfg: the training stream.
      train_eval_dataset_cfg: the evaluation batches, or None.
      checkpoint_cfg: saving, and the initial checkpoint.
      partitioner: mesh and rules.
      trainer_cls: called with `model`, `partitioner` and `rng`; gin binds the rest.
      model_dir: where everything goes.
      total_steps: the step to end at.
      eval_steps: batches of each evaluation; None takes the whole split.
      eval_period: steps between evaluations; one more is made at the end.
      stats_period: steps that each line of training metrics sums up.
      random_seed: of initialization and dropout. None draws one; a resumed run keeps its own.
      run_eval_before_training: evaluate the initial model too, so that there is something to compare with.
      get_dataset_fn: opens the training stream; None is `tasks.pipeline.get_train_batches`.
      train_eval_get_dataset_fn: likewise; None is `tasks.pipeline.get_eval_batches`.

    Returns:
      The last step and state.

    Raises:
      ValueError: for a configuration that cannot work, before anything is compiled.
      NanLossError: when the loss is not finite.
    """
    # --------------------------------------------------- checks -------------------------------------------------------
    for name, value in (("total_steps", total_steps), ("eval_period", eval_period), ("stats_period", stats_period)):
        _check_positive(f"train.{name}", value)
    if eval_steps is not None:
        _check_positive("train.eval_steps", eval_steps)
    directory = _absolute_directory(model_dir)
    _check_vocabulary(model)
    network_config = getattr(model.module, "config", None)
    if network_config is not None:
        partitioner.check_heads(network_config.num_heads)
    seeds = _seeds(directory, random_seed, train_dataset_cfg.seed)
    train_dataset_cfg = dataclasses.replace(train_dataset_cfg, seed=seeds["dataset"])
    # Split as T5X does: the same seed gives its initial parameters.
    init_rng, dropout_rng = jax.random.split(jax.random.key(seeds["random"]))
    trainer = trainer_cls(model=model, partitioner=partitioner, rng=dropout_rng)
    partitioner.check_batch_size(train_dataset_cfg.batch_size, "batch_size", trainer.num_microbatches)
    if train_eval_dataset_cfg is not None:
        partitioner.check_batch_size(train_eval_dataset_cfg.batch_size, "the evaluation batch_size")

    # ---------------------------------------------------- data --------------------------------------------------------
    hosts = (jax.process_index(), jax.process_count())
    with native_logs.filtered():
        if get_dataset_fn is None or train_eval_get_dataset_fn is None:
            from tasks import pipeline  # TensorFlow comes in here, and only here.

            pipeline.check_task_vocabularies(train_dataset_cfg, model.input_vocabulary, model.output_vocabulary)
            get_dataset_fn = get_dataset_fn or pipeline.get_train_batches
            train_eval_get_dataset_fn = train_eval_get_dataset_fn or pipeline.get_eval_batches
        batches = get_dataset_fn(train_dataset_cfg, model.FEATURE_CONVERTER_CLS, *hosts)
        eval_batches: EvalBatches = {}
        if train_eval_dataset_cfg is not None:
            eval_batches = train_eval_get_dataset_fn(train_eval_dataset_cfg, model.FEATURE_CONVERTER_CLS, *hosts)

    # ---------------------------------------------------- state -------------------------------------------------------
    checkpointer = checkpoints.Checkpointer(directory, checkpoint_cfg.save)
    state, resumed = _restore_or_initialize(trainer, checkpointer, checkpoint_cfg, batches, init_rng)
    first_step = int(state.step)

    # ---------------------------------------------------- loop --------------------------------------------------------
    run = _Run(
        trainer=trainer,
        batches=batches,
        eval_batches=eval_batches,
        checkpointer=checkpointer,
        writers=_open_writers(directory, first_step, resumed),
        run_files=_run_files(model, train_dataset_cfg, seeds),
        model_dir=directory,
        batch_size=train_dataset_cfg.batch_size,
        tokens_per_step=train_dataset_cfg.batch_size * sum(train_dataset_cfg.task_feature_lengths.values()),
        total_steps=total_steps,
        eval_steps=eval_steps,
        eval_period=eval_period,
        stats_period=stats_period,
        save=checkpoint_cfg.save,
    )
    _announce(run, train_dataset_cfg.task_feature_lengths, first_step)
    try:
        if _evaluation_is_due(run, first_step, resumed, run_eval_before_training):
            _evaluate(run, state, first_step, logger.info)
        last_step, state = _train_loop(run, state, first_step)
    finally:
        checkpointer.close()
        for writer in run.writers:
            writer.close()
    _report(directory)
    return last_step, state


# ------------------------------------------------------- the loop -----------------------------------------------------


def _train_loop(run: _Run, state: TrainState, first_step: int) -> tuple[int, TrainState]:
    """Steps from `first_step` to the end, with statistics, evaluations and checkpoints in between."""
    if first_step >= run.total_steps:
        logger.info("The run is at step %d of %d: nothing to train.", first_step, run.total_steps)
        return first_step, state
    statistics = TrainStatistics(run.writers, run.trainer.learning_rate_fn, run.batch_size, run.tokens_per_step)
    step, last_saved = first_step, first_step
    previous: metrics_lib.Metrics | None = None

    with StopRequest() as stop, writers.ProgressBar(run.total_steps, first_step, run.tokens_per_step) as bar:
        while step < run.total_steps and not stop.requested:
            began = time.monotonic()
            batch = run.trainer.partitioner.shard_batch(next(run.batches))
            state, metrics = run.trainer.train_step(state, batch)
            step += 1
            if previous is None:  # The first call compiles.
                jax.block_until_ready(metrics)
                seconds = time.monotonic() - began
                statistics.add_first(metrics, seconds)
                bar.step()
                bar.message(f"compiled and made the first step in {seconds:.1f} s")
            else:
                # One step stays in flight. The one before is done: reading it delays nothing and finds a NaN early.
                _check_finite(previous, step - 1, run)
                statistics.add(metrics)
                bar.step(_shown_loss(previous) if bar.wants_loss else None)
            previous = metrics

            last = step == run.total_steps
            if step % run.stats_period == 0 or last or stop.requested:
                statistics.write(step)
            # Evaluation comes before the checkpoint: a run killed in between makes it again.
            if (step % run.eval_period == 0 or last) and not stop.requested:
                with statistics.paused(), bar.paused():
                    _evaluate(run, state, step, bar.message)
            if step % run.save.period == 0 or last:
                _save(run, state, metrics, step)
                last_saved = step
        if step > last_saved:  # Asked to stop.
            _save(run, state, previous, step)

    run.checkpointer.wait()
    if step < run.total_steps:
        logger.warning("Stopped on request at step %d; saved as %s.", step, _path(run, step))
        raise SystemExit(PREEMPTED_EXIT_CODE)
    return step, state


def _shown_loss(metrics: metrics_lib.Metrics) -> float:
    return metrics["loss_per_nonpadding_target_token"].compute()


def _check_finite(metrics: metrics_lib.Metrics, step: int, run: _Run) -> None:
    loss = float(metrics["loss"].compute())
    if not math.isfinite(loss):
        raise _not_finite(run, f"The loss of step {step} is {loss}.")


@jax.jit
def _all_finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def _not_finite(run: _Run, what: str) -> NanLossError:
    run.checkpointer.wait()
    saved = checkpoints.checkpoint_steps(run.model_dir)
    good = f"The last good checkpoint is {_path(run, saved[-1])}." if saved else "No checkpoint was saved before."
    return NanLossError(
        f"{what} {good} Nothing was saved after it. Usual causes: a learning rate that is too high, missing warm-up "
        "with AdamW, label or token ids outside the vocabulary."
    )


def _path(run: _Run, step: int) -> Path:
    return checkpoints.checkpoint_path(run.model_dir, step)


def _save(run: _Run, state: TrainState, metrics: metrics_lib.Metrics | None, step: int) -> None:
    """Begins a checkpoint, unless the step has spoiled the state: the loss alone is from before the update."""
    if metrics is not None:
        _check_finite(metrics, step, run)
    if not bool(_all_finite((state.params, state.opt_state))):
        raise _not_finite(run, f"The update of step {step} made parameters or optimizer state infinite or NaN.")
    run.checkpointer.save(state, run.batches.save_state() if run.save.save_dataset else None, run.run_files)


def _evaluation_is_due(run: _Run, first_step: int, resumed: bool, before_training: bool) -> bool:
    """Whether the state that a run begins with is to be evaluated: a new one, or one that was stopped just before."""
    if not resumed:
        return before_training
    due = first_step % run.eval_period == 0 or first_step >= run.total_steps
    done = {line["step"] for line in writers.read_metrics(run.model_dir, "training_eval/")}
    return due and first_step not in done


def _evaluate(run: _Run, state: TrainState, step: int, say: Callable[[str], None]) -> None:
    for task, batches in run.eval_batches.items():
        scalars = evaluation.evaluate(run.trainer.eval_step, state.params, batches, run.eval_steps)
        for writer in run.writers:
            writer.write_scalars(step, f"training_eval/{task}", scalars)
        loss, accuracy = scalars["nats_per_target_token"], scalars["accuracy"]
        say(f"step {step}: validation loss of {task} {loss:.4f} nats/token, accuracy {accuracy:.2%}")


# ----------------------------------------------------- the chapters ---------------------------------------------------


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1.")


def _absolute_directory(model_dir: str) -> Path:
    """Where MODEL_DIR is; it is made later, when everything else is known to be right.

    Raises:
      ValueError: if it is not local or cannot be written to.
    """
    if "://" in model_dir:
        raise ValueError(
            f"MODEL_DIR {model_dir} is not a path of this machine; mount the bucket, or give a shared folder."
        )
    directory = Path(model_dir).expanduser().absolute()
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        why = "is not a directory" if not existing.is_dir() else "does not let you write"
        raise ValueError(f"MODEL_DIR {directory} cannot be written to: {existing} {why}. Choose another.")
    return directory


def _check_vocabulary(model: EncoderDecoderModel) -> None:
    """Cheap checks that need no data; the sentinels are checked with the task."""
    rows = getattr(getattr(model.module, "config", None), "vocab_size", None)
    for vocabulary in (model.input_vocabulary, model.output_vocabulary):
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


def _seeds(directory: Path, random_seed: int | None, dataset_seed: int | None) -> dict[str, int]:
    """The seeds of this run: configured, else those it began with, else drawn. The same on every host."""
    recorded: dict[str, int] = {}
    for step in reversed(checkpoints.checkpoint_steps(directory)):
        path = checkpoints.checkpoint_path(directory, step)
        try:
            recorded = json.loads(checkpoints.load_files(path, "run")["run.json"])["seeds"]
            break
        except (KeyError, ValueError) as error:
            logger.warning("%s does not say its seeds (%s).", path, error)
    seeds = {}
    for name, configured in (("random", random_seed), ("dataset", dataset_seed)):
        seeds[name] = configured if configured is not None else recorded.get(name, secrets.randbelow(2**31))
    if jax.process_count() > 1:
        seeds = {name: int(seed) for name, seed in multihost_utils.broadcast_one_to_all(seeds).items()}
    logger.info("Seeds: %s", seeds)
    return seeds


def _restore_or_initialize(
    trainer: Trainer,
    checkpointer: checkpoints.Checkpointer,
    config: checkpoints.CheckpointConfig,
    batches: BatchIterator,
    init_rng: jax.Array,
) -> tuple[TrainState, bool]:
    """The state to begin with, and whether it is this run's own."""
    shapes = trainer.sharded_state_shapes()
    resumed = checkpointer.restore_latest(shapes)
    if resumed is not None:
        state, dataset_state = resumed
        if dataset_state:
            batches.restore_state(dataset_state)
        else:
            logger.warning("The checkpoint does not say where the data stood (save_dataset = False): they start anew.")
        logger.info("Going on from step %d in %s.", int(state.step), checkpointer.model_dir)
        return state, True
    initial = config.restore.checkpoint
    if initial is not None:
        if config.restore.dtype not in (None, "float32"):
            raise ValueError(f"RestoreCheckpointConfig.dtype is {config.restore.dtype!r}; training is in float32.")
        state = checkpoints.load_state(initial, shapes)
        logger.info("Starting from %s at step %d.", initial, int(state.step))
        return state, False
    return trainer.new_state(init_rng), False


def _open_writers(directory: Path, first_step: int, resumed: bool) -> list[writers.MetricWriter]:
    if jax.process_index() != 0:
        return []
    # What an interrupted run wrote after its last checkpoint, all of it if it had none, is about to be written again.
    keep_until = first_step if resumed else -1
    opened: list[writers.MetricWriter] = [
        writers.TensorBoardWriter(directory, keep_until),
        writers.JsonLinesWriter(directory, keep_until),
    ]
    config = gin_utils.operative_config()
    (directory / "config.gin").write_text(config, encoding="utf-8")
    for writer in opened:
        writer.write_text(first_step, "train", "config", config)
    return opened


def run_info(model: EncoderDecoderModel, dataset_config: DatasetConfig, seeds: Mapping[str, int]) -> dict[str, Any]:
    """What `run/run.json` of a checkpoint says: all that a converter or a server needs to know of the run."""
    network = getattr(model.module, "config", None)
    fields = dataclasses.asdict(network) if dataclasses.is_dataclass(network) else {}  # type: ignore[arg-type]
    if "dtype" in fields:
        fields["dtype"] = jnp.dtype(fields["dtype"]).name
    vocabulary: Any = model.output_vocabulary
    file = getattr(vocabulary, "sentencepiece_model_file", None)
    return {
        "limba_version": limba.__version__,
        "network": fields,
        "vocabulary": {
            "class": type(vocabulary).__name__,
            "sentencepiece_model_file": _absolute(file) if file else None,
            "extra_ids": getattr(vocabulary, "extra_ids", 0),
            "vocab_size": vocabulary.vocab_size,
        },
        "task": dataset_config.mixture_or_task_name,
        "feature_lengths": dict(dataset_config.task_feature_lengths),
        "batch_size": dataset_config.batch_size,
        "seeds": dict(seeds),
    }


def _absolute(file: str) -> str:
    return file if "://" in file else str(Path(file).expanduser().absolute())


def _run_files(model: EncoderDecoderModel, dataset_config: DatasetConfig, seeds: Mapping[str, int]) -> dict[str, bytes]:
    info = run_info(model, dataset_config, seeds)
    files = {
        "run.json": json.dumps(info, indent=1).encode(),
        "config.gin": gin_utils.operative_config().encode(),
    }
    vocabulary_file = info["vocabulary"]["sentencepiece_model_file"]
    if vocabulary_file and Path(vocabulary_file).is_file():
        # So that a checkpoint can be used on a machine that has nothing else of the run.
        files["spiece.model"] = Path(vocabulary_file).read_bytes()
    return files


def _announce(run: _Run, feature_lengths: Mapping[str, int], first_step: int) -> None:
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(run.trainer.param_shapes))
    logger.info(
        "%s: %s parameters, batch %d x %s, steps %d to %d, mesh %s on %s",
        run.model_dir,
        f"{count:,}",
        run.batch_size,
        dict(feature_lengths),
        first_step,
        run.total_steps,
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
        change = 1 - last["nats_per_target_token"] / first["nats_per_target_token"]
        print(
            f"validation loss of {task}, nats per target token: {first['nats_per_target_token']:.4f} at step "
            f"{first['step']}, {last['nats_per_target_token']:.4f} at step {last['step']} ({change:.1%} lower); best "
            f"constant (unigram) predictor on the same targets: {last['unigram_nats_per_target_token']:.4f}"
        )


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and trains."""
    parser = gin_utils.argument_parser("train", __doc__ or "")
    flags = parser.parse_args(gin_utils.rewrite_gin_flags(argv))
    if not flags.gin_file:
        parser.error("give at least one --gin_file, for example --gin_file=gin/recipes/quickstart.gin")
    configured = gin.external_configurable(train, module="limba.train")
    gin_utils.parse_gin_flags(flags.gin_file, flags.gin_bindings, flags.gin_search_paths)
    gin_utils.require_bindings(
        MODEL_DIR="\"'runs/my_run'\"",
        MIXTURE_OR_TASK_NAME="\"'my_task'\"",
        TASK_FEATURE_LENGTHS="\"{'inputs': 512, 'targets': 114}\"",
        TRAIN_STEPS="100000",
        DROPOUT_RATE="0.0",
    )
    configured()
    return 0


if __name__ == "__main__":
    # `python -m` makes a second copy of this module; gin must see the functions of the first.
    from limba import train as _this

    gin_utils.run_command(_this.main)
