"""Lets a model answer lines of text, or fill the blanks in them: `limba infer --run_dir RUN --input TEXT`.

Blanks are T5's sentinels <extra_id_0>, <extra_id_1> … in order. A line without blanks is answered as it is.
"""

import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from limba import checkpoints, inference
from limba.data import Batch
from limba.eval import load_model_params
from limba.models import EncoderDecoderModel, Vocabulary
from limba.partitioning import PjitPartitioner

logger = logging.getLogger(__name__)

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


def infer_text(
    *,
    model: EncoderDecoderModel,
    restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
    partitioner: PjitPartitioner,
    inputs: Sequence[str],
    output_file: str | None = None,
    max_inputs_length: int = 512,
    max_decode_length: int = 114,
    batch_size: int = 8,
    random_seed: int = 0,
) -> list[dict[str, Any]]:
    """Decodes lines of text.

    Args:
      model: network, vocabularies and decoding.
      restore_checkpoint_cfg: the checkpoint.
      partitioner: mesh and rules.
      inputs: lines.
      output_file: JSON lines `{"input", "prediction", "filled", "score"}`; None prints them.
      max_inputs_length: longer inputs are cut, and counted in a warning.
      max_decode_length: tokens of an answer.
      batch_size: lines at a time.
      random_seed: for sampling.

    Returns:
      What was written.

    Raises:
      ValueError: without inputs or a checkpoint.
    """
    if not inputs:
        raise ValueError("Nothing to answer: give --input TEXT or --input_file FILE.")
    batch_size = -(-batch_size // partitioner.num_data_shards) * partitioner.num_data_shards
    params, _ = load_model_params(model, partitioner, restore_checkpoint_cfg)
    predict = inference.make_infer_fn(model.predict_batch_with_aux, batch_size, partitioner)
    batches = list(_batches(model.input_vocabulary, inputs, max_inputs_length, max_decode_length, batch_size))
    shown = tqdm(batches, desc="infer", unit="batch", disable=len(batches) == 1)
    tokens, aux = predict(params, shown, jax.random.PRNGKey(random_seed))
    results = []
    for line, row, score in zip(inputs, tokens, aux["scores"], strict=True):
        prediction = decode_row(model.output_vocabulary, row)
        filled = fill_blanks(line, prediction)
        results.append({"input": line, "prediction": prediction, "filled": filled, "score": float(score)})
    if jax.process_index() == 0:
        _write(results, output_file)
    return results


def _batches(
    vocabulary: Vocabulary, inputs: Sequence[str], max_length: int, max_decode_length: int, batch_size: int
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Indices, and encoded lines with EOS, `[rows, length]`."""
    encoded = [[*vocabulary.encode(line), vocabulary.eos_id or 1] for line in inputs]
    cut = sum(len(ids) > max_length for ids in encoded)
    if cut:
        logger.warning("%d of %d inputs are longer than %d tokens and were cut.", cut, len(inputs), max_length)
    # One length for all batches compiles once; a multiple of 32 serves many runs from the compilation cache.
    length = min(max_length, -(-max(len(ids) for ids in encoded) // 32) * 32)
    for start in range(0, len(inputs), batch_size):
        rows = encoded[start : start + batch_size]
        tokens = np.zeros((len(rows), length), np.int32)
        for row, ids in enumerate(rows):
            tokens[row, : len(ids)] = ids[:length]
        answers = np.zeros((len(rows), max_decode_length), np.int32)  # says how long an answer may be
        yield (
            np.arange(start, start + len(rows)),
            {"encoder_input_tokens": tokens, "decoder_input_tokens": answers},
        )


def decode_row(vocabulary: Vocabulary, row: np.ndarray) -> str:
    """Text of a row of tokens that ends at EOS or padding; sentinels are kept visible."""
    ids = []
    for token in row.tolist():
        if token in (0, vocabulary.eos_id):
            break
        ids.append(token)
    return vocabulary.decode(ids)


def fill_blanks(text: str, prediction: str) -> str:
    """Puts the spans that follow each sentinel in `prediction` into the blanks of `text`.

    A blank that the prediction does not mention stays as it is. Without blanks, the prediction itself is returned.
    """
    if not _SENTINEL.search(text):
        return prediction
    pieces = _SENTINEL.split(prediction)
    spans = {number: span.strip() for number, span in zip(pieces[1::2], pieces[2::2], strict=True)}
    return _SENTINEL.sub(lambda match: spans.get(match[1], match[0]), text)


def _write(results: Sequence[dict[str, Any]], output_file: str | None) -> None:
    if output_file is None:
        for result in results:
            print(f"{result['input']}\n  -> {result['filled']}")
        return
    path = Path(output_file).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in results), encoding="utf-8")
    temporary.replace(path)
    print(f"{len(results)} answers in {path}")


def read_lines(file: str) -> list[str]:
    if file == "-":
        return [line.rstrip("\n") for line in sys.stdin]
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(
            f"--input_file {file} does not exist; give a file with one input a line, or - for stdin."
        )
    return path.read_text(encoding="utf-8").splitlines()
