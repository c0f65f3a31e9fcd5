"""The first rows that a run trains on, as text, kept for `limba report`: what the model really got."""

import logging
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from limba.data.contract import Batch
from limba.files import json_text, storage, untrusted_json
from limba.files.storage import AnyPath
from limba.inference import blanks

logger = logging.getLogger(__name__)

FILE_NAME = "first_rows.json"
_MOST_ROWS, _MOST_TOKENS = 3, 400
_FEATURES = {"inputs": "encoder_input_tokens", "targets": "decoder_target_tokens"}


def write(model_dir: AnyPath, model: Any, batch: Batch, step: int) -> None:
    """Writes `first_rows.json` unless it is there: some rows of a batch, and the share of its tokens that are unknown.

    Args:
      batch: this host's rows of the batch of `step`.
    """
    if jax.process_index() != 0 or storage.is_file(model_dir / FILE_NAME):
        return
    try:
        record = {"step": step, **_described(model, batch)}
    except Exception as error:  # A vocabulary of a user's own need not decode every id: training does not depend on it.
        logger.debug("No %s is written: %s", FILE_NAME, error)
        return
    storage.replace_text(model_dir / FILE_NAME, json_text.dumps(record, ensure_ascii=False, indent=1) + "\n")


def _described(model: Any, batch: Batch) -> dict[str, Any]:
    vocabularies = {"inputs": getattr(model, "input_vocabulary", None), "targets": model.output_vocabulary}
    found = {name: np.asarray(batch[feature]) for name, feature in _FEATURES.items() if feature in batch}
    texts = {name: [_text(vocabularies[name], row) for row in array[:_MOST_ROWS]] for name, array in found.items()}
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    return {"rows": rows, "unknown": {name: _unknown_share(vocabularies[name], x) for name, x in found.items()}}


def _text(vocabulary: Any, row: np.ndarray) -> str:
    real = row[row != _padding(vocabulary)]
    return blanks.row_text(vocabulary, real[:_MOST_TOKENS]) + (" …" if len(real) > _MOST_TOKENS else "")


def _unknown_share(vocabulary: Any, tokens: np.ndarray) -> float | None:
    """Of the tokens that are no padding; None where no token stands for what is unknown, as of bytes."""
    unknown = getattr(vocabulary, "unk_id", None)
    real = tokens[tokens != _padding(vocabulary)]
    return None if unknown is None or unknown < 0 or not len(real) else float(np.mean(real == unknown))


def _padding(vocabulary: Any) -> int:
    return getattr(vocabulary, "pad_id", 0) or 0


def read(model_dir: AnyPath) -> Mapping[str, Any]:
    """What `write` has written; {} without it, or where it is damaged."""
    try:
        return untrusted_json.parse_object(storage.read_bytes(model_dir / FILE_NAME), f"{model_dir}/{FILE_NAME}")
    except (OSError, ValueError):
        return {}
