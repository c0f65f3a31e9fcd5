"""Devices that the kernel names, and what JAX is told before it is imported."""

import importlib.util

import pytest

from limba.devices import accelerators


@pytest.mark.parametrize(
    ("devices", "installed", "environ", "platforms"),
    [
        ([], True, {}, "cpu"),
        (["/dev/nvidiactl"], True, {}, None),
        (["/dev/accel0"], True, {}, None),
        (["/dev/vfio/0"], True, {}, None),
        ([], False, {}, None),
        ([], True, {"TPU_WORKER_ID": "0"}, None),
        ([], True, {"JAX_PLATFORMS": "proxy"}, "proxy"),
    ],
)
def test_the_platform_is_set_where_libtpu_is_and_no_tpu(devices, installed, environ, platforms, monkeypatch):
    def found(pattern):
        return [device for device in devices if device.startswith(pattern.partition("[")[0])]

    monkeypatch.setattr(accelerators.glob, "glob", found)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if installed else None)
    environ = dict(environ)
    accelerators.forget_absent_tpu(environ)
    assert environ.get("JAX_PLATFORMS") == platforms


@pytest.mark.parametrize(
    ("devices", "environ", "share", "flags"),
    [
        (["/dev/nvidiactl"], {}, "0.9", accelerators.GPU_FLAG),
        (
            ["/dev/nvidiactl"],
            {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "XLA_FLAGS": "--xla_a=1"},
            "0.5",
            f"--xla_a=1 {accelerators.GPU_FLAG}",
        ),
        (
            ["/dev/nvidiactl"],
            {"XLA_FLAGS": "--xla_gpu_dot_merger_threshold_mb=32"},
            "0.9",
            "--xla_gpu_dot_merger_threshold_mb=32",
        ),
        ([], {}, None, None),
    ],
)
def test_a_training_gets_memory_and_flags_of_a_gpu_unless_it_is_told(devices, environ, share, flags, monkeypatch):
    monkeypatch.setattr(accelerators.glob, "glob", lambda pattern: [x for x in devices if x == pattern])
    environ = dict(environ)
    accelerators.prepare_gpu(environ)
    assert environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION") == share
    assert environ.get("XLA_FLAGS") == flags


@pytest.mark.parametrize(
    ("devices", "flags", "then"),
    [
        (["/dev/nvidiactl"], "--xla_a=1", f"--xla_a=1 {accelerators.KERNELS_APART}"),
        (["/dev/nvidiactl"], "--xla_gpu_enable_command_buffer=FUSION", "--xla_gpu_enable_command_buffer=FUSION"),
        ([], "--xla_a=1", "--xla_a=1"),
    ],
)
def test_a_profile_of_a_gpu_names_its_kernels(devices, flags, then, monkeypatch):
    monkeypatch.setattr(accelerators.glob, "glob", lambda pattern: [x for x in devices if x == pattern])
    environ = {"XLA_FLAGS": flags}
    accelerators.name_kernels(environ)
    assert environ["XLA_FLAGS"] == then
