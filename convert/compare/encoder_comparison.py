"""Are two encoders the same? Parameters by name, then the logits of the same tokens in every implementation."""

import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from tqdm import tqdm

from convert.compare import encoder_process, numpy_encoders, transformers_library
from convert.compare.comparison_rows import Comparison, compare_tensors, tolerance
from convert.encoders import heads, tensors, tokenizer_folder
from convert.encoders.encoder_model import EncoderModel
from convert.encoders.heads import Head
from convert.tensors import names
from limba.encoders.config import EncoderConfig
from limba.machine import untrusted_files

_LENGTH = 48
# Logits by what they are of: "logits" of tokens or labels, and "pair logits" of sentence pairs.
Outputs = dict[str, np.ndarray]


def compare(a: EncoderModel, b: EncoderModel, text: str) -> list[Comparison]:
    """Compares two models: the logits of `a` are the measure, and the text is encoded with the vocabulary of either.

    Where the dtypes differ, both are rounded to the narrower. Logits of padding mean nothing and are left out.

    Raises:
      ValueError: if they are of different networks, or one cannot be read.
    """
    if (a.head.kind, a.head.labels) != (b.head.kind, b.head.labels):
        raise ValueError(f"A ({a.path}) is {_what(a.head)} and B ({b.path}) is {_what(b.head)}.")
    narrower = min((a.dtype, b.dtype), key=lambda dtype: dtype.itemsize)
    a, b = a.cast(narrower), b.cast(narrower)
    rows = [_compare_parameters(a, b)]
    batch = check_batch(a.config, _tokens(a, b, text))
    with tqdm(desc="comparing logits", unit=" passes", file=sys.stderr) as bar:
        others: list[tuple[str, Outputs | str]] = []
        for label, run in _others(a, b):
            others.append((label, run(batch)))
            bar.update()
        expected = limba_outputs(a, batch)
        bar.update()
        if rows[0].value or (tensors.plain(a.config), a.head) != (tensors.plain(b.config), b.head):
            others.insert(0, ("B in Limba", limba_outputs(b, batch)))
            bar.update()
        else:  # Once more would be the same computation.
            others.insert(0, ("B in Limba", "those of A, as are tensors and network"))
    is_token = batch["tokens"] != a.config.pad_id
    for label, found in others:
        for what, logits in expected.items():
            allowed = tolerance(logits)
            if isinstance(found, str):
                rows.append(Comparison(f"{what}, {label}", None, allowed, found))
                continue
            # A row has one place, or those of its tokens.
            real = is_token if logits.shape[1] > 1 else np.ones((2, 1), bool)
            difference = float(np.max(np.abs(logits - found[what])[real]))
            difference = difference if np.isfinite(difference) else float("inf")
            rows.append(Comparison(f"{what}, {label}", difference, allowed))
    return rows


def _what(head: Head) -> str:
    labels = f" of {untrusted_files.shown_list(head.labels)}" if head.labels else ""
    return f"a {head.class_name}{labels}"


def limba_logits(model: EncoderModel, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Float32 logits `[batch, length, vocab]` of Limba's network, in float32 without dropout.

    Those of a classifier are `[batch, length, labels]`, or `[batch, 1, labels]` of a row.
    """
    return limba_outputs(model, batch)["logits"]


def limba_outputs(model: EncoderModel, batch: Mapping[str, np.ndarray]) -> Outputs:
    """`limba_logits`, and of a network with a head for sentence pairs its "pair logits" `[batch, 1, 2]`."""
    params = traverse_util.unflatten_dict(
        {name: np.asarray(t).astype(np.float32) for name, t in model.tensors.items()}, sep="/"
    )
    types = batch["token_types"] if model.config.num_token_types else None
    with jax.default_matmul_precision("highest"):
        found = _apply(tensors.plain(model.config), model.head, params, batch["tokens"], types)
    return {name: np.asarray(logits) for name, logits in found.items()}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _apply(
    config: EncoderConfig, head: Head, params: Any, tokens: jax.Array, types: jax.Array | None
) -> dict[str, jax.Array]:
    apply: Any = functools.partial(head.network(config).apply, {"params": params}, tokens, types, enable_dropout=False)
    if head.kind != heads.PAIRS:
        return {"logits": apply()}
    logits, of_pairs = apply(pair_positions=jnp.zeros((len(tokens), 1), jnp.int32))
    return {"logits": logits, "pair logits": of_pairs}


def check_batch(config: EncoderConfig, text: np.ndarray) -> dict[str, np.ndarray]:
    """Int32 `tokens` and `token_types` `[2, length]`: a row of tokens drawn from the whole vocabulary, and one of the
    text and padding; each of two segments, if the network tells them apart."""
    rng = np.random.default_rng(0)
    length = min(_LENGTH, config.max_positions) if config.has_absolute_positions else _LENGTH
    tokens = rng.integers(0, config.vocab_size - 1, (2, length), np.int32)
    tokens += tokens >= config.pad_id  # never padding
    half = np.minimum(text[: length // 2], config.vocab_size - 1)
    tokens[1, : half.size] = half
    tokens[1, length // 2 :] = config.pad_id
    ends = np.array([[length // 3], [length // 4]])
    types = (np.arange(length) >= ends).astype(np.int32) if config.num_token_types > 1 else np.zeros_like(tokens)
    return {"tokens": tokens, "token_types": types}


def _compare_parameters(a: EncoderModel, b: EncoderModel) -> Comparison:
    """By Limba's names, or by Hugging Face's where one class holds two different networks."""
    if a.config.pad_id != b.config.pad_id:
        raise ValueError(f"The padding is {a.config.pad_id} in A ({a.path}) and {b.config.pad_id} in B ({b.path}).")
    found = (a.tensors, b.tensors)
    if {n: t.shape for n, t in a.tensors.items()} != {n: t.shape for n, t in b.tensors.items()} or (
        a.config.rotary_pairs != b.config.rotary_pairs
    ):
        if a.family != b.family:
            raise ValueError(f"A ({a.path}) is a {a.family.title} and B ({b.path}) a {b.family.title}.")
        b = dataclasses.replace(b, folder=None)
        found = (dataclasses.replace(a, folder=None).stored(), b.stored())
    names.verify(f"B ({b.path})", {n: t.shape for n, t in found[1].items()}, {n: t.shape for n, t in found[0].items()})
    return compare_tensors(*found)


def _others(
    a: EncoderModel, b: EncoderModel
) -> Iterator[tuple[str, Callable[[Mapping[str, np.ndarray]], Outputs | str]]]:
    """Implementations that run Hugging Face folders without our network."""
    for label, model in (("A", a), ("B", b)):
        if model.folder is not None:
            yield f"{label} in PyTorch", functools.partial(_in_transformers, model)
            yield f"{label} in NumPy", functools.partial(_in_numpy, model)


def _in_numpy(model: EncoderModel, batch: Mapping[str, np.ndarray]) -> Outputs:
    assert model.folder is not None
    inputs = (model.folder.stored, model.folder.content, _order(model)[batch["tokens"]], batch["token_types"])
    found = {"logits": numpy_encoders.logits(*inputs)}
    if model.head.kind == heads.PAIRS:
        found["pair logits"] = numpy_encoders.pair_logits(*inputs)
    return _in_order(found, model)


def _in_transformers(model: EncoderModel, batch: Mapping[str, np.ndarray]) -> Outputs | str:
    assert model.folder is not None
    if reason := _impossible(model):
        return reason
    order = _order(model)
    inputs = {"input_ids": order[batch["tokens"]], "attention_mask": batch["tokens"] != model.config.pad_id}
    types = {"token_type_ids": batch["token_types"]} if "type_vocab_size" in model.folder.content else {}
    found = encoder_process.logits(Path(model.path), model.dtype, model.head.kind, inputs | types)
    return _in_order(found, model)


def _in_order(outputs: Outputs, model: EncoderModel) -> Outputs:
    """Logits of the folder in Limba's order and shape."""
    # Hugging Face's logits of rows have no dim for places.
    placed = {name: x[:, None] if x.ndim == 2 else x for name, x in outputs.items()}
    return placed if model.head.labels else placed | {"logits": placed["logits"][..., _order(model)]}


def _impossible(model: EncoderModel) -> str | None:
    """Why transformers cannot run a folder here; None if it can."""
    assert model.folder is not None
    version = transformers_library.version()
    if not importlib.util.find_spec("torch"):
        return "torch is not installed"
    if version is None:
        return "transformers is not installed"
    if model.folder.is_headless:
        return "the folder has no head; a new one is in the checkpoint"
    if Path(model.path).is_file():
        return "transformers opens folders, and this is a file of weights"
    if model.config.has_relative_keys and not version.startswith("4."):
        return f"transformers {version} has no {model.config.position_embedding_type}; version 4 has"
    return None


def _order(model: EncoderModel) -> np.ndarray:
    """The folder's ids of Limba's, and Limba's of the folder's: two may be exchanged."""
    return tensors.exchanged(model.config.vocab_size, model.config.pad_id, model.pad_id)


def _tokens(a: EncoderModel, b: EncoderModel, text: str) -> np.ndarray:
    """The text in the vocabulary of either; empty if neither has one."""
    for model in (a, b):
        if model.vocabulary_file is not None:
            return np.asarray(tokenizer_folder.encode(model.vocabulary_file, text), np.int32)
    return np.zeros(0, np.int32)
