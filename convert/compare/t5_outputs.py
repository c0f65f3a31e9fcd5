"""What a T5, or a classifier on its encoder, computes: in Limba, in NumPy and in transformers."""

import functools
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons import table as addons
from limba.checkpoint_files import run_folder
from limba.convert.compare import (
    finite_logits,
    float64,
    forward,
    numpy_t5,
    outputs,
    transformers_library,
)
from limba.convert.compare.comparison_rows import Comparison, compare_tensors
from limba.convert.compare.outputs import Batch, Logits, Measures, Output
from limba.convert.families import networks
from limba.convert.families.config_files import t5_config
from limba.convert.model_files.model import T5Model
from limba.convert.tensors import table
from limba.files.untrusted_files import shown_list
from limba.network import own_layers
from limba.network.t5 import T5Config

_INPUTS_LENGTH, _TARGETS_LENGTH = 48, 24
_GREEDY_TOKENS = 8


def compare_networks(a: T5Model, b: T5Model) -> Comparison:
    """Raises ValueError if a setting, a label or the shape of a tensor differs."""
    if a.head.labels != b.head.labels:
        of_a, of_b = (f"a classifier of {shown_list(m.head.labels)}" if m.head.labels else "a whole T5" for m in (a, b))
        raise ValueError(f"A ({a.path}) is {of_a} and B ({b.path}) is {of_b}.")
    shapes_a, shapes_b = ({name: t.shape for name, t in m.tensors.items()} for m in (a, b))
    table.verify(f"B ({b.path})", shapes_b, shapes_a)
    settings_a, settings_b = (vars(networks.plain(model.config)) for model in (a, b))
    for field, ours in settings_a.items():
        theirs = settings_b[field]
        if ours != theirs:
            ours, theirs = ([*x] if isinstance(x, tuple) else x for x in (ours, theirs))
            of_a, of_b = (", assumed" if field in m.assumed else "" for m in (a, b))
            raise ValueError(f"{field} is {ours!r} in A ({a.path}{of_a}) and {theirs!r} in B ({b.path}{of_b}).")
    return Comparison("settings that differ", 0, 0, f"of {len(settings_a.keys() - networks.of_runs(a.config).keys())}")


def compare_parameters(a: T5Model, b: T5Model) -> Comparison:
    """How many tensors differ, after rounding to the narrower dtype, and by how much."""
    return compare_tensors(a.tensors, b.tensors)


def text_tokens(model: T5Model, text: str) -> Sequence[int] | None:
    """The text in the vocabulary of a model; None if it has none that can be read."""
    from limba.tasks.pretraining import masked_text

    vocabulary, file = model.vocabulary, model.vocabulary_file
    if not vocabulary or not (run_folder.is_bytes(vocabulary) or (file and Path(file).is_file())):
        return None
    return masked_text.open_vocabulary(vocabulary).encode(text)


def check_batch(config: T5Config, text: np.ndarray) -> dict[str, np.ndarray]:
    """Int32 features `[2, length]`: a row of tokens drawn from the whole vocabulary, and one of the text and padding.

    The text is tokens `[length]`; with none, the second row is drawn too.
    """
    vocab_size = config.vocab_size
    rng = np.random.default_rng(0)
    # A window is shorter than the row.
    length = _INPUTS_LENGTH + (0 if config.encoder_attention is None else config.encoder_attention.window)
    inputs = rng.integers(min(3, vocab_size - 1), vocab_size, (2, length), np.int32)
    targets = rng.integers(min(3, vocab_size - 1), vocab_size, (2, _TARGETS_LENGTH), np.int32)
    if text.size:
        half = np.minimum(text[: length // 2], vocab_size - 1)
        inputs[1, : half.size] = half
        targets[1] = np.resize(np.minimum(text, vocab_size - 1), _TARGETS_LENGTH)
    inputs[1, length // 2 :] = 0
    decoder_inputs = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    # Limba's network puts it in place of 0; the others take the tokens as they are.
    decoder_inputs[:, 0] = config.decoder_start_token_id
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": decoder_inputs,
        "decoder_target_tokens": targets,
    }


def in_limba(model: T5Model, batch: Batch) -> Logits:
    """Float32 logits `[batch, targets_length, vocab]`; of a classifier `[batch, inputs_length, labels]`.

    Raises:
      NotFiniteError: if one is not finite.
    """
    run = functools.partial(forward.logits, model.config, model.tensors, batch)
    if model.head.labels:
        tokens = batch["encoder_input_tokens"]
        run = functools.partial(forward.token_logits, model.config, model.head.labels, model.tensors, tokens)
    logits = run()
    finite_logits.require(str(model.path), logits, run)
    return {"logits": logits}


def measures(model: T5Model, batch: Batch) -> Measures:
    """The logits of a folder in float64, or the reason why there are none."""
    folder = model.folder
    assert folder is not None
    if own := own_layers.of(model.config):
        return f"the network has {', '.join(own)}"
    if reason := numpy_t5.possible(folder.content):
        return reason
    weights = (numpy_t5.FlaxWeights if folder.is_flax else numpy_t5.TorchWeights)(folder.stored)
    compute: Any = importlib.import_module(model.family.numpy_forward).logits
    if model.head.labels:
        compute = numpy_t5.token_logits

    def logits(*given: Any) -> np.ndarray:
        *tokens, rounding = given
        return _in_order(model, compute(weights, folder.content, *(_other_ids(model, x) for x in tokens), rounding))

    tokens = batch["encoder_input_tokens"]
    if model.head.labels:
        return {"logits": float64.measure(logits, tokens, counted=tokens != 0)}  # Those of padding mean nothing.
    return {"logits": float64.measure(logits, tokens, batch["decoder_input_tokens"])}


def _other_ids(model: T5Model, ids: np.ndarray) -> np.ndarray:
    """The folder's ids of Limba's, or Limba's of the folder's: padding may be exchanged."""
    return table.exchanged(model.config.vocab_size, 0, model.pad_id)[ids].astype(ids.dtype) if model.pad_id else ids


def _in_order(model: T5Model, logits: np.ndarray) -> np.ndarray:
    """A folder's logits in the order of Limba's ids."""
    has_order = model.pad_id and not model.head.labels
    return logits[..., table.exchanged(model.config.vocab_size, 0, model.pad_id)] if has_order else logits


def in_transformers(model: T5Model, batch: Batch) -> Output:
    """What the class of Hugging Face computes."""
    folder: Any = model.folder
    if folder.is_flax:
        return Output(reason="the weights are Flax's")
    if (part := next(addons.parts("in_transformers"), None)) is None:
        return Output(reason=outputs.NO_ADDON)
    if reason := part.possible(model.family):
        return Output(reason=reason)
    request = {"format": folder.format, "num_tokens": 0 if model.head.labels else _GREEDY_TOKENS}
    in_folder = {name: _other_ids(model, ids) for name, ids in batch.items()}
    config = model.family.with_own_keys(folder.content)
    answer = part.run_t5(Path(model.path), config, model.dtype, in_folder, request)
    # The PyTorch class of some families scales the logits of untied models; see `T5Family.scales_untied`.
    scales = model.family.scales_untied and not model.config.logits_via_embedding and not model.head.labels
    is_5 = int((transformers_library.version() or "0").split(".")[0]) > 4
    logits = answer["logits"] * np.float32(model.config.emb_dim**0.5 if scales and is_5 else 1)
    tokens = answer.get("tokens")
    return Output({"logits": _in_order(model, logits)}, None if tokens is None else _other_ids(model, tokens))


def compare_tokens(
    a: T5Model, batch: Batch, others: Sequence[tuple[str, T5Model, Measures, Output]]
) -> Iterator[Comparison]:
    """The rows for what `generate` of others gives, greedily; A is run in Limba."""
    folder: Any = next(model.folder for _, model, *_ in others if model.folder is not None)
    eos_id = t5_config.in_folder(folder.content["eos_token_id"], folder.pad_id)
    ours = forward.greedy(a.config, a.tensors, batch["encoder_input_tokens"], _GREEDY_TOKENS, eos_id)
    for label, model, found, output in others:
        if output.tokens is not None and not isinstance(found, str):
            differ = _different_rows(model, batch, ours, output.tokens)
            yield Comparison(f"greedy tokens, {label} in PyTorch", differ, 0, f"{_GREEDY_TOKENS} a row")


def _different_rows(model: T5Model, batch: Mapping[str, np.ndarray], ours: np.ndarray, theirs: np.ndarray) -> int:
    """The number of rows whose greedy tokens differ. A tie does not count: rounding may exchange the two tokens."""
    differ = [i for i in range(len(ours)) if not np.array_equal(ours[i], theirs[i])]
    if not differ:
        return 0
    starts = batch["decoder_input_tokens"][:, :1]
    found = measures(model, {**batch, "decoder_input_tokens": np.concatenate([starts, ours[:, :-1]], 1)})
    assert not isinstance(found, str)
    measure, count = found["logits"], 0
    for row in differ:
        first = int(np.argmax(ours[row] != theirs[row]))
        gap = measure.logits[row, first, ours[row, first]] - measure.logits[row, first, theirs[row, first]]
        count += not abs(float(gap)) <= 2 * measure.allowed
    return count
