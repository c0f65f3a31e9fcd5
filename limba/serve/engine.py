"""The model behind the server: texts in batches of few shapes, each with its own temperature and length of answer.

Answers are those of `limba try --greedy` and `limba infer --greedy`, vectors those of `limba embed`.
"""

import dataclasses
import functools
import itertools
import logging
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from limba.checkpoints import checkpointing
from limba.checkpoints.parameters import load_model_params
from limba.data.contract import Batch
from limba.inference import batch_inference, blanks, text_batches
from limba.inference.embedding import Embedder
from limba.models import BaseTransformerModel, EncoderDecoderModel, EncoderOnlyModel, decoding
from limba.network.finite_numbers.layers import NotFiniteError
from limba.partitioning.meshes import PjitPartitioner
from limba.serve.request_fields import RequestError

logger = logging.getLogger(__name__)

_SHORTEST, _FACTOR = 32, 4
_SETTINGS = ("temperature", "max_decode_steps")


@dataclasses.dataclass(frozen=True)
class Text:
    """A text as the model reads it.

    Attributes:
      line: with the model's blanks.
      ids: its tokens.
      length: to which they are padded.
      max_tokens: of the answer; 0 asks for a vector.
    """

    line: str
    ids: list[int]
    length: int
    max_tokens: int = 0
    temperature: float = 0.0

    @property
    def kind(self) -> Hashable:
        """Texts of one kind go into one batch: temperatures and lengths of answers are each row's own."""
        return bool(self.max_tokens), self.length


@dataclasses.dataclass(frozen=True)
class Reply:
    """An answer, or a vector.

    Attributes:
      num_tokens: of the answer, without EOS; an encoder answers without tokens.
      finish_reason: "stop", or "length" if the answer has no end within its tokens.
    """

    text: str = ""
    num_tokens: int = 0
    finish_reason: str = "stop"
    vector: np.ndarray | None = None


class Engine:
    """A checkpoint that answers texts, and gives their vectors."""

    def __init__(
        self,
        *,
        model: BaseTransformerModel,
        restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
        partitioner: PjitPartitioner,
        max_batch: int = 16,
        max_input_tokens: int = 512,
        max_new_tokens: int = 128,
        has_blanks: bool = True,
    ):
        """
        Args:
          max_batch: texts at a time.
          max_input_tokens: longer texts are refused.
          max_new_tokens: of an answer.
          has_blanks: whether `___` is a blank, which it is not for a task without them.

        Raises:
          ValueError: without a checkpoint, or for a network that does not read a text before it answers.
        """
        if not isinstance(model, EncoderDecoderModel | EncoderOnlyModel):
            raise ValueError(f"{type(model).__name__} is not served: models with an encoder are.")
        self._model, self._has_blanks = model, has_blanks
        self.decodes = isinstance(model, EncoderDecoderModel)
        if isinstance(model, EncoderDecoderModel):
            decode_fn = functools.partial(decoding.temperature_sample, topk=0, rescale_log_probs=False)
            self._model = model.with_decode_fn(decode_fn)
        longest = getattr(getattr(model.module, "config", None), "longest_row", None)
        self.max_input_tokens = max_input_tokens if longest is None else min(max_input_tokens, longest)
        self.max_new_tokens = max_new_tokens
        self._texts = text_batches.for_model(self._model, max_new_tokens)
        self._params, _ = load_model_params(model, partitioner, restore_checkpoint_cfg)
        shards = partitioner.num_data_shards
        self._rows = sorted({-(-rows // shards) * shards for rows in sizes(1, max_batch)})
        self._predict = {rows: batch_inference.make_infer_fn(self._step, rows, partitioner) for rows in self._rows}
        embedder = functools.partial(
            Embedder,
            model=model,
            restore_checkpoint_cfg=restore_checkpoint_cfg,
            partitioner=partitioner,
            max_inputs_length=self.max_input_tokens,
            params=self._params,
        )
        self._embedders = {rows: embedder(batch_size=rows) for rows in self._rows}
        self._rng = jax.random.PRNGKey(int.from_bytes(os.urandom(4), "little"))

    def warm_up(self) -> None:
        """Compiles the decoding of short texts, for each number of rows; that of longer ones follows when they come."""
        for rows in self._rows:
            self._decode([Text("", [1], min(_SHORTEST, self.max_input_tokens), 1)] * rows)

    def read(self, text: str, max_tokens: int = 0, temperature: float = 0.0) -> Text:
        """A text with its tokens; see `Text`.

        Raises:
          RequestError: 413 if it is too long, 422 if the model cannot answer it.
        """
        try:
            text.encode()
            line = blanks.typed(text) if self._has_blanks and max_tokens else text
            ids = self._texts.encode(line) if max_tokens else text_batches.tokens_of(self._model.input_vocabulary, line)
        except UnicodeEncodeError as error:
            raise RequestError(422, f"A text is not UTF-8 ({error.reason}); write it again.") from None
        except ValueError as error:
            raise RequestError(422, str(error)) from None
        if len(ids) > self.max_input_tokens:
            raise RequestError(
                413, f"A text has {len(ids)} tokens; at most {self.max_input_tokens} are taken: make it shorter."
            )
        if temperature and not self.decodes:
            raise RequestError(
                422, f"temperature is {temperature}; this model is an encoder, which answers at once: leave it out."
            )
        length = next(x for x in sizes(_SHORTEST, self.max_input_tokens) if x >= len(ids))
        return Text(line, ids, length, max_tokens, temperature)

    def run(self, texts: Sequence[Text]) -> list[Reply | NotFiniteError]:
        """The replies to texts of one kind, at most `max_batch`; of one that has no finite answer, the error."""
        call = self._answer if texts[0].max_tokens else self._embed
        try:
            return list(call(texts))
        except NotFiniteError as error:
            if len(texts) == 1:
                return [error]
            return [reply for text in texts for reply in self.run([text])]

    def _embed(self, texts: Sequence[Text]) -> list[Reply]:
        embedder = self._embedders[self._bucket(len(texts))]
        embedder.name_line = _unnamed
        return [Reply(vector=vector) for vector in embedder.embed([text.line for text in texts])]

    def _answer(self, texts: Sequence[Text]) -> list[Reply]:
        rows = self._decode(texts)
        return [self._reply(text, row) for text, row in zip(texts, rows, strict=True)]

    def _reply(self, text: Text, row: np.ndarray) -> Reply:
        filled = blanks.shown(self._texts.answer(text.line, row)[1])
        if not self.decodes:
            return Reply(filled)
        ends = (0, self._model.output_vocabulary.eos_id or 1)
        count = sum(1 for _ in itertools.takewhile(lambda token: token not in ends, row.tolist()))
        return Reply(filled, count, "length" if count >= text.max_tokens else "stop")

    def _decode(self, texts: Sequence[Text]) -> np.ndarray:
        tokens = np.zeros((len(texts), texts[0].length), np.int32)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text.ids)] = text.ids
        features = dict(self._texts.features(tokens))
        if self.decodes:
            features["temperature"] = np.array([text.temperature for text in texts], np.float32)
            features["max_decode_steps"] = np.array([text.max_tokens for text in texts], np.int32)
        self._rng, rng = jax.random.split(self._rng)
        predict = self._predict[self._bucket(len(texts))]
        rows, _ = predict(self._params, iter([(np.arange(len(texts)), features)]), rng, _unnamed)
        return np.asarray(rows)

    def _step(self, params: Any, batch: Batch, rng: Any = None) -> tuple[Any, Mapping[str, Any]]:
        if not self.decodes:
            return self._model.predict_batch_with_aux(params, batch)
        features = {name: x for name, x in batch.items() if name not in _SETTINGS}
        settings = {name: batch[name] for name in _SETTINGS}
        return self._model.predict_batch_with_aux(params, features, rng=rng, decoder_params=settings)

    def _bucket(self, rows: int) -> int:
        return next(x for x in self._rows if x >= rows)


def sizes(first: int, last: int) -> list[int]:
    """`first` times 1, 4, 16 … below `last`, and `last`: batches are padded to these, so that few are compiled."""
    powers = itertools.takewhile(lambda size: size < last, (first * _FACTOR**power for power in itertools.count()))
    return [*powers, last]


_unnamed: Callable[[int], str] = lambda number: "a text"  # noqa: E731  Of requests nothing is logged.
