"""T5X's `contrib.moe`: factors of losses, gradients of experts, the mesh, experts of a dense checkpoint."""

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.addons.experts import moe_checkpoints, moe_models, moe_partitioning, moe_trainer, switch
from limba.checkpoints.restore import RestoreCheckpointConfig
from limba.gin_config import gin_files
from limba.network import t5
from tests.addons.experts.test_switch import config
from tests.limba import small


def model(cfg, **factors):
    like = small.model(module=cfg.network())
    optimizer = like.optimizer_def
    vocabularies = (like.input_vocabulary, like.output_vocabulary)
    return moe_models.MoeEncoderDecoderModel(cfg.network(), *vocabularies, optimizer, **factors)


def test_factors_are_of_the_mean_over_the_layers_of_both_stacks_and_added_to_a_sum_as_they_are():
    made = model(config(num_encoder_layers=4), aux_loss_factor=0.5, router_z_loss_factor=0.25)
    params, batch = small.random_params(made), small.batch(0, rows=4, targets=8)

    @jax.jit
    def computed():
        _, state = made._compute_logits(params, batch, mutable=["intermediates"])
        return made.loss_fn(params, batch, None), state["intermediates"]

    (loss, metrics), sown = computed()
    of_layers = [sown["encoder"][f"layers_{i}"]["mlp"] for i in (1, 3)] + [sown["decoder"]["layers_1"]["mlp"]]
    mean = lambda name: np.mean([float(of[name][0]) for of in of_layers])  # noqa: E731
    added = [0.5 * mean("load_balance"), 0.25 * mean("router_z")]
    assert float(loss) == pytest.approx(metrics["loss"].compute() + sum(added), rel=1e-5)
    expected = dict(zip(("auxiliary_loss", "router_z_loss"), added, strict=True))
    expected["fraction_tokens_left_behind"] = mean("dropped_tokens")
    expected |= {"expert_usage": mean("usage"), "router_confidence": mean("confidence")}
    assert {f"experts/{name}": pytest.approx(value) for name, value in expected.items()} == {
        name: float(x.compute()) for name, x in metrics.items() if name.startswith("experts/")
    }


def test_a_network_without_experts_and_factors_below_0_are_refused():
    with pytest.raises(ValueError, match=r"module is a Transformer, which has no experts"):
        model(t5.T5Config(vocab_size=32))
    with pytest.raises(ValueError, match=r"MoeEncoderDecoderModel\.aux_loss_factor is -1"):
        model(config(), aux_loss_factor=-1)


def test_a_trainer_multiplies_the_gradients_of_experts():
    trained = small.model(module=config().network())
    weights = {"mlp": {"expert": {"wi": jnp.float32(2)}, "router": jnp.float32(3)}}
    trained.loss_fn = lambda params, batch, rng: (params["mlp"]["expert"]["wi"] ** 2 * params["mlp"]["router"], {})
    more = {"num_expert_partitions": 4, "learning_rate_fn": lambda step: 0.1}
    trainer = moe_trainer.MoeTrainer(trained, small.partitioner(1), **more)
    loss, gradients = jax.value_and_grad(lambda p: trainer.model.loss_fn(p, {}, None)[0])(weights)
    assert (float(loss), gradients) == (12.0, {"mlp": {"expert": {"wi": 4 * 12.0}, "router": 4.0}})
    with pytest.raises(ValueError, match="num_expert_partitions is 0"):
        moe_trainer.MoeTrainer(trained, small.partitioner(1), **more | {"num_expert_partitions": 0})


def test_the_mesh_has_as_many_experts_apart_as_divide_its_devices():
    made = lambda *sizes: moe_partitioning.MoePjitPartitioner(*sizes, devices=jax.devices()[:8])  # noqa: E731
    assert dict(made(128, 2).mesh.shape) == {"data": 1, "expert": 4, "model": 2}
    mesh = made(3)
    assert dict(mesh.mesh.shape) == {"data": 4, "expert": 2, "model": 1} and mesh.num_data_shards == 8
    found = [mesh._mesh_axes(axes) for axes in (("batch", "length"), ("expert", "embed", "mlp"))]
    assert found == [
        jax.sharding.PartitionSpec(("data", "expert"), None),
        jax.sharding.PartitionSpec("expert", None, "model"),
    ]


def test_experts_begin_as_the_mlp_of_a_dense_checkpoint():
    wi = np.arange(6.0).reshape(2, 3)
    state = {"target": {"mlp": {"expert": {"wi": wi}, "other": wi}}, "state": {"step": np.int32(7)}}
    of_shape = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)  # noqa: E731
    wanted = {"target": {"mlp": {"expert": {"wi": of_shape(4, 2, 3)}, "other": of_shape(4, 2, 3)}}}
    (upcycle,) = RestoreCheckpointConfig(checkpointer_cls=moe_checkpoints.UpcycleCheckpointer).transformations()
    found = upcycle(state, wanted)
    np.testing.assert_array_equal(found["target"]["mlp"]["expert"]["wi"], np.stack([wi] * 4))
    assert found["target"]["mlp"]["other"] is wi and found["state"]["step"] == 7
    assert upcycle(state, wanted, is_resuming=True) is state


# Parameters of flaxformer's networks, counted there.
PARAMETERS = {"tokens_choose_tiny": 2_462_976, "experts_choose_tiny": 2_462_976, "st_moe_base": 700_641_024}


@pytest.mark.parametrize("name", PARAMETERS)
def test_flaxformers_files_have_its_networks(name):
    gin.clear_config()
    gin_files.parse_gin_flags([f"flaxformer/t5x/configs/moe/models/{name}.gin"], [])
    cfg = gin.query_parameter("switch.Transformer.config").scoped_configurable_fn()
    gin.clear_config()
    tokens = jnp.ones((1, 4), jnp.int32)
    shapes = jax.eval_shape(lambda: cfg.network().init(jax.random.key(0), tokens, tokens, tokens, enable_dropout=False))
    assert sum(x.size for x in jax.tree.leaves(shapes["params"])) == PARAMETERS[name]
    kinds = {"tokens_choose_tiny": "tokens_choose_prioritized", "experts_choose_tiny": "experts_choose"}
    assert cfg.encoder_routing == kinds.get(name, "tokens_choose") and cfg.num_selected_experts == 2
    assert isinstance(cfg, switch.SwitchConfig) and cfg.train_capacity_factor == (1.0 if "experts" in name else 1.25)
