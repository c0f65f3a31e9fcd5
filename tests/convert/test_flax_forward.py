"""Hugging Face's Flax classes run from tensors on disk give what `from_pretrained` gives."""

import importlib.metadata
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import transformers
from flax import serialization
from transformers.models.t5 import modeling_flax_t5

from convert import flax_forward, streams
from limba.saved_tensors import SavedTensor, from_array
from limba.state_utils import flatten_state_dict, unflatten_state_dict

TARGETS_LENGTH = 5
KINDS = {
    "tied": ("T5", {"feed_forward_proj": "relu", "tie_word_embeddings": True}),
    "mt5": ("MT5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
}


@pytest.fixture(scope="module", params=list(KINDS))
def folder(request, tmp_path_factory) -> Path:
    """A random model, written by its class."""
    kind, fields = KINDS[request.param]
    sizes = {"vocab_size": 96, "d_model": 32, "num_heads": 3, "d_kv": 8, "d_ff": 40, "num_layers": 2}
    config = getattr(transformers, f"{kind}Config")(**sizes, num_decoder_layers=1, decoder_start_token_id=0, **fields)
    folder = tmp_path_factory.mktemp(request.param)
    with flax_forward._running():
        model = getattr(transformers, f"Flax{kind}ForConditionalGeneration")(config, _do_init=False)
    rng = np.random.default_rng(0)
    shapes = flatten_state_dict(model.params_shape_tree).items()
    flat = {name: rng.normal(name.endswith("weight"), 0.3, x.shape).astype(np.float32) for name, x in shapes}
    model.save_pretrained(folder, params=unflatten_state_dict(flat))
    return folder


@pytest.fixture(scope="module")
def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = rng.integers(3, 96, (3, 20), np.int32)
    inputs[1, 10:] = 0
    decoder_inputs = np.pad(rng.integers(3, 96, (3, TARGETS_LENGTH - 1), np.int32), ((0, 0), (1, 0)))
    return {"encoder_input_tokens": inputs, "decoder_input_tokens": decoder_inputs}


def _tensors(folder: Path) -> dict[str, SavedTensor]:
    tree = serialization.msgpack_restore((folder / "flax_model.msgpack").read_bytes())
    return {name: from_array(x) for name, x in flatten_state_dict(tree).items()}


def test_logits_are_those_of_from_pretrained(folder, batch):
    inputs = batch["encoder_input_tokens"]
    asked = {"input_ids": inputs, "attention_mask": (inputs != 0).astype(np.int32)}
    with flax_forward._running():
        model, params = transformers.FlaxAutoModelForSeq2SeqLM.from_pretrained(folder, _do_init=False)
        decoder_inputs = batch["decoder_input_tokens"]
        theirs = jax.jit(lambda p: model(**asked, params=p, decoder_input_ids=decoder_inputs).logits)(params)
    before, precision = modeling_flax_t5.jnp, jax.config.jax_default_matmul_precision
    np.testing.assert_allclose(flax_forward.logits(folder, _tensors(folder), batch), theirs, rtol=0, atol=1e-6)
    assert modeling_flax_t5.jnp is before and jax.config.jax_default_matmul_precision == precision


def test_greedy_tokens_follow_the_logits(folder, batch):
    tokens = flax_forward.greedy(folder, _tensors(folder), batch["encoder_input_tokens"], TARGETS_LENGTH)
    assert tokens.shape == (3, TARGETS_LENGTH) and tokens.dtype == np.int32 and 1 not in tokens
    said = batch | {"decoder_input_tokens": np.pad(tokens[:, :-1], ((0, 0), (1, 0)))}
    np.testing.assert_array_equal(flax_forward.logits(folder, _tensors(folder), said).argmax(-1), tokens)


def test_tensors_that_do_not_fit_are_named(folder, batch):
    tensors = _tensors(folder)
    name = "decoder/block/0/layer/1/EncDecAttention/k/kernel"
    for changed, message in (
        ({k: v for k, v in tensors.items() if k != name}, f"Flax.*T5ForConditionalGeneration.*{name} is missing"),
        (tensors | {"encoder/extra/kernel": tensors[name]}, "encoder/extra/kernel has no place"),
        (tensors | {name: streams.transposed(tensors[name])}, rf"{name} has shape \(24, 32\) instead of \(32, 24\)"),
    ):
        with pytest.raises(ValueError, match=message):
            flax_forward.logits(folder, changed, batch)


def test_when_it_is_possible(folder, tmp_path, monkeypatch):
    assert flax_forward.possible(folder, 256 * 2**20) is None
    assert flax_forward.possible(folder, 300 * 2**20) == (
        "its Flax classes hold the whole model, 300 MiB; here 256 are allowed"
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "umt5"}))
    assert flax_forward.possible(tmp_path, 0) == "transformers has no Flax class for umt5"
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.23.0")
    assert flax_forward.possible(folder, 0) == (
        "transformers 5.23.0 has no Flax models; 4.57.6 was the last version with them"
    )
    monkeypatch.setattr(flax_forward.transformers_library, "version", lambda: None)
    assert flax_forward.possible(folder, 0) == "transformers is not installed"
