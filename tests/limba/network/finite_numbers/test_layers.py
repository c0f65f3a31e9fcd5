"""The first layer and the first row that are not finite, in every kind of network and program."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba import models
from limba.network import decoder_only
from limba.network.encoders import encoder
from limba.network.finite_numbers import layers as finite_layers
from limba.optimizers import definitions
from tests.limba import small

TWO = small.TINY | small.TWO_LAYERS


def _decoder_only(**fields):
    config = small.config(**(TWO | fields))
    return models.DecoderOnlyModel(decoder_only.DecoderWrapper(config), small.FixedVocabulary(), definitions.adamw())


def _encoder():
    sizes = {"vocab_size": 256, "emb_dim": 16, "num_heads": 1, "head_dim": 16, "mlp_dim": 16, "num_layers": 2}
    network = encoder.MaskedLanguageModel(encoder.EncoderConfig(**sizes, max_positions=16))
    return models.EncoderOnlyModel(network, small.FixedVocabulary(), definitions.adamw())


class _Gate(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x / self.param("width", nn.initializers.ones, (1,))


class _Own(nn.Module):
    """A network of a user's own, with a loop of its own."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4, name="inner")(x)
        return nn.scan(
            lambda gate, x, _: (gate(x) / jnp.where(x > 1e30, 0, 1), None),
            variable_broadcast="params", split_rngs={"params": False}, length=3,
        )(_Gate(name="gate"), x, None)[0]  # fmt: skip


def _leaf(params, path):
    return functools.reduce(lambda tree, key: tree[key], path.split("/"), params)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("model", "kernel", "layer", "devices", "factor"),
    [
        (functools.partial(small.model, **TWO), "decoder/layers_1/mlp/wo/kernel", "decoder/layers_1/mlp/wo", 1, np.nan),
        (
            functools.partial(small.model, **TWO, scan_layers=True, remat_policy="full"),
            "encoder/encoder/mlp/wo/kernel",
            "encoder/encoder/mlp/wo (pass 1 of 2 of its loop, counted from 0)",
            4,
            3e38,
        ),
        (_decoder_only, "decoder/layers_0/self_attention/out/kernel", "decoder/layers_0/self_attention/out", 1, 3e38),
        (_encoder, "encoder/layers_1/mlp/wo/kernel", "encoder/layers_1/mlp/wo", 2, np.nan),
    ],
    ids=["t5", "scanned", "decoder", "encoder"],
)
def test_the_first_layer_is_found(model, kernel, layer, devices, factor):
    """A weight that is not a number, or weights so large that sums of finite products overflow."""
    model, partitioner = model(), small.partitioner(devices, max(1, devices // 2))
    params, batch = small.random_params(model), small.batch(0)
    if isinstance(model, models.EncoderOnlyModel):
        places = {"masked_lm_positions": np.ones((8, 2), np.int32), "decoder_loss_weights": np.ones((8, 2), np.int32)}
        batch |= places | {"decoder_target_tokens": np.full((8, 2), 5, np.int32)}
    weights = _leaf(params, kernel)
    weights[(slice(None), 1) if "loop" in layer else 0] = factor
    loss = lambda: partitioner.jit(lambda p, b: model.loss_fn(p, b, None)[0])(params, partitioner.shard_batch(batch))  # noqa: E731
    cause = finite_layers.find(params, loss, 8)
    assert (cause.parameter, cause.layer) == (kernel if np.isnan(factor) else None, layer)
    assert cause.row in (0, 1) and cause.searched


def test_a_network_of_ones_own_and_the_row():
    x = np.ones((3, 2), np.float32)
    x[2] = 1e20
    params = {"inner": {"kernel": np.full((2, 4), 1e12, np.float32), "bias": np.zeros(4, np.float32)}}
    params["gate"] = {"width": np.ones(1, np.float32)}
    run = lambda: jax.jit(functools.partial(_Own().apply, {"params": params}))(x)  # noqa: E731
    # What the scan calls is a method of `gate` for Flax.
    assert finite_layers.first_layer(run, 3) == ("gate (pass 0 of 3 of its loop, counted from 0)", 2)
    params["gate"]["width"][:] = 0
    assert finite_layers.first_layer(run, 3) == ("gate (pass 0 of 3 of its loop, counted from 0)", 0)
    params["inner"]["kernel"][:] = 1e20
    params["gate"]["width"][:] = 1
    assert finite_layers.first_layer(run, 3) == ("inner", 2)
    x[2] = 1
    assert finite_layers.first_layer(run, 3) is None
    assert str(finite_layers.find(params, run, 3)) == "The outputs of all layers are finite."


def test_decoding_is_searched_in_its_loop():
    model = small.model(**small.TINY)
    params, batch = small.random_params(model), small.batch(0)
    params["decoder"]["logits_dense"]["kernel"][3] = np.inf
    run = lambda: jax.jit(functools.partial(model.predict_batch_with_aux, num_decodes=2))(params, batch)  # noqa: E731
    layer, row = finite_layers.first_layer(run, 8)
    assert layer.startswith("decoder/logits_dense") and row == 0
