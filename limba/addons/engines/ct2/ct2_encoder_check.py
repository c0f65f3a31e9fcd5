"""The proof of an encoder for CTranslate2, by the engine: hidden states of rows of several lengths in one batch.

As of a T5 (`ct2_t5_check`), the engine computes in float32 with the weights of the file, and so do Limba's network and
the forward pass of its family in NumPy in float64.
"""

import dataclasses
import functools
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons.engines import engine_export
from limba.addons.engines.ct2 import ct2_library, ct2_weights
from limba.addons.engines.encoder_check import check_rows, compare_vectors, limba_states
from limba.convert.compare import float64
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families import networks
from limba.convert.families.config_files import encoder_config
from limba.convert.model_files.model import EncoderModel
from limba.convert.tensors.table import exchanged


def compare(model: EncoderModel, folder: Path, tokens: Sequence[str], quantization: str) -> list[Comparison]:
    """Compares a folder with the model that it was made of; `tokens` are by the folder's ids.

    Raises:
      ValueError: if the engine cannot load the folder.
    """
    ids, types = check_rows(model)
    is_token = ids != model.config.pad_id
    order = exchanged(model.config.vocab_size, model.config.pad_id, model.pad_id)
    stored = ct2_weights.rounded(engine_export.stored(model), quantization)
    config = networks.plain(model.config)
    content = encoder_config.settings(model.family, config, model.head, model.pad_id)
    content |= {"model_type": model.family.model_type}
    run = functools.partial(importlib.import_module(model.family.numpy_forward).hidden_states, stored, content)
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
    if compute_type not in ct2_library.engine().get_supported_compute_types("cpu"):
        yield Comparison(
            f"vectors of rows, {quantization}", None, 0, f"not compared: this machine does not compute {compute_type}"
        )
        return
    is_token = ids != model.config.pad_id
    before = np.where(is_token[..., None], limba_states(model, ids, types), 0).sum(1)
    after = _engine(folder, tokens, compute_type, folder_ids, types, is_token).sum(1)
    yield compare_vectors(before, after, quantization)
