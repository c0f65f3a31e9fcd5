"""A state larger than the machine is refused before it takes the memory."""

import types

import jax
import pytest

from limba.devices import host_memory
from tests.limba import small


def test_a_state_larger_than_the_machine_is_refused(monkeypatch):
    sizes = {"emb_dim": 10**6, "mlp_dim": 10**5}
    trainer = small.make_trainer(small.model(**sizes))
    monkeypatch.setattr(host_memory, "total", lambda: 10**11)
    with pytest.raises(ValueError, match=r"takes [\d,]{3,} GB, and this machine has 100 GB of memory"):
        trainer.initializer.from_scratch(jax.random.key(0))


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    of_machine = host_memory.total()
    assert 2**28 < of_machine < 2**50
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("1000000\n")
    monkeypatch.setattr(host_memory, "_LIMITS", (tmp_path / "absent", tmp_path / "max"))
    assert host_memory.total() >= of_machine
    monkeypatch.setattr(host_memory, "_LIMITS", (tmp_path / "max", tmp_path / "limit"))
    assert host_memory.total() == 1_000_000
    host_memory.require(1_000_000, "It")
    with pytest.raises(ValueError, match="It takes 0 GB"):
        host_memory.require(1_000_001, "It")


def test_an_accelerator_says_itself_what_does_not_fit(monkeypatch):
    monkeypatch.setattr(host_memory, "jax", types.SimpleNamespace(default_backend=lambda: "gpu"))
    host_memory.require(10**18, "It")
