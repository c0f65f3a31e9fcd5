"""A decoder for an encoder alone has the variances of a new network, and is the same each time it is read."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from convert.families import heads, networks
from convert.model_files import t5_files
from limba.network.t5 import T5Config, Transformer


def test_it_is_that_of_a_new_network():
    config = T5Config(
        vocab_size=512,
        emb_dim=64,
        num_heads=4,
        head_dim=16,
        mlp_dim=128,
        num_encoder_layers=1,
        num_decoder_layers=1,
        mlp_activations=("gelu", "linear"),
    )
    ones = jnp.ones((1, 4), jnp.int32)
    init = jax.jit(lambda key: Transformer(config).init(key, ones, ones, ones, enable_dropout=False))
    expected = traverse_util.flatten_dict(init(jax.random.key(0))["params"], sep="/")
    found = t5_files.new_decoder(config, np.dtype(np.float32))
    assert found.keys() == {x for x in networks.shapes(config, heads.OF_T5) if x.startswith("decoder/")}
    for name, tensor in found.items():
        value = np.asarray(tensor)
        assert value.shape == expected[name].shape and value.dtype == np.float32
        np.testing.assert_array_equal(value, np.asarray(tensor))
        np.testing.assert_allclose(value.std(), np.std(expected[name]), rtol=0.25, atol=1e-6, err_msg=name)
    attentions = ("self_attention", "encoder_decoder_attention")
    queries = [np.asarray(found[f"decoder/layers_0/{attention}/query/kernel"]) for attention in attentions]
    assert np.abs(queries[0] - queries[1]).max() > 0.01
    np.testing.assert_array_equal(
        found["decoder/layers_0/mlp/wo/kernel"].read((slice(3, 5), slice(None))),
        np.asarray(found["decoder/layers_0/mlp/wo/kernel"])[3:5],
    )
