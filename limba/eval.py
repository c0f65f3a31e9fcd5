"""`limba eval`: loss and accuracy of a checkpoint on a split, by teacher forcing.

    limba eval --gin_file=RUN/config.gin --gin_file=gin/runs/eval.gin --gin.CHECKPOINT_PATH="'RUN'" \\
        --gin.EVAL_OUTPUT_DIR="'RUN/eval'"
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gin
import jax
import jax.numpy as jnp

from limba import checkpoints, evaluation, gin_utils, native_logs
from limba.data import DatasetConfig, GetEvalBatches
from limba.models import EncoderDecoderModel
from limba.partitioning import PjitPartitioner

PyTree = Any
logger = logging.getLogger(__name__)


def evaluate(
    *,
    model: EncoderDecoderModel,
    dataset_cfg: DatasetConfig,
    restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
    partitioner: PjitPartitioner,
    output_dir: str,
    eval_steps: int | None = None,
    get_dataset_fn: GetEvalBatches | None = None,
) -> dict[str, dict[str, float]]:
    """Evaluates one checkpoint on every task of a mixture and writes `<output_dir>/<task>-metrics.json`.

    Args:
      model: network and loss.
      dataset_cfg: task, split, lengths.
      restore_checkpoint_cfg: the checkpoint.
      partitioner: mesh and rules.
      output_dir: made if needed.
      eval_steps: batches per task; None takes the whole split.
      get_dataset_fn: None is `tasks.pipeline.get_eval_batches`.

    Returns:
      Metrics by task.

    Raises:
      ValueError: if no checkpoint is named.
    """
    if "://" in output_dir:
        raise ValueError(f"EVAL_OUTPUT_DIR {output_dir} is not a path of this machine.")
    directory = Path(output_dir).expanduser().absolute()
    partitioner.check_batch_size(dataset_cfg.batch_size, "DatasetConfig.batch_size")
    with native_logs.filtered():
        if get_dataset_fn is None:
            from tasks import pipeline

            pipeline.check_task_vocabularies(dataset_cfg, model.input_vocabulary, model.output_vocabulary)
            get_dataset_fn = pipeline.get_eval_batches
        tasks = get_dataset_fn(dataset_cfg, model.FEATURE_CONVERTER_CLS, jax.process_index(), jax.process_count())
    params, shardings = load_model_params(model, partitioner, restore_checkpoint_cfg)
    eval_step = evaluation.make_eval_step(model, partitioner, shardings)

    directory.mkdir(parents=True, exist_ok=True)
    results = {}
    for task, batches in tasks.items():
        scalars = evaluation.evaluate(eval_step, params, batches, eval_steps)
        results[task] = scalars
        report = {"checkpoint": restore_checkpoint_cfg.checkpoint, "split": dataset_cfg.split, **scalars}
        (directory / f"{task}-metrics.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        print(
            f"{task} ({dataset_cfg.split}): {scalars['nats_per_target_token']:.4f} nats/token, accuracy "
            f"{scalars['accuracy']:.2%}, {scalars['num_target_tokens']:,.0f} target tokens"
        )
    return results


def load_model_params(
    model: EncoderDecoderModel, partitioner: PjitPartitioner, restore: checkpoints.RestoreCheckpointConfig
) -> tuple[PyTree, PyTree]:
    """Parameters of a checkpoint on the mesh, and their shardings.

    Raises:
      ValueError: if no checkpoint is named.
    """
    checkpoint = restore.checkpoint
    if checkpoint is None:
        raise ValueError("No checkpoint: RestoreCheckpointConfig.path (CHECKPOINT_PATH) is empty.")
    shapes, axes = model.param_shapes_and_axes()
    partitioner.check_shapes(shapes, axes)
    shardings = partitioner.shardings(axes)
    sharded = jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(
            shape.shape, jnp.dtype(restore.dtype or "float32"), sharding=sharding
        ),
        shapes,
        shardings,
    )
    return checkpoints.load_sharded_params(checkpoint, sharded, restore), shardings


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and evaluates."""
    parser = gin_utils.argument_parser("eval", __doc__ or "")
    flags = parser.parse_args(gin_utils.rewrite_gin_flags(argv))
    if not flags.gin_file:
        parser.error("give --gin_file=RUN/config.gin --gin_file=gin/runs/eval.gin")
    configured = gin.external_configurable(evaluate, module="limba.eval")
    gin_utils.parse_gin_flags(flags.gin_file, flags.gin_bindings, flags.gin_search_paths)
    gin_utils.require_bindings(CHECKPOINT_PATH="\"'runs/my_run'\"", EVAL_OUTPUT_DIR="\"'runs/my_run/eval'\"")
    configured()
    return 0


if __name__ == "__main__":
    from limba import eval as _this

    gin_utils.run_command(_this.main)
