import importlib.util

import pytest

from limba.machine import accelerators


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
