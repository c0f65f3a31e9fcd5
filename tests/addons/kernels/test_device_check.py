"""Kernels are compared with XLA before they are used: right ones pass, wrong ones of every kind do not."""

import dataclasses
import functools
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.addons.kernels import attention_cudnn, attention_gpu, attention_tpu, fused_attention, layer_norm_gpu
from limba.checkpoints import run_description
from limba.devices import target
from limba.network.kernels import attention, device_check
from limba.workers import distributed
from tests.addons.kernels import networks

pytestmark = pytest.mark.exhaustive

FLOAT32, BFLOAT16 = "float32", "bfloat16"
of_each_device = pytest.mark.parametrize("module", [attention_gpu, attention_tpu], ids=["gpu", "tpu"])


@pytest.fixture(autouse=True)
def nothing_compared(monkeypatch):
    monkeypatch.setattr(device_check, "_results", {})


def _case(dtype=FLOAT32, kernel="attention_gpu", **kind):
    sizes = {"heads": 2, "head_dim": 16, "queries": 72, "keys": 72}
    flags = dict.fromkeys(("has_bias", "is_packed", "has_prefix", "causal"), False)
    return fused_attention.Case(kernel, dtype, **(sizes | flags | kind))


CAUSAL = _case(has_bias=True, is_packed=True, causal=True)
PADDED = _case(has_bias=True)
CROSS = _case(is_packed=True, keys=88)
PREFIX = _case(has_bias=True, is_packed=True, has_prefix=True, causal=True)


def _use(monkeypatch, module, case):
    """The case as programs for the device of this module have it; all of them are interpreted."""
    if module is attention_tpu:
        monkeypatch.setattr(attention_gpu, "attention", attention_tpu.attention)
    return device_check.compare(case, "cpu")


# ------------------------------------------------------ right ones --------------------------------------------------


@of_each_device
@pytest.mark.parametrize("case", [dataclasses.replace(PREFIX, dtype=BFLOAT16), CROSS], ids=str)
def test_kernels_are_right(monkeypatch, module, case):
    result = _use(monkeypatch, module, case)
    assert result.problem == "" and (result.kernel, result.device) == ("attention_gpu", "cpu")
    # A step of bfloat16 is 2^-8 of its numbers.
    assert 1e-8 < result.error < (0.01 if case.dtype == BFLOAT16 else 1e-5)
    assert (result.xla_error > 1e-3) is (case.dtype == BFLOAT16)


def test_cudnn_is_right_where_it_can_be(monkeypatch):
    """By XLA's implementation of the same call: segments, lengths and bias are what it is given."""
    by_xla = functools.partial(attention_cudnn.attention, implementation="xla")
    monkeypatch.setattr(attention_cudnn, "attention", by_xla)
    case = _case(BFLOAT16, "attention_cudnn", has_bias=True, causal=True)
    assert device_check.compare(case, "cpu").problem == ""

    def without_lengths(query, key, value, table, segments, **options):
        return by_xla(query, key, value, table, tuple(map(jnp.ones_like, segments)), **options)

    monkeypatch.setattr(attention_cudnn, "attention", without_lengths)
    assert "is off by" in device_check.compare(dataclasses.replace(case, causal=False), "cpu").problem


# ------------------------------------------------------ wrong ones --------------------------------------------------


def _plain(q, k, v, table, segments, prefix=None, *, causal=False, interpret=True):
    """A right one that compiles fast; what it gives for queries without keys is not looked at."""
    del interpret
    exact = (x.astype(jnp.float32) for x in (q, k, v))
    return networks.plain_attention(*exact, table, segments, prefix, causal=causal).astype(q.dtype)


def _with(**changes):
    """A kernel that is called with other arguments than it got: functions of the argument."""

    def wrong(q, k, v, table, segments, prefix=None, *, causal=False, interpret=True):
        arguments = {"q": q, "k": k, "v": v, "table": table, "segments": segments, "prefix": prefix, "causal": causal}
        return _plain(**(arguments | {name: change(arguments[name]) for name, change in changes.items()}))

    return wrong


def _then(change):
    """A kernel whose result is changed."""
    return lambda *arguments, **options: change(_plain(*arguments, **options))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gradient_by(change, x):
    return x


_gradient_by.defvjp(lambda change, x: (x, None), lambda change, _, g: (change(g),))
_gradient = functools.partial(functools.partial, _gradient_by)
_first_of = lambda x, axis: jnp.broadcast_to(jnp.take(x, jnp.array([0]), axis), x.shape)  # noqa: E731

WRONG_ANYWHERE = {
    "right for zeros alone": _then(lambda o: 0 * o),
    "of the mean of all values": _with(q=lambda q: 0 * q, table=lambda t: 0 * t),
    "right for equal rows alone": _with(k=lambda k: k.mean(1, keepdims=True) + 0 * k),
    "the first head for all": _then(lambda o: _first_of(o, 2)),
    "keys of the first head": _with(k=lambda k: _first_of(k, 2)),
    "the first row for all": _then(lambda o: _first_of(o, 0)),
    "no last tile": _then(lambda o: o.at[:, 64:].set(0)),
    "one number": _then(lambda o: o.at[0, 5, 1, 3].add(0.5)),
    "divided by the root of head_dim": _with(q=lambda q: q / 4),
    "no bias": _with(table=lambda t: 0 * t),
    "the bias the other way round": _with(table=lambda t: t[:, ::-1]),
    "a bias one place off": _with(table=lambda t: jnp.roll(t, 1, 1)),
    "the first head's bias": _with(table=lambda t: _first_of(t, 0)),
    "a bias without gradient": _with(table=jax.lax.stop_gradient),
    "the bias' gradient of another head": _with(table=_gradient(lambda g: g[::-1])),
    "padding and segments alike": _with(segments=lambda s: tuple(map(jnp.ones_like, s))),
    "padding seen by the first segment": _with(segments=lambda s: tuple(jnp.maximum(x, 1) for x in s)),
    "no gradient of queries": _with(q=jax.lax.stop_gradient),
    "a twentieth more gradient of keys": _with(k=_gradient(lambda g: 1.05 * g)),
    "the gradient of values of other rows": _with(v=_gradient(lambda g: g[::-1])),
    "NaN for padding": lambda q, k, v, table, segments, *more, **options: jnp.where(
        (segments[0] == 0)[:, :, None, None], jnp.nan, _plain(q, k, v, table, segments, *more, **options)
    ),
}
WRONG_BY_KIND = {
    "sees what comes after": (CAUSAL, _with(causal=lambda causal: False)),
    "does not see itself": (CAUSAL, _with(q=lambda q: jnp.roll(q, -1, 1))),
    "no prefix": (PREFIX, _with(prefix=lambda prefix: None)),
    "all of it prefix": (PREFIX, _with(prefix=jnp.ones_like)),
    "the first row's prefix": (PREFIX, _with(prefix=lambda p: _first_of(p, 0))),
    "segments of queries for keys": (_case(is_packed=True), _with(segments=lambda s: (s[0], s[0]))),
    "less exact than the type": (CROSS, _with(k=lambda k: k.astype(jnp.bfloat16).astype(k.dtype))),
}


def _problem(monkeypatch, kernel, case):
    monkeypatch.setattr(attention_gpu, "attention", kernel)
    return device_check.compare(case, "cpu").problem


@pytest.mark.parametrize("kernel", WRONG_ANYWHERE.values(), ids=WRONG_ANYWHERE)
def test_what_is_wrong_anywhere_is_found(monkeypatch, kernel):
    problem = _problem(monkeypatch, kernel, dataclasses.replace(PADDED, dtype=BFLOAT16))
    assert "is off by" in problem or problem == "its attended is not finite"


@pytest.mark.parametrize(("case", "kernel"), WRONG_BY_KIND.values(), ids=WRONG_BY_KIND)
def test_what_is_wrong_for_a_kind_of_input_is_found(monkeypatch, case, kernel):
    assert "is off by" in _problem(monkeypatch, kernel, case)


@pytest.mark.parametrize("case", [CAUSAL, PADDED, CROSS, PREFIX, dataclasses.replace(CROSS, dtype=BFLOAT16)], ids=str)
def test_the_kernel_that_the_wrong_ones_are_made_of_is_right(monkeypatch, case):
    assert _problem(monkeypatch, _plain, case) == ""


# Functions of the kernels themselves, which are interpreted, and what is done to their results.
BROKEN_FUNCTIONS = {
    "no gradient of the bias": (attention_gpu, "_table_gradient", lambda of_table: 0 * of_table),
    "diagonals one off": (attention_gpu, "_sum_diagonals", lambda sums: jnp.roll(sums, 1, -1)),
    "only the first keys": (attention_gpu, "_key_blocks_of", lambda count: count - 1),
    "nine tenths of the gradients": (attention_gpu, "_weights_and_gradients", lambda tile: (tile[0], 0.9 * tile[1])),
    "a bias of zeros": (attention_tpu, "_bias", lambda bias: 0 * bias),
    "a sum by distance one off": (attention_tpu, "_sum_by_distance", lambda sums: jnp.roll(sums, 1, 1)),
    "all is allowed": (attention_tpu, "_allowed", jnp.ones_like),
}


@pytest.mark.parametrize(("module", "name", "change"), BROKEN_FUNCTIONS.values(), ids=BROKEN_FUNCTIONS)
def test_a_broken_function_is_found(monkeypatch, module, name, change):
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments: change(right(*arguments)))
    problem = _use(monkeypatch, module, PADDED).problem
    assert "is off by" in problem or problem == "its gradient of bias is not finite"


@pytest.mark.parametrize(("dtype", "has_update"), [(BFLOAT16, True), (FLOAT32, False)])
def test_norms(monkeypatch, dtype, has_update):
    case, right = layer_norm_gpu._Case(dtype, 48, has_update, 1e-6), layer_norm_gpu.add_and_norm
    assert device_check.compare(case, "cpu").problem == ""
    wrong = {
        "right for zeros alone": lambda *x, **o: jax.tree.map(jnp.zeros_like, right(*x, **o)),
        "the first row's norm": lambda *x, **o: (right(*x, **o)[0], _first_of(right(*x, **o)[1], 1)),
        "no gradient of the scale": lambda x, update, scale, *more, **o: right(
            x, update, jax.lax.stop_gradient(scale), *more, **o
        ),
        "another epsilon": lambda x, update, scale, epsilon, **o: right(x, update, scale, 1e-1, **o),
        "no residual": lambda x, update, *more, **o: right(x, None, *more, **o),
    }
    if not has_update:
        del wrong["no residual"]
    for name, kernel in wrong.items():
        monkeypatch.setattr(layer_norm_gpu, "add_and_norm", kernel)
        assert "is off by" in device_check.compare(case, "cpu").problem, name


# ---------------------------------------------------- what is done then ---------------------------------------------


def _loss_and_gradients(kernels, **changes):
    model, batch = networks.model_and_batch(dataclasses.replace(networks.SIZES, kernels=kernels, **changes))
    step = jax.jit(jax.value_and_grad(lambda params: model.loss_fn(params, batch, jax.random.key(1))[0]))
    params = networks.parameters(networks.SIZES)
    return step(params), step, params


def _does_not_compile(*_, **__):
    raise NotImplementedError("Unimplemented primitive in Pallas GPU lowering: roll.\nMore of it")


@pytest.mark.parametrize("kernel", [_with(table=lambda t: t[:, ::-1]), _does_not_compile], ids=["wrong", "fails"])
def test_xla_takes_the_place_of_a_wrong_kernel(monkeypatch, caplog, kernel):
    """The encoder's is compared, the others are not tried; one warning, the record, no second trace."""
    monkeypatch.setattr(attention_gpu, "attention", kernel)
    monkeypatch.setattr(layer_norm_gpu, "is_right", lambda *_: False)
    with caplog.at_level(logging.INFO, "limba"):
        (loss, gradients), step, params = _loss_and_gradients("fused")
    (expected, by_xla), *_ = _loss_and_gradients("xla")
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), gradients, by_xla)
    (warning,) = [x.getMessage() for x in caplog.records if x.levelno == logging.WARNING]
    kind = "2 heads of 16, float32, 120 x 120, with bias"
    begin, end = "The kernel attention_gpu is not used: on cpu ", f" ({kind}). XLA's operations take its place, "
    assert warning.startswith(begin) and end in warning
    first, *others = device_check.results()
    if kernel is _does_not_compile:
        reason = "it does not run: NotImplementedError: Unimplemented primitive in Pallas GPU lowering: roll."
        assert first == device_check.Result("attention_gpu", kind, "cpu", f"on cpu {reason}")
    else:
        assert "on cpu its " in first.problem and first.error > 0.1 > 1e-5 > first.xla_error
    assert [x.problem for x in others] == [f"not tried: {first.problem}"] * 2  # the decoder's two
    step(params)
    assert step._cache_size() == 1 and len(device_check.results()) == 3
    record = json.loads(run_description.with_kernels({"run.json": b'{"seeds": 1}'})["run.json"])
    assert record["seeds"] == 1 and record["kernels"][0] == dataclasses.asdict(first)


@pytest.mark.parametrize("causal_is_right", [True, False])
def test_one_kind_can_be_wrong(monkeypatch, causal_is_right):
    """Masks and biases of self-attention and cross-attention are each of the form that their own kernel takes."""
    monkeypatch.setattr(layer_norm_gpu, "is_right", lambda *_: False)
    monkeypatch.setattr(attention_gpu, "attention", _plain)
    monkeypatch.setattr(device_check, "is_right", lambda case: case.causal == causal_is_right)
    model, batch = networks.model_and_batch(dataclasses.replace(networks.SIZES, kernels="fused"))
    params = networks.parameters(networks.SIZES)
    loss = jax.jit(lambda params: model.loss_fn(params, batch, None)[0])(params)
    by_xla, _ = networks.model_and_batch(dataclasses.replace(networks.SIZES, kernels="xla"))
    expected = jax.jit(lambda params: by_xla.loss_fn(params, batch, None)[0])(params)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_a_right_kernel_is_used_and_said(monkeypatch, caplog):
    monkeypatch.setattr(attention_gpu, "attention", _plain)
    with caplog.at_level(logging.INFO, "limba"):
        assert device_check.is_right(CROSS) and device_check.is_right(CROSS)
    (message,) = [x.getMessage() for x in caplog.records]
    assert message.startswith("attention_gpu computes what XLA does on cpu: off by ")
    assert "(2 heads of 16, float32, 72 x 88, packed; " in message


def test_nothing_is_compared_without_kernels_or_without_the_device(monkeypatch):
    monkeypatch.setattr(device_check, "compare", lambda *_: pytest.fail("compared"))
    _loss_and_gradients("xla")
    tokens = jnp.ones((2, 32), jnp.int32)
    for platform in ("gpu", "tpu"):  # as `limba plan` compiles
        with target.tracing_for_platform(platform):
            assert attention.visible(networks.SIZES, tokens, tokens, None, None) is not None
    assert device_check.results() == []


def test_cudnn_that_is_wrong_leaves_it_to_the_kernels_of_limba(monkeypatch):
    monkeypatch.setattr(device_check, "is_right", lambda case: case.kernel != "attention_cudnn")
    config = dataclasses.replace(networks.SIZES, kernels="cudnn", dtype="bfloat16")
    tokens = jnp.ones((2, 32), jnp.int32)
    with target.tracing_for_platform("gpu"):
        found = attention.visible(config, tokens, tokens, None, None, has_bias=True)
    assert found is not None and found.kernel == "attention_gpu"


def test_all_workers_decide_as_the_one_that_found_it_wrong(monkeypatch, caplog):
    asked = []
    monkeypatch.setattr(distributed, "first_problem", lambda *x: asked.append(x) or (1, "its values are off"))
    monkeypatch.setattr(distributed, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "worker_name", lambda index: f"worker {index} (host-b)")
    monkeypatch.setattr(attention_gpu, "attention", _plain)
    assert not device_check.is_right(CROSS)
    assert asked == [(f"comparison of attention_gpu ({CROSS})", "")]
    assert "The kernel attention_gpu is not used: on worker 1 (host-b) its values are off" in caplog.text
    assert device_check.results()[0].problem == "on worker 1 (host-b) its values are off"


def test_lengths_stand_for_all_of_their_tiles():
    """Up to 128 and 256 the tile of a TPU is that long; beyond, rows have several tiles."""
    of = functools.partial(fused_attention.Case.of, "attention_tpu", networks.SIZES, has_bias=True)
    found = [
        (case.queries, case.keys)
        for lengths in ((1, 128), (129, 256), (257, 512), (114, 16384))
        for case in [of(lengths, is_packed=False, has_prefix=False, causal=False)]
    ]
    assert found == [(120, 120), (248, 248), (576, 576), (120, 576)]
    assert [attention_tpu._block(x, 512) for x in (120, 248, 576)] == [128, 256, 512]
