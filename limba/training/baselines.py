"""What n-grams of the training corpus predict of a run's evaluation: a model that is worse has learned no context.

An add-on counts them and keeps what they predict; the core knows when.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, Protocol

from limba.addons import table

logger = logging.getLogger(__name__)


class RunBaselines(Protocol):
    """The baselines of one run."""

    def of_task(
        self, task: str, step: int, say: Callable[[str], None], check: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """`{"left_bigram/nats_per_text_token": 4.9, …}`; empty before they are due, and on other processes than 0.

        Args:
          check: called often on the way; it may raise.
        """


@dataclasses.dataclass(frozen=True)
class NgramBaselines:
    """Counts n-grams of the training split once in a run, and evaluates them on exactly the targets of the evaluation.

    Process 0 does it, while the others wait, and keeps the results in `baselines.json` of the run. Only tasks that
    Limba opens have them, whose inputs and targets have one vocabulary. An error on the way is a warning: no training
    ends for a comparison.

    Attributes:
      first_step: the first evaluation from this step on does it, so that a start does not wait for it.
      most_tokens: of the training split, from its beginning; a million take a second or two, and 100 MB at most. What
        they predict of an evaluation takes up to a minute more: of 32,000 pieces its first 33,000 text tokens.
    """

    first_step: int = 100
    most_tokens: int = 5_000_000

    def __post_init__(self) -> None:
        if self.most_tokens < 1 or self.first_step < 0:
            raise ValueError(
                f"NgramBaselines.most_tokens is {self.most_tokens} and first_step {self.first_step}: at least one "
                "token is counted, at step 0 or later. train.baselines = None counts none."
            )

    def of_run(self, **run: Any) -> RunBaselines | None:
        """Those of one run; None, with a line in the log, where no add-on counts them.

        Args:
          run: its `model`, `model_dir`, `train_config`, `eval_config`, `eval_steps` and `opens`.
        """
        for part in table.parts("baselines"):
            return part.RunBaselines(self, **run)
        logger.info("Evaluations have no n-grams beside them: this Limba lacks the add-on that counts them.")
        return None
