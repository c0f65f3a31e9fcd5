"""`limba precompile`: compiles a run's training step without data, and prints its seconds, memory and FLOPs.

    limba precompile --gin_file=t5x/examples/t5/t5_1_1/base.gin --gin_file=t5x/configs/runs/precompile.gin \\
        --gin.MIXTURE_OR_TASK_NAME="'my_task'" --gin.TASK_FEATURE_LENGTHS="{'inputs': 512, 'targets': 114}" \\
        --gin.MODEL_DIR="'runs/a'" --gin.DROPOUT_RATE=0.0

It writes no file but the compiled step (`limba.devices.compilation_cache`), which the run that follows finds.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from limba import command_line
from limba.data.contract import DatasetConfig
from limba.files import json_text
from limba.gin_config import gin_files
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner
from limba.training.configured_trainer import batch_to_compile, make_trainer
from limba.training.trainer import Trainer


def precompile(
    *,
    model: BaseTransformerModel,
    train_dataset_cfg: DatasetConfig,
    partitioner: PjitPartitioner,
    model_dir: str,
    random_seed: int | None = None,
    trainer_cls: Callable[..., Trainer] | None = None,
    get_dataset_fn: Callable | None = None,
    verify_matching_vocabs_fn: Callable | None = None,
) -> dict[str, Any]:
    """Compiles the training step for the shapes of a dataset configuration.

    Args:
      train_dataset_cfg: lengths, batch size and packing; the task matters only for how many a mixture has.
      model_dir: accepted for T5X's files, whose precompile writes HLO there; nothing is written.
      trainer_cls: None compiles one microbatch and a constant learning rate, as T5X does.
      random_seed, get_dataset_fn, verify_matching_vocabs_fn: accepted for T5X's files; no data are read.

    Returns:
      The printed report: seconds of tracing and compiling, bytes per device, FLOPs of a step on a device.

    Raises:
      ValueError: if the lengths are not known, or the batch cannot be spread over the devices.
    """
    del model_dir, random_seed, get_dataset_fn, verify_matching_vocabs_fn
    make = trainer_cls or functools.partial(Trainer, learning_rate_fn=lambda step: jnp.float32(1e-3))
    trainer = make_trainer(make, model, partitioner)
    batch = batch_to_compile(trainer, train_dataset_cfg)
    began = time.monotonic()
    lowered = trainer.train_step.lower(trainer.sharded_state_shapes(), batch)
    traced = time.monotonic()
    compiled = lowered.compile()
    compiled_at = time.monotonic()
    memory: Any = compiled.memory_analysis()
    report = {
        "mesh": dict(partitioner.mesh.shape),
        "device": partitioner.mesh.devices.flat[0].device_kind,
        "trace_seconds": round(traced - began, 2),
        "compile_seconds": round(compiled_at - traced, 2),
        "peak_bytes_per_device": getattr(memory, "peak_memory_in_bytes", None),
        "state_and_batch_bytes_per_device": memory.argument_size_in_bytes,
        "temporary_bytes_per_device": memory.temp_size_in_bytes,
        "flops_per_device": (compiled.cost_analysis() or {}).get("flops"),
    }
    print(json_text.dumps(report))
    return report


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and compiles."""
    parser = command_line.argument_parser("precompile", __doc__ or "")
    flags = command_line.parse_flags(parser, argv)
    if not flags.gin_file:
        parser.error("give a model and t5x/configs/runs/precompile.gin with --gin_file")
    configured = gin_files.configurable(precompile, module="limba.precompile")
    gin_files.parse_gin_flags(flags.gin_file, flags.gin_bindings, flags.gin_search_paths)
    gin_files.require_a_run(configured, flags.gin_file, "add t5x/configs/runs/precompile.gin behind the recipe")
    gin_files.require_bindings(
        MODEL_DIR="\"'runs/my_run'\"",
        MIXTURE_OR_TASK_NAME="\"'my_task'\"",
        TASK_FEATURE_LENGTHS="\"{'inputs': 512, 'targets': 114}\"",
        DROPOUT_RATE="0.0",
    )
    if command_line.goes_on(flags):
        configured()
    return 0


if __name__ == "__main__":
    from limba import precompile as _this

    command_line.run_command(_this.main)
