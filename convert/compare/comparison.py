"""Are two T5s the same? Parameters by name, then logits, loss and greedy output on the same tokens.

Models are run tensor by tensor, in our network and, for a Hugging Face folder, in other people's: a mistake in the
table of names, which both directions share, shows there.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from convert.compare import (
    finite_logits,
    float64,
    forward,
    numpy_t5,
    torch_forward,
    transformers_library,
    transformers_process,
)
from convert.compare.comparison_rows import Comparison, compare_tensors, compare_vocabularies, narrower
from convert.compare.float64 import Measure
from convert.model_files import any_format
from convert.model_files.any_format import Model
from convert.tensors import names
from limba.checkpoint_files import run_folder
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.machine.untrusted_files import shown_list
from limba.network import own_layers

_INPUTS_LENGTH, _TARGETS_LENGTH = 48, 24
_GREEDY_TOKENS = 8
TEXT = (
    "The quick brown fox jumps over the lazy dog. Câinele leneș doarme; vulpea, nu. 12.5 % – „știi?” Über 3 Äpfel, "
    "ça va: быстрая лиса и собака, 狐は犬を跳び越える."
)


def compare(a: Model, b: Model, text: str = TEXT) -> list[Comparison]:
    """Compares two models: the text is encoded with the vocabulary of either.

    Logits are measured by those in float64 of a folder; see `convert.compare.float64`. Where the dtypes of tensors
    differ, both are rounded to the narrower.

    Raises:
      ValueError: if they are of different networks, or one cannot be read.
      NotFiniteError: if the logits of one are not finite.
    """
    settings = [_compare_networks(a, b), *_assumed("A", a), *_assumed("B", b)]
    tokens_a, tokens_b = (_tokens(model, text) for model in (a, b))
    rows = [compare_tensors(a.tensors, b.tensors), *settings, compare_vocabularies(tokens_a, tokens_b)]
    tensors_differ = bool(rows[0].value)
    a, b = _rounded(a, b)
    batch = check_batch(a.config.vocab_size, np.asarray(tokens_a or tokens_b or (), np.int32))
    # Limba's network puts it in place of 0; the others take the tokens as they are.
    batch["decoder_input_tokens"][:, 0] = a.config.decoder_start_token_id
    with tqdm(desc="comparing logits", unit=" passes", disable=None) as bar:
        # Others first: transformers has a process of its own, which is gone before our network takes memory.
        others = []
        for label, model in (("A", a), ("B", b)):
            if model.folder is not None:
                others.append((label, model, _measure(model, batch), _in_transformers(model, batch)))
                bar.update(2)
        logits = _logits(a, batch)
        bar.update()
        rows.append(_b_in_limba(logits, b, batch, tensors_differ))
        tokens = np.zeros(0, np.int32)
        if any(output.tokens is not None for *_, output in others):
            tokens = forward.greedy(a.config, a.tensors, batch["encoder_input_tokens"], _GREEDY_TOKENS)
            bar.update()
        for label, model, measure, output in others:
            targets = None if model.head else batch["decoder_target_tokens"]
            rows += _compare_output(f"{label} in PyTorch", output, measure, targets)
            rows += _compare_output(f"{label} in NumPy", _Output(logits), measure, targets)
            if output.tokens is not None and isinstance(measure, Measure):
                differ = _different_rows(model, batch, tokens, output.tokens)
                rows.append(Comparison(f"greedy tokens, {label} in PyTorch", differ, 0, f"{_GREEDY_TOKENS} a row"))
    return rows


def with_source(model: Model) -> Callable[[Path, Mapping[str, SavedTensor]], list[Comparison]]:
    """Compares the checkpoint in a folder, with all that it says of itself, with the model it was made of."""
    return lambda path, saved: compare(model, any_format.open_checkpoint(path))


# ------------------------------------------------------- networks ----------------------------------------------------

# Fields that belong to a run: they change how a network is trained or computed, and not what it is.
_OF_RUNS = (
    *("dtype", "dropout_rate", "float32_attention_logits", "one_hot_embedding", "scan_layers", "remat_policy"),
    *("param_scan_axis", "joined_attention_kernels", "kernels"),
)


def _compare_networks(a: Model, b: Model) -> Comparison:
    """Raises ValueError if a setting, a label or the shape of a tensor differs."""
    if a.labels != b.labels:
        of_a, of_b = (f"a classifier of {shown_list(m.labels)}" if m.head else "a whole T5" for m in (a, b))
        raise ValueError(f"A ({a.path}) is {of_a} and B ({b.path}) is {of_b}.")
    shapes_a, shapes_b = ({name: t.shape for name, t in m.tensors.items()} for m in (a, b))
    names.verify(f"B ({b.path})", shapes_b, shapes_a)
    fields = [field.name for field in dataclasses.fields(a.config) if field.name not in _OF_RUNS]
    for field in fields:
        ours, theirs = ([*x] if isinstance(x := getattr(m.config, field), tuple | list) else x for m in (a, b))
        if ours != theirs:
            of_a, of_b = (", assumed" if field in m.assumed else "" for m in (a, b))
            raise ValueError(f"{field} is {ours!r} in A ({a.path}{of_a}) and {theirs!r} in B ({b.path}{of_b}).")
    return Comparison("settings that differ", 0, 0, f"of {len(fields)}")


def _assumed(label: str, model: Model) -> Iterator[Comparison]:
    for name, value in model.assumed.items():
        yield Comparison(f"{name}, {label}", None, 0, f"assumed: {value}; the checkpoint does not say it")


# ----------------------------------------------------- parameters ----------------------------------------------------


def compare_parameters(a: Model, b: Model) -> Comparison:
    """How many tensors differ, after rounding to the narrower dtype, and by how much."""
    return compare_tensors(a.tensors, b.tensors)


def _rounded(a: Model, b: Model) -> tuple[Model, Model]:
    """Both in the narrower of their dtypes."""
    dtype = narrower(a.dtype, b.dtype)
    return a.cast(dtype), b.cast(dtype)


# -------------------------------------------------------- logits -----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Output:
    """The output of one implementation: logits and perhaps greedy tokens, or the reason why there are none."""

    logits: np.ndarray | None = None
    tokens: np.ndarray | None = None
    reason: str = ""


_Batch = Mapping[str, np.ndarray]


def _logits(model: Model, batch: _Batch) -> np.ndarray:
    run = functools.partial(forward.logits, model.config, model.tensors, batch)
    if model.head:
        tokens = batch["encoder_input_tokens"]
        run = functools.partial(forward.token_logits, model.config, model.labels, model.tensors, tokens)
    logits = run()
    finite_logits.require(str(model.path), logits, run)
    return logits


def _b_in_limba(logits: np.ndarray, b: Model, batch: _Batch, tensors_differ: bool) -> Comparison:
    what = "logits, B in Limba"
    if tensors_differ:
        return Comparison(what, float64.largest_difference(logits, _logits(b, batch)), 0.0)
    # Once more would be the same computation.
    if b.head:
        return Comparison(what, None, 0, "those of A, as are tensors and network")
    loss = forward.loss(logits, batch["decoder_target_tokens"])
    return Comparison(what, None, 0, f"those of A, as are tensors and network; loss of random tokens {loss:.6f}")


def _compare_output(
    label: str, output: _Output, measure: Measure | str, targets: np.ndarray | None
) -> Iterator[Comparison]:
    """Of logits, and of the loss of the targets if there are some."""
    if output.logits is None or isinstance(measure, str):
        yield Comparison(f"logits, {label}", None, 0, output.reason or str(measure))
        return
    yield measure.compare(f"logits, {label}", output.logits)
    if targets is None:
        return
    losses = [forward.loss(x, targets) for x in (output.logits, measure.logits)]
    # The logarithm of the sum and the target's logit may differ by as much as logits do.
    yield measure.row(f"loss, {label}", abs(losses[0] - losses[1]), 2, f"{losses[0]:.6f}")


def _measure(model: Model, batch: _Batch) -> Measure | str:
    """The logits of a folder in float64, or the reason why there are none."""
    folder = model.folder
    assert folder is not None
    if own := own_layers.of(model.config):
        return f"the network has {', '.join(own)}"
    if reason := numpy_t5.possible(folder.content):
        return reason
    weights = (numpy_t5.FlaxWeights if folder.is_flax else numpy_t5.TorchWeights)(folder.stored)
    if model.head:
        run = functools.partial(numpy_t5.token_logits, weights, folder.content)
        tokens = batch["encoder_input_tokens"]
        return float64.measure(run, tokens, counted=tokens != 0)  # Logits of padding mean nothing.
    run = functools.partial(numpy_t5.logits, weights, folder.content)
    return float64.measure(run, batch["encoder_input_tokens"], batch["decoder_input_tokens"])


def _in_transformers(model: Model, batch: _Batch) -> _Output:
    folder = model.folder
    assert folder is not None
    if folder.is_flax:
        return _Output(reason="the weights are Flax's")
    if reason := torch_forward.possible(folder.family):
        return _Output(reason=reason)
    logits, tokens = transformers_process.logits_and_tokens(
        Path(model.path), folder.content, folder.format, model.dtype, batch, 0 if model.head else _GREEDY_TOKENS
    )
    # The PyTorch class of some families scales the logits of untied models; see `Family.scales_untied`.
    scales = model.family.scales_untied and not model.config.logits_via_embedding and not model.head
    is_5 = int((transformers_library.version() or "0").split(".")[0]) > 4
    return _Output(logits * np.float32(model.config.emb_dim**0.5 if scales and is_5 else 1), tokens)


def _tokens(model: Model, text: str) -> Sequence[int] | None:
    """The text in the vocabulary of a model; None if it has none that can be read."""
    from tasks.pretraining import masked_text

    vocabulary = model.vocabulary
    file = vocabulary and run_folder.vocabulary_file(vocabulary)
    if not vocabulary or not (run_folder.is_bytes(vocabulary) or (file and Path(file).is_file())):
        return None
    return masked_text.open_vocabulary(vocabulary).encode(text)


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


def _different_rows(model: Model, batch: _Batch, ours: np.ndarray, theirs: np.ndarray) -> int:
    """The number of rows whose greedy tokens differ. A tie does not count: rounding may exchange the two tokens."""
    differ = [i for i in range(len(ours)) if not np.array_equal(ours[i], theirs[i])]
    if not differ:
        return 0
    starts = batch["decoder_input_tokens"][:, :1]
    measure = _measure(model, {**batch, "decoder_input_tokens": np.concatenate([starts, ours[:, :-1]], 1)})
    assert isinstance(measure, Measure)
    count = 0
    for row in differ:
        first = int(np.argmax(ours[row] != theirs[row]))
        gap = measure.logits[row, first, ours[row, first]] - measure.logits[row, first, theirs[row, first]]
        count += not abs(float(gap)) <= 2 * measure.allowed
    return count
