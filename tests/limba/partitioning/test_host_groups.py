"""Which hosts read which rows. The arrays of real hosts that share rows are in test_many_processes."""

import types

import jax
import numpy as np
import pytest

from limba.partitioning.host_groups import DataLayout, HostGroups, group_hosts
from tests.limba import small


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({0: {0}, 1: {1}}, [((0,), (0,)), ((1,), (1,))]),
        ({0: {2, 3}, 1: {0, 1}}, [((1,), (0, 1)), ((0,), (2, 3))]),  # the mesh has the hosts in another order
        ({0: {0}, 1: {0}, 2: {1}, 3: {1}}, [((0, 1), (0,)), ((2, 3), (1,))]),  # a model over two hosts
        ({0: {0, 2}, 1: {1, 3}}, [((0,), (0, 2)), ((1,), (1, 3))]),  # no neighbours
        ({0: {0}, 1: {0, 1}, 2: {1}}, [((0, 1, 2), (0, 1))]),  # host 1 has a part of both
        ({0: {0}, 1: {0}, 2: {1, 2}}, [((0, 1, 2), (0, 1, 2))]),  # nothing that splits evenly
    ],
)
def test_groups(held, expected):
    assert group_hosts(held) == expected


def _groups(hosts_of_devices, axes=("data", "model")):
    """The groups of a mesh of so many devices, given by their hosts."""
    devices = np.vectorize(lambda host: types.SimpleNamespace(process_index=host), otypes=[object])(hosts_of_devices)
    mesh = types.SimpleNamespace(axis_names=axes, shape=dict(zip(axes, devices.shape, strict=True)), devices=devices)
    return HostGroups(mesh, [axis for axis in axes if axis != "model"])


def test_layout_of_a_model_over_two_hosts():
    groups = _groups([[0, 1], [2, 3]])
    assert groups.hosts == [(0, 1), (2, 3)] and groups.num_data_shards == 2
    assert [groups.layout(8, host) for host in range(4)] == [
        DataLayout(8, 0, 2, True),
        DataLayout(8, 0, 2, False),
        DataLayout(8, 1, 2, True),
        DataLayout(8, 1, 2, False),
    ]
    assert groups.layout(8, 3).rows == slice(4, 8)


def test_the_data_axes_may_be_two_and_anywhere():
    groups = _groups([[[0, 0], [1, 1]], [[2, 2], [3, 3]]], ("model", "replica", "data"))
    assert groups.hosts == [(0, 2), (1, 3)]


def test_a_batch_that_does_not_divide():
    with pytest.raises(ValueError, match="batch of 7 does not divide by 2 groups"):
        _groups([[0], [1]]).layout(7, 0)


def test_on_one_host_everything_is_here():
    partitioner = small.partitioner(8, num_partitions=2)
    assert partitioner.get_data_layout(8) == DataLayout(8, 0, 1, True)
    rows = np.arange(16).reshape(8, 2)
    for array in (
        partitioner.shard_batch({"x": rows})["x"],
        partitioner._host_groups.put(rows, partitioner.data_sharding, jax.process_index()),
    ):
        np.testing.assert_array_equal(array, rows)
        assert array.sharding.is_equivalent_to(partitioner.data_sharding, 2)
