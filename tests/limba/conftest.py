"""What tests of the engine share."""

import jax
import pytest

from tests.limba import small


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The losses and the last state of six steps of `small.train` without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    _, state = small.train(folder, 6)
    return small.train_losses(folder), jax.device_get(state)


@pytest.fixture
def kernels_are_right(monkeypatch):
    """Programs take kernels as they are: for tests that compare them with XLA themselves."""
    from limba.network.kernels import device_check

    monkeypatch.setattr(device_check, "is_right", lambda case: True)
