"""GPUs that are not there, for XLA's compiler: `limba plan --topology h100-8`, benchmarks/compiled_step.py.

XLA compiles for a card from its description and needs CUDA's libraries, but no card and no driver. It is one process'
choice: a process that compiles for GPUs runs nothing on one.
"""

import importlib.util
import os
from typing import TYPE_CHECKING

from limba.addons.plan.topologies import Topology
from limba.devices import accelerators

if TYPE_CHECKING:  # `prepare_environment` must precede it.
    import jax

# XLA measures candidates of a product on the card, which is not there; without that its own kernels for products have
# no sizes to choose from. What a training sets is set here too.
XLA_FLAGS = f"--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false {accelerators.GPU_FLAG}"
_GPUS_OF_A_BOX = 8

# Fields of XLA's GpuTargetConfigProto. Figures of NVIDIA's data sheets and of the CUDA programming guide, chapter
# "Compute Capabilities".
_HOPPER = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "shared_memory_per_core": 233472,
    "shared_memory_per_block_optin": 232448,
    "threads_per_core_limit": 2048,
    "core_count": 132,
    "fpus_per_core": 128,
    "block_dim_limit_x": 2147483647,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "l2_cache_size": 52428800,
    "clock_rate_ghz": 1.98,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
    "memory_bandwidth": 3352320000000,
    "device_memory_size": 84929347584,
}
_AMPERE = _HOPPER | {
    "shared_memory_per_core": 167936,
    "shared_memory_per_block_optin": 166912,
    "core_count": 108,
    "fpus_per_core": 64,
    "l2_cache_size": 41943040,
    "clock_rate_ghz": 1.41,
    "memory_bandwidth": 2039000000000,
    "device_memory_size": 85199486976,
}
# Kind in `topologies.CHIPS`: name of the card, compute capability, fields.
_CARDS = {
    "h100": ("NVIDIA H100 80GB HBM3", 9, _HOPPER),
    "h200": ("NVIDIA H200", 9, _HOPPER | {"memory_bandwidth": 4800000000000, "device_memory_size": 150754820096}),
    "a100": ("NVIDIA A100-SXM4-80GB", 8, _AMPERE),
}


def is_known(kind: str) -> bool:
    """Whether the compiler can be given a description of these cards."""
    return kind in _CARDS


def is_installed() -> bool:
    """Whether there is a compiler for GPUs."""
    return any(importlib.util.find_spec(plugin) is not None for plugin in ("jax_cuda12_plugin", "jax_cuda13_plugin"))


def check_compiler() -> None:
    """Raises ImportError, with the command to install it, if the compiler for GPUs is missing."""
    if not is_installed():
        raise ImportError(
            "Compiling for GPUs needs CUDA's libraries, but no card: pip install 'limba[plan_gpu]' (3 GB, Linux on "
            "x86-64). --estimate_only does without."
        )


def prepare_environment() -> None:
    """Lets JAX load its plugin for CUDA without a card, where it is installed; before JAX is imported."""
    if not is_installed():
        return
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}"


def devices_of(topology: Topology) -> list["jax.Device"]:
    """Cards to compile for.

    Raises:
      ValueError: for a kind whose description is not known here.
    """
    from jax.experimental import topologies as jax_topologies

    if not is_known(topology.kind):
        raise ValueError(f"There is no description of {topology.kind} for the compiler; there are {', '.join(_CARDS)}.")
    boxes, cards = topology.num_hosts, topology.num_chips // topology.num_hosts
    return jax_topologies.get_topology_desc(
        platform="cuda", target_config=_target(topology.kind), topology=f"1x{boxes}x{cards}"
    ).devices


def _target(kind: str) -> str:
    name, capability, fields = _CARDS[kind]
    lines = "\n".join(f"  {field}: {value}" for field, value in fields.items())
    return (
        f"gpu_device_info {{\n{lines}\n  cuda_compute_capability {{ major: {capability} minor: 0 }}\n}}\n"
        'platform_name: "CUDA"\ndnn_version_info { major: 9 minor: 28 }\nruntime_version { major: 12 minor: 9 }\n'
        f'device_description_str: "{name}"\n'
    )
