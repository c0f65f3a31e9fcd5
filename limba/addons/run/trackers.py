"""Where a run of `limba run` sends its metrics beside TensorBoard: what `report_to` asks for, and what is there."""

import logging
from collections.abc import Sequence

from limba.reports import mlflow_writer, trackio_writer, wandb_writer

logger = logging.getLogger(__name__)

# By the names of `report_to`, which are also those of the packages.
_MODULES = {"wandb": wandb_writer, "trackio": trackio_writer, "mlflow": mlflow_writer}
_INSTEAD = "To do without write --report_to none: metrics.jsonl and TensorBoard's events are written in any case."


def installed(asked: Sequence[str]) -> tuple[str, ...]:
    """`report_to` with names of trackers for `all`, and without Weights & Biases where the environment forbids it."""
    names = [name for name in dict.fromkeys(asked) if name in _MODULES]
    if "all" in asked:
        absent = [name for name, module in _MODULES.items() if name not in names and not module.is_installed()]
        if absent:
            logger.warning("report_to all leaves out what is not installed: %s.", ", ".join(absent))
        names = [name for name in _MODULES if name not in absent]
    if "wandb" in names and wandb_writer.is_disabled():
        logger.warning("WANDB_DISABLED is set: nothing is sent to Weights & Biases, as in transformers.")
        names.remove("wandb")
    return ("tensorboard", *names)


def gin_name(tracker: str) -> str:
    """The writer of a tracker in gin files: `wandb_writer.WandbWriter`."""
    return f"{tracker}_writer.{tracker.capitalize()}Writer"


def check(names: Sequence[str], overrides: Sequence[str]) -> None:
    """Raises ValueError if a tracker would refuse the run when all is compiled; `overrides` are gin bindings."""
    for name in names:
        if name not in _MODULES:
            continue
        if not _MODULES[name].is_installed():
            raise ValueError(f"report_to has {name!r}, whose package is not installed: pip install {name}. {_INSTEAD}")
    if "wandb" not in names or any("WandbWriter.mode" in binding for binding in overrides):
        return
    try:
        wandb_writer.WandbWriter.check_key()
    except ValueError as error:
        raise ValueError(f"report_to has 'wandb': {error} {_INSTEAD}") from error
