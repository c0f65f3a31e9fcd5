import jax
import numpy as np
import pytest
from flax import traverse_util

from limba.optimizers import schedules
from limba.partitioning import meshes
from limba.training import trainer
from tests.limba import small


def _one_layer(**fields):
    """A network with each kind of parameter once: a second layer takes as long to compile, and shows nothing more."""
    return small.model(num_encoder_layers=1, num_decoder_layers=1, **fields)


def _loss_and_params_after_two_steps(trainer, initial, rows=8):
    """From one initial state: making it on each mesh would take longer to compile than the steps."""
    state = jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), initial, trainer.sharded_state_shapes())
    losses = []
    for step in range(2):
        state, metrics = trainer.train_step(state, trainer.partitioner.shard_batch(small.batch(step, rows)))
        losses.append(metrics["loss"].compute())
    return losses, jax.device_get(state.params)


def _assert_same(a, b, rtol=1e-4, atol=1e-5):
    assert a[0] == pytest.approx(b[0], rel=1e-5)
    flat_a, flat_b = (traverse_util.flatten_dict(x[1], sep="/") for x in (a, b))
    assert flat_a.keys() == flat_b.keys()
    for name in flat_a:
        np.testing.assert_allclose(flat_a[name], flat_b[name], rtol=rtol, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def initial():
    return jax.device_get(small.make_trainer(_one_layer()).new_state(jax.random.key(0)))


@pytest.fixture(scope="module")
def on_one_device(initial):
    return _loss_and_params_after_two_steps(small.make_trainer(_one_layer()), initial)


def test_eight_devices_train_as_one(on_one_device, initial):
    """Activations are split over the model axis, too. Slices below have the standard rules; the next test has fsdp."""
    rules = meshes.standard_logical_axis_rules(2, 1)
    trainer = small.make_trainer(_one_layer(), small.partitioner(8, 4, rules))
    _assert_same(_loss_and_params_after_two_steps(trainer, initial), on_one_device)


@pytest.mark.slow
def test_fsdp_with_a_model_axis_and_scanned_layers_trains_as_one_device():
    """Adafactor's statistics of a stack are factored by its logical axes, and lie on every device."""
    model = small.model(scan_layers=True, remat_policy="minimal")
    mesh = small.partitioner(8, 2, meshes.fsdp_logical_axis_rules())
    sharded = small.make_trainer(model, mesh, num_microbatches=2)
    alone = small.make_trainer(model)
    initial = jax.device_get(alone.new_state(jax.random.key(0)))
    _assert_same(*(_loss_and_params_after_two_steps(trainer, initial) for trainer in (sharded, alone)))


def test_slices_train_as_one_device(on_one_device, initial):
    slices = meshes.PjitPartitioner(ici_mesh_shape=(2, 2, 2), dcn_mesh_shape=(1, 1, 1), devices=jax.devices()[:8])
    trainer = small.make_trainer(_one_layer(), slices)
    _assert_same(_loss_and_params_after_two_steps(trainer, initial), on_one_device)


def test_rules_really_shard():
    trainer = small.make_trainer(_one_layer(), small.partitioner(8, 2, meshes.fsdp_logical_axis_rules()))
    state = trainer.new_state(jax.random.key(0))
    kernel = state.params["encoder"]["layers_0"]["mlp"]["wi_0"]["kernel"]
    assert kernel.shape == (128, 128)
    assert kernel.addressable_shards[0].data.shape == (32, 64)  # embed over 4 data, mlp over 2 model


def test_initial_parameters_do_not_depend_on_the_mesh():
    one = small.make_trainer(_one_layer()).new_state(jax.random.key(3)).params
    eight = small.make_trainer(_one_layer(), small.partitioner(8, 4)).new_state(jax.random.key(3)).params
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(jax.device_get(a), jax.device_get(b)), one, eight))


@pytest.mark.parametrize("factor", [None, "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"])
def test_microbatches_give_the_gradient_of_the_whole_batch(factor):
    """Also where one has rows of masked labels alone. Adafactor hides the scale of gradients, which are compared."""
    model, results = small.model(loss_normalizing_factor=factor, **small.TINY), []
    params, batch = small.random_params(model), small.batch(0)
    weights = np.array(batch["decoder_target_tokens"] > 0, np.float32)
    weights[::4] = 0.0
    for num_microbatches in (None, 4):
        trainer = small.make_trainer(model, small.partitioner(2), num_microbatches=num_microbatches)
        rows = {**batch, "decoder_loss_weights": weights}
        grads, metrics = trainer.partitioner.jit(trainer.gradients)(params, rows, jax.random.key(0))
        results.append(([x.compute() for x in jax.tree.leaves(metrics, is_leaf=_is_metric)], jax.device_get(grads)))
    assert np.isfinite(results[0][0]).all()
    _assert_same(results[1], results[0])


def _is_metric(x):
    return hasattr(x, "compute")


def _temporary_bytes(num_microbatches):
    trainer = small.make_trainer(_one_layer(), num_microbatches=num_microbatches)
    batch = {name: jax.ShapeDtypeStruct((64, *x.shape[1:]), x.dtype) for name, x in small.batch(0, 1, 64, 32).items()}
    compiled = trainer.train_step.lower(trainer.sharded_state_shapes(), batch).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_microbatches_save_the_memory_they_promise():
    whole, eighth = _temporary_bytes(None), _temporary_bytes(8)
    assert eighth < whole / 3  # activations shrink to an eighth, the gradient sum stays


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_microbatches": -1}, "num_microbatches is -1"),
        ({"num_microbatches": 2.0}, r"num_microbatches is 2\.0"),
        ({"learning_rate_fn": 0.001}, r"learning_rate_fn is 0\.001, and makes no rate"),
        ({"learning_rate_fn": schedules.warmup_linear}, r"warmup_linear .*with its brackets"),
        ({"learning_rate_fn": schedules.warmup_constant}, r"warmup_constant .*with its brackets"),
    ],
)
def test_trainers_that_cannot_train_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        trainer.Trainer(None, None, **{"learning_rate_fn": lambda step: 1e-3 * step} | options)


def test_dropout_is_a_function_of_seed_and_step():
    trainer = small.make_trainer(_one_layer(dropout_rate=0.5))
    batch = small.batch(0)

    def loss(step):
        state = trainer.new_state(jax.random.key(0)).replace(step=jax.numpy.int32(step))
        return trainer.train_step(state, trainer.partitioner.shard_batch(batch))[1]["loss"].compute()

    assert loss(0) == loss(0)
    assert loss(0) != loss(1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: small.partitioner(8).check_batch_size(12, "batch_size"), ["12", "multiple of 8"]),
        (lambda: small.partitioner(8).check_batch_size(16, "batch_size", 4), ["16", "microbatches", "multiple of 32"]),
        (lambda: small.partitioner(8, 8).check_heads(6), ["num_heads is 6", "size 8"]),
        (lambda: small.make_trainer(small.model(mlp_dim=100), small.partitioner(8, 8)), ["mlp", "100", "size 8"]),
        (lambda: meshes.standard_logical_axis_rules(3), ["1 or 2"]),
    ],
)
def test_meshes_that_cannot_work_are_refused(call, words):
    with pytest.raises(ValueError) as error:
        call()
    for word in words:
        assert word in str(error.value)
