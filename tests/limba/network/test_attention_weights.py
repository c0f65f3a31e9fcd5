"""Attention of every path beside float64: any share of padding, and logits up to 1e4."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.network import attention, attention_by_rows

pytestmark = [pytest.mark.usefixtures("as_users"), pytest.mark.smoke]

KV = 16
# Shapes at which XLA fuses the softmax with both products, one that is too small for it, and one without a choice.
SHAPES = {"eight_rows": (8, 64, 8), "long": (1, 512, 12), "small": (2, 17, 2), "one": (1, 1, 1)}
LARGEST_LOGITS = (10.0, 1e3, 1e4)


def _inputs(shape, largest, dtype, share, queries=None):
    """Queries, keys, values, the gradient of what is attended, a bias, and which positions are no padding.

    Rows end ever earlier, the last one after its first position; the largest logit is `largest`.
    """
    batch, length, heads = shape
    rng = np.random.default_rng(0)
    query, gradient = (rng.standard_normal((batch, queries or length, heads, KV)) for _ in range(2))
    key, value = (rng.standard_normal((batch, length, heads, KV)) for _ in range(2))
    bias = rng.standard_normal((1, heads, queries or length, length)) * largest / 20
    query *= 0.9 * largest / np.abs(np.einsum("bqhd,bkhd->bhqk", query, key)).max()
    lengths = np.maximum(1, length - (np.linspace(0, share, batch) * length).astype(int))
    arrays = [jnp.asarray(x, dtype) for x in (query, key, value, bias, gradient)]
    return arrays, np.arange(length) < lengths[:, None]


def _expected(query, key, value, bias, gradient, mask):
    """What is attended, and the gradients of query, key, value and bias, in float64."""
    query, key, value, bias, gradient = (np.asarray(x, np.float64) for x in (query, key, value, bias, gradient))
    logits = np.where(mask, np.einsum("bqhd,bkhd->bhqk", query, key) + bias, -1e30)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    of_weights = np.einsum("bqhd,bkhd->bhqk", gradient, value)
    of_logits = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True))
    return (
        np.einsum("bhqk,bkhd->bqhd", weights, value),
        np.einsum("bhqk,bkhd->bqhd", of_logits, key),
        np.einsum("bhqk,bqhd->bkhd", of_logits, query),
        np.einsum("bhqk,bqhd->bkhd", weights, gradient),
        of_logits.sum(0, keepdims=True),
    )


def _assert_near(actual, expected, dtype, largest):
    """Errors are those of weights and gradients rounded to the type, whatever the logits are."""
    value, gradient = (2e-2, 6e-2) if dtype == "bfloat16" else (1e-5 + 1e-7 * largest, 1e-4 + 2e-6 * largest)
    for name, x, y in zip(("attended", "query", "key", "value", "bias"), actual, expected, strict=False):
        x = np.asarray(x, np.float64)
        assert np.isfinite(x).all(), name
        error = np.linalg.norm(x - y)
        assert error <= (value if name in ("attended", "value") else gradient) * np.linalg.norm(y) + 1e-9, name


@functools.partial(jax.jit, static_argnums=0)
def _with_gradients(attend, query, key, value, bias, gradient, mask):
    attended, gradients = jax.vjp(lambda *x: attend(*x, mask), query, key, value, bias)
    return attended, *gradients(gradient)


def _plain(query, key, value, bias, mask):
    return attention.dot_product_attention(
        query, key, value, bias, deterministic=True, dtype=query.dtype, mask=mask, float32_logits=False
    )


def _float32_logits(query, key, value, bias, mask):
    return attention.dot_product_attention(
        query, key, value, bias, deterministic=True, dtype=query.dtype, mask=mask, float32_logits=True
    )


def _by_rows(query, key, value, bias, mask):
    plain = functools.partial(attention.dot_product_attention, dtype=query.dtype)
    return attention_by_rows.attend(plain, query, key, value, bias, mask)


def _masks(real):
    """Bool `[batch, 1, length, length]`, by the kind of attention."""
    length = real.shape[1]
    tokens, segments = real.astype(np.int32), (np.arange(length) // 7 + 1) * real
    prefix = (np.arange(length) < length // 2) * tokens
    padding = np.asarray(attention.make_attention_mask(real, real, np.logical_and, dtype=bool))
    return {
        "padding": padding,
        "packed": padding & np.asarray(attention.segment_mask(segments, segments)),
        "causal": np.asarray(attention.make_decoder_mask(tokens, bool)),
        "prefix": np.asarray(attention.make_decoder_mask(tokens, bool, prefix)),
        "nowhere": np.zeros_like(padding),
    }


@pytest.mark.parametrize(
    ("attend", "shape", "dtype"),
    [
        *((_plain, shape, "bfloat16") for shape in SHAPES if shape != "long"),
        (_plain, "small", "float32"),
        (_float32_logits, "eight_rows", "bfloat16"),
        (_by_rows, "long", "bfloat16"),
    ],
)
def test_dense_attention_is_right_for_any_mask_and_any_logits(monkeypatch, attend, shape, dtype):
    monkeypatch.setattr(attention_by_rows, "_HEADS_OF_A_CORE", 0)
    for largest in LARGEST_LOGITS:
        arrays, real = _inputs(SHAPES[shape], largest, dtype, 0.6)
        masks = _masks(real)
        for name in masks if shape == "eight_rows" else ("padding",):
            actual = _with_gradients(attend, *arrays, masks[name])
            _assert_near(actual, _expected(*arrays, masks[name]), dtype, largest)
            # Queries that see nothing, and whose result nothing depends on, have no gradient.
            gradient = jnp.where(real[:, :, None, None], arrays[4], 0)
            of_query = _with_gradients(attend, *arrays[:4], gradient, masks[name])[1]
            assert not np.asarray(of_query, np.float32)[~real].any()


@pytest.mark.parametrize("shape", ["eight_rows", "small"])
def test_a_query_that_may_look_nowhere_weighs_all_keys_alike(shape):
    for largest in (*LARGEST_LOGITS, 1e6):
        (query, key, value, bias, _), _ = _inputs(SHAPES[shape], largest, "bfloat16", 0.6)
        attended = jax.jit(_plain)(query, key, value, bias, np.zeros((1, 1, 1, 1), bool))
        mean = np.broadcast_to(np.asarray(value, np.float64).mean(1, keepdims=True), value.shape)
        np.testing.assert_allclose(np.asarray(attended, np.float64), mean, atol=5e-3)


def _layer(heads, dtype):
    """Attention whose kernels change nothing, so that its numbers are those of what comes in."""
    return attention.MultiHeadDotProductAttention(
        heads, KV, jnp.dtype(dtype), kernel_init=lambda rng, shape, dtype: jnp.eye(*shape, dtype=dtype)
    )


def _flat(x):
    return x.reshape(*x.shape[:2], -1)


@pytest.mark.parametrize(("beams", "dtype"), [(1, "bfloat16"), (4, "float32")])
def test_cached_attention_to_inputs_is_right_for_any_logits(beams, dtype):
    """The last example's inputs are all padding, as in a batch that is filled up."""
    heads = 8
    layer = _layer(heads, dtype)

    @jax.jit
    def decode(query, key, mask):
        of_first, state = layer.init_with_output(
            jax.random.key(0), query[::beams], key, mask[::beams], deterministic=True, keep_keys=True
        )
        return of_first, layer.apply(state, query, key, mask, deterministic=True)

    for largest in (*LARGEST_LOGITS, 300.0):
        (query, key, *_), real = _inputs((32, 48, heads), largest, dtype, 0.6, queries=beams)
        real[-1] = False
        mask = real[:, None, None, :]
        expected = _expected(query, key, key, np.zeros((1, 1, 1, 1)), query, mask)[0]
        asked = _flat(query * 4).reshape(32 * beams, 1, -1)  # the initial query kernel is divided by sqrt(16)
        of_first, decoded = decode(asked, _flat(key), np.repeat(mask, beams, axis=0))
        decoded = np.asarray(decoded, np.float64).reshape(expected.shape)
        _assert_near([decoded], [expected], dtype, largest)
        of_first = np.asarray(of_first, np.float64).reshape(expected[:, :1].shape)
        _assert_near([of_first], [expected[:, :1]], dtype, largest)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_cached_self_attention_is_right_for_any_logits(dtype):
    batch, length, heads = 8, 24, 8
    layer = _layer(heads, dtype)

    @jax.jit
    def decode(x):
        _, state = layer.init_with_output(jax.random.key(0), x, x, deterministic=True, decode=True)
        state["params"]["key"]["kernel"] = jnp.roll(state["params"]["key"]["kernel"], 1, axis=1)

        def step(cache, position):
            fed, variables = position[:, None], {"params": state["params"], "cache": cache}
            attended, changed = layer.apply(variables, fed, fed, deterministic=True, decode=True, mutable=["cache"])
            return changed["cache"], attended[:, 0]

        return jnp.moveaxis(jax.lax.scan(step, state["cache"], jnp.moveaxis(x, 1, 0))[1], 0, 1)

    for largest in (*LARGEST_LOGITS, 300.0):
        x = np.random.default_rng(0).standard_normal((batch, length, heads, KV))
        x = jnp.asarray(x * np.sqrt(4 * largest / 40), dtype)
        key = jnp.roll(_flat(x), 1, axis=-1).reshape(x.shape)
        causal = np.tril(np.ones((length, length), bool))[None, None]
        expected = _expected(x / 4, key, x, np.zeros((1, 1, 1, 1)), x, causal)[0]
        actual = np.asarray(decode(_flat(x)), np.float64).reshape(expected.shape)
        _assert_near([actual], [expected], dtype, largest)
