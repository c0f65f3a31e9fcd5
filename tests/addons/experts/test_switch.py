"""Switch Transformers' network: experts beside loops over tokens; losses, decoding, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.addons.experts import expert_rules, moe_partitioning, routing, sparse_mlp, switch
from limba.models import decoding
from limba.network.gemma_layers import GemmaLayers
from tests.limba import small

SIZES = {
    "vocab_size": small.VOCAB_SIZE,
    "emb_dim": 16,
    "num_heads": 2,
    "head_dim": 8,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "mlp_dim": 12,
    "num_experts": 3,
    "expert_capacity": 2,
    "dropout_rate": 0.0,
}


def config(**fields):
    return switch.SwitchConfig(**SIZES | fields)


def made(cfg):
    """A model, and parameters of which routers choose every expert."""
    model = small.model(module=cfg.network(), loss_normalizing_factor="NUM_REAL_TARGET_TOKENS")
    params = jax.jit(model.initial_variables)(jax.random.key(0))["params"]
    larger = lambda path, x: x * 50 if "router" in str(path) else x  # noqa: E731
    return model, jax.tree_util.tree_map_with_path(larger, params)


def test_the_first_tokens_of_a_row_have_the_places_of_an_expert():
    choice = np.random.default_rng(0).integers(0, 3, (4, 9))
    choice[1] = 2
    slots, tokens = map(np.asarray, routing.places(jnp.asarray(choice), 3, 4))
    for row in range(4):
        queues: list[list[int]] = [[], [], []]
        for token, expert in enumerate(choice[row]):
            queues[expert].append(token)
            number = len(queues[expert]) - 1
            assert slots[row, token] == (4 * expert + number if number < 4 else 12)
        assert tokens[row].tolist() == [token for queue in queues for token in (queue + [9] * 4)[:4]]


def by_token(params, x, capacity, activations):
    """The block, token by token; a token that is dropped gets zeros."""
    router, expert = params["router"]["kernel"], params["expert"]
    rows = []
    for row in x:
        counts, outputs = jnp.zeros(router.shape[1]), []
        for token in row:
            probabilities = jax.nn.softmax(token @ router)
            e = jnp.argmax(probabilities)
            counts = counts.at[e].add(1)
            hidden = [f(token @ expert[name]["kernel"][e]) for name, f in activations.items()]
            update = jnp.prod(jnp.stack(hidden), axis=0) @ expert["wo"]["kernel"][e] * probabilities[e]
            outputs.append(jnp.where(counts[e] <= capacity, update, 0.0))
        rows.append(jnp.stack(outputs))
    return jnp.stack(rows)


@pytest.mark.parametrize("activations", [("relu",), ("gelu", "linear")], ids=len)
def test_the_block_and_its_gradients_are_those_of_a_loop_over_tokens(activations):
    cfg = config(mlp_activations=activations)
    names = ("wi",) if len(activations) == 1 else ("wi_0", "wi_1")
    functions = dict(zip(names, (jax.nn.relu if len(names) == 1 else jax.nn.gelu, lambda x: x), strict=False))
    block, rng = sparse_mlp.SparseMlp(cfg), np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(2, 6, 16)), jnp.float32)
    shapes = jax.eval_shape(functools.partial(block.init, deterministic=True), jax.random.key(0), x)["params"]
    params = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape) * 0.4, jnp.float32), shapes)
    weights = rng.normal(size=x.shape)

    def ours(params, x):
        found = block.apply({"params": params}, x, True)
        return jnp.sum(found * weights), found

    def theirs(params, x):
        found = by_token(params, x, 2, functions)
        return jnp.sum(found * weights), found

    (gradients, found), (others, expected) = (
        jax.jit(jax.grad(of, (0, 1), has_aux=True))(params, x) for of in (ours, theirs)
    )
    assert np.sum(~np.any(np.asarray(expected), axis=-1)) >= 2, "some are dropped"
    np.testing.assert_allclose(found, expected, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), gradients, others)


def test_capacities_are_of_a_row_in_training_and_elsewhere():
    cfg = config(num_experts=8, expert_capacity=64, train_capacity_factor=1.25, eval_capacity_factor=2.0)
    assert [cfg.capacity(512, deterministic) for deterministic in (False, True)] == [80, 128]
    assert cfg.capacity(16, False) == 4 and cfg.capacity(3, True) == 3
    assert [config(expert_capacity=64).capacity(length, True) for length in (512, 40)] == [64, 40]


def test_losses_of_routers_are_added_to_the_mean_over_tokens_whatever_normalizes_it():
    model, params = made(config(router_aux_loss_coef=0.5, router_z_loss_coef=0.25))
    batch, of_sum = small.batch(0, rows=4, targets=8), small.model(module=model.module)

    @jax.jit
    def computed():
        _, state = model._compute_logits(params, batch, mutable=["intermediates"])
        return model.loss_fn(params, batch, None), of_sum.loss_fn(params, batch, None)[0], state["intermediates"]

    (loss, metrics), summed, sown = computed()
    of_stacks = [sown[stack]["layers_1"]["mlp"] for stack in ("encoder", "decoder")]
    added = sum(0.5 * float(of["load_balance"][0]) + 0.25 * float(of["router_z"][0]) for of in of_stacks)
    assert float(loss) == pytest.approx(metrics["loss"].compute() + added)
    for name in ("load_balance", "router_z", "dropped_tokens"):
        mean = np.mean([float(of[name][0]) for of in of_stacks])
        assert metrics[f"experts/{name}"].compute() == pytest.approx(mean)
    assert 0.2 < metrics["experts/dropped_tokens"].compute() < 0.9
    assert float(summed) == pytest.approx(float(loss) * float(jnp.sum(batch["decoder_target_tokens"] > 0)), rel=1e-5)


def test_load_balance_is_one_where_experts_are_even_and_their_number_where_one_has_all():
    cfg, x = config(num_experts=2), jnp.asarray([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
    shapes = (("wi", (2, 2, 12)), ("wo", (2, 12, 2)))
    expert = {name: {"kernel": jnp.zeros(shape)} for name, shape in shapes}

    @jax.jit
    def sown(router):
        params = {"router": {"kernel": router}, "expert": expert}
        return sparse_mlp.SparseMlp(cfg).apply({"params": params}, x, True, mutable=["intermediates"])[1]

    for router, balance in ((jnp.eye(2) * 100.0, 1.0), (jnp.asarray([[100.0, 0.0]] * 2), 2.0)):
        found = sown(router)["intermediates"]
        assert found["load_balance"][0] == pytest.approx(balance)
        assert found["router_z"][0] == pytest.approx(100.0**2)
        assert found["dropped_tokens"][0] == pytest.approx(balance / 2 - 0.5)


def test_decoding_with_a_cache_gives_the_tokens_of_whole_prefixes():
    """No expert is full before its eighth token: a step of decoding has one token."""
    model, params = made(config(expert_capacity=8, encoder_sparse_step=0, num_encoder_layers=1))
    model = model.with_decode_fn(lambda *args, **more: decoding.temperature_sample(*args, **more, topk=1))
    batch = small.batch(1, rows=2, targets=8)
    tokens = np.asarray(jax.jit(model.predict_batch)(params, batch))
    prefixes = np.zeros((2, 9), np.int32)
    logits = jax.jit(
        lambda x: model.logits(params, batch | {"decoder_input_tokens": x, "decoder_target_tokens": x + 1})
    )
    for i in range(8):
        prefixes[:, i + 1] = np.argmax(np.asarray(logits(prefixes[:, :8]))[:, i], axis=-1)
    for row, expected in zip(tokens, prefixes[:, 1:], strict=True):
        end = expected.tolist().index(1) + 1 if 1 in expected else 8
        assert row[:end].tolist() == expected[:end].tolist()


def test_noise_of_routers_is_drawn_in_training_alone_also_without_dropout():
    model, params = made(config(jitter_noise=0.9))
    batch = small.batch(0, rows=2, targets=8)
    loss = jax.jit(lambda key: model.loss_fn(params, batch, key)[0])
    assert float(loss(jax.random.key(1))) != float(loss(jax.random.key(2)))


@pytest.mark.parametrize(
    ("mesh", "fields"),
    [
        (lambda: small.partitioner(8, 2, expert_rules.expert_logical_axis_rules()), {}),
        (
            lambda: moe_partitioning.MoePjitPartitioner(2, 2, devices=jax.devices()[:8]),
            {"num_selected_experts": 2, "encoder_routing": "experts_choose", "group_size": 16, "extra_mlp": True},
        ),
    ],
    ids=["data", "expert"],
)
def test_experts_on_eight_devices_give_the_loss_and_the_gradients_of_one(mesh, fields):
    sizes = {"num_experts": 8, "num_encoder_layers": 1, "num_decoder_layers": 1, "encoder_sparse_step": 1}
    model, params = made(config(**sizes, **fields))
    _, axes = model.param_shapes_and_axes()
    batch, found = small.batch(0, rows=4, targets=8), []
    for on in (small.partitioner(1), mesh()):
        loss_and_gradients = on.jit(jax.value_and_grad(lambda params, batch: model.loss_fn(params, batch, None)[0]))
        placed = jax.device_put(params, on.shardings(axes))
        found.append(loss_and_gradients(placed, on.shard_batch(batch)))
        experts = placed["encoder"]["layers_0"]["mlp"]["expert"]["wi"]["kernel"]
    assert experts.sharding.shard_shape(experts.shape) == (4 if fields else 2, 16, 6), "each device has some experts"
    (one, of_one), (eight, of_eight) = found
    assert float(eight) == pytest.approx(float(one), abs=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), of_one, of_eight)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"extra_mlp": [["a"]]}, "extra_mlp is a list of 1; it is True or False"),
        ({"scan_layers": True}, "sparse layers and others take turns; set scan_layers = False"),
        ({"encoder_sparse_step": 0, "decoder_sparse_step": 0}, "has no sparse layer"),
        ({"gemma_layers": GemmaLayers(num_kv_heads=2)}, "experts stand in T5's layers only"),
        ({"num_experts": 0}, "num_experts is 0"),
        ({"expert_capacity": 1.5}, "expert_capacity is 1.5"),
        ({"train_capacity_factor": 0}, "train_capacity_factor is 0"),
        ({"jitter_noise": 1.0}, "jitter_noise is 1"),
        ({"router_z_loss_coef": -1.0}, "router_z_loss_coef is -1"),
        ({"num_selected_experts": 4}, "num_selected_experts is 4, of 3 experts"),
        ({"group_size": 0}, "group_size is 0"),
        ({"sparse_place": "first"}, "sparse_place is 'first'"),
        ({"encoder_routing": "hash"}, "encoder_routing is 'hash'"),
        ({"expert_dropout_rate": 1.5}, "expert_dropout_rate is 1.5"),
    ],
    ids=str,
)
def test_what_no_switch_transformer_has_is_one_message(fields, message):
    with pytest.raises(ValueError, match=message):
        config(**fields)
