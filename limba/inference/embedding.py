"""The vectors that an encoder gives for lines of text: of a T5's encoder, or of a BERT, without its head."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from limba.checkpoints import checkpointing
from limba.checkpoints.parameters import load_model_params
from limba.data.token_rows import Row
from limba.files import number_ranges, untrusted_files
from limba.files.number_ranges import AT_LEAST_1
from limba.inference import batch_inference, text_batches
from limba.models import BaseTransformerModel, EncoderDecoderModel, EncoderOnlyModel, lora
from limba.network.encoders import text_encoder
from limba.partitioning.meshes import PjitPartitioner

Array = jax.Array

POOLINGS = (*text_encoder.POOLINGS, "none")

_SHORTEST = 32


def encode(model: BaseTransformerModel, params: Any, batch: Mapping[str, Array]) -> Array:
    """What the encoder gives for `encoder_input_tokens` `[batch, length]`: `[batch, length, embed]`.

    `encoder_token_types` are used where the batch and the network have them.
    """
    module: Any = model.module
    variables = {"params": module.merge(params) if isinstance(module, lora.LoRA) else params}
    tokens = batch["encoder_input_tokens"]
    if isinstance(model, EncoderDecoderModel):
        return module.apply(variables, tokens, enable_dropout=False, method=module.encode)
    has_types = getattr(getattr(module, "config", None), "num_token_types", 0) > 1
    types = batch.get("encoder_token_types") if has_types else None
    return module.apply(variables, tokens, method=lambda network, x: network.encoder(x, types, enable_dropout=False))


def in_dtype(model: BaseTransformerModel, dtype: str | None) -> BaseTransformerModel:
    """The model with its network in another dtype, where its configuration says the dtype; None is as it is."""
    module: Any = model.module
    config: Any = getattr(module, "config", None)
    if dtype is None or not hasattr(config, "dtype"):
        return model
    other = copy.copy(model)
    other.module = module.clone(config=dataclasses.replace(config, dtype=jnp.dtype(dtype)))
    return other


class Embedder:
    """A checkpoint whose encoder reads lines of text.

    A line is read as in training, with the special tokens of its vocabulary.

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
        max_inputs_length: int | None = None,
        batch_size: int = 8,
        pooling: str | None = None,
        normalize: bool | None = None,
        dtype: str | None = "float32",
        params: Any = None,
    ):
        """
        Args:
          max_inputs_length: longer lines are cut; `num_cut` counts them. None is as a `text_encoder.TextEncoder` was
            trained, and 512 of other models; in the same way pooling is the mean, and vectors keep their lengths.
          batch_size: lines at a time; rounded up to a multiple that the mesh divides.
          pooling: "mean", "max" or "first" of a line's vectors; "none" keeps one for each token.
          normalize: whether the vector of a line is divided by its length.
          dtype: of activations; None is the training's, often bfloat16, in which accelerators are faster.
          params: those of the checkpoint, where they are loaded already.

        Raises:
          ValueError: without a checkpoint or an encoder; for another pooling, or a number below 1.
        """
        if not isinstance(model, EncoderDecoderModel | EncoderOnlyModel):
            raise ValueError(f"{type(model).__name__} has no encoder, and no vectors of texts.")
        network = getattr(model.module, "network", model.module)  # inside adapters
        trained = network if isinstance(network, text_encoder.TextEncoder) else None
        if pooling is None:
            pooling = trained.pooling if trained else "mean"
        if max_inputs_length is None:
            max_inputs_length = trained.max_length if trained else 512
        self._normalize = bool(trained and trained.normalize) if normalize is None else normalize
        if pooling not in POOLINGS:
            raise ValueError(f"--pooling {pooling}: use one of {', '.join(POOLINGS)}.")
        for name, value in {"max_inputs_length": max_inputs_length, "batch_size": batch_size}.items():
            number_ranges.check(f"Embedder.{name}", value, AT_LEAST_1)
        self._model, self._pooling = in_dtype(model, dtype), pooling
        self._longest = text_batches.longest_row(model, max_inputs_length)
        self._batch_size = -(-batch_size // partitioner.num_data_shards) * partitioner.num_data_shards
        self._params = (
            params if params is not None else load_model_params(model, partitioner, restore_checkpoint_cfg)[0]
        )
        self._embed = batch_inference.make_infer_fn(self._step, self._batch_size, partitioner)
        self.num_cut = 0

    def embed(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Float32 `[embed]` of each line, or `[tokens, embed]` without pooling.

        Raises:
          ValueError: for a line that is not text.
          NotFiniteError: for a line whose vector is not finite.
        """
        encoded = [self._encode(number, line) for number, line in enumerate(lines, 1)]
        self.num_cut = sum(row.length > self._longest for row in encoded)
        found: dict[int, np.ndarray] = {}
        with tqdm(desc="embed", unit="line", total=len(lines), disable=len(lines) <= self._batch_size or None) as bar:
            for numbers, batches in self._by_length(encoded):
                for start in range(0, len(numbers), self._batch_size):
                    part = numbers[start : start + self._batch_size]
                    name_row = lambda i, of=part: f"{self.name_line(of[i] + 1)}, {untrusted_files.shown(lines[of[i]])},"  # noqa: E731
                    rows = self._embed(self._params, iter([batches(part)]), None, name_row)
                    for number, row in zip(part, np.asarray(rows), strict=True):
                        found[number] = row if self._pooling != "none" else row[: len(encoded[number].ids)]
                    bar.update(len(part))
        return [found[number] for number in range(len(lines))]

    def find_unknown(self, lines: Sequence[str]) -> str:
        """A sentence about lines with characters that the vocabulary does not know; "" if it knows all."""
        return text_batches.find_unknown(self._model.input_vocabulary, lines)

    def _encode(self, number: int, line: str) -> Row:
        try:
            line.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"Line {number}, {line!r}, is not UTF-8 ({error.reason}); write it again.") from error
        return text_batches.row_of(self._model.input_vocabulary, line, self._longest)

    def _by_length(self, encoded: Sequence[Row]) -> Iterator[tuple[list[int], Callable[[list[int]], Any]]]:
        """The numbers of the lines of like length, and what makes a batch of some; each length is compiled once."""
        by_length: dict[int, list[int]] = {}
        for number, row in enumerate(encoded):
            length = _SHORTEST
            while length < len(row.ids):
                length *= 2
            by_length.setdefault(min(length, self._longest), []).append(number)

        def batch_of(length: int, numbers: list[int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
            return np.arange(len(numbers)), dict(text_batches.padded([encoded[x] for x in numbers], length))

        for length, numbers in sorted(by_length.items()):
            yield numbers, lambda part, length=length: batch_of(length, part)  # type: ignore[misc]

    def _step(self, params: Any, batch: Mapping[str, Array]) -> Array:
        x = encode(self._model, params, batch).astype(jnp.float32)
        if self._pooling == "none":
            return x
        vectors = text_encoder.pooled(self._pooling, x, batch["encoder_input_tokens"])
        return text_encoder.unit_length(vectors) if self._normalize else vectors
