"""Are two T5s the same? Parameters by name, then logits, loss and greedy output on the same tokens.

Models are run tensor by tensor, in our network and, for a Hugging Face folder, in other people's: a mistake in the
table of names, which both directions share, shows there.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import sentencepiece
from tqdm import tqdm

from convert.compare import forward, numpy_t5, torch_forward, transformers_library, transformers_process
from convert.compare.comparison_rows import Comparison, compare_tensors, tolerance
from convert.model_files import any_format
from convert.model_files.any_format import Model
from convert.tensors import names
from limba.checkpoint_files import run_folder
from limba.checkpoint_files.saved_tensors import SavedTensor

_INPUTS_LENGTH, _TARGETS_LENGTH = 48, 24
_GREEDY_TOKENS = 8
TEXT = (
    "The quick brown fox jumps over the lazy dog. Câinele leneș doarme; vulpea, nu. 12.5 % – „știi?” Über 3 Äpfel, "
    "ça va: быстрая лиса и собака, 狐は犬を跳び越える."
)


def compare(a: Model, b: Model, text: str = TEXT) -> list[Comparison]:
    """Compares two models: the logits of `a` are the measure, and the text is encoded with the vocabulary of either.

    Where the dtypes differ, both are rounded to the narrower.

    Raises:
      ValueError: if they are of different networks, or one cannot be read.
    """
    _check_same_network(a, b)
    rows = [compare_parameters(a, b)]
    a, b = _rounded(a, b)
    batch = check_batch(a.config.vocab_size, _tokens(a, b, text))
    # Limba's network puts it in place of 0; the others take the tokens as they are.
    batch["decoder_input_tokens"][:, 0] = a.config.decoder_start_token_id
    inputs = batch["encoder_input_tokens"]
    with tqdm(desc="comparing logits", unit=" passes", file=sys.stderr) as bar:
        # Others first: transformers has a process of its own, which is gone before our network takes memory.
        others = []
        for label, run in _others(a, b):
            others.append((label, run(batch)))
            bar.update()
        logits = forward.logits(a.config, a.tensors, batch)
        bar.update()
        tokens = forward.greedy(a.config, a.tensors, inputs, _GREEDY_TOKENS)
        bar.update()
        if rows[0].value:
            ours = _Output(
                forward.logits(b.config, b.tensors, batch), forward.greedy(b.config, b.tensors, inputs, _GREEDY_TOKENS)
            )
            bar.update()
        else:  # Once more would be the same computation.
            loss = forward.loss(logits, batch["decoder_target_tokens"])
            ours = _Output(reason=f"those of A, as are tensors and network; loss of random tokens {loss:.6f}")
        allowed = tolerance(logits)
        for label, output in [("B in Limba", ours), *others]:
            if output.reason:
                rows.append(Comparison(f"logits, {label}", None, allowed, output.reason))
                continue
            assert output.logits is not None
            rows.append(Comparison(f"logits, {label}", _largest_difference(logits, output.logits), allowed))
            losses = [forward.loss(x, batch["decoder_target_tokens"]) for x in (logits, output.logits)]
            rows.append(Comparison(f"loss, {label}", abs(losses[0] - losses[1]), allowed, f"{losses[1]:.6f}"))
            if output.tokens is not None:
                differ = _different_rows(a, batch, tokens, output.tokens, allowed)
                rows.append(Comparison(f"greedy tokens, {label}", differ, 0, f"{_GREEDY_TOKENS} a row"))
    return rows


def with_source(model: Model) -> Callable[[Path, Mapping[str, SavedTensor]], list[Comparison]]:
    """Compares a train state that was made of a model, and the folder it is in, with the model."""
    return lambda path, saved: compare(model, any_format.with_tensors(model, path, saved))


# ----------------------------------------------------- parameters ----------------------------------------------------


def _check_same_network(a: Model, b: Model) -> None:
    shapes_a, shapes_b = ({name: t.shape for name, t in m.tensors.items()} for m in (a, b))
    names.verify(f"B ({b.path})", shapes_b, shapes_a)
    fields = ("mlp_activations", "logits_via_embedding", "relative_bias_per_layer", "scale_attn_logits")
    for field in (*fields, "decoder_start_token_id"):
        ours, theirs = ([*x] if isinstance(x := getattr(m.config, field), tuple | list) else x for m in (a, b))
        if ours != theirs:
            raise ValueError(f"{field} is {ours!r} in A ({a.path}) and {theirs!r} in B ({b.path}).")


def compare_parameters(a: Model, b: Model) -> Comparison:
    """How many tensors differ, after rounding to the narrower dtype, and by how much."""
    narrow_a, narrow_b = _rounded(a, b)
    return compare_tensors(narrow_a.tensors, narrow_b.tensors)


def _rounded(a: Model, b: Model) -> tuple[Model, Model]:
    """Both in the narrower of their dtypes."""
    narrower = min((a.dtype, b.dtype), key=lambda dtype: dtype.itemsize)
    return a.cast(narrower), b.cast(narrower)


# -------------------------------------------------------- logits -----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Output:
    """The output of one implementation: logits and perhaps greedy tokens, or the reason why there are none."""

    logits: np.ndarray | None = None
    tokens: np.ndarray | None = None
    reason: str = ""


_Batch = Mapping[str, np.ndarray]


def _others(a: Model, b: Model) -> Iterator[tuple[str, Callable[[_Batch], _Output]]]:
    """Implementations that run Hugging Face folders without our network: NumPy, and transformers in PyTorch."""
    for label, model in (("A", a), ("B", b)):
        if model.folder is not None:
            if not model.folder.is_flax:
                yield f"{label} in PyTorch", functools.partial(_in_transformers, model)
            yield f"{label} in NumPy", functools.partial(_in_numpy, model)


def _in_numpy(model: Model, batch: _Batch) -> _Output:
    folder = model.folder
    assert folder is not None
    if reason := numpy_t5.possible(folder.content):
        return _Output(reason=reason)
    weights = numpy_t5.FlaxWeights(folder.stored) if folder.is_flax else numpy_t5.TorchWeights(folder.stored)
    inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
    return _Output(numpy_t5.logits(weights, folder.content, inputs, targets))


def _in_transformers(model: Model, batch: _Batch) -> _Output:
    folder = model.folder
    assert folder is not None
    if reason := torch_forward.possible(folder.family):
        return _Output(reason=reason)
    logits, tokens = transformers_process.logits_and_tokens(
        Path(model.path), folder.content, folder.format, model.dtype, batch, _GREEDY_TOKENS
    )
    # The PyTorch class of some families scales the logits of untied models; see `Family.scales_untied`.
    scales = model.family.scales_untied and not model.config.logits_via_embedding
    is_5 = int((transformers_library.version() or "0").split(".")[0]) > 4
    return _Output(logits * np.float32(model.config.emb_dim**0.5 if scales and is_5 else 1), tokens)


def _tokens(a: Model, b: Model, text: str) -> np.ndarray:
    """The text in the vocabulary of either; empty if neither has one."""
    for model in (a, b):
        vocabulary = model.vocabulary
        if vocabulary is None:
            continue
        if run_folder.is_bytes(vocabulary):
            return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 3
        file = vocabulary["sentencepiece_model_file"]
        if Path(file).is_file():
            return np.asarray(sentencepiece.SentencePieceProcessor(model_file=str(file)).encode(text), np.int32)
    return np.zeros(0, np.int32)


def check_batch(vocab_size: int, text: np.ndarray) -> dict[str, np.ndarray]:
    """Int32 features `[2, length]`: a row of tokens drawn from the whole vocabulary, and one of the text and padding.

    The text is tokens `[length]`; with none, the second row is drawn too.
    """
    rng = np.random.default_rng(0)
    inputs = rng.integers(min(3, vocab_size - 1), vocab_size, (2, _INPUTS_LENGTH), np.int32)
    targets = rng.integers(min(3, vocab_size - 1), vocab_size, (2, _TARGETS_LENGTH), np.int32)
    if text.size:
        half = np.minimum(text[: _INPUTS_LENGTH // 2], vocab_size - 1)
        inputs[1, : half.size] = half
        targets[1] = np.resize(np.minimum(text, vocab_size - 1), _TARGETS_LENGTH)
    inputs[1, _INPUTS_LENGTH // 2 :] = 0
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": targets,
    }


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    difference = float(np.max(np.abs(a - b)))
    return difference if np.isfinite(difference) else float("inf")


def _different_rows(model: Model, batch: _Batch, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> int:
    """The number of rows whose greedy tokens differ. A tie does not count: the two tokens have nearly equal logits."""
    differ = [i for i in range(len(ours)) if not np.array_equal(ours[i], theirs[i])]
    if not differ:
        return 0
    inputs = np.pad(ours[:, :-1], ((0, 0), (1, 0)))
    decoded = {**batch, "decoder_input_tokens": inputs, "decoder_target_tokens": np.ones_like(ours)}
    logits = forward.logits(model.config, model.tensors, decoded)
    count = 0
    for row in differ:
        first = int(np.argmax(ours[row] != theirs[row]))
        gap = logits[row, first, ours[row, first]] - logits[row, first, theirs[row, first]]
        count += int(abs(float(gap)) > 2 * allowed)
    return count
