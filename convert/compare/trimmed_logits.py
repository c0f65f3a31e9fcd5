"""Do the pieces that are kept have the logits that they had?

Matrix products of another size round in another order. So the outputs of the decoder, which do not depend on the size
of the vocabulary, are compared first; each logit is then a sum over their products, always in the same order.
"""

from collections.abc import Sequence

import numpy as np

from convert.compare import forward
from convert.model_files import trimmed_model
from convert.model_files.model import T5Model
from convert.tensors import tensor_parts

_INPUTS_LENGTH, _TARGETS_LENGTH = 48, 8
_BLOCK_BYTES = 2**22


def difference(before: T5Model, after: T5Model, rows: np.ndarray, texts: Sequence[np.ndarray]) -> float:
    """The largest difference of a logit before the softmax, over all tokens that are kept.

    Args:
      rows: the old ids of the tokens after; -1 for a token that is new.
      texts: old ids, all of them kept.
    """
    numbers = np.full(before.config.vocab_size, -1)
    numbers[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
    tokens = _padded(texts, _INPUTS_LENGTH), _padded(texts, _TARGETS_LENGTH)
    new = numbers[tokens[0]].astype(np.int32), numbers[tokens[1]].astype(np.int32)
    assert min(new[0].min(), new[1].min()) >= 0
    old_outputs, new_outputs = _outputs(before, *tokens), _outputs(after, *new)
    worst = float(np.abs(old_outputs - new_outputs).max())
    of_before = trimmed_model.output_rows(before)
    of_after = np.ascontiguousarray(np.asarray(trimmed_model.output_rows(after)), np.float32)
    for span in tensor_parts.spans(of_before, _BLOCK_BYTES):
        inside = np.flatnonzero((span.start <= rows) & (rows < span.stop))
        if not inside.size:
            continue
        kept, written = of_before.read((span, slice(None)))[rows[inside] - span.start], of_after[inside]
        for x, y in zip(old_outputs, new_outputs, strict=True):
            worst = max(worst, float(np.abs(_logits(x, kept) - _logits(y, written)).max()))
    return worst


def _outputs(model: T5Model, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Float32 `[positions, embed]`."""
    batch = {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": targets,
    }
    outputs = forward.decoder_outputs(model.config, model.tensors, batch)
    return outputs.reshape(-1, outputs.shape[-1])


def _logits(output: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(rows, np.float32) * output).sum(-1)


def _padded(texts: Sequence[np.ndarray], length: int) -> np.ndarray:
    padded = np.zeros((len(texts), length), np.int32)
    for row, text in zip(padded, texts, strict=True):
        row[: min(length, len(text))] = text[:length]
    return padded
