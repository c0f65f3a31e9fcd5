"""Numbers by hand, and what a T5 with a generator and a head beside it has in common with a plain one."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from limba import models
from limba.addons.spactor import replaced_tokens, spactor
from limba.checkpoint_files import pretraining_parts
from limba.models import lora
from limba.models import metrics as metrics_lib
from limba.network import decoder_only, t5
from limba.network.encoders import encoder
from limba.network.encoders.config import EncoderConfig
from limba.optimizers import definitions
from tests.limba import small

# Of `small.FixedVocabulary`: padding 0, EOS 1, sentinels 156 to 255, all others text.
TOKENS = np.array(
    [[255, 20, 30, 40, 254, 50, 1, 0], [255, 254, 253, 60, 1, 0, 0, 0], [255, 254, 1, 0, 0, 0, 0, 0]], np.int32
)
IS_TEXT = np.array([[0, 1, 1, 1, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0], [0] * 8], bool)


def _model(plain=None, **settings):
    return spactor.SpacTorModel(plain or small.model(**small.TINY), **({"steps": 2} | settings))


def _batch(tokens=TOKENS):
    return small.batch(0, rows=len(tokens)) | {"encoder_input_tokens": tokens}


def _of_t5(params):
    """Without generator and head, flat."""
    others = {name: x for name, x in params.items() if name != pretraining_parts.NAME}
    return traverse_util.flatten_dict(others, sep="/")


# --------------------------------------------------- numbers by hand ------------------------------------------------


def test_what_is_masked_is_text():
    seen = set()
    for seed in range(20):
        positions, is_chosen = spactor.choose_masked(IS_TEXT, 0.5, jax.random.key(seed))
        assert positions.shape == (3, 4)
        chosen = [sorted(np.asarray(row)[mark]) for row, mark in zip(positions, is_chosen, strict=True)]
        # Half of four tokens, at least one of one, none of none.
        assert [len(row) for row in chosen] == [2, 1, 0]
        assert set(chosen[0]) <= {1, 2, 3, 5} and chosen[1] == [3]
        seen |= set(chosen[0])
    assert seen == {1, 2, 3, 5}


@pytest.mark.parametrize(("share", "number"), [(0.01, 1), (0.15, 3), (0.18, 4), (0.99, 20)])
def test_how_many_of_twenty_are_masked(share, number):
    _, is_chosen = spactor.choose_masked(np.ones((1, 20), bool), share, jax.random.key(0))
    assert int(is_chosen.sum()) == number


def test_guesses_take_the_place_of_masked_tokens():
    positions, is_chosen = np.array([[3, 1], [3, 0]]), np.array([[True, True], [True, False]])
    put = spactor.at_positions(positions, is_chosen, np.array([[7, 8], [9, 10]]), TOKENS[:2])
    assert put.tolist() == [[255, 8, 30, 7, 254, 50, 1, 0], [255, 254, 253, 9, 1, 0, 0, 0]]


def test_the_loss_of_the_detector():
    logits = np.array([[9.0, 2.0, -1.0, 0.5, 9.0, -3.0, 9.0, 9.0]], np.float32)
    is_replaced = np.array([[0, 1, 0, 0, 0, 1, 0, 0]], bool)
    found = spactor.detection(logits, is_replaced, IS_TEXT[:1])
    log_of = lambda p: -math.log(p)  # noqa: E731
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    expected = log_of(sigmoid(2)) + log_of(1 - sigmoid(-1)) + log_of(1 - sigmoid(0.5)) + log_of(sigmoid(-3))
    assert float(found.loss) == pytest.approx(expected, rel=1e-6)
    assert float(found.right) == 2


def test_a_guess_that_is_the_original_counts_as_original(monkeypatch):
    """All that a first-stage step adds, from a generator that guesses 40 everywhere."""
    monkeypatch.setattr(spactor, "sample", lambda logits, rng: jnp.full(logits.shape[:2], 40, jnp.int32))
    monkeypatch.setattr(
        spactor,
        "choose_masked",
        lambda is_text, share, rng: (jnp.array([[3, 5], [3, 0], [0, 0]]), jnp.array([[1, 1], [1, 0], [0, 0]], bool)),
    )
    model = _model(masked_share=0.25, generator_weight=2.0, detection_weight=3.0)
    params = small.random_params(model)
    part = params[pretraining_parts.NAME]
    part["output"]["kernel"][:] = 0
    part["output"]["bias"][:] = -1.0
    part["token_embedder"]["embedding"][:] = 0  # the same logits for all words
    batch = _batch()
    loss = jax.jit(lambda params, step: model.at_step(step).loss_fn(params, batch, jax.random.key(1)))
    total, metrics = loss(params, jnp.int32(1))
    sums = metrics["replaced_tokens"]
    # Of 3 masked tokens, 40 is an original. The generator knows the 154 ids from 2 to 155.
    assert [float(x) for x in (sums.masked, sums.replaced, sums.text, sums.right)] == [3, 2, 5, 3]
    rtd = 2 * math.log(1 + math.e) + 3 * math.log(1 + math.exp(-1))
    values = metrics_lib.compute(metrics)
    named = {name.partition("/")[2]: x for name, x in values.items() if name.startswith("replaced_tokens/")}
    expected = {"mlm_loss": math.log(154), "rtd_loss": rtd / 5, "rtd_accuracy": 3 / 5, "share": 2 / 5}
    assert named == pytest.approx(expected, rel=1e-5)
    # The loss of span corruption is a sum over its targets, and so are these.
    targets = float(batch["decoder_loss_weights"].sum())
    further = targets * (2 * math.log(154) + 3 * rtd / 5)
    assert float(total) - values["cross_ent_loss"] - values["z_loss"] == pytest.approx(further, rel=1e-4)
    # The T5 saw the guesses, and its own figures are those of a plain T5 that sees them.
    replaced = TOKENS.copy()
    replaced[0, 5] = replaced[1, 3] = 40
    plain = small.loss(small.model(**small.TINY), params, batch | {"encoder_input_tokens": replaced})[1]
    assert values["cross_ent_loss"] == pytest.approx(float(plain["cross_ent_loss"].total), rel=1e-6)
    # After the first stage there is nothing of it.
    second, metrics = loss(params, jnp.int32(2))
    values = metrics_lib.compute(metrics)
    assert not any(name.startswith("replaced_tokens") for name in values)
    assert float(second) == pytest.approx(values["cross_ent_loss"] + values["z_loss"], rel=1e-6)


# ------------------------------------------------- the T5 is a plain one --------------------------------------------


def test_the_t5_has_the_parameters_of_a_plain_one():
    plain = small.model(**small.TINY)
    alone, beside = (jax.jit(model.initial_variables)(jax.random.key(3)) for model in (plain, _model(plain)))
    expected, found = (_of_t5(x["params"]) for x in (alone, beside))
    assert expected.keys() == found.keys()
    for name, x in expected.items():
        np.testing.assert_array_equal(found[name], x, err_msg=name)
    assert beside["params"].keys() - alone["params"].keys() == {pretraining_parts.NAME}


class OneWord(small.FixedVocabulary):
    """A vocabulary whose text is one word, 5: whatever is masked, the generator guesses the original."""

    special_ids = tuple(i for i in range(small.VOCAB_SIZE) if i != 5)


@pytest.mark.parametrize("fields", [{"logits_via_embedding": True, "scan_layers": True}])
def test_without_replacements_and_weights_the_gradient_is_that_of_a_plain_t5(fields):
    fields = {**small.TINY, **fields, **({"num_encoder_layers": 2} if "scan_layers" in fields else {})}
    words = models.EncoderDecoderModel(
        t5.Transformer(small.config(dropout_rate=0.5, **fields)), OneWord(), OneWord(), definitions.adamw()
    )
    model = _model(words, masked_share=0.6, generator_weight=0.0, detection_weight=0.0)
    params = small.random_params(model)
    batch = _batch(np.where(TOKENS > 1, np.where(TOKENS < 100, 5, TOKENS), TOKENS))

    @jax.jit
    def both(params):
        calls = [jax.value_and_grad(x.loss_fn, has_aux=True) for x in (words, model.at_step(jnp.int32(0)))]
        return [call(params, batch, jax.random.key(0)) for call in calls]

    ((expected, _), of_plain), ((loss, metrics), grads) = both(params)
    assert float(loss) == float(expected)
    assert float(metrics["replaced_tokens"].masked) == 3 and float(metrics["replaced_tokens"].replaced) == 0
    for name, x in _of_t5(of_plain).items():
        np.testing.assert_allclose(_of_t5(grads)[name], x, rtol=1e-6, atol=1e-7, err_msg=name)


def test_guesses_are_a_function_of_seed_and_step():
    """And the first stage trains generator, head and T5, also in microbatches on several devices."""
    model = _model(small.model(loss_normalizing_factor="NUM_REAL_TARGET_TOKENS", **small.TINY), steps=5)
    trainer = small.make_trainer(model, small.partitioner(2), num_microbatches=2)
    initial = jax.device_get(trainer.new_state(jax.random.key(0)))

    def after(step):
        state = jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), initial, trainer.sharded_state_shapes())
        state, metrics = trainer.train_step(
            state.replace(step=jnp.int32(step)), trainer.partitioner.shard_batch(small.batch(0))
        )
        return metrics_lib.compute(metrics), traverse_util.flatten_dict(jax.device_get(state.params), sep="/")

    (values, params), (again, same), (others, _) = after(3), after(3), after(4)
    assert values == again and values["replaced_tokens/mlm_loss"] != others["replaced_tokens/mlm_loss"]
    before = traverse_util.flatten_dict(initial.params, sep="/")
    for name, x in params.items():
        np.testing.assert_array_equal(same[name], x, err_msg=name)
        assert np.any(before[name] != x), name


# ------------------------------------------------------ refusals ----------------------------------------------------


def test_sizes_of_the_generator():
    base = small.config(emb_dim=768, num_heads=12, head_dim=64, mlp_dim=2048, num_encoder_layers=12, scan_layers=True)
    of = replaced_tokens.generator_config(base, 0.34, 0.5)
    assert (of.emb_dim, of.num_heads, of.head_dim, of.mlp_dim, of.num_encoder_layers) == (384, 6, 64, 1024, 4)
    assert not of.scan_layers
    least = replaced_tokens.generator_config(small.config(**small.TINY), 0.01, 0.01)
    assert (least.emb_dim, least.num_heads, least.mlp_dim, least.num_encoder_layers) == (8, 1, 8, 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": -1}, r"steps is -1; it is a whole number of at least 0"),
        ({"steps": 2.5}, r"steps is 2\.5; it is a whole number"),
        ({"steps": None}, r"give the steps of the first stage"),
        ({"masked_share": 0}, r"masked_share is 0; it is a number above 0 and below 1, such as 0\.15"),
        ({"masked_share": 1.0}, r"masked_share is 1\.0; it is a number above 0 and below 1"),
        ({"masked_share": "0.1"}, r"masked_share is '0\.1'; it is a number above 0"),
        ({"generator_layers": 0}, r"generator_layers is 0; it is a share of the encoder's, above 0, at most 1"),
        ({"generator_width": 1.5}, r"generator_width is 1\.5; it is a share"),
        ({"generator_weight": -1.0}, r"generator_weight is -1\.0; it is a number of at least 0"),
        ({"detection_weight": math.nan}, r"detection_weight is nan; it is a number of at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        _model(**settings)


def test_half_of_the_run_is_the_first_stage_unless_it_is_said():
    assert _model(steps=None, total_steps=2401).steps == 1200
    assert _model(steps=0, total_steps=2401).steps == 0


def test_other_models_are_refused_by_name():
    vocabulary, optimizer = small.FixedVocabulary(), definitions.adamw()
    decoder = models.DecoderOnlyModel(decoder_only.DecoderWrapper(small.config()), vocabulary, optimizer)
    of_encoder = encoder.MaskedLanguageModel(EncoderConfig(vocab_size=small.VOCAB_SIZE))
    adapted = small.model(module=lora.LoRA(t5.Transformer(small.config(**small.TINY))))
    for model, words in (
        (decoder, "MODEL is DecoderOnlyModel"),
        (models.EncoderOnlyModel(of_encoder, vocabulary, optimizer), "MODEL is EncoderOnlyModel"),
        (adapted, r"EncoderDecoderModel\.module is LoRA"),
    ):
        with pytest.raises(ValueError, match=rf"{words}, and it takes .*leave gin/runs/spactor\.gin out"):
            spactor.SpacTorModel(model, steps=1)


def test_a_loss_without_its_step_is_refused():
    model = _model()
    with pytest.raises(ValueError, match=r"needs the step.*model\.at_step\(step\)\.loss_fn"):
        model.loss_fn({}, _batch(), jax.random.key(0))
