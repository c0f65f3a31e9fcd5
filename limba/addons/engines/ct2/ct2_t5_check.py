"""The proof of a T5 for CTranslate2, by the engine in float32, with the weights that the file has: `t5_check`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons.engines import engine_export, t5_check
from limba.addons.engines.ct2 import ct2_library, ct2_weights
from limba.addons.engines.t5_check import GREEDY_TOKENS, PAD, T5Engine
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families.config_files import t5_config
from limba.convert.model_files.model import Folder, T5Model


def compare(model: T5Model, folder: Path, tokens: Sequence[str], quantization: str) -> list[Comparison]:
    """Compares a folder with the model that it was made of.

    Raises:
      ValueError: if the engine cannot load the folder.
      NotFiniteError: if the model's logits are not finite.
    """
    rows = t5_check.compare(_as_in_file(model, quantization), _Engine(folder, tokens, "float32"), model)
    if quantization == "float32":
        return rows
    dtype = "int8" if quantization == ct2_weights.INT8 else "float32"
    if dtype not in ct2_library.engine().get_supported_compute_types("cpu"):
        why = f"not compared: this machine does not compute {dtype}"
        return [*rows, Comparison(f"loss, {quantization}", None, 0, why)]
    return [*rows, *t5_check.compare_quantized(model, _Engine(folder, tokens, dtype), quantization, dtype)]


def _as_in_file(model: T5Model, quantization: str) -> T5Model:
    """The model with the numbers that the file has of its weights, as a folder that NumPy's T5 reads."""
    stored = ct2_weights.rounded(engine_export.stored(model), quantization)
    content = t5_config.model_config(model.config, model.family, "float32", None)
    tensors = model.cast(np.dtype(np.float32)).tensors
    if quantization != "float32":
        table = model.family.table(model.config, model.head)
        tensors = {name: t for row in table for name, t in row.limbas(stored[row.name]).items()}
    folder = Folder(t5_config.explicit(content, model.config), stored, "safetensors")
    return dataclasses.replace(model, tensors=tensors, folder=folder)


class _Engine(T5Engine):
    """`ctranslate2.Translator`, with ids in place of tokens."""

    name = "CTranslate2"

    def __init__(self, folder: Path, tokens: Sequence[str], compute_type: str):
        library = ct2_library.engine()
        try:
            self._translator: Any = library.Translator(str(folder), device="cpu", compute_type=compute_type)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"CTranslate2 {library.__version__} cannot load what was written: {error}") from error
        self._tokens, self._ids = tokens, {token: id_ for id_, token in enumerate(tokens)}

    def scores(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        # It adds the end of targets itself, and that of inputs not.
        found = self._translator.score_batch(self._texts(inputs), [row[:-1] for row in self._texts(targets)])
        padded = np.zeros(targets.shape)
        for row, result in zip(padded, found, strict=True):
            row[: len(result.log_probs)] = result.log_probs
        return padded

    def greedy(self, inputs: np.ndarray) -> np.ndarray:
        found = self._translator.translate_batch(
            self._texts(inputs),
            beam_size=1,
            max_decoding_length=GREEDY_TOKENS,
            min_decoding_length=0,
            return_end_token=True,
        )
        padded = np.zeros((len(inputs), GREEDY_TOKENS), np.int32)
        for row, result in zip(padded, found, strict=True):
            ids = [self._ids[token] for token in result.hypotheses[0]]
            row[: len(ids)] = ids
        return padded

    def _texts(self, ids: np.ndarray) -> list[list[str]]:
        return [[self._tokens[i] for i in row[row != PAD]] for row in ids]
