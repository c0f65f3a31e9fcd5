"""A model that answers lines of text, or fills the blanks in them.

Blanks are T5's sentinels <extra_id_0>, <extra_id_1> … in order, or the [MASK] of an encoder. A line without blanks is
answered as it is; a classifier answers with its label, or with one for each word.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from limba.checkpoints import checkpointing
from limba.checkpoints.parameters import load_model_params
from limba.data.contract import Batch
from limba.data.token_rows import Row
from limba.files import number_ranges, untrusted_files
from limba.files.number_ranges import AT_LEAST_1
from limba.inference import batch_inference, text_batches
from limba.models import BaseTransformerModel, EncoderOnlyModel
from limba.partitioning.meshes import PjitPartitioner

logger = logging.getLogger(__name__)

# Batches in one call of the network: the device works on the next batch while the answers of one are fetched.
_BATCHES_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class Answer:
    """A model's answer to a line."""

    input: str  # the line
    prediction: str  # the best decode, with its sentinels
    filled: str  # the line with its blanks filled; of a line without blanks, the prediction
    score: float  # as the decoder returns it: a log probability, in beam search with a length penalty
    others: tuple[str, ...] = ()  # further decodes, the best first


def visible(answer: str) -> str:
    """An answer as it is shown to people, who would take an empty one for a mistake of the program."""
    return answer if answer.strip() else "(an empty answer)"


class Answerer:
    """A checkpoint that answers lines of text.

    Attributes:
      name_line: the name of a line for messages, by its number from 1; may be set.
    """

    name_line: Callable[[int], str] = "line {}".format

    def __init__(
        self,
        *,
        model: BaseTransformerModel,
        restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
        partitioner: PjitPartitioner,
        max_inputs_length: int = 512,
        max_decode_length: int = 114,
        batch_size: int = 8,
        decode_fn: Callable | None = None,
        num_decodes: int | None = None,
        random_seed: int = 0,
        params: Any = None,
    ):
        """
        Args:
          max_inputs_length: longer inputs are cut, and counted in a warning.
          max_decode_length: tokens of an answer.
          batch_size: lines at a time; rounded up to a multiple that the mesh divides.
          decode_fn: a function of `limba.models.decoding`; None is the model's.
          num_decodes: beams or samples of a line, or of an encoder the likeliest words; None asks the model.
          params: of the network, on the mesh; None reads them from the checkpoint.

        Raises:
          ValueError: without a checkpoint, or for a number below 1.
        """
        numbers = {"max_inputs_length": max_inputs_length, "max_decode_length": max_decode_length}
        for name, value in {**numbers, "batch_size": batch_size}.items():
            number_ranges.check(f"Answerer.{name}", value, AT_LEAST_1)
        if isinstance(model, EncoderOnlyModel) and decode_fn is not None:
            raise ValueError(
                "This model is an encoder, which answers at once: beams and samples are for models that decode. Leave "
                "them out."
            )
        if decode_fn is not None:
            model = model.with_decode_fn(decode_fn)
        self._model = model
        self._max_inputs_length = text_batches.longest_row(model, max_inputs_length)
        self._texts = text_batches.for_model(model, max_decode_length)
        self._seed = random_seed
        self.batch_size = -(-batch_size // partitioner.num_data_shards) * partitioner.num_data_shards
        if params is None:
            params, _ = load_model_params(model, partitioner, restore_checkpoint_cfg)
        self._params = params
        step = model.predict_batch_with_aux
        if num_decodes is not None:
            step = functools.partial(step, num_decodes=num_decodes, return_all_decodes=True)
        self._predict = batch_inference.make_infer_fn(step, self.batch_size, partitioner)

    def answer(self, lines: Sequence[str], done: int = 0) -> Iterator[Answer]:
        """Answers the lines after the first `done`, in order; samples do not depend on `done`.

        Raises:
          ValueError: for a line that is not text; a terminal passes bytes that are not UTF-8 on as such.
          NotFiniteError: for a line whose score is not finite.
        """
        return (self._answer(line, rows, scores) for line, rows, scores in self._decoded(lines, done))

    def find_unknown(self, lines: Sequence[str]) -> str:
        """A sentence about lines with characters that the vocabulary does not know; "" if it knows all."""
        return text_batches.find_unknown(self._model.input_vocabulary, lines)

    def decodes(self, lines: Sequence[str]) -> Iterator[list[tuple[str, float]]]:
        """All decodes of each line with their scores, the best first."""
        for line, rows, scores in self._decoded(lines, 0):
            texts = [self._texts.answer(line, row)[0] for row in rows]
            yield sorted(zip(texts, scores.tolist(), strict=True), key=lambda pair: -pair[1])

    def _decoded(self, lines: Sequence[str], done: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Each line with its decodes `[num_decodes, length]` in increasing order of score, and their scores."""
        for number, line in enumerate(lines, 1):
            try:
                line.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"Line {number}, {line!r}, is not UTF-8 ({error.reason}); write it again.") from error

        def name_row(index: int, start: int) -> str:
            return f"{self.name_line(start + index + 1)}, {untrusted_files.shown(lines[start + index])},"

        encoded = [self._texts.encode(line, self._max_inputs_length) for line in lines]
        cut = sum(row.length > self._max_inputs_length for row in encoded)
        if cut:
            longest = self._max_inputs_length
            logger.warning("%d of %d inputs are longer than %d tokens and were cut.", cut, len(lines), longest)
        # One length for all batches compiles once; a multiple of 32 serves many runs from the compilation cache.
        length = min(self._max_inputs_length, -(-max(len(row.ids) for row in encoded) // 32) * 32)
        for start in range(0, len(lines), self.lines_at_once):
            if start < done:
                continue
            rows = encoded[start : start + self.lines_at_once]
            rng = jax.random.fold_in(jax.random.PRNGKey(self._seed), start)
            named = functools.partial(name_row, start=start)
            tokens, aux = self._predict(self._params, self._batches(rows, length), rng, named)
            for line, row, scores in zip(lines[start : start + len(rows)], tokens, aux["scores"], strict=True):
                yield line, np.atleast_2d(row), np.atleast_1d(scores)

    @property
    def lines_at_once(self) -> int:
        """`done` is a multiple of this, or the number of lines."""
        return _BATCHES_AT_ONCE * self.batch_size

    def _batches(self, encoded: Sequence[Row], length: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Indices, and what the model predicts from, `[rows, length]`."""
        for start in range(0, len(encoded), self.batch_size):
            rows = encoded[start : start + self.batch_size]
            yield np.arange(start, start + len(rows)), self._texts.features(rows, length)

    def _answer(self, line: str, rows: np.ndarray, scores: np.ndarray) -> Answer:
        """Of decodes `[num_decodes, length]` in increasing order of score."""
        found = [self._texts.answer(line, row) for row in rows[::-1]]
        return Answer(line, *found[0], float(scores[-1]), tuple(text for text, _ in found[1:]))
