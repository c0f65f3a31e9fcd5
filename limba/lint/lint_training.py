"""Findings in a training: its steps and learning rate, its checkpoints and their disk space, its mesh and batch."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.checkpoint_files import saved_tensors
from limba.checkpoint_files.directories import checkpoint_steps
from limba.checkpoints import disk_space
from limba.checkpoints.checkpointing import RestoreCheckpointConfig, SaveCheckpointConfig
from limba.checkpoints.train_state import TrainState, TrainStateInitializer
from limba.data.contract import DatasetConfig
from limba.data.lint_findings import Finding, refused
from limba.machine import storage
from limba.partitioning.meshes import PjitPartitioner

# A rate at which float32 parameters hardly change in any number of steps, and one that no T5 survives.
_NO_RATE, _HUGE_RATE = 1e-6, 0.1
# T5 is pre-trained and fine-tuned with rates of at most 0.01.
_HUGE_RATE_OF_TRAINED = 0.02
_MANY_CHECKPOINTS = 100
# The number of data shards of a slice or box is a multiple or a divisor of this.
_USUAL_SHARDS = 8

# Embeddings are cut into tiles of this many rows, and this many times the rows that are needed are too many.
_ROWS, _MANY_ROWS = 128, 1.25

# ------------------------------------------------------ where it begins ----------------------------------------------


def initial_step(model_dir: str, restore: RestoreCheckpointConfig | None) -> tuple[int, list[Finding]]:
    """The step that a run begins at: of its newest checkpoint, or of the initial one, or 0.

    Of an initial checkpoint in a bucket only the name is read.
    """
    home = storage.as_path(model_dir)
    if not storage.is_remote(home) and (own := checkpoint_steps(home)):
        return own[-1], []
    path = restore.path if restore is not None else ()
    paths = [path] if isinstance(path, str | Path) else list(path)
    if restore is None or not any(paths) or "step" in restore.reset:
        return 0, []
    first = next(filter(None, paths))
    if storage.is_remote(storage.as_path(first)):
        return _step_in_name(str(first)) or 0, []
    try:
        initial = restore.checkpoint
    except (FileNotFoundError, ValueError) as error:
        return _step_in_name(str(paths[0])) or 0, [refused("initial_checkpoint", str(error))]
    tensors = saved_tensors.open_tensors(storage.as_path(initial or ""))
    step = tensors.get("state/step")
    return (int(np.asarray(step)) if step is not None else _step_in_name(str(initial)) or 0), []


def _step_in_name(path: str) -> int | None:
    found = re.search(r"checkpoint_(\d+)/*$", path)
    return int(found[1]) if found else None


def check_steps(first_step: int, total_steps: int, relative_steps: int | None) -> Iterator[Finding]:
    if relative_steps is None and first_step >= total_steps:
        yield Finding(
            "ends_at_once",
            "error",
            f"TRAIN_STEPS (train.total_steps) is {total_steps:,}, and the run begins at step {first_step:,}, which "
            "counts.",
            "training ends without a step, or stops at its start",
            f"Give a later step, or the steps to add as TRAIN_STEPS_RELATIVE (train.relative_steps); "
            f"{first_step + total_steps:,} would make {total_steps:,} steps.",
        )


def _rates(rate: Callable[[Any], Any], steps: Sequence[int]) -> list[float]:
    """The rates of all steps by one program: a dozen small ones, or a call for each step, take most of a second."""
    if not steps:
        return []
    all_rates = jax.jit(jax.vmap(lambda step: jnp.asarray(rate(step), jnp.float32)))
    return all_rates(np.asarray(steps, np.int32)).tolist()


def check_rate(rate: Callable[[Any], Any], first_step: int, last_step: int) -> Iterator[Finding]:
    """The learning rate over the steps of the run, which need not begin at step 0."""
    last_step = min(max(first_step, last_step - 1), np.iinfo(np.int32).max)  # steps are int32
    # Close together where a warm-up is.
    later = np.geomspace(1, max(last_step - first_step, 1), 100).astype(np.int64)
    steps = sorted({first_step, last_step, *(first_step + later[later <= last_step - first_step]).tolist()})
    try:
        rates = _rates(rate, steps)
    except jax.errors.ConcretizationTypeError:
        yield Finding(
            "learning_rate",
            "error",
            "The learning rate asks for the value of the step, which a compiled step does not know.",
            "the first step fails",
            "Write jnp.where(step < n, a, b) in place of `if`, and jnp in place of NumPy and math.",
        )
        return
    begins = f"The learning rate is {rates[0]:.3g} at step {first_step:,}, where the run begins"
    steps_before = np.unique(np.geomspace(1, first_step, 50).astype(int)).tolist() if first_step else []
    before = _rates(rate, steps_before)
    if max(rates) < _NO_RATE:
        remedy = (
            f"The schedule has ended before the run begins: set create_learning_rate_scheduler.step_offset to "
            f"{first_step}, or another schedule."
            if max(before, default=0.0) >= _NO_RATE
            else "Set create_learning_rate_scheduler.base_learning_rate to a rate that trains, such as 0.001; look at "
            "factors too."
        )
        what = f"{begins}, and never above {max(rates):.3g}."
        yield Finding("learning_rate", "error", what, "no parameter changes", remedy)
        return
    limit = _HUGE_RATE_OF_TRAINED if first_step else _HUGE_RATE
    if max(rates) > limit:
        yield Finding(
            "learning_rate",
            "warning",
            f"The learning rate rises to {max(rates):.3g} at step {steps[rates.index(max(rates))]:,}.",
            "what was learned before is lost" if first_step else "training diverges",
            "T5 pre-trains with 1 / sqrt(step), at most 0.01, and is fine-tuned with 0.001: set "
            "create_learning_rate_scheduler.base_learning_rate or factors.",
        )
    if before and before[0] < 0.1 * max(before) and rates[0] > 0.1 * max(before):
        yield Finding(
            "warmup_skipped",
            "warning",
            f"{begins}: the schedule's warm-up lies before it.",
            "a new optimizer state makes its first steps at the full rate",
            f"Set create_learning_rate_scheduler.step_offset to {first_step}.",
        )


def check_unused_rows(config: Any, vocab_size: int) -> Iterator[Finding]:
    """Whether the embedding of a T5Config has many more rows than the vocabulary has ids."""
    rows, needed = config.vocab_size, -(-vocab_size // _ROWS) * _ROWS
    if rows <= _MANY_ROWS * needed:
        return
    matrices = 1 if config.logits_via_embedding else 2
    yield Finding(
        "unused_rows",
        "warning",
        f"The vocabulary has {vocab_size:,} ids and the embedding {rows:,} rows (T5Config.vocab_size): "
        f"{rows - needed:,} of them are never read.",
        f"{(rows - needed) * matrices * config.emb_dim:,} parameters that no token uses, and their share of every step",
        f"Set VOCAB_SIZE to {needed}.",
    )


# ------------------------------------------------------- checkpoints -------------------------------------------------


def check_checkpoints(
    model_dir: str, save: SaveCheckpointConfig | None, state: TrainState | None, first_step: int, last_step: int
) -> Iterator[Finding]:
    """What is saved, and the disk space that it takes."""
    if save is None:
        yield Finding(
            "no_checkpoints",
            "warning",
            "CheckpointConfig.save is None: nothing is saved.",
            "whatever interrupts the run costs all of it",
            "Bind CheckpointConfig.save = @checkpoints.SaveCheckpointConfig().",
        )
        return
    if not save.save_dataset:
        yield Finding(
            "position_not_saved",
            "warning",
            "SaveCheckpointConfig.save_dataset is False: checkpoints do not have the position in the data.",
            "every restart begins at the first document again: its documents are seen more often than the last ones",
            "Set SaveCheckpointConfig.save_dataset = True.",
        )
    if state is not None:
        yield from _check_disk(
            model_dir, save, disk_space.need(storage.as_path(model_dir), save, state, first_step, last_step)
        )


def _check_disk(model_dir: str, save: SaveCheckpointConfig, need: disk_space.Need) -> Iterator[Finding]:
    remedy = "Set SaveCheckpointConfig.keep to a few, a longer period, or dtype = 'bfloat16'; or another MODEL_DIR."
    what = f"{need} (period {save.period}, keep {save.keep})"
    if need.free is None and need.kept > _MANY_CHECKPOINTS:
        yield Finding("disk", "warning", f"{what}.", f"{disk_space.gigabytes(need.needed)} in the bucket", remedy)
    if need.is_short:
        yield Finding(
            "disk",
            "error",
            f"{what}, need {disk_space.gigabytes(need.needed)}, and {model_dir} has "
            f"{disk_space.gigabytes(need.free or 0)} free.",
            "the run stops when the disk is full",
            remedy,
        )


# ----------------------------------------------------------- mesh ----------------------------------------------------


def check_mesh(
    partitioner: PjitPartitioner,
    model_axis: int,
    initializer: TrainStateInitializer | None,
    num_heads: int | None,
) -> Iterator[Finding]:
    """Whether the mesh divides the devices, and the network divides over the mesh."""
    if partitioner.mesh.shape["model"] != model_axis:
        devices = math.prod(partitioner.mesh.shape.values())
        yield refused(
            "mesh",
            f"PjitPartitioner.num_partitions = {model_axis} does not divide the {devices} devices; choose one of "
            f"{[n for n in range(1, devices + 1) if devices % n == 0]}.",
        )
        return
    try:
        if num_heads is not None:
            partitioner.check_heads(num_heads)
        if initializer is not None:
            partitioner.check_shapes(initializer.param_shapes, initializer.param_axes)
    except ValueError as error:
        yield refused("model_axis", str(error))


def check_batch(
    partitioner: PjitPartitioner, config: DatasetConfig, where: str, num_microbatches: int, num_devices: int | None
) -> Iterator[Finding]:
    """Whether the batch divides over the mesh; without `num_devices`, over the usual numbers of devices."""
    try:
        partitioner.check_batch_size(config.batch_size, where, num_microbatches)
    except ValueError as error:
        yield refused("batch_size", str(error))
        return
    rows = config.batch_size // num_microbatches
    if num_devices is None and rows % _USUAL_SHARDS:
        yield Finding(
            "batch_size",
            "warning",
            f"{where} is {config.batch_size}"
            + (f" in {num_microbatches} microbatches" if num_microbatches > 1 else "")
            + f", which divides by {math.gcd(rows, _USUAL_SHARDS)} data shards and not by {_USUAL_SHARDS}.",
            "it runs on fewer devices than it could, and with fewer readers",
            f"Use a multiple of {_USUAL_SHARDS * num_microbatches}, or say how many devices there are: --num_devices.",
        )
