"""Which accelerators this machine has, asked of the kernel before JAX is imported."""

import glob
import importlib.util
import logging
from collections.abc import Mapping, MutableMapping

logger = logging.getLogger(__name__)

# TPUs v2 to v4 have /dev/accel, later ones /dev/vfio, as have GPUs that are passed through to a guest.
_NVIDIA = "/dev/nvidiactl"
_DEVICES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*", _NVIDIA)
# The share of a GPU's memory that a training may use, and the variable by which JAX knows it.
GPU_MEMORY, GPU_MEMORY_VARIABLE = "0.9", "XLA_PYTHON_CLIENT_MEM_FRACTION"
# XLA joins products of one array with several kernels, such as those of a gated activation, into one, and then copies
# the parts of its result. On large cards two products are no slower than one.
GPU_FLAG = "--xla_gpu_dot_merger_threshold_mb=0"
# Kernels are started one by one. XLA starts those of a step together, and then the profiler cannot name them.
KERNELS_APART = "--xla_gpu_enable_command_buffer="


def forget_absent_tpu(environ: MutableMapping[str, str]) -> None:
    """Keeps JAX from starting libtpu where it is installed and no accelerator is: it prints errors, and costs seconds.

    The platforms that are named in the environment stay.
    """
    if "JAX_PLATFORMS" in environ or _are_there(environ) or importlib.util.find_spec("libtpu") is None:
        return
    environ["JAX_PLATFORMS"] = "cpu"


def _are_there(environ: Mapping[str, str]) -> bool:
    # Variables of TPU hosts: a container may see its TPU through them alone.
    is_named = any(name.startswith("TPU_") for name in environ)
    return is_named or any(glob.glob(pattern) for pattern in _DEVICES)  # noqa: PTH207, absolute patterns


def computes_on_cpu(environ: Mapping[str, str]) -> bool:
    """Whether JAX will compute on the CPU: it is told so, or there is nothing else."""
    return environ.get("JAX_PLATFORMS") == "cpu" or not _are_there(environ)


def prepare_gpu(environ: MutableMapping[str, str]) -> None:
    """What a training on a GPU does better with, unless the environment says otherwise; before JAX opens a GPU.

    JAX may use 90 % of its memory, where it would use 75 %, and XLA gets `GPU_FLAG`.
    """
    if not glob.glob(_NVIDIA):  # noqa: PTH207, as above
        return
    if GPU_MEMORY_VARIABLE not in environ:
        environ[GPU_MEMORY_VARIABLE] = GPU_MEMORY
        logger.info("JAX may use 90 %% of a GPU's memory; %s says otherwise.", GPU_MEMORY_VARIABLE)
    if _add_flag(environ, GPU_FLAG):
        logger.info("XLA gets %s; the same flag in XLA_FLAGS, with another value, says otherwise.", GPU_FLAG)


def take_no_memory(environ: MutableMapping[str, str]) -> None:
    """Of a GPU, for a command that computes nothing; before JAX opens it."""
    environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def name_kernels(environ: MutableMapping[str, str]) -> None:
    """For a profile on a GPU: each kernel has the name of its operation; before JAX opens the GPU."""
    if glob.glob(_NVIDIA):  # noqa: PTH207, as above
        _add_flag(environ, KERNELS_APART)


def _add_flag(environ: MutableMapping[str, str], flag: str) -> bool:
    """Adds a flag for XLA, unless it is there with whatever value; returns whether it was added."""
    flags = environ.get("XLA_FLAGS", "")
    if flag.partition("=")[0] in flags:
        return False
    environ["XLA_FLAGS"] = f"{flags} {flag}".strip()
    return True
