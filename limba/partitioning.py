"""Named device meshes, and rules that map logical axes to mesh axes.

A network names the dims of its arrays ("embed", "mlp", "heads" …); a run chooses rules from those names to the mesh
axes `data` and `model`. XLA's partitioner does the rest: there are no hand-written collectives anywhere.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from flax.linen import partitioning as nn_partitioning
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from limba.data import Batch

PyTree = Any
LogicalAxisRules = Sequence[tuple[str, str | None]]


def standard_logical_axis_rules(
    activation_partitioning_dims: int = 1,
    parameter_partitioning_dims: int = 1,
    additional_rules: LogicalAxisRules | None = None,
) -> LogicalAxisRules:
    """T5X's rules from logical to mesh axes.

    The first rule for an axis whose mesh axis is still free in that array applies.

    Args:
      activation_partitioning_dims: 2 also shards the `embed` dim of activations over `model`.
      parameter_partitioning_dims: 2 also shards the `embed` dim of parameters over `data` (FSDP, ZeRO-3).
      additional_rules: appended.

    Raises:
      ValueError: for dims other than 1 and 2.
    """
    embed: list[tuple[str, str | None]]
    match (activation_partitioning_dims, parameter_partitioning_dims):
        case (1, 1):
            embed = [("embed", None)]
        case (2, 1):
            embed = [("embed", "model")]
        case (1, 2):
            embed = [("embed", "data")]
        case (2, 2):
            embed = [("embed", "model"), ("embed", "data")]
        case dims:
            raise ValueError(f"standard_logical_axis_rules takes 1 or 2 for both partitioning dims, not {dims}.")
    rules: list[tuple[str, str | None]] = [
        ("batch", "data"),
        ("vocab", "model"),
        ("mlp", "model"),
        ("heads", "model"),
        ("kv", None),
        ("joined_kv", "model"),
        *embed,
        ("relpos_buckets", None),
        ("abspos_buckets", None),
        ("length", None),
        ("layers", None),
        ("stack", None),
        ("mlp_activations", None),
    ]
    return rules + list(additional_rules or ())


def fsdp_logical_axis_rules() -> LogicalAxisRules:
    """Fully sharded data parallelism: parameters and optimizer state are spread over `data` too."""
    return standard_logical_axis_rules(parameter_partitioning_dims=2)


class PjitPartitioner:
    """A mesh of all devices with the axes `data` and `model`, and the rules of a run.

    Attributes:
      num_partitions: size of the `model` axis; the rest is `data`. Honoured on every platform.
      model_parallel_submesh: T5X's way to give the same number, as a TPU submesh `(x, y, z, cores)`.
      logical_axis_rules: defaults to `standard_logical_axis_rules()`.
      devices: defaults to `jax.devices()`.

    Raises:
      ValueError: if the devices do not divide by the model axis, or both ways to say it disagree.
    """

    def __init__(
        self,
        num_partitions: int | None = None,
        model_parallel_submesh: Sequence[int] | None = None,
        logical_axis_rules: LogicalAxisRules | None = None,
        devices: Sequence[jax.Device] | None = None,
    ):
        submesh_size = math.prod(model_parallel_submesh) if model_parallel_submesh else None
        if num_partitions and submesh_size and num_partitions not in (1, submesh_size):
            raise ValueError(
                f"PjitPartitioner.num_partitions = {num_partitions} and model_parallel_submesh = "
                f"{tuple(model_parallel_submesh or ())} disagree; give one of them."
            )
        model_axis = submesh_size or num_partitions or 1
        devices = list(devices if devices is not None else jax.devices())
        if len(devices) % model_axis:
            raise ValueError(
                f"PjitPartitioner.num_partitions = {model_axis} does not divide the {len(devices)} devices; "
                f"choose one of {[n for n in range(1, len(devices) + 1) if len(devices) % n == 0]}."
            )
        shape = (len(devices) // model_axis, model_axis)
        if shape[0] % jax.process_count():
            raise ValueError(
                f"PjitPartitioner.num_partitions = {model_axis} makes hosts share rows of a batch, which is not "
                f"supported yet: use at most the {jax.local_device_count()} devices of one host."
            )
        self.mesh = Mesh(mesh_utils.create_device_mesh(shape, devices=devices), ("data", "model"))
        self.logical_axis_rules = tuple(logical_axis_rules or standard_logical_axis_rules())

    def _mesh_axes(self, logical_axes: Sequence[str | None]) -> PartitionSpec:
        """The mesh axis of each logical axis, None where it is not sharded."""
        spec = nn_partitioning.logical_to_mesh_axes(tuple(logical_axes), rules=self.logical_axis_rules)
        assert spec is not None  # only for axes that are None altogether
        return spec

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        """Makes mesh and rules known to `with_sharding_constraint` while a function is traced."""
        with self.mesh, nn_partitioning.axis_rules(self.logical_axis_rules):
            yield

    @property
    def data_sharding(self) -> NamedSharding:
        """Of every feature of a batch: rows over `data`."""
        return NamedSharding(self.mesh, PartitionSpec("data"))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def shardings(self, logical_axes: PyTree) -> PyTree:
        """Shardings for a tree of `PartitionSpec`s of logical axes; None means replicated."""

        def sharding(axes):
            return self.replicated if axes is None else NamedSharding(self.mesh, self._mesh_axes(axes))

        return jax.tree.map(sharding, logical_axes, is_leaf=lambda x: x is None or isinstance(x, PartitionSpec))

    def shard_batch(self, batch: Batch) -> dict[str, jax.Array]:
        """Global arrays from this host's rows of the batch."""
        return {
            name: jax.make_array_from_process_local_data(self.data_sharding, np.asarray(rows))
            for name, rows in batch.items()
        }

    def jit(self, function: Callable, **jit_arguments) -> Callable:
        """`jax.jit` whose tracing sees this mesh and these rules."""
        jitted = jax.jit(function, **jit_arguments)

        def call(*args):
            with self.activate():
                return jitted(*args)

        def lower(*args):
            with self.activate():
                return jitted.lower(*args)

        call.lower = lower  # type: ignore[attr-defined]
        return call

    @property
    def data_partition_spec(self) -> PartitionSpec:
        """T5X's name for how a batch is sharded."""
        return self.data_sharding.spec

    def partition(
        self, fn: Callable, in_axis_resources: PyTree, out_axis_resources: PyTree, donate_argnums: Sequence[int] = ()
    ) -> Callable:
        """`jit` as T5X's trainers call it: shardings or partition specs of mesh axes, None is replicated."""

        def shardings(resources):
            return jax.tree.map(
                lambda x: x if isinstance(x, NamedSharding) else NamedSharding(self.mesh, x or PartitionSpec()),
                resources,
                is_leaf=lambda x: x is None or isinstance(x, PartitionSpec),
            )

        return self.jit(
            fn,
            in_shardings=shardings(in_axis_resources),
            out_shardings=shardings(out_axis_resources),
            donate_argnums=donate_argnums,
        )

    def check_batch_size(self, batch_size: int, where: str, num_microbatches: int = 1) -> None:
        """Raises ValueError unless every device gets the same number of rows of every microbatch."""
        data = self.mesh.shape["data"]
        if batch_size % (data * num_microbatches):
            split = f"{data} data shards" + (f" x {num_microbatches} microbatches" if num_microbatches > 1 else "")
            raise ValueError(
                f"{where} is {batch_size}, which does not divide by {split} (mesh {dict(self.mesh.shape)}); use a "
                f"multiple of {data * num_microbatches}, or another PjitPartitioner.num_partitions."
            )

    def check_shapes(self, shapes: PyTree, logical_axes: PyTree) -> None:
        """Raises ValueError naming the first parameter with a dim that its mesh axis does not divide."""
        flat_shapes = traverse_util.flatten_dict(shapes, sep="/")
        flat_axes = traverse_util.flatten_dict(logical_axes, sep="/")
        for name, array in flat_shapes.items():
            mesh_axes = self._mesh_axes(flat_axes[name])
            for dim, axis, mesh_axis in zip(array.shape, flat_axes[name], mesh_axes, strict=True):
                if mesh_axis is not None and dim % self.mesh.shape[mesh_axis]:
                    raise ValueError(
                        f"{name} has {dim} in its logical axis {axis!r}, which does not divide by the mesh axis "
                        f"{mesh_axis!r} of size {self.mesh.shape[mesh_axis]}; choose a PjitPartitioner.num_partitions "
                        f"that divides it, or other logical_axis_rules."
                    )

    def check_heads(self, num_heads: int) -> None:
        """Raises ValueError if attention heads cannot be spread over the model axis.

        The kernels join heads and kv, so their shapes alone would not show it.
        """
        mesh_axis = self._mesh_axes(("heads",))[0]
        size = self.mesh.shape[mesh_axis] if mesh_axis else 1
        if num_heads % size:
            raise ValueError(
                f"num_heads is {num_heads}, which does not divide by the mesh axis {mesh_axis!r} of size {size}; set "
                f"PjitPartitioner.num_partitions to a divisor of {num_heads}."
            )
