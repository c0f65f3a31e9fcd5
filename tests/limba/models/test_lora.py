import dataclasses

import jax
import numpy as np
import pytest
from flax import traverse_util

from limba.models import lora
from limba.network import t5
from limba.optimizers import definitions, freezing
from tests.limba import small

TINY = {"emb_dim": 24, "num_heads": 2, "head_dim": 8, "mlp_dim": 40, "num_encoder_layers": 3, "num_decoder_layers": 3}


def _models(**fields):
    """A network with adapters, and without."""
    plain = t5.Transformer(small.config(**(TINY | fields)))
    optimizer = freezing.PartialOptimizer(definitions.adamw(), ["/.*/lora_[ab]"])
    return small.model(optimizer, module=lora.LoRA(plain, rank=2, alpha=8.0)), small.model(module=plain)


def _random(shapes):
    """Numbers in the shapes of parameters, by path."""
    rng = np.random.default_rng(0)
    flat = traverse_util.flatten_dict(shapes)
    return {path: rng.normal(0, 0.1, x.shape).astype(np.float32) for path, x in flat.items()}


@pytest.mark.parametrize(("scan_layers", "joined_attention_kernels"), [(False, True), (True, False)])
def test_the_networks_kernels_are_the_sums(scan_layers, joined_attention_kernels):
    model, plain = _models(scan_layers=scan_layers, joined_attention_kernels=joined_attention_kernels)
    flat = _random(model.param_shapes_and_axes()[0])
    sums = {path: x for path, x in flat.items() if path[-1] not in ("lora_a", "lora_b")}
    for path, a in flat.items():
        if path[-1] == "lora_a":
            b, kernel = flat[*path[:-1], "lora_b"], (*path[:-1], "kernel")
            # Layer by layer: of T5X's stacks they are at axis 1.
            products = [a[:, i] @ b[:, i] for i in range(3)] if scan_layers else [a @ b]
            shape = flat[kernel].shape
            layer = (shape[0], *shape[2:]) if scan_layers else shape
            products = [4.0 * product.reshape(layer) for product in products]
            sums[kernel] = flat[kernel] + (np.stack(products, axis=1) if scan_layers else products[0])
    merged = traverse_util.flatten_dict(model.module.merge(traverse_util.unflatten_dict(flat)))
    assert merged.keys() == sums.keys() == traverse_util.flatten_dict(plain.param_shapes_and_axes()[0]).keys()
    # Of a layer 4 kernels of each attention, of which the decoder has two, and 3 of the MLP.
    assert sum(path[-1] == "lora_a" for path in flat) == (7 + 11) * (1 if scan_layers else 3)
    for path, x in merged.items():
        np.testing.assert_allclose(x, sums[path], rtol=1e-6, atol=1e-6)


def test_the_products_begin_as_zeros():
    """What a training changes: tests/test_lora.py."""
    model, _ = _models(num_encoder_layers=1, num_decoder_layers=1)
    params = jax.jit(model.initial_variables)(jax.random.key(0))["params"]
    assert all(np.any(x) == (path[-1] != "lora_b") for path, x in traverse_util.flatten_dict(params).items())


def test_a_copy_with_another_network():
    module = _models()[0].module
    scanned = module.clone(config=dataclasses.replace(module.config, scan_layers=True))
    assert scanned.config.scan_layers and scanned.rank == module.rank == 2


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        # T5 1.1 base, mT5 small, T5 1.0 small, umT5 small.
        ({"vocab_size": 32128, "emb_dim": 768, "num_heads": 12, "layers": 12, "mlp_dim": 2048}, 0.01351),
        ({"vocab_size": 250112, "emb_dim": 512, "num_heads": 6, "layers": 8, "mlp_dim": 1024}, 0.00424),
        ({"emb_dim": 512, "num_heads": 8, "layers": 6, "mlp_dim": 2048, "logits_via_embedding": True,
          "mlp_activations": ("relu",), "vocab_size": 32128}, 0.01756),
        ({"vocab_size": 256384, "emb_dim": 512, "num_heads": 6, "layers": 8, "mlp_dim": 1024,
          "relative_bias_per_layer": True}, 0.00415),
    ],
)  # fmt: skip
def test_less_than_two_percent_are_trained(fields, share):
    fields = dict(fields)
    layers = fields.pop("layers")
    config = small.config(
        **({"num_encoder_layers": layers, "num_decoder_layers": layers, "head_dim": 64, "scan_layers": True} | fields)
    )
    optimizer = freezing.PartialOptimizer(definitions.adamw(), ["/.*/lora_[ab]"])
    model = small.model(optimizer, module=lora.LoRA(t5.Transformer(config)))
    shapes, _ = model.param_shapes_and_axes()
    trained, total = freezing.count_trained(model.optimizer_def, shapes)
    assert trained / total == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": 0}, ["LoRA.rank is 0"]),
        ({"alpha": 0.0}, ["LoRA.alpha is 0.0"]),
        ({"alpha": "16"}, ["LoRA.alpha is '16'"]),
        ({"kernels": "/.*/query/kernel"}, ["LoRA.kernels is '/.*/query/kernel'", "a list"]),
        ({"kernels": ["/.*/(query/kernel"]}, ["LoRA.kernels has '/.*/(query/kernel'", "not a regular expression"]),
        ({"kernels": ["/.*/qeury/kernel"]}, ["LoRA.kernels", "'/.*/qeury/kernel'", "query/kernel"]),
        ({"kernels": ["/token_embedder/embedding"]}, ["/token_embedder/embedding", "only kernels"]),
    ],
)
def test_adapters_that_cannot_be_are_refused(fields, words):
    with pytest.raises(ValueError) as error:
        module = lora.LoRA(t5.Transformer(small.config(**TINY)), **fields)
        small.model(module=module).param_shapes_and_axes()
    for word in words:
        assert word in str(error.value)
