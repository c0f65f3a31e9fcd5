"""ELECTRA: what its two losses are, and what its networks share."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from limba import models
from limba.checkpoint_files import pretraining_parts
from limba.models import electra
from limba.network.encoders import encoder, token_detector
from tasks.vocabularies import TokenizerVocabulary
from tests.convert import vocabularies
from tests.limba import small

_SIZES = {"vocab_size": 64, "emb_dim": 24, "num_heads": 3, "head_dim": 8, "mlp_dim": 20, "num_layers": 2}

_WRONG = (
    ({"generator_layers": 0}, "generator_layers is 0; it is a share"),
    ({"detection_weight": -1}, "detection_weight is -1"),
)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    file = tmp_path_factory.mktemp("vocab") / "tokenizer.json"
    return TokenizerVocabulary(str(vocabularies.write_words(file, [f"w{i}" for i in range(30)])))


def _model(vocabulary, **options):
    fields = _SIZES | {"embedding_size": 16, "max_positions": 48, "num_token_types": 2, "norm_epsilon": 0.01}
    config = encoder.EncoderConfig(**fields, dropout_rate=0.0, attention_dropout_rate=0.0)
    return models.ElectraModel(
        token_detector.ReplacedTokenDetector(config),
        vocabulary,
        optimizer_def=None,
        loss_normalizing_factor="NUM_REAL_TARGET_TOKENS",
        generator_width=0.34,
        **options,
    )


def _batch():
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 35, (3, 12)).astype(np.int32)
    tokens[:, 0], tokens[2, 9:] = 2, 0
    places = np.array([[1, 4, 8], [2, 3, 11], [5, 0, 0]], np.int32)
    targets = np.take_along_axis(tokens, places, axis=1) * (places > 0)
    inputs = tokens.copy()
    np.put_along_axis(inputs[:2], places[:2], 4, axis=1)
    inputs[2, 5] = 4
    weights = (targets > 0).astype(np.int32)
    features = {"encoder_input_tokens": inputs, "masked_lm_positions": places}
    return tokens, features | {"decoder_target_tokens": targets, "decoder_loss_weights": weights}


def test_the_generator_shares_the_tables_and_nothing_else(vocabulary):
    model = _model(vocabulary)
    shapes, axes = model.param_shapes_and_axes()
    assert jax.tree.structure(shapes) == jax.tree.structure(axes, is_leaf=lambda x: isinstance(x, tuple))
    own = shapes[pretraining_parts.NAME]
    assert own.keys() == {"encoder", "mlm_head"}
    assert own["encoder"].keys() == {"embedding_projection", "layers_0", "layers_1"}
    assert own["encoder"]["embedding_projection"]["kernel"].shape == (16, 8)
    assert model.generator_config.num_heads == 1 and model.generator_config.mlp_dim == 7
    for options, words in _WRONG:
        with pytest.raises(ValueError, match=words):
            _model(vocabulary, **options)


def test_the_loss_is_the_generator_s_mean_and_the_detector_s(vocabulary):
    model = _model(vocabulary)
    params, (tokens, batch) = small.random_params(model), _batch()
    loss, metrics = small.loss(model, params, batch)
    logits = np.asarray(model._compute_logits(params, batch))
    originals, corrupted = model._corrupted(jnp.asarray(logits), batch, jax.random.key(electra._STREAM))
    np.testing.assert_array_equal(originals, tokens)
    changed = np.asarray(corrupted) != tokens
    is_masked = batch["encoder_input_tokens"] != tokens
    assert changed.any() and not changed[~is_masked].any()
    assert np.asarray(corrupted)[is_masked].min() >= 5  # text, never a special token

    log_shares = jax.nn.log_softmax(logits)
    picked = np.take_along_axis(np.asarray(log_shares), batch["decoder_target_tokens"][..., None], -1)[..., 0]
    generator = -np.sum(picked * batch["decoder_loss_weights"]) / 7
    found = small.call(model.module, params, corrupted, None)[..., 0]
    real = tokens != 0
    detector = np.asarray(optax.sigmoid_binary_cross_entropy(found, changed))[real].mean()
    np.testing.assert_allclose(loss, generator + 50 * detector, rtol=1e-5)
    values = metrics["replaced_tokens"].compute()
    np.testing.assert_allclose(values["replaced_tokens/mlm_loss"], generator, rtol=1e-5)
    np.testing.assert_allclose(values["replaced_tokens/rtd_loss"], detector, rtol=1e-5)
    np.testing.assert_allclose(values["replaced_tokens/share"], changed.sum() / real.sum(), rtol=1e-6)


def test_the_tables_learn_from_both_losses_and_guesses_carry_no_gradient(vocabulary):
    params, (_, batch) = small.random_params(_model(vocabulary)), _batch()
    made = [_model(vocabulary, detection_weight=weight) for weight in (0.0, 50.0)]
    grads = jax.jit(lambda p: [jax.grad(lambda x, m=m: m.loss_fn(x, batch, None)[0])(p) for m in made])(params)
    own = [jax.tree.leaves(g[pretraining_parts.NAME]) for g in grads]
    for without, with_detector in zip(*own, strict=True):
        np.testing.assert_allclose(without, with_detector, atol=1e-6)
    tables = [np.asarray(g["token_embedder"]["embedding"]) for g in grads]
    assert np.abs(tables[0]).max() > 1e-3 and np.abs(tables[1] - tables[0]).max() > 1e-3
