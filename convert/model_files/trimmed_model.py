"""A model with other pieces: of its embedding and output some rows, read when they are asked for, or means of rows."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from limba.checkpoint_files import saved_tensors
from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.convert.model_files.model import Model
from limba.convert.tensors import table, tensor_parts

EMBEDDING, OUTPUT = "token_embedder/embedding", "decoder/logits_dense/kernel"
# T5Gemma's decoder has one of its own, which its output is tied to.
_OF_DECODER = "decoder/token_embedder/embedding"
# Of a T5, and of an encoder that fills in masks, where the embedding is not the output.
_OUTPUTS = (OUTPUT, "mlm_head/logits/kernel")
# Of an encoder that fills in masks.
BIAS = "mlm_head/bias"
AModel = TypeVar("AModel", bound=Model)


def output_rows(model: Model) -> SavedTensor:
    """`[vocab, embed]`, with which the outputs of the last layer, or of the head's transform, are multiplied."""
    own = next((model.tensors[name] for name in _OUTPUTS if name in model.tensors), None)
    tied_to = model.tensors.get(_OF_DECODER, model.tensors[EMBEDDING])
    return tied_to if own is None else tensor_parts.transposed(own)


def trimmed(model: AModel, rows: np.ndarray, vocabulary: Mapping[str, Any]) -> AModel:
    """The model with these rows of its vocabulary, in their order.

    Args:
      rows: ids of the model, ascending.
      vocabulary: the new one, as `run.json` records it.
    """
    return _with_rows(model, lambda tensor: _rows(tensor, rows), len(rows), vocabulary)


def replaced(
    model: AModel, num_tokens: int, origins: Sequence[Sequence[int]], num_rows: int, vocabulary: Mapping[str, Any]
) -> AModel:
    """The model with rows that are means of its rows; a table of each kind is held in memory.

    Args:
      num_tokens: of the old vocabulary, sentinels included; rows behind them have no token.
      origins: by new id the old ids whose rows are averaged, in float32. The row of one id is copied; without any it is
        the mean of all rows that have a token.
      num_rows: of the new embedding; those behind the ids are the mean of all too.
      vocabulary: the new one, as `run.json` records it.
    """

    def means(tensor: SavedTensor) -> SavedTensor:
        table = np.asarray(tensor)
        made = np.empty((num_rows, *table.shape[1:]), table.dtype)
        made[:] = table[:num_tokens].mean(0, dtype=np.float32).astype(table.dtype)
        for new, old in enumerate(origins):
            if len(old) == 1:
                made[new] = table[old[0]]
            elif old:
                made[new] = table[list(old)].mean(0, dtype=np.float32).astype(table.dtype)
        return saved_tensors.from_array(made)

    return _with_rows(model, means, num_rows, vocabulary)


def _with_rows(
    model: AModel, change: Callable[[SavedTensor], SavedTensor], num_rows: int, vocabulary: Mapping[str, Any]
) -> AModel:
    """The model with changed tables `[vocab, embed]` and `[vocab]`."""
    tensors = dict(model.tensors)
    tensors |= {name: change(tensors[name]) for name in (EMBEDDING, _OF_DECODER, BIAS) if name in tensors}
    for name in _OUTPUTS:
        if name in tensors:
            tensors[name] = tensor_parts.transposed(change(tensor_parts.transposed(tensors[name])))
    config = dataclasses.replace(model.config, vocab_size=num_rows)
    found, wanted = {name: t.shape for name, t in tensors.items()}, model.family.shapes(config, model.head)
    table.verify(f"{model.path} with another vocabulary", found, wanted)
    return dataclasses.replace(model, tensors=tensors, config=config, vocabulary=vocabulary, folder=None)


def _rows(tensor: SavedTensor, rows: np.ndarray) -> SavedTensor:
    """Rows of a tensor, ascending."""

    def read(index: Index) -> np.ndarray:
        wanted, columns = rows[index[0]], index[1:]
        parts = [tensor.read((slice(0, 0), *columns))]
        for span in tensor_parts.spans(tensor):
            inside = wanted[(span.start <= wanted) & (wanted < span.stop)]
            if inside.size:
                first = inside[0]
                parts.append(tensor.read((slice(first, inside[-1] + 1), *columns))[inside - first])
        return np.concatenate(parts)

    return SavedTensor((len(rows), *tensor.shape[1:]), tensor.dtype, read)
