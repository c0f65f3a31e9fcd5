import functools

import gin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from limba import models
from limba.gin_config import closed_list, gin_files
from limba.models import decoding
from limba.network import decoder_only, t5
from tests.limba import small
from tests.limba.models import custom_network

TINY = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 32, "num_encoder_layers": 1, "num_decoder_layers": 1}


def _greedy_by_prefixes(logits_of, params, prompts, length, eos_id=1):
    """Greedy decoding without a cache: the network sees the whole prefix again for every token."""
    rows = []
    for row, prompt in enumerate(prompts):
        tokens = np.zeros(length, np.int32)  # behind the first 0
        tokens[: len(prompt)] = prompt
        at = len(prompt)
        while at < length and (at == len(prompt) or tokens[at - 1] != eos_id):
            tokens[at] = int(jnp.argmax(logits_of(params, row, np.pad(tokens, (1, 0))[None, :length])[0, at]))
            at += 1
        rows.append(tokens)
    return np.stack(rows)


# ------------------------------------------------- a user's network --------------------------------------------------


@pytest.fixture(scope="module")
def custom(tmp_path_factory):
    """A user's network bound by gin, some steps of training, and its batch."""
    file = tmp_path_factory.mktemp("gin") / "custom.gin"
    file.write_text(
        "from __gin__ import dynamic_registration\n"
        "from tests.limba.models import custom_network\n"
        "custom_network.Network.width = 16\n"
    )
    gin.clear_config()
    closed_list.trust([str(file)])  # A user's network is of no module of the tests.
    gin_files.parse_gin_flags([str(file)], [])
    module = gin.get_configurable(custom_network.Network)()
    gin.clear_config()
    model = small.model(module=module)
    trainer = small.make_trainer(model)
    state, batch = trainer.new_state(jax.random.key(0)), small.batch(0, rows=4)
    losses = []
    for _ in range(3):
        state, metrics = trainer.train_step(state, trainer.partitioner.shard_batch(batch))
        losses.append(float(metrics["loss"].total))
    return model, state.params, batch, losses


def test_a_network_written_for_t5x_trains(custom):
    model, params, _, losses = custom
    assert model.module.width == 16
    assert losses[2] < losses[1] < losses[0]
    assert set(params) == {"embedder", "mix", "norm", "bias", "look_back", "look_over"}
    assert params["mix"]["wi"]["kernel"].shape == (16, 64)
    assert model.param_shapes_and_axes()[1]["look_back"]["out"]["kernel"] == PartitionSpec("joined_kv", "embed")


def test_a_network_written_for_t5x_decodes_as_it_was_trained(custom):
    model, params, batch, _ = custom

    @jax.jit
    def logits(params, inputs, decoder_inputs):
        fed = {"encoder_input_tokens": inputs, "decoder_input_tokens": decoder_inputs}
        return model.logits(params, fed | {"decoder_target_tokens": jnp.ones_like(decoder_inputs)})

    expected = _greedy_by_prefixes(
        lambda p, row, fed: logits(p, batch["encoder_input_tokens"][row : row + 1], fed), params, [[]] * 4, 8
    )
    tokens, aux = small.predictions(model, params, batch)
    assert tokens.tolist() == expected.tolist()
    assert aux["scores"].shape == (4,)


def test_intermediates_of_a_score(custom):
    model, params, batch, _ = custom
    scores, intermediates = model.score_batch(params, batch, return_intermediates=True)
    np.testing.assert_allclose(scores, jax.jit(model.score_batch)(params, batch), rtol=1e-6)
    assert intermediates["last"][0].shape == (4, 8, 16)
    np.testing.assert_allclose(intermediates["decoder"]["token_scores"][0].sum(-1), scores, rtol=1e-6)
    assert intermediates["decoder"]["target_tokens"][0] is batch["decoder_target_tokens"]


# ---------------------------------------------------- encoder-decoder ------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    model = small.model(**TINY)
    return model, small.random_params(model), small.batch(0, rows=3)


def test_several_decodes_of_an_input_come_best_last(tiny):
    model, params, batch = tiny
    predict = functools.partial(small.predictions, model, params, batch, num_decodes=3)
    tokens, aux = predict(return_all_decodes=True)
    assert tokens.shape == (3, 3, 8)
    assert np.all(np.diff(aux["scores"], axis=1) >= 0)
    best, best_aux = predict()
    assert best.tolist() == tokens[:, -1].tolist()
    np.testing.assert_array_equal(best_aux["scores"], aux["scores"][:, -1])
    model._default_decoder_params = models.DecoderParams(return_all_decodes=True, num_decodes=3)
    assert jax.jit(model.predict_batch)(params, batch).tolist() == tokens.tolist()
    model._default_decoder_params = models.DecoderParams()


def test_several_targets_of_an_input(tiny):
    """The encoder reads the inputs once; a model with logits of its own computes each row alone."""
    model, params, batch = tiny
    rows = small.batch(1, rows=6)
    folded = {name: x.reshape(3, 2, -1) for name, x in rows.items() if name.startswith("decoder_")}
    inputs = batch["encoder_input_tokens"]
    found = jax.jit(model.logits_of_targets)(params, folded | {"encoder_input_tokens": inputs})
    alone = jax.jit(model.logits)(params, rows | {"encoder_input_tokens": np.repeat(inputs, 2, axis=0)})
    np.testing.assert_allclose(found.reshape(alone.shape), alone, atol=1e-5)

    class OfOnesOwn(models.EncoderDecoderModel):
        def _compute_logits(self, *args, **others):
            return 2 * super()._compute_logits(*args, **others)

    vocabulary = model.input_vocabulary
    own = OfOnesOwn(model.module, vocabulary, vocabulary, model.optimizer_def)
    doubled = jax.jit(own.logits_of_targets)(params, folded | {"encoder_input_tokens": inputs})
    np.testing.assert_allclose(doubled, 2 * found, atol=1e-5)


def test_a_cache_made_as_t5x_makes_it_decodes_the_same(tiny):
    """T5X makes the cache before the encoder's output is known: nothing of the inputs may be in it."""
    model, params, batch = tiny

    class AsT5X(models.EncoderDecoderModel):
        def _compute_kv_cache(
            self, params, encoded_inputs, encoder_input_tokens, decoder_input_tokens, prefill_decoder_prompt=False
        ):
            inputs, targets = jnp.ones_like(encoder_input_tokens), jnp.ones_like(decoder_input_tokens)
            _, variables = self.module.apply(
                {"params": params}, inputs, targets, targets, decode=True, enable_dropout=False, mutable=["cache"]
            )
            assert "encoded_key" not in variables["cache"]["decoder"]["layers_0"].get("encoder_decoder_attention", {})
            return variables["cache"], None

    as_t5x = AsT5X(model.module, model.input_vocabulary, model.output_vocabulary, model.optimizer_def)
    expected = small.predictions(model, params, batch, num_decodes=2)
    actual = small.predictions(as_t5x, params, batch, num_decodes=2)
    assert actual[0].tolist() == expected[0].tolist()
    np.testing.assert_allclose(actual[1]["scores"], expected[1]["scores"], rtol=1e-5)


def test_prompts_are_continued(tiny):
    model, params, batch = tiny
    prompt = {**batch, "decoder_input_tokens": np.array([[0, 7, 8, 9, 1, 0, 0, 0]] * 3, np.int32)}
    assert jax.jit(model.predict_batch)(params, prompt)[:, :3].tolist() != [[7, 8, 9]] * 3
    sampler = small.model(**TINY, decode_fn=decoding.temperature_sample)
    tokens = jax.jit(functools.partial(sampler.predict_batch, prompt_with_targets=True))(params, prompt)
    assert tokens[:, :3].tolist() == [[7, 8, 9]] * 3
    with pytest.raises(ValueError, match="decode_rng"):
        sampler.predict_batch(params, prompt, jax.random.key(0), decoder_params={"decode_rng": jax.random.key(0)})


def test_a_loss_of_ones_own_is_that_of_training_and_evaluation():
    class Doubled(models.EncoderDecoderModel):
        def loss_fn(self, params, batch, dropout_rng):
            loss, metrics = super().loss_fn(params, batch, dropout_rng)
            return 2 * loss, metrics

    plain = small.model(**TINY)
    doubled = Doubled(plain.module, plain.input_vocabulary, plain.output_vocabulary, plain.optimizer_def, z_loss=1e-4)
    params, batch = small.random_params(plain), small.batch(0)

    @jax.jit
    def losses(params):
        training = plain.loss_fn(params, batch, jax.random.key(0))
        return plain.eval_fn(params, batch), doubled.eval_fn(params, batch), training

    (loss, metrics), (twice, _), (_, training_metrics) = losses(params)
    assert float(twice) == pytest.approx(2 * float(loss))
    assert set(metrics) - set(training_metrics) == {"nats_per_target_token", "text"}


def test_initial_variables_do_not_depend_on_the_shape_of_the_batch():
    model = small.model(**TINY)
    shapes = dict.fromkeys(("encoder_input_tokens", "decoder_input_tokens", "decoder_segment_ids"), (2, 4))
    given = jax.eval_shape(
        lambda: model.get_initial_variables(jax.random.key(0), shapes, {"encoder_input_tokens": jnp.float32})
    )
    assert given["params"] == model.param_shapes_and_axes()[0]


# ----------------------------------------------------- decoder only --------------------------------------------------


def _decoder_only(bidirectional, **fields):
    sizes = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 32, "dropout_rate": 0.0, "num_layers": 2}
    config = decoder_only.TransformerConfig(vocab_size=small.VOCAB_SIZE, **(sizes | fields))
    return models.DecoderOnlyModel(
        decoder_only.DecoderWrapper(config), small.FixedVocabulary(), None, inputs_bidirectional_attention=bidirectional
    )


def _prompted_batch():
    """Prompts of 2 to 4 tokens, then targets, as SeqIO's DecoderFeatureConverter makes them."""
    tokens = np.random.default_rng(0).integers(3, small.VOCAB_SIZE, (3, 9), dtype=np.int32)
    prompt_lengths = np.array([3, 2, 4])
    return prompt_lengths, {
        "decoder_target_tokens": tokens,
        "decoder_input_tokens": np.pad(tokens, ((0, 0), (1, 0)))[:, :-1],
        "decoder_causal_attention": (np.arange(9) <= prompt_lengths[:, None]).astype(np.int32),
        "decoder_loss_weights": (np.arange(9) >= prompt_lengths[:, None]).astype(np.int32),
    }


@pytest.mark.parametrize(("bidirectional", "scan_layers"), [(False, False), (True, True)])
def test_prompts_in_the_cache_are_continued_as_without_a_cache(bidirectional, scan_layers):
    model = _decoder_only(bidirectional, scan_layers=scan_layers)
    lengths, batch = _prompted_batch()
    params = small.random_params(model)

    @jax.jit
    def logits(params, fed, prefix):
        return model.module.apply(
            {"params": params}, fed, jnp.ones_like(fed), decoder_causal_attention=prefix, enable_dropout=False
        )

    def logits_of(params, row, fed):
        return logits(params, fed, batch["decoder_causal_attention"][row : row + 1] if bidirectional else None)

    prompts = [row[:length] for row, length in zip(batch["decoder_target_tokens"], lengths, strict=True)]
    expected = _greedy_by_prefixes(logits_of, params, prompts, 9)
    tokens, aux = small.predictions(model, params, batch)
    for row, length in enumerate(lengths):
        assert tokens[row].tolist() == [*expected[row, length:].tolist(), *[0] * length]
    assert aux["scores"].shape == (3,)


def test_beams_after_prompts_in_the_cache_are_those_without_a_cache():
    model = _decoder_only(False, scan_layers=True)
    _, batch = _prompted_batch()
    # Of one length: a search that begins at several ends with the longest answer, without a cache for all.
    batch["decoder_causal_attention"][:] = np.arange(9) <= 3
    params = small.random_params(model)
    prompts = batch["decoder_input_tokens"] * batch["decoder_causal_attention"]

    def step(state):
        fed = state.sequences[:, :9]
        logits = model.module.apply({"params": params}, fed, jnp.ones_like(fed), enable_dropout=False)
        return jnp.take(logits, state.cur_index, axis=1), state.cache

    expected, scores = jax.jit(lambda: decoding.beam_search(prompts, {}, step, 1, 3))()
    model = model.with_decode_fn(decoding.beam_search)
    tokens, aux = jax.jit(functools.partial(model.predict_batch_with_aux, num_decodes=3, return_all_decodes=True))(
        params, batch
    )
    np.testing.assert_array_equal(tokens[..., :6], expected[..., 3:])
    np.testing.assert_allclose(aux["scores"], scores, rtol=1e-4)


def test_only_a_prefix_lm_looks_ahead_and_only_in_its_prefix():
    _, batch = _prompted_batch()
    changed = {**batch, "decoder_input_tokens": batch["decoder_input_tokens"].copy()}
    changed["decoder_input_tokens"][:, 2] += 1  # in each prompt
    params = small.random_params(_decoder_only(True))
    for bidirectional in (False, True):
        model = _decoder_only(bidirectional)
        difference = np.abs(model.logits(params, batch) - model.logits(params, changed)).max(-1)
        assert np.all(difference[:, 2] > 0)
        assert np.all(difference[:, 0] > 0) == bidirectional
    later = {**batch, "decoder_input_tokens": batch["decoder_input_tokens"].copy()}
    later["decoder_input_tokens"][:, 6] += 1  # in no prompt
    difference = np.abs(model.logits(params, batch) - model.logits(params, later)).max(-1)
    assert np.all(difference[:, :6] == 0)
    assert np.all(difference[:, 6] > 0)


def test_a_batch_without_a_prefix_has_nothing_to_go_on_from():
    model = _decoder_only(True)
    _, batch = _prompted_batch()
    del batch["decoder_causal_attention"]
    params = small.random_params(model)
    with pytest.raises(ValueError, match="task_feature_lengths"):
        model.predict_batch(params, batch)
    with pytest.raises(ValueError, match="decoder_causal_attention"):
        model.logits(params, batch)


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        (
            "label_smoothing",
            1.0,
            r"label_smoothing \(LABEL_SMOOTHING\) is 1.0; it is a number of at least 0 and below 1",
        ),
        ("z_loss", None, r"z_loss \(Z_LOSS\) is None; it is a number of at least 0"),
    ],
)
def test_numbers_of_the_loss_that_cannot_be_meant(argument, value, words):
    vocabulary = small.FixedVocabulary()
    with pytest.raises(ValueError, match=rf"^EncoderDecoderModel\.{words}"):
        models.EncoderDecoderModel(small.model().module, vocabulary, vocabulary, optax.sgd(1.0), **{argument: value})


def test_remove_prefix():
    sequence = jnp.array([[1, 2, 3, 4, 5, 6, 7, 0], [9, 8, 7, 6, 5, 4, 3, 2]])
    assert models.remove_prefix(sequence, jnp.array([2, 0])).tolist() == [
        [3, 4, 5, 6, 7, 0, 0, 0],
        [9, 8, 7, 6, 5, 4, 3, 2],
    ]


def test_vocabularies_are_found_by_function():
    model = small.model(module=t5.Transformer(small.config()))
    assert models.get_input_vocabulary(model) is models.get_output_vocabulary(model) is model.input_vocabulary
