import types

import jax
import pytest

from limba import partitioning
from tests.limba import small


def test_the_model_axis_of_a_cpu_is_the_largest_that_fits(caplog):
    assert dict(small.partitioner(4, 2).mesh.shape) == {"data": 2, "model": 2}
    assert not caplog.messages
    assert dict(small.partitioner(1, 2).mesh.shape) == {"data": 1, "model": 1}
    assert dict(small.partitioner(6, 4).mesh.shape) == {"data": 3, "model": 2}
    assert "num_partitions = 4 does not divide the 6 CPU devices: the model axis is 2 here" in caplog.messages[-1]


def test_accelerators_must_divide():
    gpus = [types.SimpleNamespace(platform="gpu") for _ in range(8)]
    with pytest.raises(ValueError, match=r"= 3 does not divide the 8 devices; choose one of \[1, 2, 4, 8\]"):
        partitioning.PjitPartitioner(3, devices=gpus)


def test_several_slices_split_the_batch_twice():
    devices = jax.devices()[:8]
    mesh = partitioning.PjitPartitioner(ici_mesh_shape=(2, 2, 2), dcn_mesh_shape=(1, 1, 1), devices=devices)
    assert dict(mesh.mesh.shape) == {"replica": 2, "data": 2, "model": 2}
    assert mesh.num_data_shards == 4
    rows = mesh.shard_batch(small.batch(0))["encoder_input_tokens"]
    assert rows.addressable_shards[0].data.shape == (2, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_partitions": 2, "model_parallel_submesh": (2, 2, 1, 1)}, "disagree"),
        ({"ici_mesh_shape": (2, 2, 2)}, "must both be"),
        ({"ici_mesh_shape": (2, 2, 4), "dcn_mesh_shape": (1, 1, 1)}, "the 8 devices"),
        ({"params_on_devices": False}, "params_on_devices"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        partitioning.PjitPartitioner(**arguments, devices=jax.devices()[:8])
