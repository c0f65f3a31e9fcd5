"""The engine of a run: CTranslate2 with a folder that is kept beside the run, or JAX.

Both give the same greedy answers: the folder was compared with the run when it was written. JAX gives what CTranslate2
does not have: the vectors of a T5, and every encoder.
"""

import argparse
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from limba.addons import table
from limba.addons.serve.base_engine import BaseEngine, Reply, Text
from limba.addons.serve.ct2_engine import Ct2Engine
from limba.addons.serve.start_lines import part
from limba.data.token_rows import Row

logger = logging.getLogger(__name__)

CTRANSLATE2, JAX, AUTO = "ctranslate2", "jax", "auto"
ENGINES = (AUTO, CTRANSLATE2, JAX)


class RunEngine(Ct2Engine):
    """A T5's run whose answers CTranslate2 gives, and whose vectors JAX gives.

    Args:
      folder: of the run's checkpoint.
      open_run: opens the run in JAX; it is called at the first request for a vector.
    """

    def __init__(self, folder: Path, max_input_tokens: int, open_run: Callable[[], BaseEngine]):
        super().__init__(folder, max_input_tokens)
        self._open_run = open_run
        self._run: BaseEngine | None = None

    def _encode(self, line: str, is_answered: bool) -> Row:
        return BaseEngine._encode(self, line, is_answered)

    def run(self, texts: Sequence[Text]) -> Sequence[Reply | Exception]:
        if texts[0].max_tokens:
            return super().run(texts)
        if self._run is None:
            with part("Reading the checkpoint for vectors, which JAX computes"):
                self._run = self._open_run()
        return self._run.run(texts)


@contextlib.contextmanager
def opened(open_run: Callable[[], BaseEngine], checkpoint: str, options: argparse.Namespace) -> Iterator[BaseEngine]:
    """A context with the engine that `--engine` asks for; `auto` is CTranslate2 where it can be.

    Args:
      open_run: opens the run in JAX.
      options: the flags of the command.

    Raises:
      ValueError: if `--engine ctranslate2` cannot be; the message says why.
    """
    with contextlib.ExitStack() as stack:
        yield (options.engine != JAX and _in_ctranslate2(stack, open_run, checkpoint, options)) or _in_jax(open_run)


def _in_jax(open_run: Callable[[], BaseEngine]) -> BaseEngine:
    with part("Reading the checkpoint into JAX"):
        return open_run()


def _in_ctranslate2(
    stack: contextlib.ExitStack, open_run: Callable[[], BaseEngine], checkpoint: str, options: argparse.Namespace
) -> BaseEngine | None:
    """None, after a line that says why, where `auto` leaves it to JAX."""
    try:
        _require_usual(options)
        (kept,) = table.parts("serve")
        folder = stack.enter_context(kept.kept_folder(checkpoint, options.average, part, logger.info))
        with part("Loading the folder into CTranslate2"):
            return RunEngine(folder, options.max_input_tokens, open_run)
    except (ImportError, OSError, ValueError) as error:
        if options.engine == CTRANSLATE2:
            raise
        logger.info("JAX serves this run, not CTranslate2: %s", error)
        return None


def _require_usual(options: argparse.Namespace) -> None:
    """Raises ValueError for what JAX alone does."""
    if options.gin_file or options.gin_bindings:
        raise ValueError("--gin and --gin_file change what JAX computes; leave them out for CTranslate2.")
    if options.engine == AUTO and (backend := jax.default_backend()) != "cpu":
        raise ValueError(f"JAX computes on this machine's {backend}, CTranslate2's folder on the CPU.")
