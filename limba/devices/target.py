"""The kind of device that a program is traced for: not always one that this process has, as in `limba plan`."""

import contextlib

import jax

# JAX traces anew where it changes.
_platform = jax.make_user_context(None)
_kernels = jax.make_user_context(True)
_KINDS = {"cuda": "gpu", "rocm": "gpu"}


def platform() -> str:
    """ "cpu", "gpu" or "tpu": that of the mesh, or JAX's default outside of one."""
    return _platform.value or jax.default_backend()


def is_here() -> bool:
    """Whether this process has such a device; `limba plan` compiles for others."""
    return platform() == jax.default_backend()


def tracing_for(device: jax.Device) -> contextlib.AbstractContextManager:
    """A context for programs that will run on such a device."""
    return tracing_for_platform(_KINDS.get(device.platform, device.platform))


def tracing_for_platform(name: str) -> contextlib.AbstractContextManager:
    """The same by the platform's name, as `platform` gives it."""
    return _platform(name)


def without_kernels() -> contextlib.AbstractContextManager:
    """A context without kernels of ours, which ask for batches that divide by the mesh.

    A network is initialized in it, with one row.
    """
    return _kernels(False)


CHOICES = ("auto", "fused", "cudnn", "xla")


def wants_kernels(choice: str) -> bool:
    """Whether programs of ours may stand for XLA's: with "fused" on every device, otherwise on accelerators.

    "cudnn" is "auto" but for attention on GPUs.
    """
    return _kernels.value and (choice == "fused" or (choice != "xla" and platform() != "cpu"))
