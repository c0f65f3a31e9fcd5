"""Sparse attention is dense attention under the layout's mask, whatever a network has beside it."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from limba.addons.block_sparse import sparse_attention
from limba.addons.block_sparse.block_layout import BigBirdSparsityConfig
from limba.network.encoders import attention, encoder
from limba.network.encoders.config import EncoderConfig
from tests.limba.network import test_attention_weights
from tests.limba.network.encoders import test_encoder, test_model_files

PER_HEAD = {"different_layout_per_head": True, "num_random_blocks": 2, "num_global_blocks": 2}
NEITHER = {"num_random_blocks": 0, "num_global_blocks": 0, "num_sliding_window_blocks": 1}
WIDE = {"num_sliding_window_blocks": 5, "num_random_blocks": 3}


def _config(layout, **fields):
    fields = {"max_positions": 48, "num_layers": 1, "attention_dropout_rate": 0.0} | fields
    return test_encoder._config(**fields, sparse_attention=BigBirdSparsityConfig(block=4, **layout))


def _of_dense(monkeypatch, config):
    """The same network with dense attention under the mask of the layout."""
    layout, block = sparse_attention.layout_of(config), config.sparse_attention.block

    def mask(of_config, tokens, segment_ids):
        present = layout.present(layout.num_blocks(tokens.shape[1]))
        of_layout = np.kron(present, np.ones((block, block), bool))[None, :, : tokens.shape[1], : tokens.shape[1]]
        return attention.dense_mask(of_config, tokens, segment_ids) & of_layout

    monkeypatch.setattr(encoder, "dense_mask", mask)
    return dataclasses.replace(config, sparse_attention=None)


@pytest.mark.sample(2)
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
    params, batch = test_encoder._params(config), test_encoder._packed(length)
    loss, grads = jax.jit(jax.value_and_grad(lambda p: test_encoder._loss(config, p, *batch, seed=seed)))(params)
    dense = _of_dense(monkeypatch, config)
    expected, of_dense = jax.jit(jax.value_and_grad(lambda p: test_encoder._loss(dense, p, *batch, seed=seed)))(params)
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
    params, (tokens, _, _) = test_encoder._params(config), test_encoder._packed(48)
    changed = tokens.copy()
    changed[0, 30] = tokens[0, 30] % (test_encoder.VOCAB_SIZE - 1) + 1
    before, after = (np.asarray(test_encoder._logits(config, params, x))[0] for x in (tokens, changed))
    reached = np.abs(after - before).max(-1).reshape(12, 4).max(1) > 0
    expected = sparse_attention.layout_of(config).present(12)[0, :, 30 // 4]
    assert np.array_equal(reached, expected)
    assert 4 <= expected.sum() < 12


@pytest.mark.parametrize("length", [7, 21])  # The blocks of 7 tokens are global.
def test_logits_do_not_depend_on_the_padding(length):
    config = _config(PER_HEAD, position_embedding_type="t5_buckets")
    params, tokens = test_encoder._params(config), test_encoder._packed(21)[0][:1, :length]
    padded = np.pad(tokens, [(0, 0), (0, 47 - length)])
    short, long = (np.asarray(test_encoder._logits(config, params, x))[:, :length] for x in (tokens, padded))
    np.testing.assert_allclose(short, long, atol=1e-6)


def test_bf16_stays_close_to_float32():
    config = _config({}, position_embedding_type="relative_key_query", float32_attention_logits=True)
    params, (tokens, *_) = test_encoder._params(config), test_encoder._packed(48)
    exact, low = (
        np.ravel(test_encoder._logits(dataclasses.replace(config, dtype=dtype), params, tokens)[0])
        for dtype in ("float32", "bfloat16")
    )
    assert np.dot(exact, low) / (np.linalg.norm(exact) * np.linalg.norm(low)) > 0.999


def test_a_row_longer_than_the_layout_is_refused():
    config = _config({}, position_embedding_type="rotary")
    with pytest.raises(ValueError, match=r"49 tokens, and EncoderConfig.max_positions is 48"):
        jax.eval_shape(lambda: test_encoder._loss(config, {}, np.ones((1, 49), np.int32)))


def test_work_and_memory_grow_with_the_blocks():
    """Eight times the length: a little more than eight times the work, where dense attention has sixty-four times."""

    def cost(length):
        config = dataclasses.replace(_config({}), max_positions=length, vocab_size=8, emb_dim=4, mlp_dim=4)
        params = test_encoder._variables(config)["params"]
        tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
        compiled = jax.jit(jax.grad(functools.partial(test_encoder._loss, config))).lower(params, tokens).compile()
        return compiled.cost_analysis()["flops"], compiled.memory_analysis().temp_size_in_bytes

    short, long = cost(256), cost(2048)
    assert 7 < long[0] / short[0] < 9.5
    assert long[1] / short[1] < 9.5


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("shape", "block"), [((8, 64, 8), 16), ((2, 45, 2), 4)])
def test_sparse_attention_is_right_for_any_logits(shape, block, dtype):
    length, heads = shape[1:]
    config = EncoderConfig(
        vocab_size=8,
        num_heads=heads,
        head_dim=test_attention_weights.KV,
        max_positions=length,
        dtype=jnp.dtype(dtype),
        sparse_attention=BigBirdSparsityConfig(block=block),
        kernels="xla",
    )
    layout = sparse_attention.layout_of(config)
    present = layout.present(layout.num_blocks(length))
    of_layout = np.kron(present, np.ones((block, block), bool))[None, :, :length, :length]

    @jax.jit
    def with_gradients(query, key, value, segments, gradient):
        visible = sparse_attention.VisibleBlocks(segments, layout)
        attend = lambda *x: sparse_attention.attend(config, *x, visible)  # noqa: E731
        attended, gradients = jax.vjp(attend, query, key, value)
        return attended, *gradients(gradient)

    for largest in test_attention_weights.LARGEST_LOGITS:
        (query, key, value, _, gradient), real = test_attention_weights._inputs(shape, largest, dtype, 0.6)
        gradient = jnp.where(real[:, :, None, None], gradient, 0)
        attended, *gradients = with_gradients(query, key, value, real.astype(np.int32), gradient)
        assert np.isfinite(np.asarray(attended, np.float32)).all()
        mask = of_layout & (real[:, None, :, None] == real[:, None, None, :])
        expected, *of_expected = test_attention_weights._expected(
            query, key, value, np.zeros((1, 1, 1, 1)), gradient, mask
        )
        is_real = real[:, :, None, None]
        actual = (np.asarray(attended, np.float64) * is_real, *gradients)
        test_attention_weights._assert_near(actual, (expected * is_real, *of_expected[:3]), dtype, largest)


FIELDS = {"num_token_types": 2, "sparse_attention": BigBirdSparsityConfig(block=4, different_layout_per_head=True)}


def test_scanned_layers_give_the_loss_and_gradients_of_unrolled_ones():
    test_encoder.assert_scanned_layers_are_unrolled_ones(FIELDS, "minimal")


@pytest.mark.parametrize(("name", "count"), [("bert/sparse_base", 112_320_640), ("bert/sparse_tiny", 4_884_480)])
def test_gin_files_have_the_parameters_of_dense_ones_with_as_many_positions(name, count, monkeypatch):
    monkeypatch.setitem(test_model_files.PARAMETERS, name, count)
    test_model_files.test_parameters_of_each_file(name)
