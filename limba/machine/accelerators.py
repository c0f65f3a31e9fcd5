"""Which accelerators this machine has, asked of the kernel before JAX is imported."""

import glob
import importlib.util
from collections.abc import MutableMapping

# TPUs v2 to v4 have /dev/accel, later ones /dev/vfio, as have GPUs that are passed through to a guest.
_DEVICES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*", "/dev/nvidiactl")


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
