"""The proof of an encoder for CTranslate2, by the engine: hidden states of rows of several lengths in one batch.

As of a T5 (`ct2_t5_check`), the engine computes in float32 with the weights of the file, and so do Limba's network and
`convert.compare.numpy_encoders` in float64.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from convert.compare import float64, numpy_encoders
from convert.compare.comparison_rows import Comparison
from convert.compare.float64 import largest_difference
from convert.engines import ct2_library, ct2_weights
from convert.families import networks
from convert.families.config_files import encoder_config
from convert.model_files.model import EncoderModel
from convert.tensors.table import exchanged
from limba.network.encoders.encoder import Encoder

_LENGTHS = (48, 24, 7, 2)


def compare(model: EncoderModel, folder: Path, tokens: Sequence[str], quantization: str) -> list[Comparison]:
    """Compares a folder with the model that it was made of; `tokens` are by the folder's ids.

    Raises:
      ValueError: if the engine cannot load the folder.
    """
    ids, types = check_rows(model)
    is_token = ids != model.config.pad_id
    order = exchanged(model.config.vocab_size, model.config.pad_id, model.pad_id)
    stored = ct2_weights.rounded(ct2_weights.stored(model), quantization)
    config = networks.plain(model.config)
    content = encoder_config.settings(model.family, config, model.head, model.pad_id)
    content |= {"model_type": model.family.model_type}
    run = functools.partial(numpy_encoders.hidden_states, stored, content)
    measure = float64.measure(run, order[ids], types, counted=is_token)
    in_file = _as_in_file(model, stored) if quantization != "float32" else model
    theirs = _engine(folder, tokens, "float32", order[ids], types, is_token)
    rows = [
        measure.compare("hidden states, Limba and NumPy", limba_states(in_file, ids, types)),
        measure.compare("hidden states, CTranslate2", theirs, note=f"of {is_token.sum()} tokens in {len(ids)} rows"),
    ]
    if quantization != "float32":
        rows += _cost(model, folder, tokens, quantization, (ids, order[ids], types))
    return rows


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


def _as_in_file(model: EncoderModel, stored: dict[str, Any]) -> EncoderModel:
    table = model.family.table(model.config, model.family.held(model.head), model.pad_id)
    own = {name: t for row in table if row.parts for name, t in row.limbas(stored[row.name]).items()}
    return dataclasses.replace(model, tensors={**model.tensors, **own})


def _engine(
    folder: Path, tokens: Sequence[str], compute_type: str, ids: np.ndarray, types: np.ndarray, is_token: np.ndarray
) -> np.ndarray:
    """Hidden states `[rows, length, embed]` of `ctranslate2.Encoder`, 0 for padding."""
    library = ct2_library.engine()
    try:
        encoder = library.Encoder(str(folder), device="cpu", compute_type=compute_type)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"CTranslate2 {library.__version__} cannot load what was written: {error}") from error
    texts = [[tokens[i] for i in row[real]] for row, real in zip(ids, is_token, strict=True)]
    row_types = [row[real].tolist() for row, real in zip(types, is_token, strict=True)]
    found = encoder.forward_batch(texts, token_type_ids=row_types).last_hidden_state
    return np.where(is_token[..., None], np.array(found), 0)


def _cost(
    model: EncoderModel,
    folder: Path,
    tokens: Sequence[str],
    quantization: str,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Iterator[Comparison]:
    """What quantization changes: a figure, of which nothing is demanded."""
    ids, folder_ids, types = rows
    compute_type = "int8" if quantization == ct2_weights.INT8 else "float32"
    what = f"vectors of rows, {quantization}"
    if compute_type not in ct2_library.engine().get_supported_compute_types("cpu"):
        yield Comparison(what, None, 0, f"not compared: this machine does not compute {compute_type}")
        return
    is_token = ids != model.config.pad_id
    before = np.where(is_token[..., None], limba_states(model, ids, types), 0).sum(1)
    after = _engine(folder, tokens, compute_type, folder_ids, types, is_token).sum(1)
    cosines = (before * after).sum(-1) / np.linalg.norm(before, axis=-1) / np.linalg.norm(after, axis=-1)
    difference = largest_difference(before, after) / float(np.abs(before).max())
    note = f"cosine {cosines.min():.6f} or more with those of its own weights; largest difference {difference:.2%}"
    yield Comparison(what, None, 0, f"{note} of the largest number")
