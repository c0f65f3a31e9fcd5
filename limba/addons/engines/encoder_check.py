"""What proofs of encoders by an engine have in common: rows of several lengths in one batch, and Limba's outputs."""

import functools
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from limba.convert.compare.comparison_rows import Comparison
from limba.convert.compare.float64 import largest_difference
from limba.convert.families import networks
from limba.convert.model_files.model import EncoderModel
from limba.network.encoders.encoder import Encoder

_LENGTHS = (48, 24, 7, 2)


def check_rows(model: EncoderModel) -> tuple[np.ndarray, np.ndarray]:
    """Ids of Limba's and token types `[rows, length]`, of several lengths; the second half of a row is of type 1."""
    config, rng = model.config, np.random.default_rng(0)
    lengths = [min(length, config.max_positions) for length in _LENGTHS]
    ids = np.full((len(lengths), lengths[0]), config.pad_id, np.int32)
    types = np.zeros_like(ids)
    for row, row_types, length in zip(ids, types, lengths, strict=True):
        drawn = rng.integers(0, config.vocab_size - 1, length)
        row[:length] = drawn + (drawn >= config.pad_id)  # never padding
        row_types[length // 2 : length] = int(config.num_token_types > 1)
    return ids, types


def limba_states(model: EncoderModel, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
    """Float32 outputs `[rows, length, embed]` of the encoder in Limba."""
    flat = {name: np.asarray(t).astype(np.float32) for name, t in model.tensors.items()}
    tree: Any = traverse_util.unflatten_dict(flat, sep="/")
    params = tree["encoder"] | {"token_embedder": tree["token_embedder"]}
    network = Encoder(networks.plain(model.config))
    token_types = types if model.config.num_token_types else None
    with jax.default_matmul_precision("highest"):
        apply: Any = jax.jit(functools.partial(network.apply, enable_dropout=False))
        return np.asarray(apply({"params": params}, ids, token_types))


def compare_vectors(before: np.ndarray, after: np.ndarray, quantization: str) -> Comparison:
    """What quantization changes, of which nothing is demanded: sums of the hidden states `[rows, embed]` of tokens."""
    cosines = (before * after).sum(-1) / np.linalg.norm(before, axis=-1) / np.linalg.norm(after, axis=-1)
    difference = largest_difference(before, after) / float(np.abs(before).max())
    note = f"cosine {cosines.min():.6f} or more with those of its own weights; largest difference {difference:.2%}"
    return Comparison(f"vectors of rows, {quantization}", None, 0, f"{note} of the largest number")
