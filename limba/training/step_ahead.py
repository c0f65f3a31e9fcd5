"""The training step, compiled while the first state is made and the first batch is read."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax

from limba.data.contract import BatchIterator, DatasetConfig, TaskBatches
from limba.devices import compiling
from limba.training import inputs
from limba.training.configured_trainer import batch_to_compile
from limba.training.trainer import BaseTrainer

logger = logging.getLogger(__name__)


class StepAhead:
    """Compiles a trainer's step for the shapes of the configuration; the first step then finds it.

    The first step compiles as it always can where the shapes are not known, as of a user's own stream, and where a
    trainer's step is not a jitted function.
    """

    def __init__(self, trainer: BaseTrainer, dataset: DatasetConfig, batches: BatchIterator):
        self._trainer, self._dataset, self._batches = trainer, dataset, batches
        self._is_known = isinstance(batches, TaskBatches)
        self._step: Any = None  # the one that is compiled or being compiled
        self._compiled: Future[Any] | None = None

    def begin(self) -> None:
        """Traces the step, and compiles it in a thread; does nothing the second time.

        Of several processes each compiles when it waits: programs that they run together should come in one order.
        """
        if self._step is None and jax.process_count() == 1 and (compile_it := self._traced()) is not None:
            self._compiled = compiling.begin(compile_it)

    def wait(self) -> None:
        """Returns when the step is compiled, and raises the error if it cannot be."""
        if self._compiled is not None and self._step is self._trainer.train_step:
            self._compiled.result()
        elif (compile_it := self._traced()) is not None:  # not begun, or the rate was scaled since: another step
            compile_it()

    def _traced(self) -> Callable[[], Any] | None:
        """Compiles the step that the trainer has now; None if only data can tell the shapes."""
        step = self._trainer.train_step
        if not self._is_known or not hasattr(step, "lower"):
            return None
        try:
            batch = batch_to_compile(self._trainer, inputs.stage(self._batches, self._dataset))
        except ValueError as error:
            logger.debug("The step is not compiled ahead: %s", error)
            return None
        self._step = step
        return step.lower(self._trainer.sharded_state_shapes(), batch).compile
