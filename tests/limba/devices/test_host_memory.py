"""A state larger than the machine is refused before it takes the memory."""

import types

import jax
import numpy as np
import pytest

from limba.devices import host_memory
from tests.limba import small


def test_a_state_larger_than_the_machine_is_refused(tmp_path, monkeypatch, caplog):
    """A run is; a check, which may be made for another machine, says so and looks at the rest."""
    monkeypatch.setattr(host_memory, "total", lambda: 10_000)
    said = "takes 0 GB, and this machine has 0 GB of memory"
    with pytest.raises(ValueError, match=said):
        small.train(tmp_path)
    assert not list(tmp_path.glob("checkpoint_*"))
    small.train(tmp_path, checks_only=True)
    assert (
        f"memory (a run on this machine is refused: The state of this training (parameters and optimizer) {said}"
        in caplog.text
    )


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    of_machine = host_memory.total()
    assert 2**28 < of_machine < 2**50
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("1000000\n")
    monkeypatch.setattr(host_memory, "_LIMITS", (tmp_path / "absent", tmp_path / "max"))
    assert host_memory.total() >= of_machine
    monkeypatch.setattr(host_memory, "_LIMITS", (tmp_path / "max", tmp_path / "limit"))
    assert host_memory.total() == 1_000_000
    arrays = [np.zeros((250, 500), np.int16), jax.ShapeDtypeStruct((187_500,), np.float32)]
    assert host_memory.excess(arrays, "It") == ""
    assert host_memory.excess([*arrays, np.zeros(1, np.int8)], "It").startswith("It takes 0 GB")


def test_an_accelerator_says_itself_what_does_not_fit(monkeypatch):
    monkeypatch.setattr(host_memory, "jax", types.SimpleNamespace(default_backend=lambda: "gpu"))
    assert host_memory.excess([jax.ShapeDtypeStruct((10**9, 10**9), np.float32)], "It") == ""
