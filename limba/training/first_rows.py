"""The first rows that a run trains on, as text, kept for `limba report`: what the model really got."""

import logging
from collections.abc import Mapping
from pathlib import Path
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
    file, text = model_dir / FILE_NAME, json_text.dumps(record, ensure_ascii=False, indent=1) + "\n"
    if storage.is_remote(file):
        storage.write_bytes(file, text.encode())  # whole, in a bucket
    else:
        storage.replace_text(Path(file), text)


def _described(model: Any, batch: Batch) -> dict[str, Any]:
    vocabularies = {"inputs": getattr(model, "input_vocabulary", None), "targets": model.output_vocabulary}
    texts, unknown = {}, {}
    for name, feature in _FEATURES.items():
        if feature in batch:
            tokens, vocabulary = np.asarray(batch[feature]), vocabularies[name]
            is_real = tokens != _padding(vocabulary)
            if name == "targets" and hasattr(vocabulary, "labels"):
                texts[name] = _labels(vocabulary, batch)
            else:
                texts[name] = [_text(vocabulary, *row) for row in zip(tokens[:_MOST_ROWS], is_real, strict=False)]
            unknown[name] = _unknown_share(vocabulary, tokens[is_real])
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    return {"rows": rows, "unknown": unknown}


def _text(vocabulary: Any, row: np.ndarray, is_real: np.ndarray) -> str:
    tokens = row[is_real]
    more = " …" if len(tokens) > _MOST_TOKENS else ""
    return blanks.row_text(vocabulary, tokens[:_MOST_TOKENS], padding=()) + more


def _labels(vocabulary: Any, batch: Batch) -> list[str]:
    """Targets of a classifier: numbers from 0 where the ids of a LabelVocabulary are from 1; or values."""
    counts = np.asarray(batch["decoder_loss_weights"])[:_MOST_ROWS] > 0
    if "decoder_target_values" in batch:
        values = np.asarray(batch["decoder_target_values"])
        return [" ".join(f"{x + 0.0:g}" for x in row[real]) for row, real in zip(values, counts, strict=False)]
    ids = np.asarray(batch["decoder_target_tokens"]) + 1
    return [vocabulary.decode(row[real].tolist()) for row, real in zip(ids, counts, strict=False)]


def _unknown_share(vocabulary: Any, tokens: np.ndarray) -> float | None:
    """Of tokens; None where no token stands for what is unknown, as of labels."""
    unknown = getattr(vocabulary, "unk_id", None)
    return None if unknown is None or unknown < 0 or not len(tokens) else float(np.mean(tokens == unknown))


def _padding(vocabulary: Any) -> int:
    return getattr(vocabulary, "pad_id", 0) or 0


def read(model_dir: AnyPath) -> Mapping[str, Any]:
    """What `write` has written; {} without it, or where it is damaged."""
    try:
        return untrusted_json.parse_object(storage.read_bytes(model_dir / FILE_NAME), f"{model_dir}/{FILE_NAME}")
    except (OSError, ValueError):
        return {}
