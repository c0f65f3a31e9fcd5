"""A T5 with fewer pieces: the rows of its embedding and output that are kept, read when they are asked for."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from convert.model_files.model import T5Model
from convert.tensors import table, tensor_parts
from limba.checkpoint_files.saved_tensors import Index, SavedTensor

EMBEDDING, OUTPUT = "token_embedder/embedding", "decoder/logits_dense/kernel"


def output_rows(model: T5Model) -> SavedTensor:
    """`[vocab, embed]`, with which the decoder's outputs are multiplied."""
    tensors = model.tensors
    return tensors[EMBEDDING] if model.config.logits_via_embedding else tensor_parts.transposed(tensors[OUTPUT])


def trimmed(model: T5Model, rows: np.ndarray, vocabulary: Mapping[str, Any]) -> T5Model:
    """The model with these rows of its vocabulary, in their order.

    Args:
      rows: ids of the model, ascending.
      vocabulary: the new one, as `run.json` records it.
    """
    tensors = dict(model.tensors)
    tensors[EMBEDDING] = _rows(tensors[EMBEDDING], rows)
    if OUTPUT in tensors:
        tensors[OUTPUT] = tensor_parts.transposed(_rows(tensor_parts.transposed(tensors[OUTPUT]), rows))
    config = dataclasses.replace(model.config, vocab_size=len(rows))
    found, wanted = {name: t.shape for name, t in tensors.items()}, model.family.shapes(config, model.head)
    table.verify(f"The trimmed {model.path}", found, wanted)
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
