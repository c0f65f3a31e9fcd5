"""Which expert gets which token, beside loops in NumPy: several choices, the surest first, experts that choose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.addons.experts import routing, sparse_mlp, switch
from limba.network import layers
from tests.addons.experts.test_switch import config
from tests.limba import small

GROUPS, LENGTH, EXPERTS, EMBED = 2, 12, 4, 6


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def by_queues(probabilities, count, capacity, is_prioritized):
    """Of one group: `{(token, expert): place in the expert}`, and who comes when its expert is full has none."""
    ranked = np.argsort(-probabilities, axis=-1, kind="stable")
    tokens = range(len(probabilities))
    if is_prioritized:
        tokens = sorted(tokens, key=lambda token: -probabilities[token].max())
    queues, found = [0] * EXPERTS, {}
    for choice in range(count):
        for token in tokens:
            expert = int(ranked[token, choice])
            if queues[expert] < capacity:
                found[token, expert] = queues[expert]
            queues[expert] += 1
    return found


@pytest.mark.parametrize("is_prioritized", [False, True])
def test_second_choices_come_after_first_ones_and_the_surest_token_first_if_asked(is_prioritized):
    logits = np.random.default_rng(0).normal(size=(GROUPS, LENGTH, EXPERTS)).astype(np.float32) * 2
    probabilities, capacity = softmax(logits), 4
    chosen = routing.tokens_choose(logits, jnp.asarray(probabilities), 2, capacity, is_prioritized)
    slots = np.asarray(chosen.slots).reshape(GROUPS, 2, LENGTH)
    for group in range(GROUPS):
        expected = by_queues(probabilities[group], 2, capacity, is_prioritized)
        found = {}
        for choice, token in np.ndindex(2, LENGTH):
            expert = int(chosen.experts[group, choice, token])
            assert chosen.weights[group, choice, token] == pytest.approx(probabilities[group, token, expert])
            if slots[group, choice, token] < EXPERTS * capacity:
                found[token, expert] = int(slots[group, choice, token]) - expert * capacity
        assert found == expected and len(found) < 2 * LENGTH
        held = {(int(x) % LENGTH, s // capacity): s % capacity for s, x in enumerate(chosen.sources[group]) if x < 24}
        assert held == expected


def by_loops(params, x, taken, weights):
    """What a block adds to the tokens of a group; `taken` has pairs (token, expert)."""
    found = np.zeros_like(x)
    for token, e in taken:
        hidden = np.maximum(x[token] @ params["expert"]["wi"]["kernel"][e], 0)
        found[token] += hidden @ params["expert"]["wo"]["kernel"][e] * weights[token, e]
    return found


@pytest.mark.parametrize("kind", routing.KINDS)
def test_a_block_of_each_kind_and_what_it_sows(kind):
    rng, capacity = np.random.default_rng(1), 3
    cfg = config(num_experts=EXPERTS, num_selected_experts=2, mlp_dim=5, expert_capacity=capacity)
    kernels = {"wi": (EXPERTS, EMBED, 5), "wo": (EXPERTS, 5, EMBED)}
    params = {"router": {"kernel": rng.normal(size=(EMBED, EXPERTS)).astype(np.float32)}}
    params["expert"] = {name: {"kernel": rng.normal(size=shape).astype(np.float32)} for name, shape in kernels.items()}
    x = rng.normal(size=(GROUPS, LENGTH, EMBED)).astype(np.float32)
    apply = jax.jit(lambda: sparse_mlp.SparseMlp(cfg, kind).apply({"params": params}, x, True, mutable="intermediates"))
    found, state = apply()
    logits = x @ params["router"]["kernel"]
    probabilities, balance, all_taken = softmax(logits), [], []
    for group in range(GROUPS):
        p = probabilities[group]
        if kind == routing.EXPERTS_CHOOSE:
            taken = {(int(t), e) for e in range(EXPERTS) for t in np.argsort(-p[:, e], kind="stable")[:capacity]}
            balance.append(0.0)
        else:
            taken = by_queues(p, 2, capacity, kind == routing.PRIORITIZED).keys()
            share = np.mean(p >= np.sort(p, axis=-1)[:, -2:-1], axis=0)
            balance.append(EXPERTS * np.sum(share * p.mean(0)))
        np.testing.assert_allclose(found[group], by_loops(params, x[group], taken, p), atol=2e-5)
        all_taken += [(group, token, expert) for token, expert in taken]
    dropped = 1 - len({taken[:2] for taken in all_taken}) / (GROUPS * LENGTH)
    assert dropped > 0
    expected = {
        "load_balance": np.mean(balance),
        "router_z": np.mean(np.log(np.exp(logits).sum(-1)) ** 2),
        "dropped_tokens": dropped,
        "usage": len(all_taken) / (GROUPS * EXPERTS * capacity),
        "confidence": np.mean([probabilities[taken] for taken in all_taken]),
    }
    assert {x: float(v) for x, (v,) in state["intermediates"].items()} == pytest.approx(expected, rel=1e-5)


def test_groups_are_rows_or_as_large_as_asked_for_and_a_multiple_of_the_experts():
    assert config().num_groups(128, 512) == 128
    of_size = lambda size, experts=4: config(num_experts=experts, group_size=size).num_groups  # noqa: E731
    assert [of_size(size)(32, 64) for size in (64, 256, 4096)] == [32, 8, 4]
    assert of_size(4096, 64)(128, 114) == 64, "no group is larger than an even share of the experts"
    assert of_size(24)(6, 16) == 4 and of_size(13)(6, 16) == 8, "groups are of equal sizes"
    assert of_size(64)(32, 1) == 32 and of_size(64)(3, 5) == 3, "steps of decoding; what the experts do not divide"


def test_the_sparse_layer_is_the_second_or_the_last_of_a_step():
    sparse = lambda **of: [i for i in range(12) if config(encoder_sparse_step=4, **of).is_sparse(i, False)]  # noqa: E731
    assert (sparse(), sparse(sparse_place="last")) == ([1, 5, 9], [3, 7, 11])
    assert [switch.sparse_step(12, n) for n in (3, 12, 0)] == [4, 1, 0]
    with pytest.raises(ValueError, match=r"5 sparse layers .* do not divide 12 layers"):
        switch.sparse_step(12, 5)


def test_the_least_capacity_of_an_expert_is_a_setting():
    assert config(num_experts=8, eval_capacity_factor=1.0, min_expert_capacity=2).capacity(16, True) == 2


def test_an_extra_block_adds_a_dense_mlp_of_the_norm_of_its_input():
    fields = config(extra_mlp=True).layer_fields(2, True)
    assert fields[0] == {} and fields[1].keys() == {"make_mlp", "make_block"}

    class Layer(layers.nn.Module):
        @layers.nn.compact
        def __call__(self, x):
            return fields[1]["make_block"](config(extra_mlp=True), x, True)

    rng = np.random.default_rng(2)
    x, scale = rng.normal(size=(1, 3, 16)), rng.normal(size=16)
    wi, wo = rng.normal(size=(16, 12)), rng.normal(size=(12, 16))
    mlp = {"wi": {"kernel": wi}, "wo": {"kernel": wo}}
    params = {"pre_extra_mlp_layer_norm": {"scale": scale}, "extra_mlp": mlp}
    normed = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale
    found = Layer().apply({"params": jax.tree.map(jnp.float32, params)}, jnp.float32(x))
    np.testing.assert_allclose(found, x + np.maximum(normed @ wi, 0) @ wo, rtol=1e-4, atol=1e-4)


def test_experts_may_drop_at_a_rate_of_their_own():
    params = {name: {"kernel": jnp.ones(shape)} for name, shape in (("wi", (3, 16, 12)), ("wo", (3, 12, 16)))}
    apply = lambda **of: sparse_mlp.Experts(config(**of)).apply(  # noqa: E731
        {"params": params}, jnp.ones((1, 3, 2, 16)), False, rngs={"dropout": jax.random.key(0)}
    )
    assert set(np.unique(apply(dropout_rate=0.5, expert_dropout_rate=0.0))) == {192.0}
    assert len(np.unique(apply(expert_dropout_rate=0.5))) > 1
    model = small.model(module=config(jitter_noise=0.0, expert_dropout_rate=0.5).network())
    shapes, _ = model.param_shapes_and_axes()
    of_step = lambda params, key: model.loss_fn(params, small.batch(0, rows=2, targets=8), key)[0]  # noqa: E731
    assert jax.eval_shape(of_step, shapes, jax.random.key(0)).shape == (), "layers of a stack know that they draw"
