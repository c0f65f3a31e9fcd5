"""Attention layers of a user's own in T5."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convert.families import heads
from convert.families.config_files import t5_config
from convert.t5x import model_gin
from limba.gin_config import closed_list
from limba.network import layers, own_layers
from limba.network.t5 import T5Config, Transformer
from tests.limba import small
from tests.limba.network.gated_attention import GatedAttention

OWN = "tests.limba.network.gated_attention:GatedAttention"
SIZES = {"vocab_size": 32, "emb_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 8}
DEPTH = {"num_encoder_layers": 1, "num_decoder_layers": 1}
TOKENS = np.array([[5, 6, 7, 1], [8, 9, 1, 0]])


def _parameters(network):
    init = lambda: network.init(jax.random.key(0), TOKENS, TOKENS, TOKENS, enable_dropout=False)  # noqa: E731
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape).astype(x.dtype), jax.eval_shape(init)["params"])


def _parameters_and_logits(**fields):
    network = Transformer(T5Config(**SIZES, **DEPTH, dropout_rate=0.0, **fields))
    arguments = (TOKENS, TOKENS, TOKENS)
    parameters = _parameters(network)

    def gates(scale):
        """Gates of 1/2 where the kernels are 0."""
        return jax.tree_util.tree_map_with_path(lambda path, x: x * scale if "gate" in str(path) else x, parameters)

    return parameters, lambda scale: small.call(network, gates(scale), *arguments)


def test_each_place_takes_the_class_that_is_named_for_it():
    plain, logits = _parameters_and_logits(kernels="xla")
    for field, layer in {
        "encoder_self_attention_layer": ("encoder", "attention"),
        "decoder_self_attention_layer": ("decoder", "self_attention"),
        "decoder_cross_attention_layer": ("decoder", "encoder_decoder_attention"),
    }.items():
        parameters, own_logits = _parameters_and_logits(kernels="xla", **{field: OWN})
        stack, name = layer
        assert set(parameters[stack]["layers_0"][name]) == {*plain[stack]["layers_0"][name], "gate"}
        others = {x for x in parameters[stack]["layers_0"] if x != name}
        assert all("gate" not in parameters[stack]["layers_0"][x] for x in others)
        assert float(jnp.abs(own_logits(1.0) - own_logits(0.0)).max()) > 1e-4
        assert float(jnp.abs(own_logits(0.0) - logits(0.0)).max()) > 1e-4


def test_what_the_layer_computes_is_used():
    """Gates of 1/2 everywhere are T5's attention whose outputs are halved."""
    network = Transformer(T5Config(**SIZES, **DEPTH, dropout_rate=0.0, kernels="xla"))
    own = Transformer(T5Config(**SIZES, **DEPTH, dropout_rate=0.0, kernels="xla", encoder_self_attention_layer=OWN))
    arguments = (TOKENS, TOKENS, TOKENS)
    parameters = _parameters(own)
    layer = parameters["encoder"]["layers_0"]["attention"]
    layer["gate"]["kernel"] = jnp.zeros_like(layer["gate"]["kernel"])
    expected = jax.tree.map(lambda x: x, parameters)
    halved = expected["encoder"]["layers_0"]["attention"]
    del halved["gate"]
    halved["out"]["kernel"] = halved["out"]["kernel"] / 2
    ours, theirs = small.call(own, parameters, *arguments), small.call(network, expected, *arguments)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_layers.Attention", "write MODULE:CLASS"),
        (GatedAttention, "write MODULE:CLASS"),
        ("no_such_module:Attention", "cannot be imported: No module named 'no_such_module'. .* on PYTHONPATH"),
        ("tests.limba.network.gated_attention:None_such", "cannot be imported"),
        ("tests.limba.network.gated_attention:Other", "derived from .*MultiHeadDotProductAttention"),
    ],
)
def test_a_name_that_cannot_be_used(name, words):
    with pytest.raises(ValueError, match=words):
        _parameters_and_logits(kernels="xla", encoder_self_attention_layer=name)


def test_the_fused_kernels_are_t5s():
    with pytest.raises(ValueError, match="set kernels = 'xla'"):
        T5Config(vocab_size=8, decoder_cross_attention_layer=OWN)


def test_the_configurations_of_t5_experiments(tmp_path, monkeypatch):
    """t5-base-only-cdQ.json's keys: its own layer's name stays, T5Attention is T5's."""
    content = {
        "model_type": "t5",
        "d_model": 8,
        "d_kv": 4,
        "d_ff": 8,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 32,
    }
    file = tmp_path / "config.json"
    layers = {"encoder_self_attention_layer": OWN, "decoder_self_attention_layer": "modeling_t5:T5Attention"}
    file.write_text(json.dumps(content | layers))
    config = t5_config.network_config(file, t5_config.read(file))
    assert (config.encoder_self_attention_layer, config.decoder_self_attention_layer) == (OWN, None)
    assert config.kernels == "xla"
    # What lies beside a config.json may come from a stranger.
    (tmp_path / "beside_it.py").write_text("raise AssertionError('code of a model ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(closed_list.RefusedNameError, match="it lies in the folder of the run or model"):
        own_layers.attention_class("beside_it:Layer")
    gin_file = model_gin.write(config, heads.OF_T5, None, "x")
    assert f"  encoder_self_attention_layer = {OWN!r}\n" in gin_file and "  kernels = 'xla'\n" in gin_file
    with pytest.raises(ValueError, match="GatedAttention, which Hugging Face's T5 does not"):
        t5_config.model_config(config, t5_config.family_of(content), "float32", None)
    file.write_text(json.dumps(content | {"encoder_self_attention_layer": 3}))
    with pytest.raises(ValueError, match="encoder_self_attention_layer is 3; write MODULE:CLASS"):
        t5_config.network_config(file, t5_config.read(file))


def test_two_dims_with_one_logical_axis_are_named():
    dense = layers.DenseGeneral(8, kernel_axes=("embed", "embed"))
    with pytest.raises(ValueError, match=r"parameter kernel has .* 'embed' twice.*write \('embed', None\)"):
        dense.init(jax.random.key(0), jnp.ones((1, 8)))
