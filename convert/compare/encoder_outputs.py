"""What an encoder with its head computes: in Limba, in NumPy and in transformers."""

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from limba.addons import table as addons
from limba.convert.compare import finite_logits, float64, numpy_encoders, outputs, transformers_library
from limba.convert.compare.comparison_rows import Comparison, compare_tensors
from limba.convert.compare.outputs import Batch, Logits, Measures, Output
from limba.convert.families import heads, networks
from limba.convert.families.config_files import encoder_config
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.families.heads import Head
from limba.convert.model_files.hf import tokenizer_folder
from limba.convert.model_files.model import EncoderModel
from limba.convert.tensors import table, weight_files
from limba.files import untrusted_files
from limba.network.encoders.config import EncoderConfig

_LENGTH = 48


def compare_networks(a: EncoderModel, b: EncoderModel) -> Comparison:
    """Raises ValueError if the head or a setting differs."""
    if (a.head.kind, a.head.labels, a.head.problem) != (b.head.kind, b.head.labels, b.head.problem):
        raise ValueError(f"A ({a.path}) is {_what(a.head)} and B ({b.path}) is {_what(b.head)}.")
    if a.config.pad_id != b.config.pad_id:
        raise ValueError(f"The padding is {a.config.pad_id} in A ({a.path}) and {b.config.pad_id} in B ({b.path}).")
    if a.family != b.family and networks.plain(a.config) != networks.plain(b.config):
        raise ValueError(f"A ({a.path}) is a {a.family.title} and B ({b.path}) a {b.family.title}.")
    # As Hugging Face's class has them, which may hold two different networks of ours.
    settings_a, settings_b = (_settings(model, a.family) for model in (a, b))
    for key in settings_a | settings_b:
        ours, theirs = settings_a.get(key), settings_b.get(key)
        if ours != theirs:
            raise ValueError(f"{key} is {ours!r} in A ({a.path}) and {theirs!r} in B ({b.path}).")
    return Comparison("settings that differ", 0, 0, f"of {len(settings_a)}")


def _settings(model: EncoderModel, family: EncoderFamily) -> dict[str, Any]:
    config = networks.plain(model.config)
    return encoder_config.settings(family, config, model.head, config.pad_id)


def _what(head: Head) -> str:
    labels = f" of {untrusted_files.shown_list(head.labels)}" if head.labels else ""
    return f"a {head.class_name}{labels}"


def compare_parameters(a: EncoderModel, b: EncoderModel) -> Comparison:
    """By Limba's names, or by Hugging Face's where one class holds two different networks."""
    found = (a.tensors, b.tensors)
    if {n: t.shape for n, t in a.tensors.items()} != {n: t.shape for n, t in b.tensors.items()} or (
        a.config.rotary_pairs != b.config.rotary_pairs
    ):
        b = dataclasses.replace(b, folder=None)
        found = (dataclasses.replace(a, folder=None).stored(), b.stored())
    table.verify(f"B ({b.path})", {n: t.shape for n, t in found[1].items()}, {n: t.shape for n, t in found[0].items()})
    return compare_tensors(*found)


def text_tokens(model: EncoderModel, text: str) -> list[int] | None:
    """The text in the vocabulary of a model; None if it has none."""
    return None if model.vocabulary_file is None else tokenizer_folder.encode(model.vocabulary_file, text)


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


def in_limba(model: EncoderModel, batch: Batch) -> Logits:
    """See `limba_outputs`. Raises NotFiniteError if one that counts is not finite: those of padding mean nothing."""
    outputs = limba_outputs(model, batch)
    for logits in outputs.values():
        # A row has one place, or those of its tokens.
        is_real = batch["tokens"] != model.config.pad_id if logits.shape[1] > 1 else np.ones((2, 1), bool)
        run = functools.partial(limba_outputs, model, batch, anew=True)
        finite_logits.require(str(model.path), np.where(is_real[..., None], logits, 0), run)
    return outputs


def limba_logits(model: EncoderModel, batch: Batch) -> np.ndarray:
    """Float32 logits `[batch, length, vocab]` of Limba's network, in float32 without dropout.

    Those of a classifier are `[batch, length, labels]`, or `[batch, 1, labels]` of a row.
    """
    return limba_outputs(model, batch)["logits"]


def limba_outputs(model: EncoderModel, batch: Batch, anew: bool = False) -> dict[str, np.ndarray]:
    """`limba_logits`, and of a network with a head for sentence pairs its "pair logits" `[batch, 1, 2]`.

    Args:
      anew: trace the network, even if that was done before.
    """
    apply = jax.jit(functools.partial(_apply), static_argnums=(0, 1)) if anew else _compiled_apply
    return _outputs(apply, model, batch)


def untraced_logits(model: EncoderModel, batch: Batch) -> np.ndarray:
    """`limba_logits`, computed layer by layer outside of `jax.jit`: an interceptor of Flax sees the numbers."""
    return _outputs(_apply, model, batch)["logits"]


def _outputs(apply: Callable[..., dict[str, jax.Array]], model: EncoderModel, batch: Batch) -> dict[str, np.ndarray]:
    params = traverse_util.unflatten_dict(
        {name: np.asarray(t).astype(np.float32) for name, t in model.tensors.items()}, sep="/"
    )
    types = batch["token_types"] if model.config.num_token_types else None
    with jax.default_matmul_precision("highest"):
        found = apply(networks.plain(model.config), model.head, params, batch["tokens"], types)
    return {name: np.asarray(logits) for name, logits in found.items()}


def _apply(
    config: EncoderConfig, head: Head, params: Any, tokens: jax.Array, types: jax.Array | None
) -> dict[str, jax.Array]:
    apply: Any = functools.partial(head.network(config).apply, {"params": params}, tokens, types, enable_dropout=False)
    if head.kind != heads.PAIRS:
        return {"logits": apply()}
    logits, of_pairs = apply(pair_positions=jnp.zeros((len(tokens), 1), jnp.int32))
    return {"logits": logits, "pair logits": of_pairs}


_compiled_apply = jax.jit(_apply, static_argnums=(0, 1))


def measures(model: EncoderModel, batch: Batch) -> Measures:
    """The logits of a folder in float64, in Limba's order and shape."""
    assert model.folder is not None
    stored, content, order = model.folder.stored, model.folder.content, order_of(model)
    functions = {"logits": importlib.import_module(model.family.numpy_forward).logits}
    if model.head.kind == heads.PAIRS:
        functions["pair logits"] = numpy_encoders.pair_logits

    def run(what: str, tokens: np.ndarray, types: np.ndarray, rounding: float64.Rounding) -> np.ndarray:
        return in_order(what, functions[what](stored, content, order[tokens], types, rounding), model)

    # A row has one place, or those of its tokens.
    by_token = model.head.kind != heads.SEQUENCE
    counted = {"logits": batch["tokens"] != model.config.pad_id} if by_token else {}
    return {
        what: float64.measure(
            functools.partial(run, what), batch["tokens"], batch["token_types"], counted=counted.get(what)
        )
        for what in functions
    }


def in_transformers(model: EncoderModel, batch: Batch) -> Output:
    """What the class of Hugging Face computes, in Limba's order and shape."""
    assert model.folder is not None
    if reason := _impossible(model):
        return Output(reason=reason)
    order = order_of(model)
    inputs = {"input_ids": order[batch["tokens"]], "attention_mask": batch["tokens"] != model.config.pad_id}
    types = {"token_type_ids": batch["token_types"]} if "type_vocab_size" in model.folder.content else {}
    request = {"head": model.head.kind, "config": str(model.folder.config_file or model.path)}
    (part,) = addons.parts("in_transformers")
    found = part.run_encoder(Path(model.path), model.dtype, inputs | types, request)
    return Output({what: in_order(what, logits, model) for what, logits in found.items()})


def in_order(what: str, logits: np.ndarray, model: EncoderModel) -> np.ndarray:
    """Logits of the folder in Limba's order and shape."""
    if model.head.kind == heads.DETECTOR:  # whose logits have no dim for the only one
        return logits[..., None]
    # Hugging Face's logits of rows have no dim for places.
    placed = logits[:, None] if logits.ndim == 2 else logits
    return placed if model.head.labels or what != "logits" else placed[..., order_of(model)]


def _impossible(model: EncoderModel) -> str | None:
    """Why transformers cannot run a folder here; None if it can."""
    assert model.folder is not None
    version = transformers_library.version()
    if not addons.has("in_transformers"):
        return outputs.NO_ADDON
    if not importlib.util.find_spec("torch"):
        return "torch is not installed"
    if version is None:
        return "transformers is not installed"
    if model.folder.is_headless:
        return "the folder has no head; a new one is in the checkpoint"
    if Path(model.path).is_file():
        return "transformers opens folders, and this is a file of weights"
    if not transformers_library.has_model(model.family.model_type):
        return f"transformers {version} has no {model.family.class_of(model.head.kind)}"
    if not weight_files.is_for_transformers(Path(model.path), model.folder.format):
        return "transformers does not look for weights of this name"
    if weight_files.is_wrapped(Path(model.path), model.folder.format, model.family.buffers):
        return "transformers does not know the names of the tensors, which begin with that of a wrapper"
    if model.config.has_relative_keys and not version.startswith("4."):
        return f"transformers {version} has no {model.config.position_embedding_type}; version 4 has"
    return None


def order_of(model: EncoderModel) -> np.ndarray:
    """The folder's ids of Limba's, and Limba's of the folder's: two may be exchanged."""
    return table.exchanged(model.config.vocab_size, model.config.pad_id, model.pad_id)
