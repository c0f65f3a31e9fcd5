"""Attention with a layout of blocks by kernels: values, gradients, networks, several devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.addons.block_sparse import block_attention, block_attention_gpu, block_attention_tpu, tile_pairs
from limba.addons.block_sparse.block_layout import BigBirdSparsityConfig, BlockLayout
from limba.network.encoders import encoder
from limba.network.kernels import attention, device_check
from limba.partitioning.meshes import PjitPartitioner
from tests.addons.block_sparse.test_sparse_attention import NEITHER, PER_HEAD, WIDE
from tests.addons.kernels import test_against_float64
from tests.limba.network.encoders import test_encoder
from tests.limba.network.encoders.test_encoder import _loss, _packed

pytestmark = pytest.mark.usefixtures("kernels_are_right")

HEADS, TILE, BLOCK = 4, 16, 4
of_each_device = pytest.mark.parametrize("kernels", [block_attention_gpu, block_attention_tpu], ids=["gpu", "tpu"])


def _layout(fields, longest=48):
    return BlockLayout(BigBirdSparsityConfig(block=BLOCK, **fields), HEADS, longest)


def _mask(layout, length):
    """Bool `[heads or 1, length, length]`."""
    present = layout.present(layout.num_blocks(length))
    return np.kron(present, np.ones((BLOCK, BLOCK), bool))[:, :length, :length]


def _plain(query, key, value, segments, layout):
    mask = _mask(layout, query.shape[1])[None] & (segments[:, None, :, None] == segments[:, None, None, :])
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key, precision="highest")
    weights = jax.nn.softmax(jnp.where(mask, logits, -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value, precision="highest")


# ------------------------------------------------------ the lists ----------------------------------------------------


@pytest.mark.parametrize("by_keys", [False, True])
@pytest.mark.parametrize(
    ("fields", "length", "group"), [({}, 48, 1), (PER_HEAD, 45, 2), (NEITHER, 33, 1), (WIDE, 17, 4)]
)
def test_pairs_and_bits_are_the_layout(fields, length, group, by_keys):
    layout = _layout(fields)
    pairs = tile_pairs.tile_pairs(layout, length, TILE, group, by_keys=by_keys)
    tiles = -(-length // TILE)
    all_bits = np.asarray(pairs.bits(TILE))
    heads = all_bits.shape[0] * all_bits.shape[1]
    seen = np.zeros((heads, tiles * TILE, tiles * TILE), bool)
    for number, bits in enumerate(all_bits.reshape(-1, *all_bits.shape[2:])):
        places = (x[number // all_bits.shape[1]] for x in (pairs.queries, pairs.keys, pairs.flags))
        for query, key, flags, of_queries in zip(*places, bits, strict=True):
            if flags & tile_pairs.COMPUTED:
                tile = seen[number, query * TILE :, key * TILE :][:TILE, :TILE]
                tile |= (of_queries[:, None] >> np.arange(TILE) // BLOCK & 1).astype(bool)
    expected = _mask(layout, size := layout.num_blocks(length) * BLOCK)
    assert heads == len(expected)
    np.testing.assert_array_equal(seen[:, :size, :size], expected)
    assert not seen[:, size:].any() and not seen[:, :, size:].any()


def test_pairs_of_a_head_have_its_beginnings_and_ends():
    pairs = tile_pairs.tile_pairs(_layout(PER_HEAD), 48, TILE, by_keys=True)
    for queries, keys, flags, ends, starts in zip(*pairs[:5], strict=True):
        computed = (flags & tile_pairs.COMPUTED) > 0
        for of_tile, begins, last in (
            (keys, tile_pairs.FIRST, tile_pairs.LAST),
            (queries, tile_pairs.QUERY_BEGINS, tile_pairs.QUERY_ENDS),
        ):
            for tile in range(3):
                (places,) = np.nonzero(computed & (of_tile == tile))
                assert list(np.nonzero((flags & begins > 0) & (of_tile == tile))[0]) == [places[0]]
                assert list(np.nonzero((flags & last > 0) & (of_tile == tile))[0]) == [places[-1]]
        assert [*starts] == [*np.searchsorted(keys[computed], range(4))]
        (written,) = np.nonzero(flags & tile_pairs.QUERY_ENDS)
        for place in range(written[-1] + 1):
            assert ends[place] == queries[written[written >= place][0]]


def test_blocks_that_do_not_fill_a_tile_have_no_kernel():
    assert [tile_pairs.fits(block, 128) for block in (2, 4, 16, 128, 24, 256)] == [
        False,
        True,
        True,
        True,
        False,
        False,
    ]


# ----------------------------------------------------- the kernels ---------------------------------------------------


@pytest.mark.sample(2)
@of_each_device
@pytest.mark.parametrize(("fields", "length"), [({}, 48), (PER_HEAD, 45), ({}, 9)])
def test_values_and_gradients_are_those_of_plain_attention(kernels, fields, length):
    layout, rng = _layout(fields), np.random.default_rng(length)
    query, key, value, cotangent = (jnp.asarray(rng.normal(size=(2, length, HEADS, 16)), jnp.float32) for _ in range(4))
    segments = jnp.asarray(np.sort(rng.integers(0, 3, (2, length))), jnp.int32)

    def loss(function, *arrays):
        return jnp.sum(function(*arrays, segments, layout) * cotangent)

    fused = functools.partial(kernels.attention, tile=TILE, interpret=True)
    (ours, our_gradients), (plain, plain_gradients) = (
        jax.jit(jax.value_and_grad(functools.partial(loss, function), (0, 1, 2)))(query, key, value)
        for function in (fused, _plain)
    )
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=3e-5)
    for ours, plain in zip(our_gradients, plain_gradients, strict=True):
        assert float(jnp.max(jnp.abs(plain))) > 0.1
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


@of_each_device
def test_bf16_is_as_exact_as_bf16(kernels):
    layout, rng = _layout({}), np.random.default_rng(0)
    query, key, value, cotangent = (jnp.asarray(rng.normal(size=(1, 48, HEADS, 16)), jnp.bfloat16) for _ in range(4))
    segments = jnp.ones((1, 48), jnp.int32)

    def loss(function, *arrays):
        return jnp.sum((function(*arrays, segments, layout) * cotangent).astype(jnp.float32))

    fused = functools.partial(kernels.attention, tile=TILE, interpret=True)
    ours = jax.jit(jax.grad(functools.partial(loss, fused), (0, 1, 2)))(query, key, value)
    exact = (x.astype(jnp.float32) for x in (query, key, value))
    plain = jax.jit(jax.grad(functools.partial(loss, _plain), (0, 1, 2)))(*exact)
    for x, y in zip(ours, plain, strict=True):
        error = jnp.max(jnp.abs(x.astype(jnp.float32) - y)) / jnp.max(jnp.abs(y))
        assert 1e-5 < float(error) < 2e-2  # 2^-8 is bf16's own


# ----------------------------------------------------- the network ---------------------------------------------------


def _config(layout, **fields):
    fields = {"max_positions": 48, "num_layers": 1, "attention_dropout_rate": 0.0, "head_dim": 16} | fields
    return test_encoder._config(**fields, sparse_attention=BigBirdSparsityConfig(block=BLOCK, **layout))


@pytest.mark.parametrize(
    ("layout", "fields"), [({}, {"position_embedding_type": "rotary"}), (PER_HEAD, {})], ids=["shared", "by head"]
)
def test_a_packed_network_has_the_same_loss_and_gradients(layout, fields):
    config = _config(layout, **fields)
    params, batch = test_encoder._params(config), _packed(45)
    (ours, our_gradients), (plain, plain_gradients) = (
        jax.jit(jax.value_and_grad(functools.partial(_loss, dataclasses.replace(config, kernels=kernels))))(
            params, *batch
        )
        for kernels in ("fused", "xla")
    )
    assert float(ours) == pytest.approx(float(plain), rel=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), our_gradients, plain_gradients)


def test_numbers_by_distance_are_left_to_xla(monkeypatch):
    called = []
    monkeypatch.setattr(block_attention, "attend", lambda *arrays: called.append(arrays) or arrays[0])
    for kind, expected in (("absolute", 1), ("t5_buckets", 0), ("relative_key", 0)):
        config = _config({}, position_embedding_type=kind, kernels="fused")
        called.clear()
        init = functools.partial(encoder.MaskedLanguageModel(config).init, enable_dropout=False)
        jax.eval_shape(init, jax.random.key(0), np.ones((1, 48), np.int32))
        assert len(called) == expected


@pytest.mark.parametrize(("layout", "is_called"), [({}, True), (PER_HEAD, False)], ids=["shared", "by head"])
def test_each_device_attends_to_its_own_rows_and_heads(monkeypatch, layout, is_called):
    """Heads with layouts of their own on several devices are XLA's."""
    calls = []
    kernel = block_attention._attend
    monkeypatch.setattr(
        block_attention, "_attend", lambda *x, **others: calls.append(x[0].shape) or kernel(*x, **others)
    )
    config = _config(layout, kernels="fused")
    params, (tokens, *_) = test_encoder._params(config), _packed(45)
    tokens = np.tile(tokens[:2], (2, 1))
    alone = float(jax.jit(functools.partial(_loss, config))(params, tokens))
    calls.clear()
    partitioner = PjitPartitioner(num_partitions=2, devices=jax.devices()[:4])

    def shared_loss(*arguments):
        assert attention.devices_of("heads") == attention.devices_of("batch") == 2
        return _loss(config, *arguments)

    with partitioner.activate():
        together = float(jax.jit(shared_loss)(params, tokens))
    assert together == pytest.approx(alone, rel=1e-6)
    assert calls == ([(2, 45, config.num_heads // 2, 16)] if is_called else [])


# ---------------------------------------------- on the device at hand ----------------------------------------------


def _attend_all(query, key, value, segments, layout, **_):
    """Each query looks at all blocks."""
    mask = segments[:, None, :, None] == segments[:, None, None, :]
    weights = jax.nn.softmax(jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", query, key), -1e30))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


@of_each_device
def test_kernels_are_compared_with_xla(monkeypatch, kernels):
    layout, right = _layout(PER_HEAD), kernels.attention
    case = block_attention._Case("block_attention_gpu", "float32", HEADS, 16, 45, layout)
    wrong = {
        "the layout of the first head": lambda *x, **o: right(*(jnp.flip(a, 2) for a in x[:3]), *x[3:], **o)[
            :, :, ::-1
        ],
        "no layout": _attend_all,
        "no gradient of keys": lambda q, k, *x, **o: right(q, jax.lax.stop_gradient(k), *x, **o),
        "no segments": lambda q, k, v, segments, *x, **o: right(q, k, v, jnp.ones_like(segments), *x, **o),
    }
    # The tile of the other tests, so that a row has several.
    wrong = {name: f for name, f in wrong.items() if kernels is block_attention_gpu or name == "no gradient of keys"}
    for name, kernel in {"": right, **wrong}.items():
        use = functools.partial(kernel, **({} if kernel is _attend_all else {"tile": TILE}))
        monkeypatch.setattr(block_attention_gpu, "attention", use)
        problem = device_check.compare(case, "cpu").problem
        assert ("is off by" in problem) if name else problem == "", name


# ----------------------------------------------------- in float64 ----------------------------------------------------


@of_each_device
def test_values_and_gradients_are_as_exact_as_their_type(kernels, dtype="bfloat16"):
    length = test_against_float64.LENGTH
    layout = BlockLayout(BigBirdSparsityConfig(block=BLOCK), test_against_float64.HEADS, 48)

    def kernel(q, k, v, segments):
        return kernels.attention(q, k, v, segments[0], layout, tile=16, interpret=True)

    seen = _mask(layout, length)
    test_against_float64._check(kernel, dtype, lambda mask: mask & seen, has_table=False, share_segments=True)
