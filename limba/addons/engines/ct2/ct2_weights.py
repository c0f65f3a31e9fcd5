"""Weights as CTranslate2 stores them: in a dtype, or as 8-bit numbers with a scale for each row."""

from collections.abc import Iterable, Mapping

import ml_dtypes
import numpy as np

from limba.addons.engines import engine_export
from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.convert.model_files.model import Model
from limba.convert.tensors import tensor_parts

INT8 = "int8"
_DTYPES: Mapping[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
QUANTIZATIONS = (*_DTYPES, INT8)
# Parts of the names of matrices that CTranslate2 keeps in float32.
_NOT_INT8 = ("relative_attention_bias", "position_embeddings")
# The scale of a row with smaller numbers would be infinite.
_LEAST = np.float32(127) / np.finfo(np.float32).max


def dtype(quantization: str) -> np.dtype:
    """Of what is not 8-bit: norms, biases, tables of positions."""
    return _DTYPES.get(quantization, _DTYPES["float32"])


def num_bytes(model: Model, quantization: str) -> int:
    """Of the weights in a file, about."""
    return model.num_parameters * (1 if quantization == INT8 else dtype(quantization).itemsize)


class Weights:
    """A model's tensors by Hugging Face's names, as new arrays of the file's dtype: CTranslate2 quantizes in place."""

    def __init__(self, model: Model, quantization: str):
        self._tensors, self._quantization, self._path = engine_export.stored(model), quantization, model.path

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = cast(self._tensors[name], self._quantization, f"{self._path}: {name}")
        return np.array(np.asarray(tensor), order="C")

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def joined(self, names: Iterable[str]) -> np.ndarray:
        """Several, one after the other."""
        return np.concatenate([self[name] for name in names])


def cast(tensor: SavedTensor, quantization: str, name: str) -> SavedTensor:
    """The tensor before it is 8-bit. Reading it raises ValueError with `name` where it holds NaN or infinite values."""
    kind = dtype(quantization)
    what = f"{name} in float16, whose range ends at 65,504," if kind == np.float16 else name
    return tensor_parts.cast(tensor, kind, what)


def rounded(tensors: Mapping[str, SavedTensor], quantization: str) -> dict[str, SavedTensor]:
    """Hugging Face's tensors in float32, with the numbers that remain of them in CTranslate2's file."""
    kept = {name: cast(cast(t, quantization, name), "float32", name) for name, t in tensors.items()}
    if quantization != INT8:
        return kept
    is_kept = {name: t.ndim != 2 or any(part in name for part in _NOT_INT8) for name, t in kept.items()}
    return {name: t if is_kept[name] else _in_8_bits(t) for name, t in kept.items()}


def _in_8_bits(tensor: SavedTensor) -> SavedTensor:
    """Rows are multiplied by 127 / the largest of their numbers, rounded, and divided by it, as CTranslate2 does."""

    def read(index: Index) -> np.ndarray:
        rows, columns = index
        values = tensor.read((rows, slice(None)))
        largest = np.abs(values).max(1, keepdims=True)
        scale = np.float32(127) / np.where(largest == 0, np.float32(127), np.maximum(largest, _LEAST))
        return (np.rint(values * scale) / scale)[:, columns]

    return SavedTensor(tensor.shape, tensor.dtype, read)
