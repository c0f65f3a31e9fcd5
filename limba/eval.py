"""`limba eval`: loss and accuracy of checkpoints by teacher forcing, and a task's metrics over their predictions.

    limba eval RUN --checkpoints all
    limba eval RUN --task my_task --module my_tasks --split test

    limba eval --gin_file=RUN/config.gin --gin_file=gin/runs/eval.gin --gin.CHECKPOINT_PATH="'RUN'" \\
        --gin.EVAL_OUTPUT_DIR="'RUN/eval'"

The first two take the run's own configuration and print a table of all checkpoints that were evaluated so far. The
last is T5X's way: gin/runs/eval.gin gives the loss, t5x/configs/runs/eval.gin the task's metrics. Add-ons may have
other evaluations, which `--help` lists: the part "eval" of `limba/addons/table.py`.
"""

import argparse
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from limba import command_line
from limba.addons import table
from limba.checkpoint_files import directories
from limba.checkpoints import checkpointing, run_configuration
from limba.checkpoints.parameters import (
    checkpoint_step,
    load_model_params,
    no_checkpoint,
    refuse_train_state_initializer,
)
from limba.data import contract
from limba.data.contract import DatasetConfig, GetEvalDatasetFn
from limba.devices import native_logs
from limba.files import json_text, storage, written_files
from limba.gin_config import gin_files, recipe
from limba.inference import evaluation, kept_batches, tasks_door
from limba.inference.evaluation import InferenceEvaluator
from limba.models import BaseTransformerModel
from limba.network.finite_numbers import outputs as finite_outputs
from limba.partitioning.meshes import PjitPartitioner
from limba.reports import results_table, writers
from limba.workers import distributed

PyTree = Any
logger = logging.getLogger(__name__)

Results = dict[str, dict[str, Any]]
# Of `evaluate.prediction_lengths`: predictions have the lengths of the loss.
OF_DATASET_CFG = "dataset_cfg"


def evaluate(
    *,
    model: BaseTransformerModel,
    dataset_cfg: DatasetConfig,
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    partitioner: PjitPartitioner,
    output_dir: str,
    inference_evaluator_cls: Callable[..., Any] | None = None,
    training_evaluator_cls: Any = None,
    summarize_config_fn: Callable[..., None] | None = gin_files.summarize_gin_config,
    train_state_initializer_cls: Any = None,
    train_eval_get_dataset_fn: GetEvalDatasetFn | None = tasks_door.get_training_eval_datasets,
    fallback_init_rng: int | None = None,
    use_orbax: bool = True,
    eval_steps: int | None = None,
    prediction_lengths: Mapping[str, int] | str | None = OF_DATASET_CFG,
    steps_if_endless: int | None = None,
) -> Results:
    """Evaluates one checkpoint or several on every task of a mixture: T5X's `eval_script.evaluate`.

    By predictions, if `inference_evaluator_cls` is bound: its loggers write to `<output_dir>/inference_eval`. By
    teacher forcing, if it is not bound or `training_evaluator_cls` is: TensorBoard has the metrics in
    `<output_dir>/training_eval/<task>`, and `<output_dir>/<task>-metrics.json` those of the last checkpoint. The
    results of all calls are in `<output_dir>/results.jsonl` and printed as a table (`limba.reports.results_table`).

    `RestoreCheckpointConfig.mode = 'all'` skips the checkpoints that earlier calls evaluated, which
    `<output_dir>/eval.<task>.ckpt` lists.

    Args:
      inference_evaluator_cls: `seqio.Evaluator` with its arguments, or None.
      training_evaluator_cls: T5X's Trainer class; any value but None switches teacher forcing on.
      summarize_config_fn: writes the configuration, `(model_dir=, summary_writer=, step=)`; None does not.
      train_state_initializer_cls: must be None: parameters are restored without one.
      train_eval_get_dataset_fn: opens the batches of teacher forcing; None is `data.get_training_eval_datasets`.
      fallback_init_rng: seed of what `RestoreCheckpointConfig.fallback_to_scratch` initializes.
      use_orbax: accepted; the format is seen in the checkpoint.
      prediction_lengths: of predicted examples, where they are not `dataset_cfg`'s; None cuts nothing.
      eval_steps: batches of teacher forcing per task; None takes the whole split, or
      steps_if_endless: of one that is not known to end.

    Returns:
      Metrics by task, of the last checkpoint.

    Raises:
      ValueError: if no checkpoint is named, or there is nothing to measure.
    """
    del use_orbax
    refuse_train_state_initializer(train_state_initializer_cls, "evaluate")
    directory = evaluation.make_folder(output_dir)
    partitioner.check_batch_size(dataset_cfg.batch_size, "DatasetConfig.batch_size")
    if (is_writer := jax.process_index() == 0) and summarize_config_fn is not None:
        summarize_config_fn(model_dir=str(directory), summary_writer=None, step=0)
    with_loss = inference_evaluator_cls is None or training_evaluator_cls is not None
    with native_logs.filtered():
        evaluator = None
        if inference_evaluator_cls is not None:
            predicted = _predicted(dataset_cfg, prediction_lengths)
            evaluator = InferenceEvaluator(predicted, inference_evaluator_cls, model, partitioner, directory)
            _check_measures(dataset_cfg, evaluator, with_loss)
        open_fn = train_eval_get_dataset_fn or tasks_door.get_training_eval_datasets
        batches = _open_batches(open_fn, dataset_cfg, model, partitioner, eval_steps) if with_loss else {}
    limits = {task: _limit(task, x, dataset_cfg.split, eval_steps, steps_if_endless) for task, x in batches.items()}
    kept = kept_batches.keep(batches, partitioner)
    done_file = directory / f"eval.{dataset_cfg.name}.ckpt"
    eval_step, results = None, {}
    for path in _checkpoints(restore_checkpoint_cfg, done_file):
        step = checkpoint_step(path)
        params, shardings = load_model_params(model, partitioner, restore_checkpoint_cfg, path, fallback_init_rng)
        eval_step = eval_step or evaluation.make_eval_step(model, partitioner, shardings)
        losses = _losses(eval_step, model, partitioner, params, kept, limits, step)
        metrics = evaluator.evaluate(params, step) if evaluator is not None else {}
        del params
        if is_writer:
            _write(directory, dataset_cfg.split, path, step, losses, metrics, evaluator.counts if evaluator else {})
            _add_line(done_file, path)
        results = {task: losses.get(task, {}) | metrics.get(task, {}) for task in [*losses, *metrics]}
    _end(evaluator, directory if is_writer else None)
    return results


# ----------------------------------------------------- chapters ------------------------------------------------------


def _predicted(dataset_cfg: DatasetConfig, lengths: Any) -> DatasetConfig:
    """The examples that are predicted, of the lengths of `evaluate.prediction_lengths`."""
    is_other = lengths != OF_DATASET_CFG
    return dataclasses.replace(dataset_cfg, task_feature_lengths=lengths) if is_other else dataset_cfg


def _open_batches(
    get_dataset_fn: GetEvalDatasetFn,
    dataset_cfg: DatasetConfig,
    model: BaseTransformerModel,
    partitioner: PjitPartitioner,
    eval_steps: int | None,
) -> contract.EvalBatches:
    """This host's rows of the batches of each task."""
    if dataset_cfg.task_feature_lengths is None:
        raise ValueError("The loss needs TASK_FEATURE_LENGTHS, such as {'inputs': 512, 'targets': 114}.")
    tasks_door.verify_matching_vocabs(dataset_cfg, model)
    layout = partitioner.get_data_layout(dataset_cfg.batch_size)
    opened = get_dataset_fn(dataset_cfg, layout.shard_id, layout.num_shards, eval_steps, model.FEATURE_CONVERTER_CLS)
    return {task: contract.NumpyBatches(x) if hasattr(x, "as_numpy_iterator") else x for task, x in opened.items()}


def _limit(task: str, batches: Any, split: str, eval_steps: int | None, steps_if_endless: int | None) -> int | None:
    """The most batches of a task; None is all of them."""
    if eval_steps is not None or not getattr(batches, "may_be_endless", False):
        return eval_steps
    problem = f"The split {split!r} of task {task!r} is not known to end: its source is a function of its own."
    if steps_if_endless is None:
        logger.warning(
            "%s The evaluation goes on until it does; if it never does, interrupt it and give --eval_steps N.", problem
        )
    else:
        logger.warning(
            "%s %d batches of it are evaluated, the run's train.eval_steps; --eval_steps N takes others.",
            problem,
            steps_if_endless,
        )
    return steps_if_endless


def _check_measures(config: DatasetConfig, evaluator: InferenceEvaluator, with_loss: bool) -> None:
    if not evaluator.eval_tasks and not with_loss:
        raise ValueError(
            f"No task of {config.name!r} has metric_fns and a split {config.split!r}. Give the task metrics, or choose "
            "another split; for the loss alone set evaluate.inference_evaluator_cls = None."
        )


def _losses(
    eval_step: evaluation.EvalStep,
    model: BaseTransformerModel,
    partitioner: PjitPartitioner,
    params: PyTree,
    batches: Mapping[str, kept_batches.KeptBatches],
    limits: Mapping[str, int | None],
    step: int,
) -> Results:
    """The metrics of teacher forcing of each task, with a bar, which a data set without an end needs most."""
    losses: Results = {}
    characters = tasks_door.piece_characters(getattr(model, "output_vocabulary", None))
    for task, of_task in batches.items():
        name, limit = f"{task}, step {step}", limits[task]
        bar = tqdm(of_task, name, limit, unit="batch", leave=False, disable=jax.process_index() != 0 or None)
        error_of = functools.partial(finite_outputs.loss_error, model, partitioner, params, name)
        losses[task] = evaluation.evaluate(eval_step, params, bar, limit, error_of, characters)
    return losses


def _checkpoints(config: checkpointing.RestoreCheckpointConfig, done_file: Path) -> list[str]:
    """The checkpoints to evaluate; with the mode 'all' those that no earlier call has evaluated."""
    found = distributed.from_first("checkpoints", lambda: [str(path) for path in config.checkpoints])
    if not found:
        raise no_checkpoint()
    if config.mode != "all":
        return found
    done = distributed.from_first("list of what is evaluated", lambda: _read_lines(done_file))
    for path in found:
        if path in done:
            logger.info("%s is evaluated already (%s).", path, done_file)
    return [path for path in found if path not in done]


def _read_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def _add_line(file: Path, line: str) -> None:
    others = [other for other in _read_lines(file) if other not in ("", line)]
    storage.replace_text(file, "\n".join([*others, line]))


def _write(
    directory: Path,
    split: str,
    checkpoint: str,
    step: int,
    losses: Results,
    metrics: Results,
    counts: Mapping[str, Mapping[str, float]],
) -> None:
    """Writes and prints what was measured of a checkpoint."""
    if losses:
        _write_losses(directory, checkpoint, step, split, losses)
    for task, values in metrics.items():
        shown = ", ".join(f"{name} {results_table.shown(value)}" for name, value in values.items())
        print(f"{task} ({split}), step {step}: {shown}")
    where = {"split": split, "step": step, "checkpoint": checkpoint}
    tasks = {task: {"loss": losses.get(task, {}), "metrics": metrics.get(task, {})} for task in {**losses, **metrics}}
    rows = [{"task": task, **where, **values} for task, values in tasks.items()]
    results_table.add(directory, [row | _counted(counts.get(str(row["task"]))) for row in rows])


def _end(evaluator: InferenceEvaluator | None, directory: Path | None) -> None:
    """Closes the loggers, and prints the table of a folder."""
    if evaluator is not None:
        evaluator.close()
    if directory is not None and (rows := results_table.read(directory)):
        print(f"\n{results_table.table(rows)}\n(all of it in {directory / results_table.NAME})")


def _counted(counts: Mapping[str, float] | None) -> dict[str, Any]:
    return {"counts": counts} if counts else {}


def _write_losses(directory: Path, checkpoint: str, step: int, split: str, losses: Results) -> None:
    tensorboard = writers.TensorBoardWriter(directory, keep_until=None)
    for task, scalars in losses.items():
        tensorboard.write_scalars(step, f"training_eval/{task}", scalars)
        report = {"checkpoint": checkpoint, "step": step, "split": split, **scalars}
        storage.replace_text(directory / f"{task}-metrics.json", json_text.dumps(report, indent=1, ensure_ascii=False))
        shown = evaluation.shown(scalars)
        if "num_target_tokens" in scalars:
            shown.append(f"{scalars['num_target_tokens']:,.0f} target tokens")
        print(f"{task} ({split}), step {step}: {', '.join(shown)}")
    tensorboard.close()


# ------------------------------------------------------ command ------------------------------------------------------


def run_bindings(flags: argparse.Namespace) -> dict[str, Any]:
    """Bindings for the flags that go with `--run_dir`, None for those that were not given.

    Raises ValueError for steps that are not numbers, FileNotFoundError for a checkpoint that is not there.
    """
    run_dir, which = directories.run_directory(flags.run_dir), flags.checkpoints or "latest"
    path: Any = str(run_dir)
    if flags.checkpoints is None and path != str(storage.as_path(flags.run_dir)):  # of an output folder of `limba run`
        path = run_configuration.newest_checkpoint(flags.run_dir)
    if which not in ("latest", "all"):
        if not all(step.isdigit() for step in which.split(",")):
            raise ValueError(f"--checkpoints is {which!r}; give latest, all, or steps such as 500,1000.")
        run_configuration.newest_checkpoint(flags.run_dir)  # Raises where there is none.
        if directories.is_checkpoint(run_dir):
            raise ValueError(
                f"--run_dir {run_dir} is one checkpoint, so --checkpoints {which} has nothing to choose "
                f"from; give its run's directory, {run_dir.parent}."
            )
        there = checkpointing.checkpoint_steps(run_dir)
        for step in map(int, which.split(",")):
            if step not in there:
                raise FileNotFoundError(f"--checkpoints {step}: {run_dir} has checkpoints of the steps {there}.")
        path = [str(checkpointing.checkpoint_path(run_dir, int(step))) for step in which.split(",")]
    home = run_dir.parent if directories.is_checkpoint(run_dir) else run_dir
    out = home / ("eval_average" if flags.average else "eval")
    if flags.output_dir is None and isinstance(out, Path):
        written_files.refuse_link(out)
    return {
        "CHECKPOINT_PATH": path,
        "eval/checkpoints.RestoreCheckpointConfig.mode": "all" if which == "all" else "latest",
        "EVAL_OUTPUT_DIR": flags.output_dir or str(out),
        "MIXTURE_OR_TASK_NAME": flags.task,
        "MIXTURE_OR_TASK_MODULE": flags.module[-1] if flags.module else None,
        "eval/data.DatasetConfig.split": flags.split,
        "eval_script.evaluate.eval_steps": flags.eval_steps,
        "eval/checkpoints.RestoreCheckpointConfig.average": flags.average,
    }


def run_prediction_lengths(bindings: Sequence[str]) -> Mapping[str, int] | str | None:
    """The lengths that a run predicts with in training, whose gin is parsed, unless bindings of the user's set others.

    T5X's runs have None there: predictions of whole examples.
    """
    name = "infer_eval/DatasetConfig.task_feature_lengths"
    given = any(
        x.name == "TASK_FEATURE_LENGTHS" or (x.name.startswith("eval/") and x.parameter == "task_feature_lengths")
        for x in recipe.Recipe.parse("\n".join(bindings)).bindings
    )
    return OF_DATASET_CFG if given or not gin_files.is_bound(name) else gin_files.value_of(name)


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and evaluates."""
    parser = command_line.argument_parser("eval", __doc__ or "", takes_run=True)
    group = parser.add_argument_group("a run")
    group.add_argument(
        "--checkpoints", metavar="WHICH", help="latest (default), all (the new ones), or steps: 500,1000"
    )
    group.add_argument("--task", help="another task or mixture than the run's; its lengths: --gin.TASK_FEATURE_LENGTHS")
    group.add_argument("--split", help="validation, unless given")
    group.add_argument("--output_dir", help="RUN/eval, unless given")
    group.add_argument("--eval_steps", type=int, metavar="N", help="batches of the loss; the whole split, unless given")
    group.add_argument(
        "--average", action="store_true", default=None, help="the average that the run kept; into RUN/eval_average"
    )
    others = [*table.parts("eval")]
    for other in others:
        other.add_flags(parser)
    flags = command_line.parse_flags(parser, argv)
    for other in others:
        other.check_flags(flags, parser)
    names = ("checkpoints", "task", "split", "output_dir", "eval_steps", "average")
    of_a_run = [f"--{name}" for name in names if getattr(flags, name) is not None]
    if flags.eval_steps is not None and flags.eval_steps < 1:
        parser.error(f"--eval_steps is {flags.eval_steps}; give a number of batches, or leave it out for all.")
    if not flags.run_dir and (of_a_run or not flags.gin_file):
        beside = f" with {of_a_run[0]}" if of_a_run else ""
        parser.error(f"give RUN{beside}, or --gin_file=RUN/config.gin …")
    bindings = run_bindings(flags) if flags.run_dir else {}
    for other in others:
        if other.is_asked(flags):
            return other.run(flags, bindings)
    configured = gin_files.configurable(evaluate, module="limba.eval")
    run_configuration.parse(flags, "gin/runs/eval_run.gin", bindings)
    gin_files.require_bindings(CHECKPOINT_PATH="\"'runs/my_run'\"", EVAL_OUTPUT_DIR="\"'runs/my_run/eval'\"")
    # Validation data that never end are evaluated as the run did it in training.
    limit = gin_files.value_of("train.eval_steps") if flags.run_dir else None
    of_run: dict[str, Any] = {} if limit is None else {"steps_if_endless": limit}
    if flags.run_dir:
        of_run["prediction_lengths"] = run_prediction_lengths(flags.gin_bindings)
    if command_line.goes_on(flags):
        configured(**of_run)
    return 0


if __name__ == "__main__":
    from limba import eval as _this

    command_line.run_command(_this.main)
