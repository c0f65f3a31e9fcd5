"""Findings in a training: its steps and learning rate, its checkpoints and their disk space, its mesh and batch."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.checkpoint_files import run_folder, saved_tensors
from limba.checkpoint_files.directories import checkpoint_steps
from limba.checkpoints import disk_space
from limba.checkpoints.checkpointing import RestoreCheckpointConfig, SaveCheckpointConfig
from limba.checkpoints.train_state import TrainState, TrainStateInitializer
from limba.data.contract import DatasetConfig
from limba.data.lint_findings import Finding, refused
from limba.files import storage
from limba.network.encoders.config import EncoderConfig
from limba.network.t5 import T5Config
from limba.partitioning.meshes import PjitPartitioner
from limba.training import training_length

# A rate at which float32 parameters hardly change in any number of steps, and one that no T5 survives.
_NO_RATE, _HUGE_RATE = 1e-6, 0.1
# T5 is pre-trained and fine-tuned with rates of at most 0.01.
_HUGE_RATE_OF_TRAINED = 0.02
# AdamW's steps are as large as its rate. Kernels of T5 have an RMS of 0.05, of which this is a tenth.
_HUGE_RATE_OF_ADAM = 5e-3
# Adafactor's steps are its rate times the RMS of the parameter: AdamW's 1e-4 is a hundredth of T5's 0.01. Fine-tuning
# takes 1e-3, and transformers' 5e-5 is AdamW's.
_SMALL_RATE_OF_ADAFACTOR, _SMALL_RATE_OF_TRAINED = 4e-4, 6e-5
# A warm-up that reaches the full rate behind this share of the run.
_LONG_WARMUP = 0.75
# Of a run whose length is not known, steps in which a schedule shows its rates.
_MANY_STEPS = 100_000
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


@dataclasses.dataclass(frozen=True)
class Course:
    """The steps of a run.

    Attributes:
      begin: at which it began, before it was ever resumed.
      last: at which it ends; None where only the run counts them.
      first: at which it goes on: that of its own newest checkpoint, else `begin`.
      is_resumed: it has checkpoints of its own.
      is_trained: it began with the parameters of a checkpoint.
    """

    begin: int
    last: int | None
    first: int
    is_resumed: bool = False
    is_trained: bool = False


def find_course(
    model_dir: str, restore: RestoreCheckpointConfig | None, total_steps: int | None, relative_steps: int | None
) -> tuple[Course, list[Finding]]:
    """The steps of the run in this folder; without `total_steps` its length is not known."""
    begin, found = initial_step(model_dir, restore)
    first, is_trained = begin, restore is not None and bool(restore.path)
    home = storage.as_path(model_dir)
    is_resumed = not storage.is_remote(home) and bool(checkpoint_steps(home))
    if is_resumed:
        newest = home / f"checkpoint_{first}"
        begin = run_folder.load_run_info(newest).get("initial_step", 0) if run_folder.has_run_info(newest) else 0
    last = total_steps if relative_steps is None else begin + relative_steps
    return Course(begin, last, first, is_resumed, is_trained or begin > 0), found


def _step_in_name(path: str) -> int | None:
    found = re.search(r"checkpoint_(\d+)/*$", path)
    return int(found[1]) if found else None


def check_steps(first_step: int, total_steps: int, relative_steps: int | None) -> Iterator[Finding]:
    if relative_steps is None and first_step > total_steps:
        yield refused("ends_at_once", training_length.ends_before(total_steps, first_step))
    elif relative_steps is None and first_step == total_steps:
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


def _steps_of(course: Course) -> list[int]:
    """Steps of a run at which a schedule is looked at, closer together where a warm-up is."""
    first_step = course.begin
    last_step = first_step + _MANY_STEPS if course.last is None else course.last
    last_step = min(max(first_step, last_step - 1), np.iinfo(np.int32).max)  # steps are int32
    length = last_step - first_step
    later = np.concatenate([np.geomspace(1, max(length, 1), 100), np.linspace(0, length, 21)]).astype(np.int64)
    return sorted({first_step, last_step, *(first_step + later[later <= length]).tolist()})


def check_rate(rate: Callable[[Any], Any], course: Course) -> Iterator[Finding]:
    """The learning rate over the steps of the run, which need not begin at step 0."""
    steps, first_step = _steps_of(course), course.begin
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
    full = steps[next(i for i, x in enumerate(rates) if x >= 0.99 * max(rates))]
    if course.last and rates[0] < 0.5 * max(rates) and full - first_step >= _LONG_WARMUP * (course.last - first_step):
        yield Finding(
            "long_warmup",
            "warning",
            f"The learning rate rises until step {full:,}, and the run ends at step {course.last:,}.",
            "it trains at less than the full rate almost to its end",
            "Set create_learning_rate_scheduler.warmup_steps to a tenth of the run or less, or train longer.",
        )
    if not course.is_resumed and before and before[0] < 0.1 * max(before) and rates[0] > 0.1 * max(before):
        yield Finding(
            "warmup_skipped",
            "warning",
            f"{begins}: the schedule's warm-up lies before it.",
            "a new optimizer state makes its first steps at the full rate",
            f"Set create_learning_rate_scheduler.step_offset to {first_step}; leave it if the checkpoint was trained "
            "with this schedule.",
        )


def size_of_steps(optimizer_def: Any, shapes: Any, axes: Any) -> str | None:
    """What the optimizer multiplies the learning rate by, seen from its first update of a network this deep.

    Returns:
      "the rate" where an update has the RMS of the rate, as AdamW's; "the parameter" where it also has that of the
      parameter, as Adafactor's; None where it has neither, as SGD's.
    """
    rng, rate = np.random.default_rng(0), 1e-3
    noise = jax.tree.map(lambda x: rng.normal(size=[min(dim, 8) for dim in x.shape]).astype(np.float32), shapes)
    optimizer_def.set_param_axes(axes)

    # One program: hundreds of small ones take two seconds.
    @jax.jit
    def first_updates(parameter: float, gradient: float) -> list[jax.Array]:
        params = jax.tree.map(lambda x: jnp.asarray(parameter * x), noise)
        grads = jax.tree.map(lambda x: jnp.asarray(gradient * x), noise)
        state = optimizer_def.init(params)
        updates, _ = optimizer_def.update(grads, state, params, learning_rate=jnp.float32(rate), step=jnp.int32(0))
        return [jnp.sqrt(jnp.mean(jnp.square(x))) for x in jax.tree.leaves(updates) if jnp.ndim(x) > 1]

    def rms_of_update(parameter: float, gradient: float) -> float:
        all_rms = [float(x) for x in first_updates(parameter, gradient)]
        return float(np.median([x for x in all_rms if x] or [0.0]))

    usual, larger, steeper = rms_of_update(0.05, 1.0), rms_of_update(0.5, 1.0), rms_of_update(0.05, 100.0)
    if not usual or not np.isclose(usual, steeper, rtol=0.2):
        return None
    for name, size, growth in (("the rate", rate, 1.0), ("the parameter", 0.05 * rate, 10.0)):
        if 0.1 < usual / size < 5 and np.isclose(larger / usual, growth, rtol=0.25):
            return name
    return None


def check_scale(steps_of: str | None, rate: Callable[[Any], Any], course: Course) -> Iterator[Finding]:
    """Whether the learning rate is of the size that another optimizer takes; `steps_of` is of `size_of_steps`."""
    highest = max(_rates(rate, _steps_of(course)))
    least = _SMALL_RATE_OF_TRAINED if course.is_trained else _SMALL_RATE_OF_ADAFACTOR
    if steps_of == "the rate" and highest >= 0.99 * _HUGE_RATE_OF_ADAM:  # rates are float32
        what, cost = "steps are as large as the rate, as AdamW's", "training diverges, or forgets what was learned"
        remedy = "Adafactor takes 0.01, AdamW 1e-3 or less, Lion 1e-4"
    elif steps_of == "the parameter" and highest < least:
        what, cost = "steps are relative to the size of the parameter, as Adafactor's", "hardly anything is learned"
        remedy = "AdamW takes 1e-4; Adafactor pre-trains with up to 0.01 and is fine-tuned with 1e-3"
    else:
        return
    yield Finding(
        "rate_of_another_optimizer",
        "warning",
        f"The learning rate is {highest:.3g} at most, and the optimizer's {what}.",
        cost,
        f"Set create_learning_rate_scheduler.base_learning_rate, or OPTIMIZER: {remedy}.",
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


def check_class(config: Any, detects: bool = False) -> Iterator[Finding]:
    """Whether a class of Hugging Face holds the network, so that what is trained can be converted.

    `detects` is for an encoder that detects replaced tokens; other heads are not looked at.
    """
    from limba.convert.families import heads, table

    head = heads.OF_DETECTOR if detects else heads.OF_MASKED_LM
    if isinstance(config, T5Config | EncoderConfig) and (reason := table.no_class(config, head)):
        begun = ", or if a classifier that begins with it is exported" if detects and not table.no_class(config) else ""
        yield Finding(
            "no_class",
            "warning",
            reason,
            "`limba convert` writes it for no other library: not for transformers, CTranslate2, ONNX or llama.cpp",
            f"Nothing, if it stays in Limba{begun}. Else change these fields of its configuration before the training.",
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


# A shorter run takes minutes at most, and is begun again.
_STEPS_WORTH_SAVING = 100


def check_period(save: SaveCheckpointConfig, course: Course) -> Iterator[Finding]:
    """Whether a run is saved before its end."""
    if course.last is None:
        return
    steps = course.last - course.begin
    more = [step for step in save.checkpoint_steps or () if course.begin < step < course.last]
    if more or steps < _STEPS_WORTH_SAVING or (save.period is not None and save.period <= steps):
        return
    yield Finding(
        "period",
        "warning",
        f"SaveCheckpointConfig.period is {save.period and format(save.period, ',')}, and the run has {steps:,} steps: "
        "only the last is saved.",
        "whatever interrupts the run costs all of it",
        f"Set SaveCheckpointConfig.period to {steps // 10}.",
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
    partitioner: PjitPartitioner, config: DatasetConfig, num_microbatches: int, num_devices: int | None
) -> Iterator[Finding]:
    """Whether the batch divides over the mesh; without `num_devices`, over the usual numbers of devices."""
    try:
        partitioner.check_batch_size(config.batch_size, "batch_size", num_microbatches)
    except ValueError as error:
        yield refused("batch_size", str(error))
        return
    rows = config.batch_size // num_microbatches
    if num_devices is None and rows % _USUAL_SHARDS:
        yield Finding(
            "batch_size",
            "warning",
            f"batch_size is {config.batch_size}"
            + (f" in {num_microbatches} microbatches" if num_microbatches > 1 else "")
            + f", which divides by {math.gcd(rows, _USUAL_SHARDS)} data shards and not by {_USUAL_SHARDS}.",
            "it runs on fewer devices than it could, and with fewer readers",
            f"Use a multiple of {_USUAL_SHARDS * num_microbatches}, or say how many devices there are: --num_devices.",
        )
