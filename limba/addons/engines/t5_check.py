"""The proof of a T5 by an engine: scores of targets and greedy tokens, in batches of several lengths.

With the weights that the engine's files have, Limba's network computes, too, and `convert.compare.numpy_t5` in float64,
which also says what rounding may change. Equal greedy tokens alone prove little: logits that are multiplied by a number
have the same ones.
"""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from limba.convert.compare import forward, t5_outputs
from limba.convert.compare.comparison import TEXT
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.compare.float64 import Measure, largest_difference
from limba.convert.compare.outputs import Batch
from limba.convert.families.config_files import t5_config
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hf_tokenizer
from limba.convert.model_files.hf.hf_tokenizer import Tokenizer
from limba.convert.model_files.hf.special_tokens import OF_T5
from limba.convert.model_files.model import T5Model

PAD, EOS = forward.PAD_ID, OF_T5.eos.id  # EOS where `require_usual_ids` is asked.
# Tokens of each row, without the end.
_INPUTS, _TARGETS = (47, 23, 6, 1), (23, 11, 4, 1)
GREEDY_TOKENS = 16


def require_usual_ids(model: T5Model, tokenizer: Tokenizer, engine: str) -> None:
    """Raises ValueError for a T5 whose special tokens have other ids than T5's."""
    if model.pad_id != PAD or (tokenizer.special.eos, tokenizer.special.unk) != (OF_T5.eos, OF_T5.unk):
        ids = {role: token and token.id for role, token in tokenizer.special._asdict().items()}
        raise ValueError(
            f"{model.path} has other special tokens than T5's <pad> 0, </s> 1 and <unk> 2: padding {model.pad_id}, end "
            f"{t5_config.in_folder(ids['eos'], model.pad_id)}. Limba writes none of these for {engine}; `limba convert "
            "to-hf` exports it, and `limba serve` serves it."
        )


def in_limbas_ids(model: T5Model) -> T5Model:
    """The model for an engine that knows tokens by their texts: with Limba's ids, whatever those of its folder are."""
    if model.pad_id == PAD:
        return model
    settings = dataclasses.replace(model.tokenizer_settings, pad_id=PAD)
    return dataclasses.replace(model, folder=None, tokenizer_settings=settings)


class T5Engine(abc.ABC):
    """An engine that has loaded a T5. Ids are int32 `[rows, length]`, with padding behind the end."""

    name: ClassVar[str]

    @abc.abstractmethod
    def scores(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The log-probabilities of targets, 0 for padding."""

    @abc.abstractmethod
    def greedy(self, inputs: np.ndarray) -> np.ndarray:
        """The likeliest tokens one after another, `[rows, GREEDY_TOKENS]`; after EOS comes padding."""

    def outputs(self, model: T5Model, batch: Batch, measure: Measure) -> Iterator[Comparison]:
        """Rows for what else the engine gives; `measure` is of the batch's logits."""
        return iter(())


def compare(model: T5Model, engine: T5Engine, text_from: T5Model) -> list[Comparison]:
    """Compares an engine with the model whose weights it has.

    Args:
      model: with a folder that NumPy's T5 reads.
      text_from: whose vocabulary the text of a row is in.

    Raises:
      NotFiniteError: if the model's logits are not finite.
    """
    inputs, targets = rows_of(text_from)
    batch = _batch(model, inputs, targets, engine.greedy(inputs))
    measures = t5_outputs.measures(model, batch)
    assert not isinstance(measures, str), "an activation that the engine has and NumPy's T5 does not"
    measure, of_rows = measures["logits"], batch["decoder_target_tokens"]
    ours = t5_outputs.in_limba(model, batch)["logits"]
    count = len(targets)
    expected, theirs = scores(measure.logits[:count], targets), engine.scores(inputs, targets)
    note = (
        f"of {np.count_nonzero(targets)} tokens in {count} rows of several lengths; loss {_loss(theirs, targets):.6f}"
    )
    behind = _behind(measure.logits[count:], of_rows[count:])
    num_greedy = np.count_nonzero(of_rows[count:])
    return [
        measure.row("logits, Limba and NumPy", largest_difference(ours, measure.logits, of_rows != PAD)),
        *engine.outputs(model, batch, measure),
        # The logarithm of the sum and the target's logit may differ by as much as logits do.
        measure.row(f"log-probabilities, {engine.name}", largest_difference(theirs, expected), 2, note),
        Comparison(
            f"other greedy tokens, {engine.name}", int((behind > 2 * measure.allowed).sum()), 0, f"of {num_greedy}"
        ),
    ]


def compare_quantized(model: T5Model, engine: T5Engine, quantization: str, dtype: str) -> Iterator[Comparison]:
    """What quantization changes: figures, of which nothing is demanded.

    Args:
      model: with its own weights.
      engine: has the quantized ones, and computes in `dtype`.
    """
    inputs, targets = rows_of(model)
    batch = _batch(model, inputs, targets, engine.greedy(inputs))
    logits = t5_outputs.in_limba(model.cast(np.dtype(np.float32)), batch)["logits"]
    count = len(targets)
    before, after = _loss(scores(logits[:count], targets), targets), _loss(engine.scores(inputs, targets), targets)
    note = f"{after - before:+.6f}: {after:.6f} in {dtype}, {before:.6f} with the model's own weights in float32"
    yield Comparison(f"loss, {quantization}", None, 0, note)
    greedy = batch["decoder_target_tokens"][count:]
    same = np.count_nonzero(greedy) - int((_behind(logits[count:], greedy) > 0).sum())
    note = f"{same} of {np.count_nonzero(greedy)} are the likeliest with its own weights, too"
    yield Comparison(f"greedy tokens, {quantization}", None, 0, note)


def rows_of(model: T5Model) -> tuple[np.ndarray, np.ndarray]:
    eos_id = hf_tokenizer.from_vocabulary(any_format.known_vocabulary(model)).special.eos.id
    return check_rows(model.config.vocab_size, t5_outputs.text_tokens(model, TEXT) or (), eos_id)


def check_rows(vocab_size: int, text: Sequence[int], eos_id: int = EOS) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets `[rows, length]` of several lengths, each with its end.

    The second row is of the text, the others of tokens drawn from the whole vocabulary.
    """
    rng = np.random.default_rng(0)
    found = []
    for lengths in (_INPUTS, _TARGETS):
        features = np.zeros((len(lengths), max(lengths) + 1), np.int32)
        for row, length in zip(features, lengths, strict=True):
            row[:length] = rng.integers(min(3, vocab_size - 1), vocab_size, length)
            row[length] = eos_id
        if len(text):
            features[1, : lengths[1]] = np.resize(np.minimum(text, vocab_size - 1), lengths[1])
        found.append(features)
    return found[0], found[1]


def _batch(model: T5Model, inputs: np.ndarray, targets: np.ndarray, greedy: np.ndarray) -> Batch:
    """The rows with their targets, and once more with greedy tokens as these, up to a padding among them.

    A model may decode it, and Limba's network takes it for the beginning where that has another id.
    """
    greedy = greedy * np.cumprod(greedy != PAD, 1)
    targets = np.concatenate([targets, np.pad(greedy, ((0, 0), (0, targets.shape[1] - greedy.shape[1])))])
    return {
        "encoder_input_tokens": np.concatenate([inputs, inputs]),
        "decoder_input_tokens": decoder_inputs(model, targets),
        "decoder_target_tokens": targets,
    }


def decoder_inputs(model: T5Model, targets: np.ndarray) -> np.ndarray:
    """Targets `[rows, length]`, shifted to the right behind the id that begins."""
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    shifted[:, 0] = model.config.decoder_start_token_id
    return shifted


def scores(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The log-probabilities of targets `[rows, length]`, 0 for padding."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    picked = np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
    return np.where(targets == PAD, 0, picked - np.log(np.exp(shifted).sum(-1)))


def _loss(scores: np.ndarray, targets: np.ndarray) -> float:
    return -float(scores.sum()) / np.count_nonzero(targets)


def _behind(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """How far the logits of tokens `[rows, length]` are behind the largest ones, 0 for padding."""
    picked = np.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return np.where(tokens == PAD, 0, logits.max(-1) - picked)
