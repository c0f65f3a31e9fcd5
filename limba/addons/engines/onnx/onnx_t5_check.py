"""The proof of a T5 for ONNX Runtime: hidden states of the encoder, logits with and without past, greedy tokens."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from limba.addons.engines import t5_check
from limba.addons.engines.onnx import onnx_graphs, onnx_library
from limba.addons.engines.onnx.onnx_graphs import LOGITS, STATES
from limba.addons.engines.t5_check import EOS, GREEDY_TOKENS, PAD, T5Engine
from limba.convert.compare import float64, numpy_t5
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.compare.float64 import Measure
from limba.convert.compare.outputs import Batch
from limba.convert.model_files.model import T5Model


class Engine(T5Engine):
    """The three files of a folder in `onnxruntime.InferenceSession`.

    Raises:
      ValueError: if the engine cannot load one.
    """

    name = "ONNX Runtime"

    def __init__(self, folder: Path, start_id: int):
        self._encoder, self._first, self._following = (
            onnx_library.session(folder / name) for name in onnx_graphs.OF_T5
        )
        self._start_id = start_id

    def encode(self, inputs: np.ndarray) -> np.ndarray:
        """Hidden states `[rows, length, embed]`."""
        ids = inputs.astype(np.int64)
        return self._encoder.run([STATES], {"input_ids": ids, "attention_mask": _mask(inputs)})[0]

    def logits(self, inputs: np.ndarray, decoder_inputs: np.ndarray) -> np.ndarray:
        """Logits `[rows, length, vocab]` of all decoder inputs at once."""
        ids = decoder_inputs.astype(np.int64)
        feed = {"encoder_attention_mask": _mask(inputs), "encoder_hidden_states": self.encode(inputs)}
        return self._first.run([LOGITS], feed | {"input_ids": ids})[0]

    def logits_with_past(self, inputs: np.ndarray, decoder_inputs: np.ndarray) -> np.ndarray:
        """As `logits`, one token after another."""
        following = np.roll(decoder_inputs, -1, 1)
        return self._steps(inputs, decoder_inputs.shape[1], lambda i, _: following[:, i])

    def scores(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=self._start_id)
        return t5_check.scores(self.logits_with_past(inputs, shifted), targets)

    def greedy(self, inputs: np.ndarray) -> np.ndarray:
        tokens = np.zeros((len(inputs), GREEDY_TOKENS), np.int32)
        has_ended = np.zeros(len(inputs), bool)

        def choose(i: int, logits: np.ndarray) -> np.ndarray:
            tokens[:, i] = np.where(has_ended, PAD, logits.argmax(-1))
            has_ended[tokens[:, i] == EOS] = True
            return tokens[:, i]

        self._steps(inputs, GREEDY_TOKENS, choose)
        return tokens

    def _steps(self, inputs: np.ndarray, num_steps: int, choose: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
        """Logits `[rows, steps, vocab]`; `choose` gives the ids `[rows]` of the next step from those of a step."""
        others = {"encoder_hidden_states": self.encode(inputs)}
        session, ids, found = self._first, np.full(len(inputs), self._start_id), []
        for i in range(num_steps):
            feed = {"encoder_attention_mask": _mask(inputs), "input_ids": ids.astype(np.int64)[:, None]}
            names = [output.name for output in session.get_outputs()]
            outputs = dict(zip(names, session.run(names, feed | others), strict=True))
            found.append(outputs.pop(LOGITS)[:, -1])
            ids = choose(i, found[-1])
            # The second step has no more use for the states; the keys and values of the encoder stay.
            others.pop("encoder_hidden_states", None)
            others |= {name.replace("present", "past_key_values"): array for name, array in outputs.items()}
            session = self._following
        return np.stack(found, 1)

    def outputs(self, model: T5Model, batch: Batch, measure: Measure) -> Iterator[Comparison]:
        assert model.folder is not None
        inputs, shifted = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        weights = numpy_t5.TorchWeights(model.folder.stored)
        encoder = functools.partial(numpy_t5.encoder_outputs, weights, model.folder.content)
        of_encoder = float64.measure(encoder, inputs, counted=inputs != PAD)
        measure = dataclasses.replace(measure, counted=batch["decoder_target_tokens"] != PAD)
        yield of_encoder.compare(f"hidden states, {self.name}", self.encode(inputs), note="of the encoder")
        yield measure.compare(f"logits, {self.name}", self.logits(inputs, shifted), note="all tokens at once")
        with_past = self.logits_with_past(inputs, shifted)
        yield measure.compare(f"logits with past, {self.name}", with_past, note="one token after another")


def _mask(ids: np.ndarray) -> np.ndarray:
    return (ids != PAD).astype(np.int64)
