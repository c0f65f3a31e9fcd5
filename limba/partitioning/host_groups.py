"""The rows of a batch that each host reads, also if a model is spread over the devices of several hosts."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding


@dataclasses.dataclass(frozen=True)
class DataLayout:
    """The rows of a global batch that one host reads: T5X's class of that name.

    Hosts whose devices hold shards of the same rows are a group, and read the same rows.

    Attributes:
      batch_size: rows of the global batch.
      shard_id, num_shards: index of this host's group, and number of groups; each reads `batch_size / num_shards` rows.
      is_first_host_in_replica_set: whether this host writes the files that all hosts of its group would write alike.
    """

    batch_size: int
    shard_id: int
    num_shards: int
    is_first_host_in_replica_set: bool

    def __post_init__(self) -> None:
        if self.batch_size % self.num_shards:
            raise ValueError(
                f"A batch of {self.batch_size} does not divide by {self.num_shards} groups of hosts that read it; "
                f"use a multiple of {self.num_shards}."
            )

    @property
    def rows(self) -> slice:
        """The rows of the global batch for this host's group."""
        count = self.batch_size // self.num_shards
        return slice(self.shard_id * count, (self.shard_id + 1) * count)


class HostGroups:
    """The hosts of a mesh, grouped by the data shards that their devices hold; a batch is split over `data_axes`."""

    def __init__(self, mesh: Mesh, data_axes: Sequence[str]):
        others = [axis for axis in mesh.axis_names if axis not in data_axes]
        order = [mesh.axis_names.index(axis) for axis in (*data_axes, *others)]
        num_shards = int(np.prod([mesh.shape[axis] for axis in data_axes]))
        held: dict[int, set[int]] = {}
        for shard, devices in enumerate(mesh.devices.transpose(order).reshape(num_shards, -1)):
            for device in devices:
                held.setdefault(device.process_index, set()).add(shard)
        self.num_data_shards = num_shards
        self._groups = group_hosts(held)

    @property
    def hosts(self) -> list[tuple[int, ...]]:
        """The hosts of each group, ascending."""
        return [hosts for hosts, _ in self._groups]

    def layout(self, batch_size: int, host: int) -> DataLayout:
        """The rows that a host reads. A host without devices in the mesh reads those of the first group."""
        index = next((i for i, (hosts, _) in enumerate(self._groups) if host in hosts), 0)
        return DataLayout(batch_size, index, len(self._groups), host == self._groups[index][0][0])

    def put(self, rows: np.ndarray, sharding: NamedSharding, host: int) -> jax.Array:
        """The global array `[batch, …]` from the rows of this host's group.

        The shards of a group need not be neighbours in the mesh. They get the rows in their own order.
        """
        _, shards = next(group for group in self._groups if host in group[0])
        count = len(rows) // len(shards)
        of_shard = {shard: slice(i * count, (i + 1) * count) for i, shard in enumerate(shards)}

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            return rows[of_shard[(index[0].start or 0) // count]]

        return jax.make_array_from_callback((count * self.num_data_shards, *rows.shape[1:]), sharding, part)


def group_hosts(held: Mapping[int, set[int]]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Groups of hosts that read the same rows, as (hosts, data shards), in the order of their first shard.

    `held` has the data shards of each host's devices.
    """
    groups: list[tuple[set[int], set[int]]] = []
    for host, shards in sorted(held.items()):
        overlapping = [group for group in groups if group[1] & shards]
        groups = [group for group in groups if group not in overlapping]
        hosts = {host}.union(*(group[0] for group in overlapping))
        groups.append((hosts, shards.union(*(group[1] for group in overlapping))))
    # Groups of different sizes cannot split a batch evenly: then all hosts are one group and read the whole batch.
    if len({len(shards) for _, shards in groups}) > 1:
        groups = [(set(held), set().union(*held.values()))]
    ordered = sorted(groups, key=lambda group: min(group[1]))
    return [(tuple(sorted(hosts)), tuple(sorted(shards))) for hosts, shards in ordered]
