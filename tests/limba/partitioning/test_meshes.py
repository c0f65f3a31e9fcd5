import re
import types

import jax
import jax.numpy as jnp
import pytest

from limba.network import layers
from limba.partitioning import meshes
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
        meshes.PjitPartitioner(3, devices=gpus)


def test_several_slices_split_the_batch_twice():
    devices = jax.devices()[:8]
    mesh = meshes.PjitPartitioner(ici_mesh_shape=(2, 2, 2), dcn_mesh_shape=(1, 1, 1), devices=devices)
    assert dict(mesh.mesh.shape) == {"replica": 2, "data": 2, "model": 2}
    assert mesh.num_data_shards == 4
    rows = mesh.shard_batch(small.batch(0))["encoder_input_tokens"]
    assert rows.addressable_shards[0].data.shape == (2, 16)


def test_slices_are_replicas_by_themselves():
    tpus = [types.SimpleNamespace(platform="tpu", slice_index=i // 4) for i in range(8)]
    assert meshes._shapes_of_slices(2, tpus) == ((1, 2, 2), (2, 1, 1))
    assert meshes._shapes_of_slices(2, tpus[:4]) is None
    assert meshes._shapes_of_slices(2, jax.devices()[:8]) is None
    with pytest.raises(ValueError, match="= 8 does not divide the 4 devices of each of the 2 slices"):
        meshes._shapes_of_slices(8, tpus)


def test_constraints_on_activations_take_effect():
    """Flax leaves them out, in silence, where the mesh is only entered."""
    mesh = small.partitioner(8, 2, meshes.fsdp_logical_axis_rules())
    constrained = mesh.jit(lambda x: layers.with_sharding_constraint(x * 2, ("batch", "length", "embed")))
    text = constrained.lower(jnp.ones((8, 4, 16))).as_text()
    assert 'sharding_constraint %1 <@mesh, [{"data"}, {}, {}]>' in text


@pytest.mark.slow
def test_fsdp_gathers_parameters_and_not_activations():
    mesh = small.partitioner(8, 1, meshes.fsdp_logical_axis_rules())
    made = small.make_trainer(small.model(scan_layers=True, num_encoder_layers=2, num_decoder_layers=2), mesh)
    batch = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=mesh.data_sharding) for name, x in small.batch(0).items()
    }
    text = made.train_step.lower(made.sharded_state_shapes(), batch).compile().as_text()
    gathered = re.findall(r"= (\w+\[[\d,]*\])\S* all-gather\(", text)
    assert "f32[128,128]" in gathered  # a kernel of one layer
    everywhere = [shape for shape in gathered if re.fullmatch(r"f32\[8,(16|8),\d+\]", shape)]
    assert not everywhere  # of all rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_partitions": 2, "model_parallel_submesh": (2, 2, 1, 1)}, "disagree"),
        ({"model_parallel_submesh": (0, 1, 1, 1)}, r"model_parallel_submesh\[0\] is 0; it is a whole number"),
        ({"model_parallel_submesh": (2, -1, 1, 1)}, r"model_parallel_submesh\[1\] is -1"),
        ({"ici_mesh_shape": (2, 2, 2)}, "must both be"),
        ({"ici_mesh_shape": (2, 2, 4), "dcn_mesh_shape": (1, 1, 1)}, "the 8 devices"),
        ({"params_on_devices": False}, "params_on_devices"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        meshes.PjitPartitioner(**arguments, devices=jax.devices()[:8])


def test_a_backend_that_this_machine_lacks():
    """T5X's precompile.gin binds "tpu"."""
    remedy = r"(?s)backend is 'tpu', and this machine has no such devices: .*PjitPartitioner\.backend=None"
    with pytest.raises(ValueError, match=remedy):
        meshes.PjitPartitioner(1, backend="tpu")


def test_the_batch_of_the_devices():
    partitioner = small.partitioner(4, 2)  # two data shards
    assert meshes.batch_size_of_devices(8, partitioner) == 16
    assert meshes.batch_size_of_devices(8, partitioner, num_microbatches=3) == 48
    for arguments in ({"per_device": 0}, {"per_device": 2.0}, {"per_device": 2, "num_microbatches": 0}):
        with pytest.raises(ValueError, match=r"batch_size_of_devices.*at least 1"):
            meshes.batch_size_of_devices(partitioner=partitioner, **arguments)
