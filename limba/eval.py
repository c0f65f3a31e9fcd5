"""`limba eval`: loss and accuracy of checkpoints by teacher forcing, and a task's metrics over their predictions.

    limba eval --run_dir RUN --checkpoints all
    limba eval --run_dir RUN --task my_task --module my_tasks --split test

    limba eval --gin_file=RUN/config.gin --gin_file=gin/runs/eval.gin --gin.CHECKPOINT_PATH="'RUN'" \\
        --gin.EVAL_OUTPUT_DIR="'RUN/eval'"

The first two take the run's own configuration and print a table of all checkpoints that were evaluated so far. The
third is T5X's way: gin/runs/eval.gin gives the loss, t5x/configs/runs/eval.gin the task's metrics.
"""

import argparse
import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba import (
    checkpoint_directories,
    checkpoints,
    commands,
    data,
    distributed,
    evaluation,
    gin_utils,
    native_logs,
    restore,
    results_table,
    run_configuration,
    saved_tensors,
    storage,
    writers,
)
from limba.data import DatasetConfig, GetEvalDatasetFn
from limba.models import BaseTransformerModel
from limba.partitioning import PjitPartitioner
from limba.train_state import TrainState

PyTree = Any
logger = logging.getLogger(__name__)

Results = dict[str, dict[str, Any]]


def evaluate(
    *,
    model: BaseTransformerModel,
    dataset_cfg: DatasetConfig,
    restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
    partitioner: PjitPartitioner,
    output_dir: str,
    inference_evaluator_cls: Callable[..., Any] | None = None,
    training_evaluator_cls: Any = None,
    summarize_config_fn: Callable[..., None] | None = gin_utils.summarize_gin_config,
    train_state_initializer_cls: Any = None,
    train_eval_get_dataset_fn: GetEvalDatasetFn | None = data.get_training_eval_datasets,
    fallback_init_rng: int | None = None,
    use_orbax: bool = True,
    eval_steps: int | None = None,
) -> Results:
    """Evaluates one checkpoint or several on every task of a mixture: T5X's `eval_script.evaluate`.

    By predictions, if `inference_evaluator_cls` is bound: its loggers write to `<output_dir>/inference_eval`. By
    teacher forcing, if it is not bound or `training_evaluator_cls` is: TensorBoard has the metrics in
    `<output_dir>/training_eval/<task>`, and `<output_dir>/<task>-metrics.json` those of the last checkpoint. What was
    found so far is in `<output_dir>/results.jsonl` and printed as a table (`limba.results_table`).

    `RestoreCheckpointConfig.mode = 'all'` passes over the checkpoints that `<output_dir>/eval.<task>.ckpt` lists, the
    ones that an earlier call evaluated.

    Args:
      model: network, loss and decoding.
      dataset_cfg: task, split, lengths.
      restore_checkpoint_cfg: the checkpoints.
      partitioner: mesh and rules.
      output_dir: made if needed.
      inference_evaluator_cls: `seqio.Evaluator` with its arguments, or None.
      training_evaluator_cls: T5X's Trainer class for teacher forcing; what it is does not matter here.
      summarize_config_fn: writes the configuration, `(model_dir=, summary_writer=, step=)`; None does not.
      train_state_initializer_cls: must be None: parameters are restored without one.
      train_eval_get_dataset_fn: opens the batches of teacher forcing; None is `data.get_training_eval_datasets`.
      fallback_init_rng: seed of what `RestoreCheckpointConfig.fallback_to_scratch` initializes.
      use_orbax: accepted; the format is seen in the checkpoint.
      eval_steps: batches of teacher forcing per task; None takes the whole split.

    Returns:
      Metrics by task, of the last checkpoint.

    Raises:
      ValueError: if no checkpoint is named, or there is nothing to measure.
    """
    del use_orbax
    refuse_train_state_initializer(train_state_initializer_cls, "evaluate")
    if "://" in output_dir:
        raise ValueError(f"EVAL_OUTPUT_DIR {output_dir} is not a path of this machine.")
    directory = Path(output_dir).expanduser().absolute()
    directory.mkdir(parents=True, exist_ok=True)
    partitioner.check_batch_size(dataset_cfg.batch_size, "DatasetConfig.batch_size")
    is_writer = jax.process_index() == 0
    if summarize_config_fn is not None and is_writer:
        summarize_config_fn(model_dir=str(directory), summary_writer=None, step=0)

    # ----------------------------------------------------- data ------------------------------------------------------
    evaluator, batches = None, {}
    with native_logs.filtered():
        if inference_evaluator_cls is not None:
            evaluator = evaluation.InferenceEvaluator(
                dataset_cfg, inference_evaluator_cls, model, partitioner, directory
            )
            if not evaluator.eval_tasks and training_evaluator_cls is None:
                raise ValueError(
                    f"No task of {dataset_cfg.name!r} has metric_fns and a split {dataset_cfg.split!r}. Give the task "
                    "metrics, or choose another split; for the loss alone set evaluate.inference_evaluator_cls = None."
                )
        if inference_evaluator_cls is None or training_evaluator_cls is not None:
            if dataset_cfg.task_feature_lengths is None:
                raise ValueError("The loss needs TASK_FEATURE_LENGTHS, such as {'inputs': 512, 'targets': 114}.")
            data.verify_matching_vocabs(dataset_cfg, model)
            open_batches = train_eval_get_dataset_fn or data.get_training_eval_datasets
            layout = partitioner.get_data_layout(dataset_cfg.batch_size)
            shard = (layout.shard_id, layout.num_shards)
            opened = open_batches(dataset_cfg, *shard, eval_steps, model.FEATURE_CONVERTER_CLS)
            batches = {
                task: data.NumpyBatches(x) if hasattr(x, "as_numpy_iterator") else x for task, x in opened.items()
            }

    # -------------------------------------------------- checkpoints --------------------------------------------------
    found = distributed.from_first("checkpoints", lambda: [str(path) for path in restore_checkpoint_cfg.checkpoints])
    if not found:
        raise _no_checkpoint()
    done_file = directory / f"eval.{dataset_cfg.name}.ckpt"
    done = distributed.from_first(
        "list of what is evaluated",
        lambda: done_file.read_text(encoding="utf-8").split("\n") if done_file.is_file() else [],
    )
    if restore_checkpoint_cfg.mode == "all":
        for path in set(found) & set(done):
            logger.info("%s is evaluated already (%s).", path, done_file)
        found = [path for path in found if path not in done]
    eval_step = None
    results: Results = {}
    for path in found:
        step = checkpoint_step(path)
        params, shardings = load_model_params(model, partitioner, restore_checkpoint_cfg, path, fallback_init_rng)
        losses: Results = {}
        if batches:
            eval_step = eval_step or evaluation.make_eval_step(model, partitioner, shardings)
            losses = {task: dict(evaluation.evaluate(eval_step, params, x, eval_steps)) for task, x in batches.items()}
            if is_writer:
                _write_losses(directory, path, step, dataset_cfg.split, losses)
        metrics = evaluator.evaluate(params, step) if evaluator is not None and evaluator.eval_tasks else {}
        results = {task: losses.get(task, {}) | metrics.get(task, {}) for task in [*losses, *metrics]}
        del params
        if is_writer:
            for task, found_metrics in metrics.items():
                shown = ", ".join(f"{name} {results_table.shown(value)}" for name, value in found_metrics.items())
                print(f"{task} ({dataset_cfg.split}), step {step}: {shown}")
            place = {"split": dataset_cfg.split, "step": step, "checkpoint": path}
            rows = [
                {"task": task, **place, "loss": losses.get(task, {}), "metrics": metrics.get(task, {})}
                for task in results
            ]
            results_table.add(directory, rows)
            done = [*(other for other in done if other and other != path), path]
            done_file.write_text("\n".join(done), encoding="utf-8")
    if evaluator is not None:
        evaluator.close()
    if is_writer and (rows := results_table.read(directory)):
        print(f"\n{results_table.table(rows)}\n(all of it in {directory / results_table.NAME})")
    return results


def _write_losses(directory: Path, checkpoint: str, step: int, split: str, results: Results) -> None:
    tensorboard = writers.TensorBoardWriter(directory, keep_until=None)
    for task, scalars in results.items():
        tensorboard.write_scalars(step, f"training_eval/{task}", scalars)
        report = {"checkpoint": checkpoint, "step": step, "split": split, **scalars}
        (directory / f"{task}-metrics.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        shown = [f"{scalars['nats_per_target_token']:.4f} nats/token"] if "nats_per_target_token" in scalars else []
        print(
            f"{task} ({split}), step {step}: "
            + ", ".join(
                [*shown, f"accuracy {scalars['accuracy']:.2%}", f"{scalars['num_target_tokens']:,.0f} target tokens"]
            )
        )
    tensorboard.close()


def refuse_train_state_initializer(initializer_cls: Any, where: str) -> None:
    """Raises ValueError for an initializer: parameters are restored without one."""
    if initializer_cls is not None:
        raise ValueError(
            f"{where}.train_state_initializer_cls is {initializer_cls!r}, but parameters are restored without one; "
            "leave it out, and give RestoreCheckpointConfig.state_transformation_fns for other tensors."
        )


def _no_checkpoint() -> ValueError:
    return ValueError("No checkpoint: RestoreCheckpointConfig.path (CHECKPOINT_PATH) is empty.")


def load_model_params(
    model: BaseTransformerModel,
    partitioner: PjitPartitioner,
    config: checkpoints.RestoreCheckpointConfig,
    checkpoint: str | None = None,
    fallback_init_rng: int | None = None,
) -> tuple[PyTree, PyTree]:
    """Parameters of a checkpoint on the mesh, and their shardings.

    Args:
      model: whose parameters they are.
      partitioner: mesh and rules.
      config: dtype, and what is done to the tensors.
      checkpoint: one of several that `config` names; None is the only one.
      fallback_init_rng: seed of the parameters that the checkpoint lacks, if `config.fallback_to_scratch`.

    Raises:
      ValueError: if no checkpoint is named, or there is no seed for what the checkpoint lacks.
    """
    checkpoint = checkpoint or distributed.from_first("checkpoint", lambda: config.checkpoint)
    if checkpoint is None:
        raise _no_checkpoint()
    shapes, axes = model.param_shapes_and_axes()
    partitioner.check_shapes(shapes, axes)
    shardings = partitioner.shardings(axes)
    sharded = jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(
            shape.shape, jnp.dtype(config.dtype or "float32"), sharding=sharding
        ),
        shapes,
        shardings,
    )
    if not config.fallback_to_scratch:
        return checkpoints.load_sharded_params(checkpoint, sharded, config), shardings
    if fallback_init_rng is None:
        raise ValueError("RestoreCheckpointConfig.fallback_to_scratch needs a seed: set fallback_init_rng.")

    def scratch() -> TrainState:
        return _parameters_only(model.initial_variables(jax.random.key(fallback_init_rng))["params"], jnp.int32(0))

    step = jax.ShapeDtypeStruct((), np.int32, sharding=partitioner.replicated)
    # The optimizer's state is not wanted, which is not an error.
    lenient = dataclasses.replace(config, strict=False)
    return restore.load_state(checkpoint, _parameters_only(sharded, step), lenient, scratch).params, shardings


def _parameters_only(params: PyTree, step: Any) -> TrainState:
    return TrainState(step=step, params=params, opt_state={})


def checkpoint_step(checkpoint: str) -> int:
    """The number of updates that a checkpoint was saved after."""
    return int(saved_tensors.open_tensors(storage.as_path(checkpoint))["state/step"].read(()))


def run_bindings(flags: argparse.Namespace) -> list[str]:
    """Of the flags that go with `--run_dir`.

    Raises:
      ValueError: for steps that are none.
      FileNotFoundError: for a checkpoint that is not there.
    """
    run_dir, which = storage.as_path(flags.run_dir), flags.checkpoints or "latest"
    path: Any = str(run_dir)
    if which not in ("latest", "all"):
        if not all(step.isdigit() for step in which.split(",")):
            raise ValueError(f"--checkpoints is {which!r}; give latest, all, or steps such as 500,1000.")
        there = checkpoints.checkpoint_steps(run_dir)
        for step in map(int, which.split(",")):
            if step not in there:
                raise FileNotFoundError(f"--checkpoints {step}: {run_dir} has checkpoints of the steps {there}.")
        path = [str(checkpoints.checkpoint_path(run_dir, int(step))) for step in which.split(",")]
    home = run_dir.parent if checkpoint_directories.is_checkpoint(run_dir) else run_dir
    values = {
        "CHECKPOINT_PATH": path,
        "eval/checkpoints.RestoreCheckpointConfig.mode": "all" if which == "all" else "latest",
        "EVAL_OUTPUT_DIR": flags.output_dir or str(home / "eval"),
        "MIXTURE_OR_TASK_NAME": flags.task,
        "MIXTURE_OR_TASK_MODULE": flags.module,
        "eval/data.DatasetConfig.split": flags.split,
    }
    return [f"{name} = {value!r}" for name, value in values.items() if value is not None]


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and evaluates."""
    parser = commands.argument_parser("eval", __doc__ or "")
    group = parser.add_argument_group("a run")
    group.add_argument("--run_dir", help="a run's directory or one checkpoint; brings its own gin configuration")
    group.add_argument(
        "--checkpoints", metavar="WHICH", help="latest (default), all (the new ones), or steps: 500,1000"
    )
    group.add_argument("--task", help="another task or mixture than the run's; its lengths: --gin.TASK_FEATURE_LENGTHS")
    group.add_argument("--module", help="the Python module that registers it")
    group.add_argument("--split", help="validation, unless given")
    group.add_argument("--output_dir", help="RUN/eval, unless given")
    flags = commands.parse_flags(parser, argv)
    of_a_run = [
        f"--{name}" for name in ("checkpoints", "task", "module", "split", "output_dir") if getattr(flags, name)
    ]
    if not flags.run_dir and (of_a_run or not flags.gin_file):
        parser.error(f"give --run_dir RUN{f' with {of_a_run[0]}' * bool(of_a_run)}, or --gin_file=RUN/config.gin …")
    configured = gin_utils.configurable(evaluate, module="limba.eval")
    bindings = run_bindings(flags) if flags.run_dir else []
    run_configuration.parse(flags, "gin/runs/eval_run.gin", bindings)
    gin_utils.require_bindings(CHECKPOINT_PATH="\"'runs/my_run'\"", EVAL_OUTPUT_DIR="\"'runs/my_run/eval'\"")
    commands.start(configured, flags)
    return 0


if __name__ == "__main__":
    from limba import eval as _this

    commands.run_command(_this.main)
