"""Which accelerators this machine has, asked of the kernel before JAX is imported."""

import glob
import importlib.util
import logging
from collections.abc import MutableMapping

logger = logging.getLogger(__name__)

# TPUs v2 to v4 have /dev/accel, later ones /dev/vfio, as have GPUs that are passed through to a guest.
_NVIDIA = "/dev/nvidiactl"
_DEVICES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*", _NVIDIA)
# The share of a GPU's memory that a training may use, and the variable by which JAX knows it.
GPU_MEMORY, GPU_MEMORY_VARIABLE = "0.9", "XLA_PYTHON_CLIENT_MEM_FRACTION"


def forget_absent_tpu(environ: MutableMapping[str, str]) -> None:
    """Keeps JAX from starting libtpu where it is installed and no accelerator is: it prints errors, and costs seconds.

    The platforms that are named in the environment stay.
    """
    is_there = any(glob.glob(pattern) for pattern in _DEVICES)  # noqa: PTH207, absolute patterns
    # Variables of TPU hosts: a container may see its TPU through them alone.
    is_named = any(name.startswith("TPU_") for name in environ)
    if "JAX_PLATFORMS" in environ or is_there or is_named or importlib.util.find_spec("libtpu") is None:
        return
    environ["JAX_PLATFORMS"] = "cpu"


def use_most_of_a_gpu(environ: MutableMapping[str, str]) -> None:
    """Lets JAX use 90 % of a GPU's memory, where it would use 75 %, unless the environment says how much."""
    if glob.glob(_NVIDIA) and GPU_MEMORY_VARIABLE not in environ:  # noqa: PTH207, as above
        environ[GPU_MEMORY_VARIABLE] = GPU_MEMORY
        logger.info("JAX may use 90 %% of a GPU's memory; %s says otherwise.", GPU_MEMORY_VARIABLE)
