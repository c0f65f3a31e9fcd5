"""LongT5's attention; `test_longt5_family` compares it with transformers' own class."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.addons.longt5.long_attention import LongEncoderAttention
from limba.addons.longt5.longt5 import LongT5Config
from tests.limba import small
from tests.limba.network.encoders import test_t5_classifier

GLOBAL = {"encoder_attention_type": "transient-global", "local_radius": 4, "global_block_size": 4}
LOCAL = {"encoder_attention_type": "local"}
DEEP = small.TINY | {"num_encoder_layers": 2}


def long_model(**fields):
    """A model of `small` with LongT5's encoder."""
    common = {field.name: getattr(small.config(**DEEP), field.name) for field in dataclasses.fields(small.config())}
    config = LongT5Config(**common | fields)
    return small.model(module=config.network())


def encoder_of(**fields):
    model = long_model(**fields)
    return model, jax.jit(functools.partial(model.module.apply, enable_dropout=False, method="encode"))


def test_a_window_wider_than_the_row_is_t5s_attention_with_its_gradients():
    full = small.model(**DEEP)
    long = long_model(**LOCAL, local_radius=2**31 - 1)
    params, batch = small.random_params(full), small.batch(1, rows=5, inputs=17)
    value = lambda model: jax.jit(jax.value_and_grad(lambda p: model.loss_fn(p, batch, None)[0]))(params)  # noqa: E731
    (loss, gradients), (expected, of_full) = value(long), value(full)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), gradients, of_full)


def test_a_local_query_sees_the_radius_to_each_side():
    model, encode = encoder_of(**LOCAL, local_radius=2)
    params, tokens = small.random_params(model), np.full((1, 19), 7, np.int32)
    other = tokens.copy()
    other[0, 9] = 8
    change = np.abs(np.subtract(*(encode({"params": params}, x) for x in (tokens, other)))).max(-1)[0]
    assert np.flatnonzero(change).tolist() == [*range(9 - 2 * 2, 9 + 2 * 2 + 1)]  # in two layers


def test_packed_texts_are_encoded_as_each_alone():
    """Of lengths that are no multiples of a block, one shorter than a block; blocks begin with their text."""
    model, encode = encoder_of(**GLOBAL)
    params, rng = small.random_params(model), np.random.default_rng(0)
    texts = [rng.integers(3, small.VOCAB_SIZE, length, np.int32) for length in (11, 3, 18, 4)]
    packed = np.pad(np.concatenate(texts), (0, 3))[None]
    segments = np.pad(np.repeat(np.arange(1, 5, dtype=np.int32), [len(x) for x in texts]), (0, 3))[None]
    together = encode({"params": params}, packed, segments)[0, :-3]
    # All texts alone in rows of one length: padding changes nothing.
    rows = np.stack([np.pad(text, (0, 18 - len(text))) for text in texts])
    alone = encode({"params": params}, rows)
    apart = np.concatenate([x[: len(text)] for x, text in zip(alone, texts, strict=True)])
    np.testing.assert_allclose(together, apart, atol=2e-5)


def test_tokens_behind_the_last_whole_block_belong_to_it():
    segments = jnp.array([[1] * 6 + [2] * 3 + [3] * 4 + [0]])
    found = LongEncoderAttention(radius=4, block_size=4).visible(segments, segments)
    # The text of three tokens has no block: its number is that of another one's.
    assert found.blocks.tolist() == [[0] * 6 + [0] * 3 + [1] * 4 + [1]]
    assert found.block_segments.tolist() == [[1, 3, 0]]


def test_scanned_layers_with_recomputation_lose_the_same():
    config = GLOBAL | {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 16}
    plain, scanned = (long_model(**config, **small.TWO_LAYERS, **more) for more in ({}, SCANNED))
    params = small.random_params(scanned)
    apart = dict(params)
    for stack in ("encoder", "decoder"):
        layers = [jax.tree.map(lambda x, i=i: jnp.take(x, i, 1), params[stack][stack]) for i in range(2)]
        others = {name: x for name, x in params[stack].items() if name != stack}
        apart[stack] = others | {f"layers_{i}": layer for i, layer in enumerate(layers)}
    batch = small.batch(2, rows=3, inputs=13)
    losses = [float(small.loss(model, p, batch)[0]) for model, p in ((plain, apart), (scanned, params))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


SCANNED = {"scan_layers": True, "remat_policy": "minimal"}


def test_a_head_stands_on_its_encoder(monkeypatch):
    fields = {"vocab_size": 384, "num_encoder_layers": 2, "num_decoder_layers": 1, "dropout_rate": 0.0}
    config = LongT5Config(**fields, **test_t5_classifier.SIZES, **LOCAL | {"local_radius": 2})
    monkeypatch.setattr(test_t5_classifier, "_config", lambda: config)
    test_t5_classifier.test_hidden_states_are_those_of_the_t5({})


def test_a_query_is_multiplied_by_three_blocks_and_the_sums():
    config = LongT5Config(vocab_size=8, encoder_attention_type="transient-global")
    assert config.encoder_attention.seen_keys(4096) == 3 * 128 + 256
    assert dataclasses.replace(config, **LOCAL).encoder_attention.seen_keys(4096) == 384


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"encoder_attention_type": "global"}, "encoder_attention_type is 'global'; choose one of local, trans"),
        ({"local_radius": 0}, "LongT5Config.local_radius is 0"),
        ({"global_block_size": 12}, "global_block_size is 12; use a power of 2"),
        ({"relative_bias_per_layer": True}, "relative_bias_per_layer is True; LongT5 has one table"),
        ({"num_encoder_layers": 0}, "num_encoder_layers is 0, and LongT5"),
    ],
)
def test_what_excludes_it_is_said(fields, words):
    with pytest.raises(ValueError, match=words):
        LongT5Config(vocab_size=8, **GLOBAL | fields)
