"""Compiles a run's training step for chips that are not there, and reads the memory that it needs.

XLA compiles for a TPU slice on any CPU where libtpu is installed, and for GPUs where CUDA's libraries are: the device's
own compiler, with its limits. Nothing runs and nothing is allocated.
"""

import copy
import dataclasses
import importlib.util
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import traverse_util
from flax.linen import partitioning as nn_partitioning
from jax.experimental import topologies as jax_topologies
from jax.sharding import PartitionSpec

from limba.addons.plan import gpu_targets, program_cost
from limba.addons.plan.mesh_layouts import MeshLayout, Work
from limba.addons.plan.topologies import GIB, Topology
from limba.data.contract import DatasetConfig
from limba.network.encoders.config import EncoderConfig, sparse_part
from limba.network.t5 import T5Config
from limba.partitioning import meshes
from limba.partitioning.meshes import PjitPartitioner
from limba.training.configured_trainer import batch_to_compile, make_trainer

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device.

    Attributes:
      parameters, optimizer: as they are sharded.
      peak: of the step, everything included; None where the compiler refused it.
      refused: the bytes that the compiler named when it refused the step.
    """

    parameters: float
    optimizer: float
    peak: float | None = None
    refused: float | None = None

    @property
    def needed(self) -> float:
        return self.peak if self.peak is not None else self.refused or math.inf

    @property
    def temporary(self) -> float:
        """Activations, gradients and everything else that lives only during a step."""
        return self.needed - self.parameters - self.optimizer


def check_compiler(topology: Topology) -> None:
    """Raises ImportError, with the command to install it, if the compiler for these chips is missing."""
    if topology.chip.platform == "gpu":
        gpu_targets.check_compiler()
    elif importlib.util.find_spec("libtpu") is None:
        raise ImportError(
            "`limba plan` compiles with libtpu, the TPU's own compiler, which is not installed: "
            "pip install 'limba[plan]' (213 MB, Linux on x86-64). --estimate_only does without."
        )


def devices_of(topology: Topology) -> list[jax.Device]:
    """Devices to compile for; ValueError for a card that `gpu_targets` does not describe."""
    if topology.chip.platform == "gpu":
        return gpu_targets.devices_of(topology)
    generation = {"v5p": "v5"}.get(topology.kind, topology.kind)
    options: dict[str, Any] = {}
    if topology.kind in ("v4", "v5p"):  # Otherwise each core is a device, with half of the memory.
        options = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}
    if topology.num_chips == 1:  # Otherwise a host has four.
        options["chips_per_host_bounds"] = (1, 1, 1)
    if topology.num_slices > 1:
        options["num_slices"] = topology.num_slices
    # Chips of these generations are counted along two axes, all others along three.
    flat = topology.kind in ("v5e", "v6e")
    shape = topology.shape if flat else (*topology.shape, 1)[:3]
    name = f"{generation}:{'x'.join(map(str, shape))}"
    return jax_topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices


@dataclasses.dataclass(frozen=True)
class Training:
    """The parts of a run that its step depends on."""

    model: Any
    dataset: DatasetConfig
    trainer_cls: Callable[..., Any]

    @property
    def config(self) -> T5Config | EncoderConfig | None:
        """Of the network; None for a network with a configuration of another kind, which is compiled as it is."""
        config = getattr(self.model.module, "config", None)
        return config if isinstance(config, T5Config | EncoderConfig) else None

    @property
    def can_scan(self) -> bool:
        """Whether layers may be scanned: a T5's that differ are not."""
        return not isinstance(self.config, T5Config) or self.config.can_scan

    @property
    def work(self) -> Work:
        lengths = dict(self.dataset.task_feature_lengths or {})
        shapes, axes = (traverse_util.flatten_dict(x) for x in self.with_layers("none").model.param_shapes_and_axes())
        count = sum(math.prod(x.shape) for x in shapes.values())
        selected = getattr(self.config, "num_selected_experts", 1)
        unused = sum(
            math.prod(x.shape) - selected * (math.prod(x.shape) // x.shape[axes[name].index("expert")])
            for name, x in shapes.items()
            if "expert" in axes[name]
        )
        inputs, targets = lengths.get("inputs", 0), lengths.get("targets", 0)
        sizes = dataclasses.asdict(self.config) if self.config is not None else None
        generator = getattr(self.model, "generator_config", None)
        if isinstance(self.config, T5Config) and sizes is not None:
            sizes["is_beyond_kernels"] = self.config.is_beyond_kernels
            if (own := self.config.encoder_attention) is not None:
                sizes |= {"seen_keys": own.seen_keys(inputs), "keeps_no_weights": True}
        if isinstance(self.config, EncoderConfig):
            sizes = _encoder_sizes(self.config, inputs)
        elif sizes is not None and sizes["num_encoder_layers"] == 0:  # One stack sees both.
            inputs, targets = 0, inputs + targets
        of_generator = None if generator is None else _encoder_sizes(generator, inputs)
        return Work(sizes, self.dataset.batch_size, inputs, targets, count, of_generator, count - unused)

    def with_layers(self, remat: str, *, scanned: bool = True) -> "Training":
        """The same training with a policy of recomputation; scanned layers, where they can be, compile as one."""
        if self.config is None:
            return self
        model = copy.copy(self.model)
        config = dataclasses.replace(self.config, scan_layers=scanned and self.can_scan, remat_policy=remat)
        model.module = self.model.module.clone(config=config)
        return dataclasses.replace(self, model=model)


def _encoder_sizes(config: EncoderConfig, length: int) -> dict[str, Any]:
    """An encoder's fields as `flops.forward_flops` takes them: the targets have logits and no layers."""
    sizes = dataclasses.asdict(config) | {"num_encoder_layers": config.num_layers, "num_decoder_layers": 0}
    if config.sparse_attention is not None:
        sizes["seen_keys"] = sparse_part().seen_keys(config, length)
    if config.has_disentangled_attention:
        # Queries are multiplied by the keys of all distances, too, and keys by their queries.
        sizes["seen_keys"] = length + 2 * length - 1
    return sizes


class StateSizes:
    """Bytes of a training's state on a device, for any layout and without devices."""

    def __init__(self, training: Training):
        model = training.with_layers("none").model
        params, param_axes = model.param_shapes_and_axes()
        model.optimizer_def.set_param_axes(param_axes)
        self._params = (param_axes, params)
        optimizer_state = jax.eval_shape(model.optimizer_def.init, params)
        self._optimizer = (model.optimizer_def.state_axes(params, param_axes), optimizer_state)
        self._known: dict[tuple[int, int, bool], Memory] = {}

    def memory(self, layout: MeshLayout) -> Memory:
        """Of a device; without a peak."""
        key = (layout.data, layout.model, layout.fsdp)  # Nothing else matters to the state.
        if key not in self._known:
            self._known[key] = Memory(self._bytes(*self._params, layout), self._bytes(*self._optimizer, layout))
        return self._known[key]

    def _bytes(self, logical_axes: PyTree, shapes: PyTree, layout: MeshLayout) -> float:
        rules = _rules(layout)
        mesh = {"data": layout.data, "model": layout.model, None: 1}

        def local(axes: Any, arrays: PyTree) -> float:
            spec = nn_partitioning.logical_to_mesh_axes(tuple(axes), rules=rules) if axes else ()
            parts = math.prod(mesh[axis] for axis in spec or ())
            return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(arrays)) / parts

        is_axes = lambda x: x is None or isinstance(x, PartitionSpec)  # noqa: E731
        return sum(jax.tree.leaves(jax.tree.map(local, logical_axes, shapes, is_leaf=is_axes)))


def _rules(layout: MeshLayout) -> meshes.LogicalAxisRules:
    return meshes.fsdp_logical_axis_rules() if layout.fsdp else meshes.standard_logical_axis_rules()


def partitioner(layout: MeshLayout, devices: Sequence[jax.Device]) -> PjitPartitioner:
    """The mesh and the rules of a layout."""
    return PjitPartitioner(layout.model, logical_axis_rules=_rules(layout), devices=devices)


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A step that the compiler took, or refused for want of memory.

    Attributes:
      compiled: None where it was refused.
    """

    memory: Memory
    compiled: Any

    def bound(self, topology: Topology) -> float | None:
        """Seconds that no run of the step is below; None where it was refused, and for TPUs, whose loops hide it."""
        if self.compiled is None or topology.chip.platform != "gpu":
            return None
        chip = topology.chip
        link = chip.link if topology.num_hosts == 1 else chip.network
        cost = program_cost.gpu_program_cost(self.compiled.as_text(), chip, link)
        return cost.seconds + cost.waited


def compile_step(training: Training, mesh: PjitPartitioner, num_microbatches: int | None = None) -> CompiledStep:
    """Compiles the step of a training, with the layers that it will run with; see `Training.with_layers`.

    Args:
      num_microbatches: None leaves them as the trainer has them.

    Raises:
      ValueError: if the batch or a parameter cannot be spread over the mesh.
    """
    if training.config is not None:
        mesh.check_heads(training.config.num_heads)
    parts: dict[str, Any] = {} if num_microbatches is None else {"num_microbatches": num_microbatches}
    trainer = make_trainer(training.trainer_cls, training.model, mesh, **parts)
    batch = batch_to_compile(trainer, training.dataset)
    state_shapes = trainer.sharded_state_shapes()
    state = Memory(_local_bytes(state_shapes.params), _local_bytes(state_shapes.opt_state))
    lowered = trainer.train_step.lower(state_shapes, batch)
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return CompiledStep(dataclasses.replace(state, refused=_needed(str(error))), None)
    return CompiledStep(dataclasses.replace(state, peak=peak_bytes(compiled.memory_analysis())), compiled)


def peak_bytes(sizes: Any) -> float:
    """Of a compiled program; GPUs' compiler gives the parts only."""
    parts = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return float(sizes.peak_memory_in_bytes or parts + sizes.temp_size_in_bytes)


_UNITS = {"K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}
_SIZE = re.compile(r"([\d.]+)([KMGT])i?B?")


def _needed(message: str) -> float | None:
    """The largest size that the compiler names: the memory that the step needs."""
    return max((float(number) * _UNITS[unit] for number, unit in _SIZE.findall(message)), default=None)


def _local_bytes(tree: PyTree) -> float:
    return float(sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)))
