"""Do the pieces that are kept have the logits that they had?

Matrix products of another size round in another order. So what is multiplied with the embedding or the output, which
does not depend on the size of the vocabulary, is compared first. Each logit is then a sum over its products, always in
the same order.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from limba.convert.compare import encoder_outputs, forward
from limba.convert.model_files import trimmed_model
from limba.convert.model_files.model import EncoderModel, Model, T5Model
from limba.convert.tensors import tensor_parts
from limba.network.finite_numbers import interceptors

_INPUTS_LENGTH, _TARGETS_LENGTH = 48, 8
_BLOCK_BYTES = 2**22


def difference(before: T5Model, after: T5Model, rows: np.ndarray, texts: Sequence[np.ndarray]) -> float:
    """The largest difference of a logit before the softmax, over all tokens that are kept.

    Args:
      rows: the old ids of the tokens after; -1 for a token that is new.
      texts: old ids, all of them kept.
    """
    tokens = _padded(texts, _INPUTS_LENGTH), _padded(texts, _TARGETS_LENGTH)
    new = _renumbered(tokens[0], before, rows), _renumbered(tokens[1], before, rows)
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


def encoder_difference(
    before: EncoderModel, after: EncoderModel, rows: np.ndarray, texts: Sequence[np.ndarray]
) -> float:
    """As `difference`, for an encoder. A classifier has logits of labels, which are compared as they are."""
    tokens = _padded(texts, _INPUTS_LENGTH)
    both = (before, tokens), (after, _renumbered(tokens, before, rows))
    outputs = [_seen_by_logits(model, ids) for model, ids in both]
    worst = float(np.abs(outputs[0] - outputs[1]).max())
    if before.head.labels:
        return worst
    tables = [np.asarray(trimmed_model.output_rows(m)).astype(np.float32) for m in (before, after)]
    biases = [
        np.asarray(m.tensors[trimmed_model.BIAS]).astype(np.float32)
        for m in (before, after)
        if trimmed_model.BIAS in m.tensors
    ]
    biases = biases or [np.zeros(len(table), np.float32) for table in tables]
    kept, written = rows[rows >= 0], np.flatnonzero(rows >= 0)
    for x, y in zip(*outputs, strict=True):
        old = _logits(x, tables[0][kept]) + biases[0][kept]
        new = _logits(y, tables[1][written]) + biases[1][written]
        worst = max(worst, float(np.abs(old - new).max()))
    return worst


def _renumbered(tokens: np.ndarray, before: Model[Any, Any], rows: np.ndarray) -> np.ndarray:
    """Old ids as new ones."""
    numbers = np.full(before.config.vocab_size, -1)
    numbers[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
    new = numbers[tokens].astype(np.int32)
    assert new.min() >= 0
    return new


def _seen_by_logits(model: EncoderModel, tokens: np.ndarray) -> np.ndarray:
    """What the head multiplies with the output's rows, float32 `[positions, embed]`; of a classifier its logits."""
    seen: list[np.ndarray] = []

    def watch(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name == "attend" or context.module.path == ("mlm_head", "logits"):
            seen.append(np.asarray(args[0]))
        return call(*args, **kwargs)

    batch = {"tokens": tokens, "token_types": np.zeros_like(tokens)}
    with interceptors.intercept(watch), jax.disable_jit():
        logits = encoder_outputs.limba_outputs(model, batch, anew=True)["logits"]
    output = logits if model.head.labels else seen[0]
    return output.reshape(-1, output.shape[-1])


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
