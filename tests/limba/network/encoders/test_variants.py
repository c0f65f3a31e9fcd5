"""Logits of the encoder are those of the class of Hugging Face that has the same tensors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.network import attention
from limba.network.encoders import encoder
from tests.limba.network.encoders import encoder_weights

VOCAB_SIZE, LENGTH = 61, 40
EPSILON = 0.01  # of all norms: large enough that a norm with another one shows

CLASSES = {
    "absolute": encoder_weights.bert("absolute"),
    "relative_key": encoder_weights.bert("relative_key"),
    "relative_key_query": encoder_weights.bert("relative_key_query"),
    "roberta_prelayernorm": encoder_weights.ROBERTA_PRELAYERNORM,
    "mpnet": encoder_weights.MPNET,
    "roformer": encoder_weights.ROFORMER,
    "deberta_v2": encoder_weights.DEBERTA_V2,
    "modernbert": encoder_weights.modernbert(biases=False),
    "modernbert_with_biases": encoder_weights.modernbert(biases=True),
}


def make_their_model(of_class, seed, vocab_size=VOCAB_SIZE, num_layers=4, **more):
    """A small model whose numbers are nobody's defaults, and its tensors by name."""
    import torch
    import transformers

    sizes = {"vocab_size": vocab_size, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 20}
    config_cls = getattr(transformers, of_class.name).config_class
    settings = of_class.settings | {"layer_norm_eps": EPSILON, "norm_eps": EPSILON, "attn_implementation": "eager"}
    config = config_cls(**sizes, num_hidden_layers=num_layers, **(settings | more))
    model = getattr(transformers, of_class.name)(config).eval()
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, tensor in model.named_parameters():
        if "embed_positions" not in name:  # which are no parameters of RoFormer's, but sines
            center = 0.8 if "norm" in name.lower().split(".")[-2] and name.endswith("weight") else 0.03
            drawn = rng.normal(center, 0.2, tensor.shape).astype(np.float32)
            with torch.no_grad():
                tensor.copy_(torch.from_numpy(drawn))
            tensors[name] = drawn
    return model, tensors


def make_batch(config, seed):
    """Two rows; the second ends in padding. The first segment of each ends at a place of its own."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(3, VOCAB_SIZE, (2, LENGTH), dtype=np.int32)
    tokens[1, 29:] = config.pad_id
    types = (np.arange(LENGTH) >= np.array([[13], [17]])).astype(np.int32)
    return tokens, types if config.num_token_types else None


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CLASSES)
def test_logits_are_those_of_hugging_face(name):
    import torch

    of_class = CLASSES[name]
    model, tensors = make_their_model(of_class, seed=len(name))
    sizes = {"vocab_size": VOCAB_SIZE, "emb_dim": 24, "num_heads": 3, "head_dim": 8, "mlp_dim": 20, "num_layers": 4}
    config = encoder.EncoderConfig(**(sizes | of_class.fields | {"norm_epsilon": EPSILON}))
    module = encoder.MaskedLanguageModel(config)
    tokens, types = make_batch(config, seed=len(name))
    shapes = jax.eval_shape(functools.partial(module.init, enable_dropout=False), jax.random.key(0), tokens, types)
    params = encoder_weights.params(of_class, tensors, shapes["params"])
    ours = jax.jit(functools.partial(module.apply, enable_dropout=False))({"params": params}, tokens, types)

    real = tokens != config.pad_id
    inputs = {"input_ids": tokens, "attention_mask": real.astype(np.int32)}
    inputs |= {} if types is None else {"token_type_ids": types}
    with torch.no_grad():
        theirs = model(**{key: torch.from_numpy(x.astype(np.int64)) for key, x in inputs.items()}).logits.numpy()
    assert np.abs(theirs).max() > 1
    print(f"{name}: largest difference {np.abs(ours - theirs)[real].max():.1e}")
    np.testing.assert_allclose(ours[real], theirs[real], atol=1e-5, rtol=0)


def test_buckets_are_those_of_mpnet():
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = np.arange(-700, 701)
    theirs = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances)).numpy()
    ours = attention.relative_position_bucket(jnp.array(distances), True, 32, 128)
    np.testing.assert_array_equal(ours, theirs)
