import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.models import decoding, encoder_decoder_model
from limba.network import attention, attention_by_rows, decoder_only, layers, t5
from limba.network.gemma_layers import GemmaLayers
from limba.network.kernels import attention as fused
from tests.limba import small

WINDOWS = GemmaLayers(num_kv_heads=2, sliding_window=3)


def test_a_window_sees_so_many_keys_to_each_side_and_a_causal_one_itself_and_those_before():
    """How far a token's embedding reaches: through one local layer of each stack."""
    model = small.model(**small.TINY, gemma_layers=GemmaLayers(sliding_window=3))
    params, batch = small.random_params(model), small.batch(0, rows=1, inputs=12, targets=12)
    batch = {name: np.maximum(tokens, 3) for name, tokens in batch.items()}
    encode = jax.jit(functools.partial(model.module.apply, enable_dropout=False, method="encode"))
    other = batch["encoder_input_tokens"].copy()
    other[0, 6] += 1
    encoded, changed = (encode({"params": params}, x) for x in (batch["encoder_input_tokens"], other))
    assert np.flatnonzero(np.abs(encoded - changed).max(-1)[0]).tolist() == [4, 5, 6, 7, 8]
    logits = jax.jit(model.logits)
    other = batch["decoder_input_tokens"].copy()
    other[0, 6] += 1
    change = np.abs(logits(params, batch) - logits(params, batch | {"decoder_input_tokens": other})).max(-1)[0]
    assert np.flatnonzero(change).tolist() == [6, 7, 8]


def test_a_halved_window_has_one_more_key_behind_a_query_than_before_it_where_it_is_even():
    fields = GemmaLayers(sliding_window=4, halved_encoder_window=True), GemmaLayers(sliding_window=4)
    of = [layers.of_attention(8, is_self=True, is_local=True, in_encoder=True)["window"] for layers in fields]
    assert of == [(1, 2), (3, 3)]
    assert fields[0].of_attention(8, is_self=True, is_local=True)["window"] == (3, 3)
    seen = attention.local_mask(5, 1, 2)[0, 0]
    assert [np.flatnonzero(row).tolist() for row in seen] == [[0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4], [3, 4]]


def test_local_layers_are_all_but_every_nth():
    assert [WINDOWS.is_local(i) for i in range(5)] == [True, False, True, False, True]
    sixth = dataclasses.replace(WINDOWS, global_attention_every=6)
    assert [i for i in range(13) if not sixth.is_local(i)] == [5, 11]
    assert not any(GemmaLayers().is_local(i) for i in range(3))
    # With three layers a period of 4 is one of 6, and with six it is not.
    fourth = dataclasses.replace(WINDOWS, global_attention_every=4)
    few, many = (small.config(num_encoder_layers=count) for count in (3, 6))
    assert fourth.explicit(few) == sixth.explicit(few) and fourth.explicit(many) != sixth.explicit(many)


def test_the_first_logits_of_a_new_network_have_the_size_of_a_guess():
    """A tied output without 1/sqrt(d), an embedding times sqrt(d) and norms around 1 begin as T5's do."""
    model = small.model(gemma_layers=GemmaLayers(num_kv_heads=2), logits_via_embedding=True)
    batch = small.batch(0)
    init = functools.partial(model.module.init, enable_dropout=False)
    tokens = [batch[name] for name in ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")]
    params = jax.jit(init)(jax.random.key(0), *tokens)["params"]
    assert np.std(params["decoder"]["token_embedder"]["embedding"]) == pytest.approx(128**-0.5, rel=0.02)
    assert not np.any(params["decoder"]["layers_0"]["post_cross_attention_layer_norm"]["scale"])
    assert 0.5 < float(jnp.std(jax.jit(model.logits)(params, batch))) < 2


def test_fewer_heads_of_keys_by_kernels_and_by_rows_attend_as_plain_attention(monkeypatch, kernels_are_right):
    config = small.config(**small.TINY | {"num_heads": 4, "head_dim": 16}, kernels="fused")
    layer = attention.MultiHeadDotProductAttention(**fields_of(config, GemmaLayers(num_kv_heads=2)))
    rng = np.random.default_rng(0)
    x, tokens = rng.normal(size=(2, 12, 16)).astype(np.float32), np.ones((2, 12), np.int32)
    tokens[1, 8:] = 0
    params = jax.jit(layer.init)(jax.random.key(0), x, x)
    assert params["params"]["key"]["kernel"].shape == (16, 32)
    visible = fused.visible(config, tokens, tokens, None, None)
    mask = attention.make_attention_mask(tokens, tokens, dtype=bool)
    attend = lambda mask: jax.jit(lambda: layer.apply(params, x, x, mask))()[tokens > 0]  # noqa: E731
    plain = attend(mask)
    assert isinstance(visible, fused.Visible)
    np.testing.assert_allclose(attend(visible), plain, atol=1e-5)
    monkeypatch.setattr(attention_by_rows, "_SHORTEST", 1)
    monkeypatch.setattr(attention_by_rows, "_HEADS_OF_A_CORE", 0)
    np.testing.assert_allclose(attend(mask), plain, atol=1e-5)


def fields_of(config, layers):
    sizes = {name: getattr(config, name) for name in ("num_heads", "head_dim")}
    return sizes | layers.of_attention(config.head_dim, is_self=True, is_local=False)


@pytest.mark.parametrize("keeps_keys", [True, False])
def test_beams_with_a_window_and_merged_attention_are_those_of_whole_prefixes(monkeypatch, keeps_keys):
    """Also where a network does not offer to keep the encoder's keys, as one of T5X's protocol."""
    accepts = encoder_decoder_model._accepts
    offers = lambda f, name: accepts(f, name) and (keeps_keys or name != "keep_encoded_keys")  # noqa: E731
    monkeypatch.setattr(encoder_decoder_model, "_accepts", offers)
    gemma = dataclasses.replace(WINDOWS, merged_attention=True)
    model = small.model(**small.TINY | {"num_decoder_layers": 2}, gemma_layers=gemma)
    params, batch = small.random_params(model), small.batch(4, rows=2, targets=8)
    predict = functools.partial(model.predict_batch_with_aux, num_decodes=3, return_all_decodes=True)
    tokens, aux = jax.jit(predict)(params, batch)

    def step(state):
        prefixes = state.sequences[:, :8]
        inputs = jnp.repeat(batch["encoder_input_tokens"], 3, axis=0)
        fed = {"encoder_input_tokens": inputs, "decoder_input_tokens": prefixes}
        logits = model.logits(params, fed | {"decoder_target_tokens": jnp.ones_like(prefixes)})
        return jnp.take(logits, state.cur_index, axis=1), state.cache

    expected, scores = jax.jit(lambda: decoding.beam_search(jnp.zeros((2, 8), jnp.int32), {}, step, 1, 3))()
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_allclose(aux["scores"], scores, rtol=1e-4)


def test_a_decoder_on_its_own_continues_prompts_from_places_of_their_own():
    config = decoder_only.TransformerConfig(
        vocab_size=64, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=16, num_layers=2, gemma_layers=WINDOWS,
        dropout_rate=0.0,
    )  # fmt: skip
    network = decoder_only.DecoderWrapper(config)
    tokens = np.random.default_rng(0).integers(3, 64, (2, 9), np.int32)
    fixed = ("enable_dropout", "decode", "prefill", "mutable")
    apply = functools.partial(jax.jit(network.apply, static_argnames=fixed), enable_dropout=False)
    params = jax.jit(functools.partial(network.init, enable_dropout=False))(jax.random.key(0), tokens, tokens)["params"]
    expected = apply({"params": params}, tokens, tokens)
    _, cache = apply({"params": params}, tokens, tokens, decode=True, mutable=("cache",))
    lengths = np.array([3, 5])
    prompts = {"prefill": True, "prefill_lengths": lengths, "mutable": ("cache",)}
    _, cache = apply({"params": params, **cache}, tokens, tokens, **prompts)
    for i in range(3):
        fed = tokens[np.arange(2), lengths + i][:, None]
        logits, cache = apply({"params": params, **cache}, fed, fed, decode=True, mutable=("cache",))
        np.testing.assert_allclose(logits[:, 0], expected[np.arange(2), lengths + i], atol=1e-4)


def test_soft_caps_are_nearly_the_identity_at_first_and_never_beyond():
    x = jnp.asarray([0.01, -3.0, 500.0])
    np.testing.assert_allclose(layers.soft_capped(x, 5.0), [0.01, -5 * np.tanh(0.6), 5.0], rtol=1e-5)


@pytest.mark.parametrize(
    ("gemma", "fields", "message"),
    [
        ({"num_kv_heads": 3}, {}, "num_kv_heads is 3.*use a divisor of 4"),
        ({"sliding_window": 0}, {}, "sliding_window is 0"),
        ({"final_logit_softcapping": 0}, {}, "final_logit_softcapping is 0"),
        ({"rotary_base": -1.0}, {}, "rotary_base is -1.0"),
        ({}, {"head_dim": 7}, "head_dim is 7.*even"),
        ({}, {"relative_bias_per_layer": True}, "relative_bias_per_layer is True"),
        ({}, {"scale_attn_logits": True}, "scale_attn_logits is True"),
        ({"sliding_window": 8}, {"scan_layers": True}, "sliding_window is 8 and T5Config.scan_layers True"),
        ({"attn_logit_softcapping": 50.0}, {"kernels": "fused"}, "kernels is 'fused'.*set kernels = 'auto'"),
        ({}, {"encoder_self_attention_layer": "a:B", "kernels": "xla"}, "a:B and gemma_layers"),
    ],
    ids=str,
)
def test_what_excludes_each_other_is_one_message(gemma, fields, message):
    with pytest.raises(ValueError, match=message):
        t5.T5Config(**{"vocab_size": 8, "num_heads": 4, "gemma_layers": GemmaLayers(**gemma), **fields})


def test_a_configuration_survives_json():
    config = small.config(gemma_layers=WINDOWS)
    assert t5.T5Config.from_json(dataclasses.asdict(config)) == config
    assert t5.T5Config.from_json(dataclasses.asdict(small.config())) == small.config()
    with pytest.raises(ValueError, match="gemma_layers is 'modern'"):
        small.config(gemma_layers="modern")
