"""Where no add-on has kernels, XLA computes, and the log says so."""

import logging

import jax.numpy as jnp

from limba.addons import table
from limba.devices import target
from limba.network import layers
from limba.network.kernels import attention
from limba.network.t5 import T5Config


def test_xla_computes_where_the_addon_is_not_there(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.delitem(table.ADDONS, "kernels")
    attention._part.cache_clear()
    config, tokens = T5Config(vocab_size=8, kernels="cudnn", dtype="bfloat16"), jnp.ones((2, 32), jnp.int32)
    with target.tracing_for_platform("gpu"):
        assert attention.visible(config, tokens, tokens, None, None) is None
        assert not layers._has_norm_kernel("fused", jnp.ones((2, 32, 16)))
    attention._part.cache_clear()
    assert "Attention by XLA: this Limba has no add-on with fused kernels." in caplog.text
