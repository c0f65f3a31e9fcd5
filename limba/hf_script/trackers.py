"""Where a run of `limba run` sends its metrics beside TensorBoard: what `report_to` asks for, and what is there."""

import dataclasses
import logging
from collections.abc import Sequence

from limba.gin_config.hf_keys.run_arguments import RunArguments
from limba.reports import wandb_writer

logger = logging.getLogger(__name__)

_INSTEAD = "To do without W&B write --report_to none: metrics.jsonl and TensorBoard's events are written in any case."


def without_absent(arguments: RunArguments) -> RunArguments:
    """The arguments without Weights & Biases where the environment forbids it, or `all` finds no package."""
    names = {*arguments.trackers}
    if not names & {"wandb", "all"}:
        return arguments
    if wandb_writer.is_disabled():
        logger.warning("WANDB_DISABLED is set: nothing is sent to Weights & Biases, as in transformers.")
    elif "wandb" not in names and not wandb_writer.is_installed():
        logger.warning("report_to all: TensorBoard; wandb is left out, because its package is not installed.")
    else:
        return arguments
    return dataclasses.replace(arguments, report_to="tensorboard")


def check(arguments: RunArguments, overrides: Sequence[str]) -> None:
    """Raises ValueError if Weights & Biases would refuse the run when all is compiled; `overrides` are gin bindings."""
    if not {*arguments.trackers} & {"wandb", "all"}:
        return
    if not wandb_writer.is_installed():
        raise ValueError(f"report_to is 'wandb', and its package is not installed: pip install wandb. {_INSTEAD}")
    if any("WandbWriter.mode" in binding for binding in overrides):
        return
    try:
        wandb_writer.WandbWriter.check_key()
    except ValueError as error:
        raise ValueError(f"report_to is {', '.join(arguments.trackers)!r}: {error} {_INSTEAD}") from error
