import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from limba.devices import target
from limba.optimizers import adafactor

RULES = adafactor.standard_logical_factor_rules()


def _rms(x):
    return np.sqrt(np.mean(np.square(x)))


def _numpy_adafactor(params, gradients, learning_rates, *, beta1=None, weight_decay=0.0, exponent=None, clip=1.0):
    """Adafactor of one matrix from the paper's equations, in float64, for comparison."""
    p = params.astype(np.float64)
    row, col, full, m = 0.0, 0.0, 0.0, np.zeros_like(p)
    factored = min(p.shape) >= 128 if p.ndim == 2 else False
    for t, (g, lr) in enumerate(zip(gradients, learning_rates, strict=True)):
        beta2 = 1 - (t + 1.0) ** -0.8
        g = g.astype(np.float64)
        square = g**2 + 1e-30
        if factored:
            smaller, larger = np.argsort(p.shape, kind="stable")
            row = beta2 * row + (1 - beta2) * square.mean(axis=larger, keepdims=True)
            col = beta2 * col + (1 - beta2) * square.mean(axis=smaller, keepdims=True)
            v = row * col / row.mean()
        else:
            full = beta2 * full + (1 - beta2) * square
            v = full
        y = g / np.sqrt(v)
        y /= max(1.0, _rms(y) / clip)
        update = lr * max(_rms(p), 1e-3) * y
        if beta1:
            m = beta1 * m + (1 - beta1) * update
            update = m
        decay = weight_decay * (lr**exponent if exponent else 1.0)
        p = (1 - decay) * p - update
    return p


@pytest.mark.sample(10)
@pytest.mark.parametrize("shape", [(128, 192), (192, 128), (160, 160), (64, 200), (96,)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beta1": 0.9},
        {"weight_decay_rate": 0.01},
        {"beta1": 0.9, "weight_decay_rate": 0.5, "weight_decay_rate_lr_exponent": 2.0},
    ],
)
def test_steps_follow_the_equations(shape, options):
    rng = np.random.default_rng(0)
    start = rng.normal(size=shape).astype(np.float32)
    gradients = rng.normal(size=(4, *shape)).astype(np.float32)
    rates = [0.01, 0.02, 0.005, 0.1]
    optimizer = adafactor.Adafactor(logical_factor_rules=RULES, **options)
    params = {"w": jnp.asarray(start)}
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step, (g, rate) in enumerate(zip(gradients, rates, strict=True)):
        updates, state = update({"w": g}, state, params, learning_rate=rate, step=step)
        params = optax.apply_updates(params, updates)
    expected = _numpy_adafactor(
        start,
        gradients,
        rates,
        beta1=options.get("beta1"),
        weight_decay=options.get("weight_decay_rate", 0.0),
        exponent=options.get("weight_decay_rate_lr_exponent"),
    )
    np.testing.assert_allclose(params["w"], expected, rtol=2e-5, atol=2e-6)


def test_scanned_layers_are_updated_as_if_each_stood_alone():
    rng = np.random.default_rng(1)
    layers = rng.normal(size=(3, 128, 160)).astype(np.float32) * np.array([1, 5, 0.1], np.float32)[:, None, None]
    gradients = rng.normal(size=(3, 128, 160)).astype(np.float32)
    stacked = adafactor.Adafactor(logical_factor_rules=RULES)
    stacked.set_param_axes({"w": P("embed", "layers", "mlp")})
    single = adafactor.Adafactor(logical_factor_rules=RULES)
    params = {"w": jnp.moveaxis(jnp.asarray(layers), 0, 1)}
    grads = {"w": jnp.moveaxis(jnp.asarray(gradients), 0, 1)}
    updates, state = stacked.update(grads, stacked.init(params), params, learning_rate=0.01, step=0)
    assert state["w"].v_row.shape == (128, 3) and state["w"].v_col.shape == (3, 160)
    for i in range(3):
        one = {"w": jnp.asarray(layers[i])}
        expected, _ = single.update({"w": jnp.asarray(gradients[i])}, single.init(one), one, learning_rate=0.01, step=0)
        np.testing.assert_allclose(updates["w"][:, i], expected["w"], rtol=1e-5)


def test_state_has_t5x_shapes():
    params = {"embedding": jnp.zeros((4224, 128)), "scale": jnp.zeros((128,)), "rel": jnp.zeros((4, 32))}
    optimizer = adafactor.Adafactor(logical_factor_rules=RULES)
    state = optimizer.init(params)
    shapes = {
        name: {slot: getattr(s, slot).shape for slot in ("m", "v", "v_row", "v_col")} for name, s in state.items()
    }
    assert shapes == {
        "embedding": {"m": (1,), "v": (1,), "v_row": (128,), "v_col": (4224,)},
        "scale": {"m": (1,), "v": (128,), "v_row": (1,), "v_col": (1,)},
        "rel": {"m": (1,), "v": (4, 32), "v_row": (1,), "v_col": (1,)},
    }


def test_clipping_bounds_and_nan_guard():
    params = {"w": jnp.full((4,), 10.0)}
    grads = {"w": jnp.array([1.0, 2.0, 3.0, 4.0])}
    bounded = adafactor.Adafactor(max_parameter_scale=0.5)
    updates, _ = bounded.update(grads, bounded.init(params), params, learning_rate=1.0, step=0)
    np.testing.assert_allclose(updates["w"], -0.5, rtol=1e-6)  # g / sqrt(g^2) = 1, scale cut from 10 to 0.5
    guarded = adafactor.Adafactor(skip_nan_updates=True)
    both = {"w": params["w"], "x": params["w"]}
    state = guarded.init(both)
    spoiled = {"w": grads["w"].at[1].set(jnp.inf).at[2].set(jnp.nan), "x": grads["w"]}
    updates, new_state = guarded.update(spoiled, state, both, learning_rate=1.0, step=0)
    np.testing.assert_allclose(new_state["w"].v, [1.0, 0.0, 0.0, 16.0])  # as if nothing had happened
    assert not np.any(updates["w"]) and np.all(updates["x"])
    clipped = adafactor.Adafactor(global_norm_clip_threshold=1e-3, multiply_by_parameter_scale=False, decay_rate=0.8)
    _, state = clipped.update(grads, clipped.init(params), params, learning_rate=1.0, step=0)
    norm = np.linalg.norm([1, 2, 3, 4])
    np.testing.assert_allclose(state["w"].v, (np.array([1, 2, 3, 4]) * 1e-3 / norm) ** 2, rtol=1e-4)


def test_rules_by_path_and_by_name():
    """`HParamMap`s for networks without logical axes, and T5X's spellings of the ways to factor a dim."""
    heads, rows = (adafactor.FactorDim.COLUMN, "Batch", "row"), ("row", "batch", "row")
    rules = [("heads$", heads), ("rows$", rows), ("lone$", ("row", "none", "none")), (".*", adafactor.HEURISTIC_RULE)]
    optimizer = adafactor.Adafactor(
        factor_map=adafactor.HParamMap(rules),
        multiply_by_parameter_scale=adafactor.HParamMap([("bias", False), (".*", True)]),
        min_dim_size_to_factor=4,
    )
    params = {"heads": jnp.ones((2, 3, 5)), "w": jnp.ones((4, 6)), "bias": jnp.full((4,), 0.5)}
    params["rows"] = params["lone"] = jnp.ones((2, 3, 4))
    state = optimizer.init(params)
    assert (state["heads"].v_row.shape, state["heads"].v_col.shape) == ((3, 5), (2, 3))
    assert (state["w"].v_row.shape, state["w"].v_col.shape) == ((4,), (6,))
    for name in ("rows", "lone"):  # without columns nothing is factored
        assert (state[name].v.shape, state[name].v_row.shape) == ((2, 3, 4), (1,))
    updates, _ = optimizer.update(params, state, params, learning_rate=0.1, step=0)
    np.testing.assert_allclose(updates["bias"], -0.1, rtol=1e-6)  # not 0.05
    np.testing.assert_allclose(updates["heads"], -0.1, rtol=1e-6)

    assert adafactor.factor_name_to_factordim("COL") is adafactor.FactorDim.COLUMN
    assert adafactor.factor_name_to_factordim("unfactorized") is adafactor.FactorDim.NONE
    with pytest.raises(ValueError, match="'rows' is not a way"):
        adafactor.Adafactor(logical_factor_rules={"embed": "rows"})
    with pytest.raises(ValueError, match="factored is False"):
        adafactor.Adafactor(factored=False, factor_map=adafactor.HParamMap(rules))
    with pytest.raises(KeyError, match="is for encoder/w"):
        _ = adafactor.HParamMap([("decoder", True)])["encoder/w"]
    incomplete = adafactor.Adafactor(logical_factor_rules=RULES)
    incomplete.set_param_axes({"w": P("embed", "mlp", "relpos_buckets")})
    with pytest.raises(ValueError, match="both factored and"):
        incomplete.init({"w": jnp.ones((2, 3, 4))})


@pytest.mark.parametrize(
    ("argument", "value", "what"),
    [
        ("beta1", 1.0, "of at least 0 and below 1, or None"),
        ("beta1", "0.9", "of at least 0 and below 1, or None"),
        ("decay_rate", None, "of at least 0."),
        ("clipping_threshold", 0.0, "above 0, or None"),
        ("epsilon2", -1e-3, "of at least 0."),
        ("max_parameter_scale", float("nan"), "above 0, or None"),
        ("weight_decay_rate", -0.1, "of at least 0, or None"),
        ("min_dim_size_to_factor", True, "of at least 0."),
    ],
)
def test_numbers_that_cannot_be_meant(argument, value, what):
    with pytest.raises(ValueError, match=rf"Adafactor\.{argument} is {value!r}; it is a number {what}"):
        adafactor.Adafactor(**{argument: value})


def test_steps_below_the_offset_are_finite():
    params = {"w": jnp.ones((4,))}
    optimizer = adafactor.Adafactor(step_offset=1000)
    updates, _ = optimizer.update({"w": jnp.ones((4,))}, optimizer.init(params), params, learning_rate=0.1, step=3)
    assert np.all(np.isfinite(updates["w"]))


def test_rank_three_without_axes_is_refused():
    with pytest.raises(ValueError, match="logical axes"):
        adafactor.Adafactor(logical_factor_rules=RULES).init({"w": jnp.zeros((2, 128, 128))})
    optimizer = adafactor.Adafactor(logical_factor_rules=RULES)
    optimizer.set_param_axes({"w": P("embed", "layers", "pixels")})
    with pytest.raises(ValueError, match="pixels"):
        optimizer.init({"w": jnp.zeros((128, 2, 128))})


@pytest.mark.parametrize("options", [{"beta1": 0.9, "weight_decay_rate": 0.01}, {"factored": False}])
def test_like_parameters_together_are_the_same_numbers(monkeypatch, options):
    """On GPUs; layers of one shape, scanned ones, one that is alone, vectors, and an axis that is another."""
    rng = np.random.default_rng(0)
    shapes = {
        **{f"layers_{i}": (128, 192) for i in range(3)},
        "other_axes": (128, 192),
        "scanned_0": (128, 4, 160),
        "scanned_1": (128, 4, 160),
        "embedding": (256, 128),
        **{f"scale_{i}": (128,) for i in range(2)},
    }
    axes = {name: P("embed", "mlp") for name in shapes} | {
        "other_axes": P("embed", "joined_kv"),
        "embedding": P("vocab", "embed"),
        **{f"scanned_{i}": P("embed", "layers", "mlp") for i in range(2)},
        **{f"scale_{i}": P("embed") for i in range(2)},
    }
    draw = lambda: {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}  # noqa: E731
    params, gradients = draw(), [draw() for _ in range(3)]
    results = []
    for platform in ("cpu", "gpu"):
        monkeypatch.setattr(target, "platform", lambda platform=platform: platform)
        optimizer = adafactor.Adafactor(logical_factor_rules=RULES, **options)
        optimizer.set_param_axes(axes)
        state, moved = optimizer.init(params), params
        step = jax.jit(
            lambda *arguments, optimizer=optimizer: optimizer.update(
                *arguments[:3], learning_rate=0.1, step=arguments[3]
            )
        )
        for number, grads in enumerate(gradients):
            updates, state = step(grads, state, moved, number)
            moved = jax.tree.map(jnp.add, moved, updates)
        results.append((moved, state))
    assert float(jnp.max(jnp.abs(results[0][0]["layers_0"] - params["layers_0"]))) > 0.1
    for ours, plain in zip(*map(jax.tree.leaves, results), strict=True):
        assert ours.shape == plain.shape
        np.testing.assert_allclose(ours, plain, rtol=2e-6, atol=1e-7)


def test_like_parameters_are_traced_once_into_the_same_program(monkeypatch):
    shapes = {**{f"layers_{i}": (128, 192) for i in range(6)}, "scale": (128,), "other": (128, 192)}
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    options = {
        "multiply_by_parameter_scale": adafactor.HParamMap([("other", False), (".*", True)]),
        "weight_decay_rate": adafactor.HParamMap([("layers_1", 0.1), (".*", 0.2)]),
        "weight_decay_rate_lr_exponent": 2.0,
    }

    def program():
        optimizer = adafactor.Adafactor(**options)
        traced = []
        update_param = optimizer._update_param
        optimizer._update_param = lambda key, *others: traced.append(key) or update_param(key, *others)
        step = lambda grads, state, rate: optimizer.update(grads, state, params, learning_rate=rate, step=3)  # noqa: E731
        return jax.jit(step).lower(params, optimizer.init(params), 0.1).as_text(), len(traced)

    text, traced = program()
    monkeypatch.setattr(adafactor, "_traced_once", lambda function: function)
    singly = program()
    assert (traced, singly) == (3, (text, 8))
