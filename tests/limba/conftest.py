"""What tests of the engine share."""

import pytest


@pytest.fixture
def kernels_are_right(monkeypatch):
    """Programs take kernels as they are: for tests that compare them with XLA themselves."""
    from limba.network.kernels import device_check

    monkeypatch.setattr(device_check, "is_right", lambda case: True)
