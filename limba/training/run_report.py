"""The lines that a training shows at its start and at its end."""

import collections
import logging
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from limba.checkpoints import checkpointing
from limba.optimizers import freezing
from limba.reports import text_figures, writers
from limba.reports.goodput import Goodput
from limba.training.run import Run
from limba.training.trainer import BaseTrainer
from limba.workers import code_versions

logger = logging.getLogger(__name__)


def log_start(run: Run, first_step: int) -> None:
    """Logs directory, parameters, batch, steps and mesh."""
    trained, count = freezing.count_trained(run.trainer.model.optimizer_def, run.trainer.param_shapes)
    part = f" ({trained:,} of them trained, {trained / count:.2%})" if trained < count else ""
    logger.info(
        "%s: %s parameters%s, batch %d x %s, steps %d to %d, mesh %s on %s",
        run.model_dir,
        f"{count:,}",
        part,
        run.dataset.batch_size,
        dict(run.dataset.task_feature_lengths or {}),
        first_step,
        max(first_step, run.periods.total_steps),
        dict(run.trainer.partitioner.mesh.shape),
        jax.devices()[0].platform,
    )


def warn_of_another_schedule(run: Run, first_step: int) -> None:
    """Warns if a resumed run had another learning rate at its last logged step than its schedule has there now.

    A gin file that has changed since, or another `TRAIN_STEPS`, makes another schedule.
    """
    rate_fn = getattr(run.trainer, "learning_rate_fn", None)
    if rate_fn is None or run.actions.scale_rate or jax.process_index() != 0:
        return  # An action that lowers rates did so at steps of its own.
    lines = [x for x in writers.read_metrics(run.model_dir, "train") if x["dataset"] == "train"]
    last = next((x for x in reversed(lines) if x["step"] <= first_step and "learning_rate/current" in x), None)
    if last is None:
        return
    step, before = last["step"], last["learning_rate/current"]
    now = float(rate_fn(jnp.int32(step - 1)))  # A schedule counts from the step before the update.
    if not math.isclose(now, before, rel_tol=1e-4):
        logger.warning(
            "The learning rate of step %d was %.6g; this start's schedule has %.6g there, and the run uses it. "
            "The gin files or TRAIN_STEPS have changed since. The bindings of before are in %s.",
            step,
            before,
            now,
            checkpointing.checkpoint_path(run.model_dir, first_step) / "run" / "config.gin",
        )


def record(trainer: BaseTrainer) -> dict[str, Any]:
    """What `run.json` has of the machines: parameters, and versions, devices by kind, processes and mesh."""
    _, count = freezing.count_trained(trainer.model.optimizer_def, trainer.param_shapes)
    return {
        "parameters": count,
        "environment": {
            "packages": code_versions.packages(),
            "devices": dict(collections.Counter(device.device_kind for device in jax.devices())),
            "processes": jax.process_count(),
            "mesh": dict(trainer.partitioner.mesh.shape),
        },
    }


def show_end(goodput: Goodput | None, model_dir: Path) -> None:
    """Logs where the time went, None of a run that trained nothing, and prints the validation losses."""
    if jax.process_index() == 0:
        if goodput is not None:
            logger.info("%s", goodput.table())
        print_validation_losses(model_dir)


def print_validation_losses(model_dir: Path) -> None:
    """Prints the first and the last validation loss of each task, as `metrics.jsonl` has them."""
    evaluations: dict[str, list[dict]] = {}
    for line in writers.read_metrics(model_dir, "training_eval/"):
        evaluations.setdefault(line["dataset"].partition("/")[2], []).append(line)
    for task, lines in evaluations.items():
        first, last = lines[0], lines[-1]
        if not {"nats_per_target_token", "unigram_nats_per_target_token"} <= last.keys() & first.keys():
            continue  # An average over tasks, or a model with metrics of its own.
        change = 1 - last["nats_per_target_token"] / first["nats_per_target_token"]
        began = f"{first['nats_per_target_token']:.4f} at step {first['step']}, " if len(lines) > 1 else ""
        lower = f" ({abs(change):.1%} {'lower' if change >= 0 else 'higher'})" if len(lines) > 1 else ""
        print(
            f"validation loss of {task}, nats per target token: {began}{last['nats_per_target_token']:.4f} at step "
            f"{last['step']}{lower}; best constant (unigram) predictor on the same targets: "
            f"{last['unigram_nats_per_target_token']:.4f}"
        )
        _print_text_figures(last)


def _print_text_figures(line: dict) -> None:
    if not text_figures.rows(line):
        return
    others = line["num_target_tokens"] - line["num_text_tokens"]
    left_out = f" (the other {others / line['num_target_tokens']:.1%} are sentinels and EOS)" if others else ""
    print(f"of its {line['num_text_tokens']:,.0f} targets that are text{left_out}, at step {line['step']}:")
    print(text_figures.table(line))
