import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from flax.linen import partitioning as nn_partitioning

from limba.network import attention, attention_by_rows, layers, products, scalable_t5, t5
from limba.network.finite_numbers import interceptors
from limba.network.gemma_layers import GemmaLayers
from tests.limba import small

# T5Gemma 2's, with a window that is shorter than the rows; the second of two layers sees the whole row.
GEMMA = GemmaLayers(
    num_kv_heads=2,
    sliding_window=3,
    attn_logit_softcapping=2.0,
    final_logit_softcapping=5.0,
    query_pre_attn_scalar=9.0,
    merged_attention=True,
    qk_norm=True,
    shared_embedding=True,
    local_rotary_base=50.0,
    rotary_factor=3.0,
    halved_encoder_window=True,
)


@functools.partial(jax.jit, static_argnums=0)
def _logits(module, params, batch):
    return module.apply(
        {"params": params},
        batch["encoder_input_tokens"],
        batch["decoder_input_tokens"],
        batch["decoder_target_tokens"],
        enable_dropout=False,
    )


def _stack_layers(params, num_encoder_layers, num_decoder_layers):
    """The parameters of unrolled layers in the layout of scanned ones, written out for this test alone."""
    flat = traverse_util.flatten_dict(params, sep="/")
    stacked = {name: value for name, value in flat.items() if "/layers_" not in name}
    for side, count in (("encoder", num_encoder_layers), ("decoder", num_decoder_layers)):
        for name in flat:
            if name.startswith(f"{side}/layers_0/"):
                rest = name.removeprefix(f"{side}/layers_0/")
                parts = [flat[f"{side}/layers_{i}/{rest}"] for i in range(count)]
                stacked[f"{side}/{side}/{rest}"] = np.stack(parts, axis=1)
    return traverse_util.unflatten_dict(stacked, sep="/")


def test_scanned_layers_give_the_loss_and_gradients_of_unrolled_ones():
    unrolled = small.model(num_encoder_layers=3, num_decoder_layers=2)
    scanned = small.model(num_encoder_layers=3, num_decoder_layers=2, scan_layers=True, remat_policy="minimal")
    params = small.random_params(unrolled)
    stacked = _stack_layers(params, 3, 2)
    batch = small.batch(0)
    grad = lambda model, p: jax.jit(jax.value_and_grad(lambda q: model.loss_fn(q, batch, None)[0]))(p)  # noqa: E731
    loss, grads = grad(unrolled, params)
    scanned_loss, scanned_grads = grad(scanned, stacked)
    assert float(loss) == pytest.approx(float(scanned_loss), rel=1e-6)
    expected = traverse_util.flatten_dict(_stack_layers(jax.device_get(grads), 3, 2), sep="/")
    actual = traverse_util.flatten_dict(jax.device_get(scanned_grads), sep="/")
    assert expected.keys() == actual.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_like_layers_that_draw_nothing_are_traced_once(monkeypatch):
    model = small.model(**small.TINY | {"num_encoder_layers": 3, "num_decoder_layers": 2})
    params, batch = small.random_params(model), small.batch(0)
    traced = []
    mlp = t5._mlp
    monkeypatch.setattr(t5, "_mlp", lambda config: traced.append(1) or mlp(config))
    loss = lambda p: model.loss_fn(p, batch, None)[0]  # noqa: E731
    once = jax.jit(jax.value_and_grad(loss))(params)
    assert len(traced) == 2  # of the encoder and of the decoder
    with interceptors.intercept(lambda call, args, kwargs, context: call(*args, **kwargs)):
        each = jax.jit(jax.value_and_grad(loss))(params)
    assert len(traced) == 2 + 5
    for x, y in zip(jax.tree.leaves(once), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
    dropping = small.model(**small.TINY | {"num_encoder_layers": 3, "num_decoder_layers": 2, "dropout_rate": 0.5})
    jax.eval_shape(lambda p: dropping.loss_fn(p, batch, jax.random.key(0))[0], params)
    assert len(traced) == 2 + 5 + 5  # each has its own mask


def test_attention_by_rows_gives_the_loss_and_gradients_of_all_rows_at_once(monkeypatch):
    model = small.model(**small.TINY)
    params, batch = small.random_params(model), small.batch(0)
    grad = lambda: jax.jit(jax.value_and_grad(lambda q: model.loss_fn(q, batch, None)[0]))  # noqa: E731
    loss, grads = grad()(params)
    monkeypatch.setattr(attention_by_rows, "_SHORTEST", 1)
    monkeypatch.setattr(attention_by_rows, "_HEADS_OF_A_CORE", 0)
    by_rows = grad()
    assert str(jax.make_jaxpr(by_rows)(params)).count("scan[") >= 3  # the attentions of a layer of each stack
    plain = small.model(**small.TINY, kernels="xla")
    assert "scan[" not in str(jax.make_jaxpr(lambda q: plain.loss_fn(q, batch, None)[0])(params))
    rows_loss, rows_grads = by_rows(params)
    assert float(rows_loss) == pytest.approx(float(loss), rel=1e-6)
    for x, y in zip(jax.tree.leaves(rows_grads), jax.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_remat_recomputes_the_same_dropout():
    losses = []
    for remat_policy in ("none", "full"):
        fields = {"scan_layers": True, "remat_policy": remat_policy}
        model = small.model(**small.TINY, dropout_rate=0.5, **fields)
        params = small.random_params(model)
        loss = lambda p, m=model: m.loss_fn(p, small.batch(0), jax.random.key(1))[0]  # noqa: E731
        value, grads = jax.jit(jax.value_and_grad(loss))(params)
        losses.append((float(value), float(jnp.linalg.norm(grads["token_embedder"]["embedding"]))))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "keeps_keys"),
    [
        ({}, True),
        ({"logits_via_embedding": True, "relative_bias_per_layer": True}, True),
        ({"scan_layers": True, "relative_bias_per_layer": True, "joined_attention_kernels": False}, False),
        ({"gemma_layers": GEMMA, **small.TWO_LAYERS}, True),
        ({"gemma_layers": GemmaLayers(num_kv_heads=1, merged_attention=True), "scan_layers": True}, False),
    ],
    ids=["T5 1.1", "umT5", "scalable_t5", "T5Gemma 2", "scanned, one head of keys, merged"],
)
def test_decoding_step_by_step_equals_teacher_forcing(fields, keeps_keys):
    model = small.model(**fields)
    module = model.module
    batch = small.batch(1, rows=3)
    # Decoding does not mask padded targets, teacher forcing does: compare on full rows.
    batch["decoder_target_tokens"] = np.maximum(batch["decoder_target_tokens"], 3)
    batch["decoder_input_tokens"] = np.pad(batch["decoder_target_tokens"], ((0, 0), (1, 0)))[:, :-1]
    inputs, tokens = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
    params = small.random_params(model)
    expected = _logits(module, params, batch)

    encode = functools.partial(module.apply, enable_dropout=False, method=module.encode)
    encoded = jax.jit(encode)({"params": params}, inputs)

    @functools.partial(jax.jit, static_argnames="keep")
    def step(cache, fed, keep=False):
        return module.apply(
            {"params": params, **cache},
            encoded,
            inputs,
            fed,
            fed,
            enable_dropout=False,
            decode=True,
            keep_encoded_keys=keep,
            mutable=["cache"],
            method=module.decode,
        )

    _, cache = step({}, tokens, keep=keeps_keys)
    stepwise = []
    for t in range(8):
        logits, cache = step(cache, tokens[:, t : t + 1])
        stepwise.append(logits)
    np.testing.assert_allclose(np.concatenate(stepwise, axis=1), expected, atol=2e-4)


@pytest.mark.parametrize("fields", [{}, {"gemma_layers": GEMMA, **small.TWO_LAYERS}], ids=["T5 1.1", "T5Gemma 2"])
def test_packed_examples_do_not_see_each_other(fields):
    model = small.model(**fields)
    module = model.module
    first, second = small.batch(2, rows=1, inputs=6, targets=5), small.batch(3, rows=1, inputs=6, targets=5)
    for example in (first, second):
        example["encoder_input_tokens"] = np.maximum(example["encoder_input_tokens"], 3)
        example["decoder_target_tokens"] = np.maximum(example["decoder_target_tokens"], 3)
    packed = {name: np.concatenate([first[name], second[name]], axis=1) for name in first}
    encoder_segments = np.array([[1] * 6 + [2] * 6])
    decoder_segments = np.array([[1] * 5 + [2] * 5])
    params = small.random_params(model)
    together = jax.jit(functools.partial(module.apply, enable_dropout=False))(
        {"params": params},
        packed["encoder_input_tokens"],
        packed["decoder_input_tokens"],
        packed["decoder_target_tokens"],
        encoder_segment_ids=encoder_segments,
        decoder_segment_ids=decoder_segments,
        decoder_positions=np.tile(np.arange(5), 2)[None],
    )
    np.testing.assert_allclose(together[:, :5], _logits(module, params, first), atol=1e-5)
    np.testing.assert_allclose(together[:, 5:], _logits(module, params, second), atol=1e-5)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_scalable_t5_has_its_own_layout(scan_layers):
    sizes = {"vocab_size": 64, "emb_dim": 24, "num_heads": 3, "head_dim": 5, "mlp_dim": 16}
    config = scalable_t5.T5Config(**sizes, num_encoder_layers=4, num_decoder_layers=4, scan_layers=scan_layers)
    tokens = jnp.ones((1, 4), jnp.int32)
    variables = jax.eval_shape(
        lambda: t5.Transformer(config).init(jax.random.key(0), tokens, tokens, tokens, enable_dropout=False)
    )
    params = traverse_util.flatten_dict(variables["params"], sep="/")
    axes = traverse_util.flatten_dict(nn_partitioning.get_axis_names(variables["params_axes"]), sep="/")
    layer, layers_axis = ("decoder/decoder", ["layers"]) if scan_layers else ("decoder/layers_3", [])
    for name, shape, names in (
        ("self_attention/query/kernel", (24, 3, 5), ("embed", "heads", "kv")),
        ("self_attention/out/kernel", (3, 5, 24), ("heads", "kv", "embed")),
        ("relpos_bias/rel_embedding", (3, 32), ("heads", "relpos_buckets")),
        ("mlp/wo/kernel", (16, 24), ("mlp", "embed")),
        ("pre_mlp_layer_norm/scale", (24,), ("embed",)),
    ):
        stacked = (shape[0], *([4] if scan_layers else []), *shape[1:])
        assert params[f"{layer}/{name}"].shape == stacked
        assert tuple(axes[f"{layer}/{name}"]) == (names[0], *layers_axis, *names[1:])
    assert "decoder/relpos_bias/rel_embedding" not in params


def test_joined_and_split_kernels_are_the_same_numbers():
    layers_ = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    module, split = (
        t5.Transformer(small.config(joined_attention_kernels=joined, **layers_)) for joined in (True, False)
    )
    batch = small.batch(0, rows=2)
    tokens = [batch[f"{name}_tokens"] for name in ("encoder_input", "decoder_input", "decoder_target")]
    apply = lambda m: m.init_with_output(jax.random.key(0), *tokens, enable_dropout=False)[0]  # noqa: E731
    np.testing.assert_allclose(
        jax.jit(apply, static_argnums=0)(module), jax.jit(apply, static_argnums=0)(split), atol=1e-5
    )


def test_decoding_is_refused_where_it_would_go_wrong():
    module = t5.Transformer(small.config())
    tokens = jnp.ones((1, 4), jnp.int32)
    new = lambda **more: module.init(jax.random.key(0), tokens, tokens, tokens, enable_dropout=False, **more)  # noqa: E731
    with pytest.raises(ValueError, match="pack = False"):
        jax.eval_shape(lambda: new(decode=True, encoder_segment_ids=tokens, decoder_segment_ids=tokens))
    layer = attention.MultiHeadDotProductAttention(num_heads=2, head_dim=4)
    x = jnp.ones((1, 3, 8))
    variables = jax.eval_shape(lambda: layer.init(jax.random.key(0), x, x, decode=True))
    with pytest.raises(ValueError, match="one position at a time, with a cache of 3; got 3"):
        jax.eval_shape(lambda v: layer.apply(v, x, x, decode=True, mutable=["cache"]), variables)
    with pytest.raises(ValueError, match="prefill_lengths"):
        jax.eval_shape(lambda v: layer.apply(v, x, x, prefill=True, mutable=["cache"]), variables)
    with pytest.raises(ValueError, match="float32; cast them"):
        layers.Embed(8, 4).init(jax.random.key(0), x)


def test_relative_position_buckets_follow_the_definition():
    def bucket(distance, bidirectional, num_buckets=32, max_distance=128):
        offset = 0
        if bidirectional:
            num_buckets //= 2
            offset = num_buckets if distance > 0 else 0
            distance = abs(distance)
        else:
            distance = max(-distance, 0)
        exact = num_buckets // 2
        if distance < exact:
            return offset + distance
        log = math.log(distance / exact) / math.log(max_distance / exact)
        return offset + min(exact + int(log * (num_buckets - exact) + 1e-6), num_buckets - 1)

    distances = list(range(-200, 201))
    for bidirectional in (True, False):
        actual = attention.relative_position_bucket(jnp.array(distances), bidirectional, 32, 128)
        assert actual.tolist() == [bucket(d, bidirectional) for d in distances]


def test_gather_and_one_hot_embedding_agree():
    tokens = jnp.array([[0, 5, 255], [7, 7, 1]])
    gather, one_hot = (layers.Embed(256, 16, one_hot=flag) for flag in (False, True))
    variables = gather.init(jax.random.key(0), tokens)
    np.testing.assert_allclose(gather.apply(variables, tokens), one_hot.apply(variables, tokens), rtol=1e-6)


def test_bf16_stays_close_to_float32_and_its_gradients_too():
    batch = small.batch(0)
    losses, gradients = [], []
    for dtype in ("float32", "bfloat16"):
        model = small.model(dtype=dtype)
        params = small.random_params(model)
        loss, grads = jax.jit(jax.value_and_grad(lambda p, m=model: m.loss_fn(p, batch, None)[0]))(params)
        losses.append(float(loss))
        gradients.append(np.concatenate([np.ravel(g) for g in jax.tree.leaves(grads)]))
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)
    cosine = np.dot(*gradients) / np.prod([np.linalg.norm(g) for g in gradients])
    assert cosine > 0.999


def test_einsum_accumulates_in_float32():
    a = jnp.full((1, 1, 4096), 1.0, jnp.bfloat16)
    b = jnp.full((4096, 1), 2.0**-8, jnp.bfloat16)
    # In bf16 the sum would stop growing where 2^-8 falls below half a unit in the last place.
    assert products.einsum("bld,df->blf", a, b, jnp.bfloat16).item() == 16.0


_PRODUCTS = ["bld,df->blf", "ble,ve->blv", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bhqk,bqhd->bkhd"]


def test_the_gradient_of_a_bias_is_summed_in_float32():
    layer = layers.DenseGeneral(3, dtype=jnp.bfloat16, kernel_axes=("embed", "mlp"), use_bias=True)
    x = jnp.ones((2, 2048, 4), jnp.bfloat16)
    variables = layer.init(jax.random.key(0), x)
    weights = jnp.array([1.0, 2.0, -3.0], jnp.bfloat16)
    gradient = jax.grad(lambda p: jnp.sum((layer.apply({"params": p}, x) * weights).astype(jnp.float32)))
    # In bf16 the sum of ones would stop at 256.
    np.testing.assert_array_equal(gradient(variables["params"])["bias"], [4096, 8192, -12288])


@pytest.mark.parametrize("tied", [False, True])
def test_the_loss_of_a_bf16_network_needs_no_float32_product_with_the_vocabulary(tied):
    """A CPU takes three times as long for one. Its logits are float32 all the same, and what a user sees is exact."""
    batch, vocab = small.batch(0, rows=3), small.VOCAB_SIZE
    model = small.model(dtype="bfloat16", logits_via_embedding=tied)
    params = small.random_params(model)
    program = jax.make_jaxpr(jax.grad(lambda p: model.loss_fn(p, batch, None)[0]))(params)
    of_vocab = [
        [str(operand.aval.dtype) for operand in product.invars]
        for product in _equations(program.jaxpr, "dot_general")
        if any(vocab in array.aval.shape for array in (*product.invars, *product.outvars))
    ]
    assert of_vocab == [["bfloat16", "bfloat16"]] * 3  # the logits, and the gradients of their two operands
    module = small.model(dtype="float32", logits_via_embedding=tied).module
    of_loss, seen = (small.call(module, params, *_inputs(batch), linear_logits=flag) for flag in (True, False))
    np.testing.assert_array_equal(of_loss, seen)


def _equations(jaxpr, name):
    """Of a program and those inside it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        for inner in jax.core.jaxprs_in_params(equation.params):
            yield from _equations(inner, name)


def _inputs(batch):
    return [batch[name] for name in ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")]


@pytest.mark.parametrize("equation", _PRODUCTS)
def test_products_and_their_gradients_on_a_cpu(equation):
    """The numbers are those of float32, and no operand is: XLA multiplies bf16 in its fast kernels, or converts it."""
    size = dict(zip("bldfevqkh", (2, 40, 24, 56, 32, 48, 40, 64, 3), strict=True))
    inputs, out = equation.split("->")
    rng = np.random.default_rng(0)
    a, b, g = (
        jnp.asarray(rng.integers(-8, 9, [size[dim] for dim in dims]), jnp.bfloat16)
        for dims in (*inputs.split(","), out)
    )

    def value_and_gradients(multiply, a, b, g):
        value, back = jax.vjp(lambda a, b: multiply(equation, a, b), a, b)
        return value, *back(g.astype(value.dtype))

    fast = jax.jit(lambda *x: value_and_gradients(lambda e, a, b: products.einsum(e, a, b, jnp.bfloat16), *x))
    plain = value_and_gradients(jnp.einsum, *(x.astype(jnp.float32) for x in (a, b, g)))
    for found, expected in zip(fast(a, b, g), plain, strict=True):
        np.testing.assert_allclose(found.astype(jnp.float32), expected, rtol=2.0**-8)
    exact = jax.jit(lambda *x: value_and_gradients(lambda e, a, b: products.einsum(e, a, b, jnp.float32), *x))
    a32, b32, g32 = (x.astype(jnp.float32) for x in (a, b, g))
    for found, expected in zip(exact(a32, b32, g32), plain, strict=True):
        np.testing.assert_array_equal(found, expected)
    # XLA has its fast kernels where the first operand is contracted over its last dim.
    dots = re.findall(
        r" = f32\[([\d,]+)\].* dot\(.*lhs_contracting_dims=\{(\d)\}", exact.lower(a32, b32, g32).compile().as_text()
    )
    assert len(dots) == 3
    assert all(int(contracted) == result.count(",") for result, contracted in dots)
    if products._cpu_multiplies_bf16():
        compiled = fast.lower(a, b, g).compile().as_text()
        operands = re.findall(r" dot\(%([\w.-]+), %([\w.-]+)\)", compiled)
        assert len(operands) == 3
        for name in {name for pair in operands for name in pair}:
            assert re.search(rf"%{re.escape(name)} = bf16\[", compiled), name


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dtype": "float16"}, ["float16", "wo", "bfloat16"]),
        ({"dtype": "fp16"}, ["fp16", "wo", "bfloat16"]),
        ({"dtype": "bf16"}, ["bf16", "'bfloat16' or 'float32'"]),
        ({"remat_policy": "some"}, ["some", "minimal"]),
        ({"mlp_activations": ("gleu",)}, ["gleu", "gelu"]),
        ({"mlp_activations": "gelu"}, ["it is a tuple: ('gelu',)"]),
        ({"num_heads": 0}, ["num_heads", "0"]),
        ({"decoder_start_token_id": -1}, ["decoder_start_token_id is -1"]),
        ({"decoder_start_token_id": 10**6}, ["decoder_start_token_id is 1000000; it is an id below vocab_size"]),
    ],
)
def test_bad_configurations_are_refused(fields, words):
    with pytest.raises(ValueError) as error:
        small.config(**fields)
    for word in words:
        assert word in str(error.value)


def test_the_decoder_begins_with_its_own_token():
    """Loss, gradients and decoded tokens are those of a network whose 0 is embedded as that token."""
    start = 5
    fields = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    plain, own = small.model(**fields), small.model(**fields, decoder_start_token_id=start)
    params = small.random_params(own)
    table = jnp.asarray(params["token_embedder"]["embedding"])
    swapped = {**params, "token_embedder": {"embedding": table.at[0].set(table[start])}}
    batch = small.batch(3, 4)

    @functools.partial(jax.jit, static_argnums=0)
    def loss(model, params):
        value, gradients = jax.value_and_grad(lambda p: model.loss_fn(p, batch, None)[0])(params)
        return value, gradients["token_embedder"]["embedding"]

    (own_loss, own_gradient), (plain_loss, plain_gradient) = loss(own, params), loss(plain, swapped)
    np.testing.assert_allclose(own_loss, plain_loss, rtol=1e-6)
    expected = plain_gradient.at[start].add(plain_gradient[0]).at[0].set(0)
    np.testing.assert_allclose(own_gradient, expected, atol=1e-5)
    assert abs(float(own_loss - loss(plain, params)[0])) > 1e-3
    (found, _), (expected, _) = small.predictions(own, params, batch), small.predictions(plain, swapped, batch)
    np.testing.assert_array_equal(found, expected)


def test_scaled_attention_logits_are_those_of_smaller_queries():
    inputs = jax.random.normal(jax.random.key(0), (2, 5, 32))
    plain = attention.MultiHeadDotProductAttention(num_heads=2, head_dim=16)
    scaled = attention.MultiHeadDotProductAttention(num_heads=2, head_dim=16, scale_logits=True)
    params = jax.jit(plain.init)(jax.random.key(1), inputs, inputs)["params"]
    smaller = {**params, "query": jax.tree.map(lambda kernel: kernel / 4, params["query"])}
    expected = jax.jit(plain.apply)({"params": smaller}, inputs, inputs)
    found = jax.jit(scaled.apply)({"params": params}, inputs, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_padding_does_not_make_bf16_nan():
    """Padding looks at nothing, and a softmax over nothing but masked logits must stay finite however it is fused."""
    model = small.model(
        num_encoder_layers=1, num_decoder_layers=1, emb_dim=32, num_heads=2, head_dim=16, mlp_dim=32, dtype="bfloat16"
    )
    params = small.random_params(model)
    assert np.isfinite(_logits(model.module, params, small.batch(0, 32, 128, 64))).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [("emb_dim", 64.0), ("vocab_size", 1920.0), ("num_heads", "4"), ("mlp_dim", True), ("head_dim", 0)],
)
def test_sizes_are_whole_numbers(field, value):
    with pytest.raises(
        ValueError, match=rf"T5Config.{field}( \(VOCAB_SIZE\))? is {value!r}; it is a whole number of at l"
    ):
        t5.T5Config(**({"vocab_size": 8} | {field: value}))


@pytest.mark.parametrize("field", ["num_encoder_layers", "num_decoder_layers"])
def test_more_layers_than_any_network_has_are_refused_at_once(field):
    with pytest.raises(ValueError, match=rf"T5Config\.{field} is 10000000; a network has at most 10,000"):
        t5.T5Config(vocab_size=128, **{field: 10**7})
