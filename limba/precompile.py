"""`limba precompile`: compiles a run's training step without data, and says how long it took and what it needs.

    limba precompile --gin_file=t5x/examples/t5/t5_1_1/base.gin --gin_file=t5x/configs/runs/precompile.gin \\
        --gin.MIXTURE_OR_TASK_NAME="'my_task'" --gin.TASK_FEATURE_LENGTHS="{'inputs': 512, 'targets': 114}" \\
        --gin.MODEL_DIR="'runs/a'" --gin.DROPOUT_RATE=0.0

Writes nothing itself. With JAX_COMPILATION_CACHE_DIR set, the run that follows finds its step compiled.
"""

import functools
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from limba import commands, gin_utils
from limba.data import DatasetConfig
from limba.models import EncoderDecoderModel
from limba.partitioning import PjitPartitioner
from limba.train_state import TrainStateInitializer
from limba.trainer import Trainer

logger = logging.getLogger(__name__)


def precompile(
    *,
    model: EncoderDecoderModel,
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
      model: network, loss and optimizer definition.
      train_dataset_cfg: lengths, batch size and packing. Of the task only is asked how many a mixture has.
      partitioner: mesh and rules.
      model_dir: accepted for T5X's files, whose precompile writes HLO there; nothing is written.
      random_seed: accepted for T5X's files; no number is drawn.
      trainer_cls: None compiles one microbatch and a constant learning rate, as T5X does.
      get_dataset_fn: accepted for T5X's files; no data are read.
      verify_matching_vocabs_fn: likewise.

    Returns:
      What is printed: seconds of tracing and compiling, bytes per device, FLOPs of a step on a device.

    Raises:
      ValueError: if the lengths are not known, or the batch cannot be spread over the devices.
    """
    del model_dir, random_seed, get_dataset_fn, verify_matching_vocabs_fn
    make = trainer_cls or functools.partial(Trainer, learning_rate_fn=lambda step: jnp.float32(1e-3))
    initializer = TrainStateInitializer(
        optimizer_def=model.optimizer_def, init_fn=model.initial_variables, partitioner=partitioner
    )
    trainer = make(
        model=model,
        partitioner=partitioner,
        rng=jax.random.key(0),
        train_state=initializer.train_state_shapes,
        train_state_axes=initializer.train_state_axes,
        eval_names=(),
        summary_dir=None,
    )
    partitioner.check_batch_size(train_dataset_cfg.batch_size, "batch_size", getattr(trainer, "num_microbatches", 1))
    batch = {
        name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=partitioner.data_sharding)
        for name, shape in batch_shapes(train_dataset_cfg, model.FEATURE_CONVERTER_CLS).items()
    }
    began = time.monotonic()
    train_step: Any = trainer.train_step
    lowered = train_step.lower(trainer.sharded_state_shapes(), batch)
    traced = time.monotonic()
    compiled = lowered.compile()
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    report = {
        "mesh": dict(partitioner.mesh.shape),
        "device": partitioner.mesh.devices.flat[0].device_kind,
        "trace_seconds": round(traced - began, 2),
        "compile_seconds": round(time.monotonic() - traced, 2),
        "peak_bytes_per_device": getattr(memory, "peak_memory_in_bytes", None),
        "state_and_batch_bytes_per_device": memory.argument_size_in_bytes,
        "temporary_bytes_per_device": memory.temp_size_in_bytes,
        "flops_per_device": cost.get("flops"),
    }
    print(json.dumps(report))
    return report


def batch_shapes(config: DatasetConfig, feature_converter: str | type) -> Mapping[str, tuple[int, int]]:
    """The features of a batch as SeqIO's converters make them, `[batch, length]`, and a mixture's `[batch, tasks]`.

    Raises:
      ValueError: without lengths, or for a converter that is not known here.
    """
    lengths = config.task_feature_lengths
    if not lengths:
        raise ValueError("DatasetConfig.task_feature_lengths is empty, and without them nothing can be compiled.")
    converter = feature_converter if isinstance(feature_converter, str) else feature_converter.__name__
    if converter == "DecoderFeatureConverter":  # SeqIO chooses by what the task has.
        converter = "PrefixLMFeatureConverter" if "inputs" in lengths else "LMFeatureConverter"
    sides: dict[str, int]
    names = ["decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"]
    match converter:
        case "EncDecFeatureConverter":
            sides = {"encoder": lengths["inputs"], "decoder": lengths["targets"]}
            names.append("encoder_input_tokens")
        case "LMFeatureConverter":
            sides = {"decoder": lengths["targets"]}
        case "PrefixLMFeatureConverter":
            sides = {"decoder": lengths["inputs"] + lengths["targets"]}
            names.append("decoder_causal_attention")
        case _:
            raise ValueError(f"The shapes of {converter} are not known without data; `limba train` compiles with them.")
    if config.pack:
        names += [f"{side}_{name}" for side in sides for name in ("segment_ids", "positions")]
    shapes = {name: (config.batch_size, sides[name.partition("_")[0]]) for name in names}
    # The step of a mixture reports losses by task, and is another program.
    if converter == "EncDecFeatureConverter" and not config.pack and (tasks := _num_tasks(config)) > 1:
        shapes["example_tasks"] = (config.batch_size, tasks)
    return shapes


def _num_tasks(config: DatasetConfig) -> int:
    """Of a mixture; 1 for a task. What nobody has registered yet is taken for a task, and that is said."""
    reason = f"No module of the configuration registers {config.name!r}."
    if config.module is not None or "seqio" in sys.modules:  # Otherwise TensorFlow stays out.
        from tasks import providers

        try:
            provider = providers.find_provider(config.mixture_or_task_name, config.module)
        except ValueError as error:
            reason = str(error)
        else:
            return len(providers.tasks_with_split(provider, config.split))
    logger.warning("%s Its step is compiled as that of a single task; a mixture's is another one.", reason)
    return 1


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and compiles."""
    parser = commands.argument_parser("precompile", __doc__ or "")
    flags = commands.parse_flags(parser, argv)
    if not flags.gin_file:
        parser.error("give a model and t5x/configs/runs/precompile.gin with --gin_file")
    configured = gin_utils.configurable(precompile, module="limba.precompile")
    gin_utils.parse_gin_flags(flags.gin_file, flags.gin_bindings, flags.gin_search_paths)
    gin_utils.require_bindings(
        MODEL_DIR="\"'runs/my_run'\"",
        MIXTURE_OR_TASK_NAME="\"'my_task'\"",
        TASK_FEATURE_LENGTHS="\"{'inputs': 512, 'targets': 114}\"",
        DROPOUT_RATE="0.0",
    )
    commands.start(configured, flags)
    return 0


if __name__ == "__main__":
    from limba import precompile as _this

    commands.run_command(_this.main)
