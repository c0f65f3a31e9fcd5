"""`limba profile`: runs some steps of a training and prints where their time goes.

    limba profile gin/recipes/quickstart.gin --steps 20

Files, flags and bindings are those of `limba train`. It reads the training's data, begins with random parameters and
writes nothing but the trace, with --out: TensorBoard's profiler and ui.perfetto.dev show it in detail.
"""

import contextlib
import copy
import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limba import command_line
from limba.devices import accelerators
from limba.gin_config import gin_files

if TYPE_CHECKING:
    from limba.addons.plan.profile.step_parts import Part
    from limba.training.trainer import BaseTrainer

_WARM_UP = 3


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, runs the steps, and prints the table."""
    parser = command_line.argument_parser("profile", __doc__ or "")
    parser.add_argument("--steps", type=_positive, default=10, metavar="N", help="steps to measure (10)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the trace there")
    flags = command_line.parse_flags(parser, argv)
    accelerators.prepare_gpu(os.environ)  # as a training, before JAX opens one
    accelerators.name_kernels(os.environ)
    if not flags.gin_file:
        parser.error("give the gin files of a training, for example gin/recipes/quickstart.gin")
    if flags.out is not None and flags.out.exists() and (not flags.out.is_dir() or any(flags.out.iterdir())):
        parser.error(f"--out is {flags.out}, which is there already and not an empty folder; name a new one")
    from limba.train import train

    configured = gin_files.configurable(train, module="limba.train")
    gin_files.parse_gin_flags(flags.gin_file, ["MODEL_DIR = 'not used'", *flags.gin_bindings], flags.gin_search_paths)
    gin_files.require_training_bindings()
    gin_files.require_a_run(configured, flags.gin_file, "give a recipe, such as gin/recipes/pretrain_laptop.gin")
    if flags.dry_run:
        print(gin_files.get_gin_config_str())
        return 0
    with _folder(flags.out) as folder:
        print(_profile(configured, flags.steps, folder))
    if flags.out is not None:
        print(f"trace: {flags.out}")
    return 0


@contextlib.contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
        yield named
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def _profile(configured: Any, steps: int, folder: Path) -> str:
    import gin
    import jax

    from limba.addons.plan.profile import step_parts
    from limba.checkpoints.checkpointing import CheckpointConfig
    from limba.devices import native_logs
    from limba.inference import tasks_door
    from limba.training import configured_trainer, inputs
    from limba.training.start_checks import Scope

    bound = gin.get_bindings(configured, resolve_references=False)
    # Gin builds a reference when it is copied.
    model, dataset, partitioner, trainer_cls = (
        copy.deepcopy(bound[name]) for name in ("model", "train_dataset_cfg", "partitioner", "trainer_cls")
    )
    get_dataset = copy.deepcopy(bound.get("get_dataset_fn", tasks_door.get_dataset))
    configured_trainer.check_model(model, partitioner)
    dataset = dataclasses.replace(dataset, seed=dataset.seed or 0)
    trainer = configured_trainer.make_trainer(trainer_cls, model, partitioner, rng=jax.random.key(0))
    partitioner.check_batch_size(dataset.batch_size, "batch_size", trainer.num_microbatches)
    with native_logs.filtered():
        scope = Scope(checks_only=False)
        batches = inputs.open_stream(scope, model, dataset, get_dataset, None, partitioner, CheckpointConfig())
        assert batches is not None  # only checks leave it out
        batch = partitioner.shard_batch(next(batches))
    state = trainer.new_state(jax.random.key(0))
    compiled = trainer.train_step.lower(state, batch).compile()
    for _ in range(_WARM_UP):
        state, metrics = compiled(state, partitioner.shard_batch(next(batches)))
    jax.block_until_ready(metrics)
    waited = 0.0
    with jax.profiler.trace(str(folder)):
        began = time.monotonic()
        for _ in range(steps):
            asked = time.monotonic()
            batch = partitioner.shard_batch(next(batches))
            waited += time.monotonic() - asked
            state, metrics = compiled(state, batch)
        jax.block_until_ready(state)
        seconds = time.monotonic() - began
    (trace,) = folder.glob("plugins/profile/*/*.xplane.pb")
    parts = step_parts.measured_parts(trace, compiled.as_text())
    return _table(parts, trainer, dataset.batch_size, steps, seconds, waited)


def _table(
    parts: Sequence["Part"], trainer: "BaseTrainer", rows: int, steps: int, seconds: float, waited: float
) -> str:
    """Milliseconds of a step, for the mean of the devices that this process has. The rows add up to the step.

    Threads of a CPU, and streams of a device, work beside each other: where all of them together took longer than the
    step, each part has its share of the step.
    """
    devices = trainer.partitioner.mesh.local_devices
    kind, count = devices[0].device_kind, len(devices)
    step = 1000 * seconds / steps
    together = 1000 / steps / count * sum(part.seconds for part in parts)
    a_step = 1000 / steps / count * min(1.0, step / together)
    idle = step - min(step, together)
    lines = [
        f"{step:,.1f} ms a step of {rows} rows, the mean of {steps} steps on "
        f"{count} x {kind}; the host took {1000 * waited / steps:,.1f} ms of it to read the batch",
        "",
        "| part of the step | ms | share | matrix products, ms |",
        "|---|---|---|---|",
    ]
    for part in parts:
        products = f"{a_step * part.products:,.2f}" if part.products else ""
        lines.append(
            f"| {part.name} | {a_step * part.seconds:,.2f} | {a_step * part.seconds / step:.0%} | {products} |"
        )
    if idle > 0:
        lines.append(f"| idle | {idle:,.2f} | {idle / step:.0%} |  |")
    lines.append(f"| **the step** | **{step:,.2f}** | 100% |  |")
    if together > step:
        what = "Threads" if devices[0].platform == "cpu" else "Streams of the devices"
        lines.append(
            f"\n{what} worked beside each other, {together:,.1f} ms a step in all; each part has its share of the step."
        )
    return "\n".join(lines)


if __name__ == "__main__":
    # `python -m` makes a second copy of this module; gin must see the functions of the first.
    from limba.addons.plan.profile import command as _this

    command_line.run_command(_this.main)
