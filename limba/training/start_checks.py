"""What ends a run before its first step, found before anything is read, written or compiled.

`train()` makes these checks in its first chapters. With `checks_only` it returns behind them: that is `limba train
--dry_run`, the first part of `limba lint`, and what else looks at a training before it starts. Left to the run are what
needs the network, data that a function of the user's own opens, reading all of the data, and compiling.
"""

import dataclasses
import logging
import os
from collections.abc import Callable
from typing import Any

from limba.data import contract
from limba.data.contract import DatasetConfig
from limba.files import storage
from limba.inference import tasks_door
from limba.models import BaseTransformerModel

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Scope:
    """What a start looks at: a run at everything; one that only checks, at what is on this machine.

    Attributes:
      left_out: the arguments of `train()` that were not looked at, or not wholly, and why.
    """

    checks_only: bool
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)

    def reaches(self, name: str, *places: Any) -> bool:
        """Whether paths and vocabularies may be read; `name` is an argument of `train()`, or a part of one."""
        if self.checks_only and any(map(_is_far, places)):
            self.left_out[name] = "takes the network"
            return False
        return True

    def knows(self, *names: str) -> bool:
        """Whether all of these arguments of `train()` were looked at."""
        return not self.left_out.keys() & set(names)

    def tell(self) -> None:
        """Logs what the run will look at and these checks have not."""
        if self.left_out:
            named = "; ".join(f"{name} ({why})" for name, why in self.left_out.items())
            logger.warning("Not checked, or not wholly: %s.", named)

    def opens(
        self,
        name: str,
        config: DatasetConfig,
        opened_by: Callable[..., Any] | None,
        ours: Callable[..., Any],
        model: Any,
    ) -> bool:
        """Whether the data of an argument of `train()` are opened; if not, their tasks and files are checked here.

        Args:
          opened_by: the function that opens them; `ours` is Limba's own.
          model: has the feature converter.
        """
        if not self.checks_only:
            return True
        if not tasks_door.is_own(opened_by, ours):
            self.left_out[name] = "a function of your own opens it"
            return False
        for stage in config.by_stage():
            if not tasks_door.check_batches(stage, model.FEATURE_CONVERTER_CLS):
                self.left_out[name] = "takes the network, or reading"
        return self.knows(name)

    def measured(self, name: str, config: DatasetConfig) -> list[str]:
        """The tasks whose predictions are measured, where no evaluator is opened: it reads all examples."""
        found = tasks_door.check_measured(config)
        if found is None:
            self.left_out[name] = "takes the network"
        return found or []


def _is_far(place: Any) -> bool:
    if isinstance(place, DatasetConfig):
        return any(map(tasks_door.has_far_vocabulary, place.by_stage()))
    if isinstance(place, str | os.PathLike):
        return storage.is_remote(storage.as_path(place))
    return contract.is_far(place)


def check_rows(model: Any, config: DatasetConfig | None, num_microbatches: int = 1) -> None:
    """Raises ValueError if the loss of the model needs more rows in a forward pass than a data set gives it."""
    if config is not None and hasattr(model, "check_rows"):
        model.check_rows(config.batch_size // num_microbatches)


def check_vocabularies(
    scope: Scope,
    verify_fn: Callable[[DatasetConfig, Any], None] | None,
    model: BaseTransformerModel,
    **configs: DatasetConfig | None,
) -> None:
    """Calls `verify_fn` with each data set; the arguments have the names of `train()`."""
    if verify_fn is None or not hasattr(model, "input_vocabulary"):
        return
    for name, config in configs.items():
        for stage in config.by_stage() if config is not None else ():
            if scope.reaches(f"{name}: vocabularies", stage, model.input_vocabulary, model.output_vocabulary):
                verify_fn(stage, model)
