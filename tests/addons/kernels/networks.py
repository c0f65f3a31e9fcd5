"""A small network and a batch for it; attention as it is written down."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba import models
from limba.addons.kernels import attention_gpu, attention_tpu
from limba.network import t5
from limba.optimizers import adafactor

SIZES = t5.T5Config(
    vocab_size=32,
    emb_dim=16,
    num_heads=2,
    head_dim=16,
    mlp_dim=16,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout_rate=0.0,
)
INPUTS, TARGETS = 24, 12


class _Vocabulary:
    eos_id, pad_id, extra_ids, vocab_size, base_vocab_size = 1, 0, 0, 32, 32


def batch(packed: bool = False) -> dict[str, jax.Array]:
    """Four rows, some with padding."""
    rng = np.random.default_rng(0)
    inputs, targets = (jnp.asarray(rng.integers(1, 32, (4, length)), jnp.int32) for length in (INPUTS, TARGETS))
    inputs, targets = inputs.at[1, 22:].set(0), targets.at[2, 8:].set(0)
    features = {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": jnp.pad(targets, ((0, 0), (1, 0)))[:, :-1],
        "decoder_target_tokens": targets,
        "decoder_loss_weights": (targets > 0).astype(jnp.int32),
    }
    if packed:
        features["encoder_segment_ids"] = (jnp.arange(INPUTS) // 10 + 1) * (inputs > 0)
        features["decoder_segment_ids"] = (jnp.arange(TARGETS) // 5 + 1) * (targets > 0)
    return features


def model_and_batch(config: t5.T5Config, packed: bool = False) -> tuple[models.EncoderDecoderModel, dict]:
    """The model has z-loss and label smoothing."""
    vocabulary: Any = _Vocabulary()
    network = t5.Transformer(config)
    rules = adafactor.standard_logical_factor_rules()
    optimizer: Any = adafactor.Adafactor(logical_factor_rules=rules)
    model = models.EncoderDecoderModel(
        network, vocabulary, vocabulary, optimizer, z_loss=1e-2, label_smoothing=0.1, loss_normalizing_factor=7.0
    )
    return model, batch(packed)


@functools.cache
def parameters(config: t5.T5Config):
    """They do not depend on kernels or dropout."""
    plain = t5.Transformer(dataclasses.replace(config, kernels="xla", dropout_rate=0.0))
    features = batch()
    tokens = [features[f"{name}_tokens"] for name in ("encoder_input", "decoder_input", "decoder_target")]
    return jax.jit(functools.partial(plain.init, enable_dropout=False))(jax.random.key(0), *tokens)["params"]


def plain_attention(query, key, value, table, segments, prefix=None, *, causal=False):
    """What `attention_gpu.attention` computes, from logits of all queries and keys."""
    queries, keys = query.shape[1], key.shape[1]
    distance = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key)
    if table is not None:
        logits += table[:, distance + queries - 1]
    allowed = segments[0][:, None, :, None] == segments[1][:, None, None, :]
    if causal:
        ahead = distance > 0
        if prefix is not None:
            ahead = ahead & ~(prefix[:, :, None] & prefix[:, None, :])[:, None]
        allowed = allowed & ~ahead
    weights = jnp.where(allowed, jax.nn.softmax(jnp.where(allowed, logits, -1e30)), 0.0)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def with_tiles_of_16(kernels):
    """The attention of a module of kernels, interpreted, in tiles so small that short rows have several."""
    tiles = {"block": 16} if kernels is attention_tpu else {"tiling": attention_gpu.Tiling(block=16)}
    return functools.partial(kernels.attention, **tiles, interpret=True)
