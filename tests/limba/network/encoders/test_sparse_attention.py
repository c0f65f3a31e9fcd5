"""Sparse attention is dense attention under the layout's mask, whatever a network has beside it."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from limba.network.encoders import attention, encoder
from limba.network.encoders.block_layout import BigBirdSparsityConfig
from tests.limba.network.encoders import test_encoder

PER_HEAD = {"different_layout_per_head": True, "num_random_blocks": 2, "num_global_blocks": 2}
NEITHER = {"num_random_blocks": 0, "num_global_blocks": 0, "num_sliding_window_blocks": 1}
WIDE = {"num_sliding_window_blocks": 5, "num_random_blocks": 3}


def _config(layout, **fields):
    fields = {"max_positions": 48, "num_layers": 1, "attention_dropout_rate": 0.0} | fields
    return test_encoder._config(**fields, sparse_attention=BigBirdSparsityConfig(block=4, **layout))


def _packed(length, segments=2):
    """Tokens, segments and positions of three rows, two of which end in padding."""
    tokens = test_encoder._tokens(length, rows=3, length=length)
    tokens[1, length - length // 4 :] = tokens[2, length - 1 :] = 0
    starts = np.linspace(0, length, segments + 1).astype(int)[:-1]
    of_row = np.sum(np.arange(length)[:, None] >= starts, axis=1)
    positions = np.arange(length) - starts[of_row - 1]
    return tokens, *(np.broadcast_to(x, tokens.shape).astype(np.int32) for x in (of_row, positions))


def _loss(config, params, tokens, segment_ids=None, positions=None, seed=None):
    """The mean over real tokens of what no optimum is near to; `seed` switches dropout on."""
    module, rngs = encoder.MaskedLanguageModel(config), None if seed is None else {"dropout": jax.random.key(seed)}
    call = functools.partial(module.apply, rngs=rngs, enable_dropout=seed is not None)
    logits = call({"params": params}, tokens, None, segment_ids, positions)
    real = tokens != config.pad_id
    return jnp.sum(jnp.sin(logits).sum(-1) * real) / real.sum()


def _of_dense(monkeypatch, config):
    """The same network with dense attention under the mask of the layout."""
    layout, block = config.block_layout, config.sparse_attention.block

    def mask(of_config, tokens, segment_ids):
        present = layout.present(layout.num_blocks(tokens.shape[1]))
        of_layout = np.kron(present, np.ones((block, block), bool))[None, :, : tokens.shape[1], : tokens.shape[1]]
        return attention.dense_mask(of_config, tokens, segment_ids) & of_layout

    monkeypatch.setattr(encoder, "dense_mask", mask)
    return dataclasses.replace(config, sparse_attention=None)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("layout", "length", "fields", "seed"),
    [
        ({}, 47, {"num_layers": 2}, None),
        (PER_HEAD, 48, {"position_embedding_type": "rotary"}, None),
        (NEITHER, 31, {"position_embedding_type": "none"}, None),
        (WIDE, 10, {"position_embedding_type": "absolute_and_t5_buckets"}, None),
        (PER_HEAD, 45, {"position_embedding_type": "t5_buckets", "attention_dropout_rate": 0.3}, 1),
        ({}, 41, {"position_embedding_type": "relative_key"}, None),
        (PER_HEAD, 41, {"position_embedding_type": "relative_key_query", "attention_dropout_rate": 0.3}, 1),
    ],
)
def test_losses_and_gradients_are_those_of_dense_attention(monkeypatch, layout, length, fields, seed):
    config = _config(layout, **fields)
    params, batch = test_encoder._params(config), _packed(length)
    loss, grads = jax.jit(jax.value_and_grad(lambda p: _loss(config, p, *batch, seed=seed)))(params)
    dense = _of_dense(monkeypatch, config)
    expected, of_dense = jax.jit(jax.value_and_grad(lambda p: _loss(dense, p, *batch, seed=seed)))(params)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), grads, of_dense)
    of_attention = [
        np.abs(gradient).max()
        for name, gradient in traverse_util.flatten_dict(of_dense, sep="/").items()
        if re.search(r"(query|key|value)/kernel|relpos_bias|relative_key", name)
    ]
    assert min(of_attention) > 1e-3
    assert len(of_attention) >= 3


def test_a_query_sees_what_the_layout_gives_it():
    """A change of one token reaches the blocks that see it in one layer, and no others."""
    config = _config({"num_random_blocks": 2})
    params, (tokens, _, _) = test_encoder._params(config), _packed(48)
    changed = tokens.copy()
    changed[0, 30] = tokens[0, 30] % (test_encoder.VOCAB_SIZE - 1) + 1
    before, after = (np.asarray(test_encoder._logits(config, params, x))[0] for x in (tokens, changed))
    reached = np.abs(after - before).max(-1).reshape(12, 4).max(1) > 0
    expected = config.block_layout.present(12)[0, :, 30 // 4]
    assert np.array_equal(reached, expected)
    assert 4 <= expected.sum() < 12


@pytest.mark.parametrize("length", [7, 21])  # The blocks of 7 tokens are global.
def test_logits_do_not_depend_on_the_padding(length):
    config = _config(PER_HEAD, position_embedding_type="t5_buckets")
    params, tokens = test_encoder._params(config), _packed(21)[0][:1, :length]
    padded = np.pad(tokens, [(0, 0), (0, 47 - length)])
    short, long = (np.asarray(test_encoder._logits(config, params, x))[:, :length] for x in (tokens, padded))
    np.testing.assert_allclose(short, long, atol=1e-6)


def test_bf16_stays_close_to_float32():
    config = _config({}, position_embedding_type="relative_key_query", float32_attention_logits=True)
    params, (tokens, *_) = test_encoder._params(config), _packed(48)
    exact, low = (
        np.ravel(test_encoder._logits(dataclasses.replace(config, dtype=dtype), params, tokens)[0])
        for dtype in ("float32", "bfloat16")
    )
    assert np.dot(exact, low) / (np.linalg.norm(exact) * np.linalg.norm(low)) > 0.999


def test_a_row_longer_than_the_layout_is_refused():
    config = _config({}, position_embedding_type="rotary")
    with pytest.raises(ValueError, match=r"49 tokens, and EncoderConfig.max_positions is 48"):
        jax.eval_shape(lambda: _loss(config, {}, np.ones((1, 49), np.int32)))


def test_work_and_memory_grow_with_the_blocks():
    """Eight times the length: a little more than eight times the work, where dense attention has sixty-four times."""

    def cost(length):
        config = dataclasses.replace(_config({}), max_positions=length, vocab_size=8, emb_dim=4, mlp_dim=4)
        params = test_encoder._variables(config)["params"]
        tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
        compiled = jax.jit(jax.grad(functools.partial(_loss, config))).lower(params, tokens).compile()
        return compiled.cost_analysis()["flops"], compiled.memory_analysis().temp_size_in_bytes

    short, long = cost(256), cost(2048)
    assert 7 < long[0] / short[0] < 9.5
    assert long[1] / short[1] < 9.5
