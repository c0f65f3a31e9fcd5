"""Named device meshes, and rules that map logical axes to mesh axes.

A network names the dims of its arrays ("embed", "mlp", "heads" …); the rules of a run map these names to the mesh axes
`data` and `model`. XLA's partitioner inserts the collectives; Limba has none of its own.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from flax.linen import partitioning as nn_partitioning
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from limba.data.contract import Batch
from limba.devices import target
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1
from limba.partitioning.host_groups import DataLayout, HostGroups

logger = logging.getLogger(__name__)
PyTree = Any
MeshAxes = str | tuple[str, ...] | None
LogicalAxisRules = Sequence[tuple[str, MeshAxes]]


def standard_logical_axis_rules(
    activation_partitioning_dims: int = 1,
    parameter_partitioning_dims: int = 1,
    additional_rules: LogicalAxisRules | None = None,
) -> LogicalAxisRules:
    """T5X's rules from logical to mesh axes.

    For each axis, the first rule applies whose mesh axis is not yet used in the array.

    Args:
      activation_partitioning_dims: 2 also shards the `embed` dim of activations over `model`.
      parameter_partitioning_dims: 2 also shards the `embed` dim of parameters over `data` (FSDP, ZeRO-3).
      additional_rules: appended.

    Raises:
      ValueError: for dims other than 1 and 2.
    """
    dims = (activation_partitioning_dims, parameter_partitioning_dims)
    if not all(dim in (1, 2) for dim in dims):
        raise ValueError(f"standard_logical_axis_rules takes 1 or 2 for both partitioning dims, not {dims}.")
    rules: list[tuple[str, MeshAxes]] = [("batch", "data"), ("vocab", "model"), ("mlp", "model"), ("heads", "model")]
    rules += [("kv", None), ("joined_kv", "model")]
    embed = [axis for axis, dim in zip(("model", "data"), dims, strict=True) if dim == 2]
    rules += [("embed", axis) for axis in embed] or [("embed", None)]
    replicated = (
        *("relpos_buckets", "abspos_buckets", "token_types", "labels", "length", "layers", "stack", "mlp_activations"),
        "expert",
    )
    return [*rules, *((axis, None) for axis in replicated), *(additional_rules or ())]


def fsdp_logical_axis_rules() -> LogicalAxisRules:
    """Rules for fully sharded data parallelism: parameters and optimizer state are also sharded over `data`."""
    return standard_logical_axis_rules(parameter_partitioning_dims=2)


def _model_axis(
    num_partitions: int | None, model_parallel_submesh: Sequence[int] | None, devices: Sequence[jax.Device]
) -> int:
    number_ranges.check("PjitPartitioner.num_partitions", num_partitions, AT_LEAST_1._replace(or_none=True))
    for number, size in enumerate(model_parallel_submesh or ()):
        number_ranges.check(f"PjitPartitioner.model_parallel_submesh[{number}]", size, AT_LEAST_1)
    submesh_size = math.prod(model_parallel_submesh) if model_parallel_submesh else None
    if num_partitions and submesh_size and num_partitions not in (1, submesh_size):
        raise ValueError(
            f"PjitPartitioner.num_partitions = {num_partitions} and model_parallel_submesh = "
            f"{tuple(model_parallel_submesh or ())} disagree; give only one of them."
        )
    wanted = submesh_size or num_partitions or 1
    if len(devices) % wanted == 0:
        return wanted
    if devices[0].platform == "cpu":
        # A pod's recipe on a laptop: the mesh decides where numbers are computed, and does not change them.
        size = math.gcd(wanted, len(devices))
        logger.warning(
            "PjitPartitioner.num_partitions = %d does not divide the %d CPU devices: the model axis is %d here.",
            wanted,
            len(devices),
            size,
        )
        return size
    raise ValueError(
        f"PjitPartitioner.num_partitions = {wanted} does not divide the {len(devices)} devices; "
        f"choose one of {[n for n in range(1, len(devices) + 1) if len(devices) % n == 0]}."
    )


def _device_mesh(shape: Sequence[int], devices: Sequence[jax.Device]) -> np.ndarray:
    """Devices in a shape, neighbours along the last axis: along it they communicate most."""
    # JAX splits a physical axis only if nothing else fits, such as 8 x 2 on the 4 x 4 chips of a v5e-16.
    return mesh_utils.create_device_mesh(shape, devices=devices, allow_split_physical_axes=True)


def _shapes_of_slices(model_axis: int, devices: Sequence[jax.Device]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """ICI and DCN shapes for TPU devices of several slices, with each model in one slice; None for a single slice."""
    num_slices = len({getattr(device, "slice_index", 0) for device in devices})
    if devices[0].platform != "tpu" or num_slices == 1:
        return None
    of_a_slice = len(devices) // num_slices
    if of_a_slice % model_axis:
        raise ValueError(
            f"PjitPartitioner.num_partitions = {model_axis} does not divide the {of_a_slice} devices of each of the "
            f"{num_slices} slices; a model that spans slices needs ici_mesh_shape and dcn_mesh_shape."
        )
    return (1, of_a_slice // model_axis, model_axis), (num_slices, 1, 1)


def _multi_slice_mesh(
    ici_mesh_shape: Sequence[int] | None, dcn_mesh_shape: Sequence[int] | None, devices: Sequence[jax.Device]
) -> np.ndarray:
    """Devices `[replica, data, model]`, the product of the shapes within a slice (ICI) and across slices (DCN)."""
    shapes = (tuple(ici_mesh_shape or ()), tuple(dcn_mesh_shape or ()))
    if any(len(shape) != 3 for shape in shapes) or math.prod((*shapes[0], *shapes[1])) != len(devices):
        raise ValueError(
            f"PjitPartitioner.ici_mesh_shape = {shapes[0]} and dcn_mesh_shape = {shapes[1]} must both be (replica, "
            f"data, model), and their product the {len(devices)} devices."
        )
    if math.prod(shapes[1]) == 1:
        return _device_mesh(shapes[0], devices)
    # Only TPU devices know their slice; on other platforms each host counts as one.
    by_process = devices[0].platform != "tpu"
    return mesh_utils.create_hybrid_device_mesh(
        *shapes, devices=devices, process_is_granule=by_process, allow_split_physical_axes=True
    )


def _devices_of(backend: str | None) -> list[jax.Device]:
    """The devices of a platform; of JAX's default platform for None.

    Raises:
      ValueError: if this machine has none of them.
    """
    try:
        return jax.devices(backend)
    except RuntimeError as error:
        if backend is None:
            raise
        raise ValueError(
            f"partitioning.PjitPartitioner.backend is {backend!r}, and this machine has no such devices: {error}. For "
            "the devices of this machine give --gin.partitioning.PjitPartitioner.backend=None."
        ) from error


class PjitPartitioner:
    """A mesh of all devices with the axes `data` and `model`, and the rules of a run.

    Attributes:
      num_partitions: size of the `model` axis, on every platform; the other devices are along `data`.
      model_parallel_submesh: the same number as T5X's TPU submesh `(x, y, z, cores)`.
      params_on_devices: must be True; T5X's False, parameters in host memory, is not supported.
      backend: platform of the devices, such as "cpu"; None is JAX's default.
      ici_mesh_shape, dcn_mesh_shape: for several slices, `(replica, data, model)` within a slice and across slices. The
        mesh then has these three axes, and batches are split over `replica` and `data`. For devices of several TPU
        slices the default is one replica for each slice, with `num_partitions` and FSDP within the slice.
      logical_axis_rules: defaults to `standard_logical_axis_rules()`.
      devices: defaults to `jax.devices(backend)`.

    Raises:
      ValueError: if the number of accelerators does not divide by the model axis (for CPU devices it is reduced, with
        a warning), if this machine has no devices of the backend, or for arguments that contradict each other or are
        not supported.
    """

    def __init__(
        self,
        num_partitions: int | None = None,
        model_parallel_submesh: Sequence[int] | None = None,
        params_on_devices: bool = True,
        backend: str | None = None,
        ici_mesh_shape: Sequence[int] | None = None,
        dcn_mesh_shape: Sequence[int] | None = None,
        logical_axis_rules: LogicalAxisRules | None = None,
        devices: Sequence[jax.Device] | None = None,
    ):
        if not params_on_devices:
            raise ValueError(
                "PjitPartitioner.params_on_devices = False is not supported; use FSDP rules to save memory."
            )
        devices = list(devices if devices is not None else _devices_of(backend))
        rules = tuple(logical_axis_rules or standard_logical_axis_rules())
        if ici_mesh_shape is None and dcn_mesh_shape is None:
            model_axis = _model_axis(num_partitions, model_parallel_submesh, devices)
            if (shapes := _shapes_of_slices(model_axis, devices)) is not None:
                ici_mesh_shape, dcn_mesh_shape = shapes
        if ici_mesh_shape is not None or dcn_mesh_shape is not None:
            device_mesh = _multi_slice_mesh(ici_mesh_shape, dcn_mesh_shape, devices)
            self.mesh = Mesh(device_mesh, ("replica", "data", "model"))
            self.data_axes: tuple[str, ...] = ("replica", "data")
            rules = tuple((name, self.data_axes if name == "batch" else axis) for name, axis in rules)
        else:
            self.mesh = Mesh(_device_mesh((len(devices) // model_axis, model_axis), devices), ("data", "model"))
            self.data_axes = ("data",)
        self.logical_axis_rules = rules
        self._host_groups = HostGroups(self.mesh, self.data_axes)

    @property
    def num_data_shards(self) -> int:
        """Number of groups of devices over which a batch is split."""
        return math.prod(self.mesh.shape[axis] for axis in self.data_axes)

    def _mesh_axes(self, logical_axes: Sequence[str | None]) -> PartitionSpec:
        """The mesh axis of each logical axis, None where it is not sharded."""
        spec = nn_partitioning.logical_to_mesh_axes(tuple(logical_axes), rules=self.logical_axis_rules)
        assert spec is not None  # It is None only if the argument is.
        return spec

    def _size(self, mesh_axes: MeshAxes) -> int:
        axes = (mesh_axes,) if isinstance(mesh_axes, str) else mesh_axes or ()
        return math.prod(self.mesh.shape[axis] for axis in axes)

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        """A context in which `with_sharding_constraint` uses this mesh and these rules, for tracing functions."""
        # Flax uses the mesh of `jax.set_mesh`; with `with mesh:` alone it would constrain nothing.
        device = self.mesh.devices.flat[0]
        with (
            jax.set_mesh(self.mesh),
            nn_partitioning.axis_rules(self.logical_axis_rules),
            target.tracing_for(device),
        ):
            yield

    @property
    def data_sharding(self) -> NamedSharding:
        """The sharding of each feature of a batch: rows over `data`, and over `replica` if there are several slices."""
        return NamedSharding(self.mesh, PartitionSpec(self.data_axes))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def shardings(self, logical_axes: PyTree) -> PyTree:
        """Shardings for a tree of `PartitionSpec`s of logical axes; None means replicated."""

        def sharding(axes: Any) -> NamedSharding:
            return self.replicated if axes is None else NamedSharding(self.mesh, self._mesh_axes(axes))

        return jax.tree.map(sharding, logical_axes, is_leaf=lambda x: x is None or isinstance(x, PartitionSpec))

    def get_data_layout(self, batch_size: int) -> DataLayout:
        """The rows of a global batch that this host reads. Hosts that share a copy of the model read the same."""
        return self._host_groups.layout(batch_size, jax.process_index())

    @property
    def num_host_groups(self) -> int:
        """Number of groups of hosts that split the rows of a batch; the hosts of a group read the same rows."""
        return len(self._host_groups.hosts)

    def shard_batch(self, batch: Batch) -> dict[str, jax.Array]:
        """Global arrays `[batch, …]` from the rows that this host reads, `[rows of its group, …]`.

        Arrays that this has made are returned as they are.
        """
        sharding, host = self.data_sharding, jax.process_index()

        def placed(rows: Any) -> jax.Array:
            if isinstance(rows, jax.Array) and rows.sharding == sharding:
                return rows
            if jax.process_count() == 1:
                return jax.device_put(np.asarray(rows), sharding)
            return self._host_groups.put(np.asarray(rows), sharding, host)

        return {name: placed(rows) for name, rows in batch.items()}

    def jit(self, function: Callable, **jit_arguments: Any) -> Callable:
        """`jax.jit` that traces with this mesh and these rules."""
        jitted = jax.jit(function, **jit_arguments)
        call = self.activate()(jitted)  # A context manager as a decorator: each call enters a context of its own.
        call.lower = self.activate()(jitted.lower)  # type: ignore[method-assign]
        return call

    @property
    def data_partition_spec(self) -> PartitionSpec:
        """T5X's name for the partition spec of a batch."""
        return self.data_sharding.spec

    def partition(
        self, fn: Callable, in_axis_resources: PyTree, out_axis_resources: PyTree, donate_argnums: Sequence[int] = ()
    ) -> Callable:
        """`jit` with the arguments of T5X's trainers: shardings or partition specs of mesh axes; None is replicated."""

        def shardings(resources: PyTree) -> PyTree:
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
        data = self.num_data_shards
        if batch_size % (data * num_microbatches):
            split = f"{data} data shards" + (f" x {num_microbatches} microbatches" if num_microbatches > 1 else "")
            raise ValueError(
                f"{where} is {batch_size}, which does not divide by {split} (mesh {dict(self.mesh.shape)}); use a "
                f"multiple of {data * num_microbatches}, or another PjitPartitioner.num_partitions."
            )

    def check_shapes(self, shapes: PyTree, logical_axes: PyTree) -> None:
        """Raises ValueError that names the first parameter with a dim that its mesh axis does not divide."""
        flat_shapes = traverse_util.flatten_dict(shapes, sep="/")
        flat_axes = traverse_util.flatten_dict(logical_axes, sep="/")
        for name, array in flat_shapes.items():
            mesh_axes = self._mesh_axes(flat_axes[name])
            for dim, axis, mesh_axis in zip(array.shape, flat_axes[name], mesh_axes, strict=True):
                if dim % self._size(mesh_axis):
                    raise ValueError(
                        f"{name} has {dim} in its logical axis {axis!r}, which does not divide by the mesh axis "
                        f"{mesh_axis!r} of size {self._size(mesh_axis)}; choose a PjitPartitioner.num_partitions "
                        f"that divides it, or other logical_axis_rules."
                    )

    def check_heads(self, num_heads: int) -> None:
        """Raises ValueError if the number of attention heads does not divide by the model axis.

        `check_shapes` cannot find this: the kernels have heads and kv in one dim.
        """
        mesh_axis = self._mesh_axes(("heads",))[0]
        size = self._size(mesh_axis)
        if num_heads % size:
            raise ValueError(
                f"num_heads is {num_heads}, which does not divide by the mesh axis {mesh_axis!r} of size {size}; set "
                f"PjitPartitioner.num_partitions to a divisor of {num_heads}."
            )


def batch_size_of_devices(per_device: int, partitioner: PjitPartitioner, num_microbatches: int = 1) -> int:
    """The size of the global batch from the rows of a device: `BATCH_SIZE = @partitioning.batch_size_of_devices()`.

    Args:
      per_device: rows that a device processes at a time. Devices that share one copy of the model (`num_partitions`)
        count as one.
      num_microbatches: of an update, as `trainer.Trainer.num_microbatches`.

    Raises:
      ValueError: if a number is below 1.
    """
    for name, number in (("per_device (BATCH_SIZE_PER_DEVICE)", per_device), ("num_microbatches", num_microbatches)):
        number_ranges.check(f"batch_size_of_devices.{name}", number, AT_LEAST_1)
    return per_device * partitioner.num_data_shards * num_microbatches
