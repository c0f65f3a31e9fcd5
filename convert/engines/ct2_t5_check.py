"""The proof of a T5 for CTranslate2, by the engine: scores of targets and greedy tokens, in batches of several lengths.

The engine computes in float32 with the weights that the file has. So do, with the model's own tensors rounded as the
file's are, Limba's network, and `convert.compare.numpy_t5` in float64, which also says what rounding may change. Equal
greedy tokens alone prove little: logits that are multiplied by a number have the same ones.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.compare import forward, t5_outputs
from convert.compare.comparison import TEXT
from convert.compare.comparison_rows import Comparison
from convert.compare.float64 import largest_difference
from convert.compare.outputs import Batch
from convert.engines import ct2_library, ct2_weights
from convert.families.config_files import t5_config
from convert.model_files.model import Folder, T5Model

_EOS, _PAD = forward.EOS_ID, forward.PAD_ID
# Tokens of each row, without the end.
_INPUTS, _TARGETS = (47, 23, 6, 1), (23, 11, 4, 1)
_GREEDY_TOKENS = 16


def compare(model: T5Model, folder: Path, tokens: Sequence[str], quantization: str) -> list[Comparison]:
    """Compares a folder with the model that it was made of.

    Raises:
      ValueError: if the engine cannot load the folder.
      NotFiniteError: if the model's logits are not finite.
    """
    inputs, targets = check_rows(model.config.vocab_size, t5_outputs.text_tokens(model, TEXT) or ())
    engine = _Engine(folder, tokens, "float32")
    batch = _batch(model, inputs, targets, engine.greedy(inputs))
    in_file = _as_in_file(model, quantization)
    measures = t5_outputs.measures(in_file, batch)
    assert not isinstance(measures, str), "an activation that CTranslate2 has and NumPy's T5 does not"
    measure, of_rows = measures["logits"], batch["decoder_target_tokens"]
    ours = t5_outputs.in_limba(in_file, batch)["logits"]
    count = len(targets)
    expected, theirs = scores(measure.logits[:count], targets), engine.scores(inputs, targets)
    note = (
        f"of {np.count_nonzero(targets)} tokens in {count} rows of several lengths; loss {_loss(theirs, targets):.6f}"
    )
    behind = _behind(measure.logits[count:], of_rows[count:])
    num_greedy = np.count_nonzero(of_rows[count:])
    return [
        measure.row("logits, Limba and NumPy", largest_difference(ours, measure.logits, of_rows != _PAD)),
        # The logarithm of the sum and the target's logit may differ by as much as logits do.
        measure.row("log-probabilities, CTranslate2", largest_difference(theirs, expected), 2, note),
        Comparison(
            "other greedy tokens, CTranslate2", int((behind > 2 * measure.allowed).sum()), 0, f"of {num_greedy}"
        ),
        *(_cost(model, (inputs, targets), folder, tokens, quantization) if quantization != "float32" else ()),
    ]


def check_rows(vocab_size: int, text: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets `[rows, length]` of several lengths, each with its end.

    The second row is of the text, the others of tokens drawn from the whole vocabulary.
    """
    rng = np.random.default_rng(0)
    found = []
    for lengths in (_INPUTS, _TARGETS):
        features = np.zeros((len(lengths), max(lengths) + 1), np.int32)
        for row, length in zip(features, lengths, strict=True):
            row[:length] = rng.integers(min(3, vocab_size - 1), vocab_size, length)
            row[length] = _EOS
        if len(text):
            features[1, : lengths[1]] = np.resize(np.minimum(text, vocab_size - 1), lengths[1])
        found.append(features)
    return found[0], found[1]


def _batch(model: T5Model, inputs: np.ndarray, targets: np.ndarray, greedy: np.ndarray) -> Batch:
    """The rows with their targets, and once more with greedy tokens as these."""
    targets = np.concatenate([targets, np.pad(greedy, ((0, 0), (0, targets.shape[1] - greedy.shape[1])))])
    decoder_inputs = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    decoder_inputs[:, 0] = model.config.decoder_start_token_id
    return {
        "encoder_input_tokens": np.concatenate([inputs, inputs]),
        "decoder_input_tokens": decoder_inputs,
        "decoder_target_tokens": targets,
    }


def scores(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The log-probabilities of targets `[rows, length]`, 0 for padding."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    picked = np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
    return np.where(targets == _PAD, 0, picked - np.log(np.exp(shifted).sum(-1)))


def _loss(scores: np.ndarray, targets: np.ndarray) -> float:
    return -float(scores.sum()) / np.count_nonzero(targets)


def _behind(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """How far the logits of tokens `[rows, length]` are behind the largest ones, 0 for padding."""
    picked = np.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return np.where(tokens == _PAD, 0, logits.max(-1) - picked)


def _as_in_file(model: T5Model, quantization: str) -> T5Model:
    """The model with the numbers that the file has of its weights, as a folder that NumPy's T5 reads."""
    stored = ct2_weights.rounded(ct2_weights.stored(model), quantization)
    content = t5_config.model_config(model.config, model.family, "float32", None)
    tensors = model.cast(np.dtype(np.float32)).tensors
    if quantization != "float32":
        table = model.family.table(model.config, model.head)
        tensors = {name: t for row in table for name, t in row.limbas(stored[row.name]).items()}
    folder = Folder(t5_config.explicit(content, model.config), stored, "safetensors")
    return dataclasses.replace(model, tensors=tensors, folder=folder)


def _cost(
    model: T5Model, rows: tuple[np.ndarray, np.ndarray], folder: Path, tokens: Sequence[str], quantization: str
) -> Iterator[Comparison]:
    """What quantization changes: figures, of which nothing is demanded."""
    inputs, targets = rows
    compute_type = "int8" if quantization == ct2_weights.INT8 else "float32"
    if compute_type not in ct2_library.engine().get_supported_compute_types("cpu"):
        yield Comparison(
            f"loss, {quantization}", None, 0, f"not compared: this machine does not compute {compute_type}"
        )
        return
    engine = _Engine(folder, tokens, compute_type)
    batch = _batch(model, inputs, targets, engine.greedy(inputs))
    logits = t5_outputs.in_limba(model.cast(np.dtype(np.float32)), batch)["logits"]
    count = len(targets)
    before, after = _loss(scores(logits[:count], targets), targets), _loss(engine.scores(inputs, targets), targets)
    note = f"{after - before:+.6f}: {after:.6f} in {compute_type}, {before:.6f} with the model's own weights in float32"
    yield Comparison(f"loss, {quantization}", None, 0, note)
    greedy = batch["decoder_target_tokens"][count:]
    same = np.count_nonzero(greedy) - int((_behind(logits[count:], greedy) > 0).sum())
    note = f"{same} of {np.count_nonzero(greedy)} are the likeliest with its own weights, too"
    yield Comparison(f"greedy tokens, {quantization}", None, 0, note)


class _Engine:
    """`ctranslate2.Translator`, with ids in place of tokens."""

    def __init__(self, folder: Path, tokens: Sequence[str], compute_type: str):
        library = ct2_library.engine()
        try:
            self._translator: Any = library.Translator(str(folder), device="cpu", compute_type=compute_type)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"CTranslate2 {library.__version__} cannot load what was written: {error}") from error
        self._tokens, self._ids = tokens, {token: id_ for id_, token in enumerate(tokens)}

    def scores(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The log-probabilities of targets `[rows, length]`, 0 for padding."""
        # It adds the end of targets itself, and that of inputs not.
        found = self._translator.score_batch(self._texts(inputs), [row[:-1] for row in self._texts(targets)])
        padded = np.zeros(targets.shape)
        for row, result in zip(padded, found, strict=True):
            row[: len(result.log_probs)] = result.log_probs
        return padded

    def greedy(self, inputs: np.ndarray) -> np.ndarray:
        """The likeliest tokens one after another, int32 `[rows, tokens]`; after EOS comes padding."""
        found = self._translator.translate_batch(
            self._texts(inputs),
            beam_size=1,
            max_decoding_length=_GREEDY_TOKENS,
            min_decoding_length=0,
            return_end_token=True,
        )
        padded = np.zeros((len(inputs), _GREEDY_TOKENS), np.int32)
        for row, result in zip(padded, found, strict=True):
            ids = [self._ids[token] for token in result.hypotheses[0]]
            row[: len(ids)] = ids
        return padded

    def _texts(self, ids: np.ndarray) -> list[list[str]]:
        return [[self._tokens[i] for i in row[row != _PAD]] for row in ids]
