"""What `limba lint` finds in a configuration. Checks of the engine and of the data report in these words."""

import dataclasses
from typing import Literal

Severity = Literal["error", "warning"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something in a configuration that will hurt.

    Attributes:
      name: of the kind, `target_length`; docs/lint.md has a row for each.
      severity: "error" for what stops training or spoils the model, "warning" for what costs time or money.
      what: what is configured and where, in whole sentences.
      cost: what it leads to.
      remedy: what to do; empty where `what` says it.
    """

    name: str
    severity: Severity
    what: str
    cost: str
    remedy: str = ""

    def __str__(self) -> str:
        lines = [f"{self.severity:7} {self.name}: {self.what}", f"        cost: {self.cost}"]
        return "\n".join([*lines, *([f"        remedy: {self.remedy}"] if self.remedy else [])])


def refused(name: str, message: str) -> Finding:
    """What a check of the training's start refuses, in its own words, which have the remedy."""
    return Finding(name, "error", " ".join(message.split()), "training stops at its start")
