import dataclasses
import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from flax.linen import partitioning as nn_partitioning

from limba.network.encoders import encoder, rotary
from limba.optimizers import adafactor
from limba.partitioning import meshes
from tests.limba import small

VOCAB_SIZE = 40
MODERN = (
    {"position_embedding_type": "rotary", "rotary_base": 1000.0, "local_rotary_base": 50.0, "norm_position": "pre"}
    | {"first_attention_norm": False, "global_attention_every": 2, "local_attention_window": 4, "num_layers": 3}
    | {"mlp_activations": ("gelu_erf", "linear"), "norm": "layer_norm_without_bias", "mlp_bias": False}
)
VARIANTS = {
    "absolute": {"num_token_types": 2},
    "mpnet": {"position_embedding_type": "absolute_and_t5_buckets"},
    "buckets_in_windows": {"position_embedding_type": "t5_buckets", "global_attention_every": 2},
    "relative_key_query": {"position_embedding_type": "relative_key_query", "norm_position": "pre"},
    "modernbert": MODERN,
}


def _config(**fields):
    sizes = {"vocab_size": VOCAB_SIZE, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 12, "num_layers": 2}
    return encoder.EncoderConfig(**(sizes | {"max_positions": 24, "dropout_rate": 0.0} | fields))


def _variables(config):
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    init = functools.partial(encoder.MaskedLanguageModel(config).init, enable_dropout=False)
    return jax.eval_shape(init, jax.random.key(0), tokens)


def _params(config, seed=0):
    """Numbers that are nobody's defaults."""
    rng = np.random.default_rng(seed)

    def draw(path, like):
        center = 0.8 if jax.tree_util.keystr(path).endswith("'scale']") else 0.03
        return rng.normal(center, 0.25, like.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, _variables(config)["params"])


def _packed(length, segments=2):
    """Tokens, segments and positions of three rows, two of which end in padding."""
    tokens = _tokens(length, rows=3, length=length)
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


@functools.partial(jax.jit, static_argnums=0)
def _logits(config, params, tokens, segment_ids=None, positions=None, masked_lm_positions=None):
    module, more = encoder.MaskedLanguageModel(config), {"masked_lm_positions": masked_lm_positions}
    return module.apply({"params": params}, tokens, None, segment_ids, positions, enable_dropout=False, **more)


def _tokens(seed, rows=2, length=20):
    return np.random.default_rng(seed).integers(1, VOCAB_SIZE, (rows, length), dtype=np.int32)


@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_rows_are_separate_rows(variant):
    config = _config(**VARIANTS[variant])
    first, second = slice(0, 7), slice(7, 18)  # of a row of 20; the rest is padding
    tokens = np.full((4, 20), config.pad_id, np.int32)
    segments, positions = np.zeros((2, 4, 20), np.int32)
    # Packed; packed with another token in the first segment; the two segments alone.
    tokens[:2, :18] = _tokens(0, rows=1, length=18)
    tokens[1, 2] = tokens[0, 2] % (VOCAB_SIZE - 1) + 1
    tokens[2, :7], tokens[3, :11] = tokens[0, first], tokens[0, second]
    segments[:2, first], segments[:2, second], segments[2:] = 1, 2, tokens[2:] != config.pad_id
    positions[:2, first], positions[:2, second], positions[2:] = np.arange(7), np.arange(11), np.arange(20)
    packed, changed, *alone = np.asarray(_logits(config, _params(config), tokens, segments, positions))
    assert np.array_equal(changed[second], packed[second])
    assert np.abs(changed[first] - packed[first]).max() > 1e-3
    np.testing.assert_allclose(packed[first], alone[0][:7], atol=1e-5)
    np.testing.assert_allclose(packed[second], alone[1][:11], atol=1e-5)


def _stacked(config, params):
    """Parameters of unrolled layers in the layout of scanned ones, written out for this test alone."""
    flat = traverse_util.flatten_dict(params, sep="/")
    period, first = config.global_attention_every, encoder.num_unscanned_layers(config)
    stacked = {}
    for name, value in flat.items():
        if "/layers_" not in name or int(name.split("/")[1].removeprefix("layers_")) < first:
            stacked[name] = value
    for i in range(first, first + period):
        block = f"encoder/encoder/layers_{i - first}" if period > 1 else "encoder/encoder"
        for name in flat:
            if name.startswith(f"encoder/layers_{i}/"):
                rest = name.removeprefix(f"encoder/layers_{i}/")
                parts = [flat[f"encoder/layers_{j}/{rest}"] for j in range(i, config.num_layers, period)]
                stacked[f"{block}/{rest}"] = np.stack(parts, axis=1)
    return traverse_util.unflatten_dict(stacked, sep="/")


def test_scanned_layers_give_the_loss_and_gradients_of_unrolled_ones():
    assert_scanned_layers_are_unrolled_ones(MODERN | {"num_layers": 5}, "full")


def assert_scanned_layers_are_unrolled_ones(fields, remat_policy):
    unrolled = _config(**fields)
    scanned = dataclasses.replace(unrolled, scan_layers=True, remat_policy=remat_policy)
    params, tokens = _params(unrolled), _tokens(1)
    grad = jax.jit(jax.value_and_grad(lambda p, c: jnp.sum(jnp.sin(_logits(c, p, tokens)))), static_argnums=1)
    loss, grads = grad(params, unrolled)
    scanned_loss, scanned_grads = grad(_stacked(scanned, params), scanned)
    assert float(loss) == pytest.approx(float(scanned_loss), rel=1e-5)
    expected = traverse_util.flatten_dict(_stacked(scanned, jax.device_get(grads)), sep="/")
    actual = traverse_util.flatten_dict(jax.device_get(scanned_grads), sep="/")
    assert expected.keys() == actual.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("num_layers", "every", "first_attention_norm", "expected"),
    [(12, 1, True, 0), (12, 1, False, 1), (22, 3, False, 1), (28, 3, False, 1), (24, 3, True, 0), (24, 3, False, 3)],
)
def test_layers_that_fit_no_period_come_first(num_layers, every, first_attention_norm, expected):
    fields = {"num_layers": num_layers, "global_attention_every": every, "norm_position": "pre"}
    config = _config(**fields, first_attention_norm=first_attention_norm, scan_layers=True)
    assert encoder.num_unscanned_layers(config) == expected


@pytest.mark.parametrize(
    "fields", [MODERN, {"position_embedding_type": "relative_key_query", "float32_attention_logits": True}]
)
def test_bf16_stays_close_to_float32(fields):
    config = _config(**fields)
    params, tokens = _params(config), _tokens(3)
    exact, low = (
        np.ravel(_logits(dataclasses.replace(config, dtype=dtype), params, tokens)) for dtype in ("float32", "bfloat16")
    )
    assert low.dtype == np.float32
    assert np.dot(exact, low) / (np.linalg.norm(exact) * np.linalg.norm(low)) > 0.999


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "fields",
    [MODERN | {"num_token_types": 2, "norm": "layer_norm", "num_layers": 2}, {"num_token_types": 2}],
    ids=["modernbert", "bert"],
)
def test_eight_devices_give_the_gradients_of_one(fields):
    """The loss looks at chosen positions, as that of a masked language model."""
    config = _config(**fields)
    params, tokens = _params(config), _tokens(4, rows=8)
    chosen = np.arange(24).reshape(8, 3) % 20
    loss = lambda p, t: jnp.sum(jnp.sin(_logits.__wrapped__(config, p, t, masked_lm_positions=chosen)))  # noqa: E731
    expected = jax.jit(jax.value_and_grad(loss))(params, tokens)
    mesh = small.partitioner(8, 2, meshes.fsdp_logical_axis_rules())
    axes = flax.core.unfreeze(nn_partitioning.get_axis_names(_variables(config)["params_axes"]))
    mesh.check_shapes(params, axes)
    sharded = jax.device_put(params, mesh.shardings(axes))
    mlp = sharded["encoder"]["layers_0"]["mlp"]
    kernel = mlp["wi" if "wi" in mlp else "wi_0"]["kernel"]
    assert (kernel.shape, kernel.addressable_shards[0].data.shape) == ((16, 12), (4, 6))
    actual = mesh.jit(jax.value_and_grad(loss))(sharded, mesh.shard_batch({"tokens": tokens})["tokens"])
    assert float(actual[0]) == pytest.approx(float(expected[0]), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), actual[1], expected[1])


def test_every_logical_axis_has_its_rules():
    everything = {"num_token_types": 2, "head_activation": "gelu_erf"}
    types = ("absolute_and_t5_buckets", "relative_key")
    configs = [_config(position_embedding_type=kind, scan_layers=True, **everything) for kind in types]
    trees = [nn_partitioning.get_axis_names(_variables(config)["params_axes"]) for config in configs]
    used = {axis for tree in trees for axes in traverse_util.flatten_dict(tree).values() for axis in axes}
    assert used <= {name for name, _ in meshes.standard_logical_axis_rules()}
    assert used <= adafactor.standard_logical_factor_rules().keys()
    assert {"abspos_buckets", "relpos_buckets", "token_types", "layers"} <= used


def test_logits_of_chosen_positions_are_those_of_all():
    config = _config()
    params, tokens = _params(config), _tokens(5)
    chosen = np.array([[3, 0, 17], [19, 19, 4]], np.int32)
    expected = np.take_along_axis(np.asarray(_logits(config, params, tokens)), chosen[..., None], axis=1)
    actual = _logits(config, params, tokens, masked_lm_positions=chosen)
    assert actual.shape == (2, 3, VOCAB_SIZE)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.usefixtures("kernels_are_right")
def test_fused_attention_gives_the_logits_of_xla():
    fields = {"position_embedding_type": "t5_buckets", "global_attention_every": 2, "head_dim": 16, "pad_id": 5}
    config = _config(**fields, kernels="xla")
    params, tokens = _params(config), _tokens(6, rows=1)
    tokens[0, 18:] = config.pad_id
    segments = np.repeat([[1, 2, 0]], [7, 11, 2], axis=1)
    plain, fused = (
        np.asarray(_logits(dataclasses.replace(config, kernels=choice), params, tokens, segments))
        for choice in ("xla", "fused")
    )
    np.testing.assert_allclose(fused[0, :18], plain[0, :18], atol=1e-5)


def test_pairs_of_rotary_positions_differ_by_a_permutation():
    fields = {"position_embedding_type": "rotary", "rotary_dim": 6, "num_layers": 1}
    halves = _config(**fields)
    params, tokens = _params(halves), _tokens(7)
    order = [0, 3, 1, 4, 2, 5, 6, 7]  # the two numbers of a pair side by side; the last two of a head stay
    interleaved = jax.tree.map(lambda x: x, params)
    for name in ("query", "key"):
        of_module = interleaved["encoder"]["layers_0"]["attention"][name]
        for leaf, value in of_module.items():
            of_module[leaf] = value.reshape(*value.shape[:-1], 2, 8)[..., order].reshape(value.shape)
    expected = _logits(halves, params, tokens)
    actual = _logits(dataclasses.replace(halves, rotary_pairs="interleaved"), interleaved, tokens)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert np.abs(np.asarray(_logits(halves, interleaved, tokens)) - expected).max() > 1e-2


def test_rotary_products_depend_on_the_distance_alone():
    query, key = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
    products = []
    for places in ([[0, 3]], [[11, 14]]):
        turned = rotary.rotation(jnp.array(places), 8, 100.0, "halves")(
            jnp.concatenate([jnp.array(query), jnp.array(key)], axis=1)
        )
        products.append(float(jnp.vdot(turned[0, 0], turned[0, 1])))
    assert products[0] == pytest.approx(products[1], rel=1e-5)
    assert products[0] != pytest.approx(float(np.vdot(query, key)), rel=1e-2)


def test_without_positions_the_order_of_tokens_does_not_matter():
    more = {"norm": "rms_norm", "norm_position": "pre", "embedding_norm": False, "head_activation": None}
    config = _config(position_embedding_type="none", mlp_activations=("silu", "linear"), logits_bias=False, **more)
    params, tokens = _params(config), _tokens(8)
    assert "mlm_head" not in params
    order = np.random.default_rng(0).permutation(tokens.shape[1])
    logits = np.asarray(_logits(config, params, tokens))
    np.testing.assert_allclose(_logits(config, params, tokens[:, order]), logits[:, order], atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vocab_size": 0}, ["vocab_size (VOCAB_SIZE) is 0", "at least 1"]),
        ({"num_layers": 10**7}, ["num_layers", "10,000"]),
        ({"pad_id": 40}, ["pad_id is 40", "40 rows", "below vocab_size"]),
        ({"num_token_types": -1}, ["num_token_types is -1", "at least 0"]),
        ({"dtype": "float16"}, ["float16", "gradients", "bfloat16"]),
        ({"norm": "batch_norm"}, ["norm is 'batch_norm'", "rms_norm"]),
        ({"norm_position": "sandwich"}, ["norm_position is 'sandwich'", "post, pre"]),
        ({"norm_epsilon": 0}, ["norm_epsilon is 0", "above 0"]),
        ({"position_embedding_type": "alibi"}, ["position_embedding_type is 'alibi'", "t5_buckets"]),
        ({"position_embedding_type": "rotary", "rotary_dim": 5}, ["rotary_dim is 5", "even", "head_dim, 8"]),
        ({"position_embedding_type": "rotary", "rotary_dim": 10}, ["rotary_dim is 10", "head_dim, 8"]),
        ({"position_embedding_type": "rotary", "head_dim": 7}, ["head_dim is 7", "even"]),
        ({"position_embedding_type": "t5_buckets", "num_buckets": 5}, ["num_buckets is 5", "even"]),
        ({"rotary_pairs": "quarters"}, ["rotary_pairs is 'quarters'", "halves, interleaved"]),
        ({"local_rotary_base": -1.0}, ["local_rotary_base is -1.0", "above 0"]),
        ({"first_attention_norm": False}, ["first_attention_norm", "norm_position = 'pre'"]),
        ({"global_attention_every": 3, "local_attention_window": 7}, ["local_attention_window is 7", "even"]),
        ({"mlp_activations": "gelu"}, ["it is a tuple: ('gelu',)"]),
        ({"head_activation": "gleu"}, ["gleu", "gelu"]),
        ({"num_heads": 6, "num_kv_heads": 4}, ["num_kv_heads is 4", "use a divisor of 6"]),
        ({"num_kv_heads": 0}, ["num_kv_heads is 0"]),
        ({"attention_dropout_rate": 1}, ["attention_dropout_rate is 1", "below 1"]),
        ({"remat_policy": "some"}, ["some", "minimal"]),
        ({"kernels": "triton"}, ["kernels is 'triton'", "auto, fused, cudnn, xla"]),
    ],
)
def test_bad_configurations_are_refused(fields, words):
    with pytest.raises(ValueError) as error:
        _config(**fields)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("fields", "call", "words"),
    [
        ({}, {"length": 25}, "25 tokens, and EncoderConfig.max_positions is 24"),
        ({"position_embedding_type": "relative_key"}, {"length": 25}, "max_positions is 24"),
        ({}, {"segment_ids": np.ones((2, 8), np.int32)}, "give `positions`, from 0 in each segment"),
        ({}, {"token_types": np.ones((2, 8), np.int32)}, "num_token_types is 0"),
    ],
)
def test_what_a_network_cannot_take_is_refused(fields, call, words):
    config, call = _config(**fields), dict(call)
    tokens = np.ones((2, call.pop("length", 8)), np.int32)
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(lambda: encoder.MaskedLanguageModel(config).init(jax.random.key(0), tokens, **call))
