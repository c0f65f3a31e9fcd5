"""Findings of `limba lint`, for the checks of the engine and of the data."""

import dataclasses
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something in a configuration that will hurt.

    Attributes:
      name: of the kind, `target_length`; docs/lint.md has a row for each.
      severity: "error" for what stops training or spoils the model, "warning" for what costs time or money.
      what: the setting and where it is, in whole sentences.
      cost: its consequence.
      remedy: the advice; empty where `what` has it.
    """

    name: str
    severity: Severity
    what: str
    cost: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"\n        remedy: {self.remedy}" if self.remedy else ""
        return f"{self.severity:7} {self.name}: {self.what}\n        cost: {self.cost}{remedy}"


def refused(name: str, message: str) -> Finding:
    """An error that stops training at its start, with its message, which has the remedy."""
    return Finding(name, "error", " ".join(message.split()), "training stops at its start")


def unreadable(task: Any, config: Any, error: Exception) -> Finding:
    """The finding about a split (of a `contract.DatasetConfig`) that raises an error when it is read."""
    # TensorFlow wraps the error of a reading function into its own, with a traceback as text.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "Error: " in line), lines[0] if lines else "")
    return Finding(
        "source",
        "error",
        f"Split {config.split!r} of task {task.name!r} cannot be read: {reason.rpartition('}} ')[2]}"
        f"{'' if 'Error: ' in reason else f' ({type(error).__name__})'}.",
        "training stops at its first batch, if it is the same where it runs",
        "Repair the source; or check again on a machine that can reach it.",
    )
