"""Random beginnings by small programs against the same function compiled as a whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.checkpoints import initial_values, train_state
from tests.limba import small


@pytest.mark.sample(2)
@pytest.mark.parametrize(("scan_layers", "num_devices"), [(False, 1), (True, 4)], ids=["unrolled", "scanned, sharded"])
def test_numbers_and_shardings_are_those_of_one_program(scan_layers, num_devices):
    model = small.model(**small.TINY | {"num_encoder_layers": 2}, scan_layers=scan_layers)
    partitioner = small.partitioner(num_devices, num_partitions=2 if num_devices > 1 else 1)
    initializer = small.make_trainer(model, partitioner).initializer
    key = jax.random.key(7)
    initial_values._jitted.cache_clear()
    parts = initializer.from_scratch(key)
    programs = initial_values._jitted.cache_info().misses
    whole = partitioner.jit(initializer.new_state, out_shardings=initializer.train_state_axes)(key)
    assert jax.tree.structure(parts) == jax.tree.structure(whole)
    arrays = jax.tree.leaves(parts)
    for ours, expected in zip(arrays, jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, expected)
        assert ours.sharding == expected.sharding and ours.dtype == expected.dtype
    # A step takes them as its own memory: no two may be one.
    assert len({x.addressable_shards[0].data.unsafe_buffer_pointer() for x in arrays}) == len(arrays)
    assert programs < len(arrays) / (6 if not scan_layers else 3), (programs, len(arrays))
    if not scan_layers:
        again = initializer.from_scratch(jax.random.key(8))
        assert initial_values._jitted.cache_info().misses == programs
        assert not np.array_equal(again.params["encoder"]["layers_0"]["mlp"]["wi_0"]["kernel"], arrays[-1])


def test_a_network_is_traced_once_for_its_shapes_and_its_parameters():
    traced = []

    def init(rng):
        traced.append(rng)
        return model.initial_variables(rng)

    model, partitioner = small.model(**small.TINY), small.partitioner(2)
    made = train_state.TrainStateInitializer(model.optimizer_def, init, partitioner)
    state = made.from_scratch(jax.random.split(jax.random.key(3))[0])  # a key as `train()` makes it
    assert len(traced) == 1
    assert jax.tree.map(jnp.shape, state.params) == jax.tree.map(jnp.shape, made.param_shapes)


def test_only_what_is_the_same_shares_a_program():
    given = np.arange(6.0, dtype=np.float32).reshape(2, 3)

    def function():
        def draw(name, factor):
            return factor * jax.random.normal(jax.random.fold_in(jax.random.key(0), name), (2, 3))

        pair = jax.lax.scan(lambda x, _: (x + 1, x), draw(1, 1.0), length=2)
        inner = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 3), jnp.uint32(1 << 31))
        return {
            "a": draw(1, 0.5), "b": draw(2, 0.5), "other factor": draw(1, 0.25), "given": jnp.asarray(given),
            "also given": jnp.asarray(given + 1), "zero": jnp.zeros((2, 3)), "zeros": jnp.zeros((2, 3)),
            "whole numbers": jnp.zeros((2, 3), jnp.int32), "one": jnp.ones((2, 3)), "last": pair[0], "steps": pair[1],
            "a key of a key": 0.5 * jax.random.normal(inner, (2, 3)),
        }  # fmt: skip

    initial_values._jitted.cache_clear()
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shardings = dict.fromkeys(jax.eval_shape(function), sharding)
    found = initial_values.compute(function, shardings)
    expected = jax.jit(function)()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    # a, b and that of a key of a key; the given ones; zero and zeros; last and steps; the other three.
    assert initial_values._jitted.cache_info().misses == 7


def test_keys_are_arguments_of_programs(monkeypatch):
    initializer = small.make_trainer(small.model(**small.TINY), small.partitioner(1)).initializer
    names: set[str] = set()
    run = initial_values._run

    def noted(operations, *others):
        names.update(operation.equation.primitive.name for operation in operations)
        return run(operations, *others)

    monkeypatch.setattr(initial_values, "_run", noted)
    initializer.from_scratch(jax.random.key(7))
    assert "random_fold_in" not in names and len(names) > 2, names
