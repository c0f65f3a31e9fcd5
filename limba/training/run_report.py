"""The lines that a training shows at its start and at its end."""

import collections
import logging
import math
from collections.abc import Sequence
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

_NATS, _UNIGRAM = "nats_per_target_token", "unigram_nats_per_target_token"
# Nats by which an evaluation may be above the best one, from one to the next.
_NOISE = 0.02

logger = logging.getLogger(__name__)


def log_start(run: Run, first_step: int) -> None:
    """Logs directory, parameters, batch, steps and mesh."""
    trained, count = freezing.count_trained(run.trainer.model.optimizer_def, run.trainer.param_shapes)
    part = f" ({trained:,} of them trained, {trained / count:.2%})" if trained < count else ""
    steps = f"steps {first_step} to {max(first_step, run.periods.total_steps)}"
    lengths, mesh = dict(run.dataset.task_feature_lengths or {}), dict(run.trainer.partitioner.mesh.shape)
    batch = f"batch {run.dataset.batch_size} x {lengths}, {steps}, mesh {mesh} on {jax.devices()[0].platform}"
    logger.info("%s: %s parameters%s, %s", run.model_dir, f"{count:,}", part, batch)


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
        text = (
            f"The learning rate of step {step} was {before:.6g}; this start's schedule has {now:.6g} there, and the "
            "run uses it. The gin files or TRAIN_STEPS have changed since. The bindings of before are in "
            f"{checkpointing.checkpoint_path(run.model_dir, first_step) / 'run' / 'config.gin'}."
        )
        logger.warning("%s", text)


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
        if not {_NATS, _UNIGRAM} <= lines[-1].keys() & lines[0].keys():
            continue  # An average over tasks, or a model with metrics of its own.
        if text_figures.rows(lines[-1]):
            _print_text_figures(task, lines)
            losses = [text_figures.headline(line) for line in lines]
        else:
            _print_loss(task, lines)
            losses = [line.get(_NATS) for line in lines]
        known = [(loss, line["step"]) for loss, line in zip(losses, lines, strict=True) if loss is not None]
        if len(known) > 1 and known[-1][0] > known[0][0]:
            _warn_of_worse(task, known)
        elif len(known) > 1 and text_figures.rows(lines[-1]):
            _warn_of_overfitting(task, known, text_figures.headline_name(lines[-1]))


def _print_loss(task: str, lines: Sequence[dict]) -> None:
    first, last = lines[0], lines[-1]
    change = 1 - last[_NATS] / first[_NATS]
    began = f"{first[_NATS]:.4f} at step {first['step']}, " if len(lines) > 1 else ""
    lower = f" ({abs(change):.1%} {'lower' if change >= 0 else 'higher'})" if len(lines) > 1 else ""
    print(
        f"validation loss of {task}, nats per target token: {began}{last[_NATS]:.4f} at step {last['step']}{lower}; "
        f"best constant (unigram) predictor on the same targets: {last[_UNIGRAM]:.4f}"
    )


def _print_text_figures(task: str, lines: Sequence[dict]) -> None:
    first, last = lines[0], lines[-1]
    text, others = last["num_text_tokens"], last["num_target_tokens"] - last["num_text_tokens"]
    print(f"validation of {task} at step {last['step']:,}: the {text:,.0f} targets that are tokens of text.")
    print(text_figures.EXPLAINED)
    print(text_figures.table(last, first if len(lines) > 1 else None))
    left_out = f", {others / last['num_target_tokens']:.1%} of them sentinels and EOS" if others else ""
    print(f"All targets{left_out}: {last[_NATS]:.4f} nats; best constant (unigram) predictor: {last[_UNIGRAM]:.4f}.")


def _warn_of_worse(task: str, known: Sequence[tuple[float, int]]) -> None:
    """Says of a run that ends above its first evaluation which one was best, and what to do."""
    (first, began), (last, ended), (best, at) = known[0], known[-1], min(known)
    lowest = "no evaluation was better than the first" if at == began else f"the best was {best:.4f} at step {at:,}"
    text = (
        f"Validation of {task} is worse than at the beginning: {last:.4f} nats at step {ended:,}, {first:.4f} at step "
        f"{began:,}; {lowest}. Train for more steps, or lower the rate (schedules.create_learning_rate_scheduler."
        "base_learning_rate). A small corpus that is read many times wants DROPOUT_RATE = 0.1 and fewer steps."
    )
    logger.warning("%s", text)


def _warn_of_overfitting(task: str, known: Sequence[tuple[float, int]], metric: str) -> None:
    """Says of a run that ends above its best evaluation, by more than noise, how to have the best."""
    (last, ended), (best, at) = known[-1], min(known)
    text = (
        f"Validation of {task} was best at step {at:,}, {best:.4f} nats; at step {ended:,} it is {last:.4f}. If the "
        "loss of training fell on, it learns the texts by heart: try DROPOUT_RATE = 0.1 or fewer steps. `limba "
        f"convert to-hf RUN OUT --best min:training_eval/{task}/{metric}` takes the best checkpoint that is left."
    )
    if last > best + _NOISE:
        logger.warning("%s", text)
