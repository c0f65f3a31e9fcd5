"""The model behind the server: texts in batches of few shapes, each with its own temperature and length of answer.

Answers are those of `limba try --greedy` and `limba infer --greedy`, vectors those of `limba embed`.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from limba.addons.serve.base_engine import SHORTEST, BaseEngine, Reply, Text, sizes
from limba.addons.serve.start_lines import part
from limba.checkpoints import checkpointing
from limba.checkpoints.parameters import load_model_params
from limba.data.contract import Batch
from limba.data.token_rows import Row
from limba.inference import batch_inference, text_batches
from limba.inference.embedding import Embedder
from limba.models import BaseTransformerModel, EncoderDecoderModel, EncoderOnlyModel, decoding
from limba.network.finite_numbers.layers import NotFiniteError
from limba.partitioning.meshes import PjitPartitioner

_SETTINGS = ("temperature", "max_decode_steps")


class Engine(BaseEngine):
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
        self._model, self.has_blanks = model, has_blanks
        self.decodes = isinstance(model, EncoderDecoderModel)
        if isinstance(model, EncoderDecoderModel):
            decode_fn = functools.partial(decoding.temperature_sample, topk=0, rescale_log_probs=False)
            self._model = model.with_decode_fn(decode_fn)
        self.max_input_tokens = text_batches.longest_row(model, max_input_tokens)
        self.max_new_tokens = max_new_tokens
        self.texts = text_batches.for_model(self._model, max_new_tokens)
        self.input_vocabulary, self.output_vocabulary = model.input_vocabulary, model.output_vocabulary
        self._params, _ = load_model_params(model, partitioner, restore_checkpoint_cfg)
        shards = partitioner.num_data_shards
        self._rows = sorted({-(-rows // shards) * shards for rows in sizes(1, max_batch)})
        infer = functools.partial(batch_inference.make_infer_fn, partitioner=partitioner)
        self._predict = {rows: infer(self._step, rows) for rows in self._rows}
        # The same with a call to the host after each step. On several devices answers come as a whole.
        listening = functools.partial(self._step, listens=partitioner.mesh.size == 1)
        self._predict_listening = {rows: infer(listening, rows) for rows in self._rows}
        self._listeners: list[Callable[[int], bool] | None] = []
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
            with part(f"Compiling the program for {'a short text' if rows == 1 else f'{rows} short texts'} at a time"):
                self._decode([Text("", Row([1], [0], 1), min(SHORTEST, self.max_input_tokens), 1)] * rows)

    def run(self, texts: Sequence[Text]) -> list[Reply | NotFiniteError]:
        """The replies to texts of one kind, at most `max_batch`; of one that has no finite answer, the error."""
        call = self._answer if texts[0].max_tokens else self._embed
        try:
            return list(call(texts))
        except NotFiniteError as error:
            if len(texts) == 1:
                return [error]
            alone = [dataclasses.replace(text, listener=None) for text in texts]  # It has heard the tokens.
            return [reply for text in alone for reply in self.run([text])]

    def _embed(self, texts: Sequence[Text]) -> list[Reply]:
        embedder = self._embedders[self._bucket(len(texts))]
        embedder.name_line = _unnamed
        vectors = embedder.embed([text.line for text in texts])
        return [Reply(vector=vector, hint=text.unknown) for text, vector in zip(texts, vectors, strict=True)]

    def _answer(self, texts: Sequence[Text]) -> list[Reply]:
        rows = self._decode(texts)
        return [self.reply(text, row) for text, row in zip(texts, rows, strict=True)]

    def _decode(self, texts: Sequence[Text]) -> np.ndarray:
        features = dict(self.texts.features([text.row for text in texts], texts[0].length))
        if self.decodes:
            features["temperature"] = np.array([text.temperature for text in texts], np.float32)
            features["max_decode_steps"] = np.array([text.max_tokens for text in texts], np.int32)
        self._rng, rng = jax.random.split(self._rng)
        self._listeners = [text.listener for text in texts]
        predict = (self._predict_listening if any(self._listeners) else self._predict)[self._bucket(len(texts))]
        rows, _ = predict(self._params, iter([(np.arange(len(texts)), features)]), rng, _unnamed)
        return np.asarray(rows)

    def _step(self, params: Any, batch: Batch, rng: Any = None, listens: bool = False) -> tuple[Any, Mapping[str, Any]]:
        if not self.decodes:
            return self._model.predict_batch_with_aux(params, batch)
        features = {name: x for name, x in batch.items() if name not in _SETTINGS}
        settings: dict[str, Any] = {name: batch[name] for name in _SETTINGS}
        if listens:
            settings["state_callback_fn"] = self._ask_listeners
        return self._model.predict_batch_with_aux(params, features, rng=rng, decoder_params=settings)

    def _ask_listeners(self, state: decoding.SamplingLoopState) -> decoding.SamplingLoopState:
        """Gives them the tokens of the step before; ends the rows of those that have left."""
        tokens = state.cur_token[:, 0]
        is_left = io_callback(self._are_left, jax.ShapeDtypeStruct(tokens.shape, bool), tokens)
        return dataclasses.replace(state, ended=state.ended | is_left[:, None])

    def _are_left(self, tokens: np.ndarray) -> np.ndarray:
        """Rows behind those of the texts are padding: they end with the others."""
        left = np.ones(len(tokens), bool)
        for row, (token, listener) in enumerate(zip(np.asarray(tokens).tolist(), self._listeners, strict=False)):
            # 0 is before the first token and behind the last.
            left[row] = listener is not None and token != 0 and listener(token)
        return left

    def _bucket(self, rows: int) -> int:
        return next(x for x in self._rows if x >= rows)


_unnamed: Callable[[int], str] = lambda number: "a text"  # noqa: E731  Of requests nothing is logged.
