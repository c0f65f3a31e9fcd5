"""Sentence pairs beside masked tokens: features, loss, gradients, what a classifier starts from, and a training."""

import dataclasses
import functools

import gin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from limba import models
from limba.checkpoints import checkpointing
from limba.checkpoints.train_state import TrainState
from limba.data.contract import DatasetConfig
from limba.gin_config import gin_files
from limba.models.lora import LoRA
from limba.network.encoders import encoder
from limba.network.encoders.classifier import SequenceClassifier
from limba.network.encoders.sentence_pairs import MaskedLanguageModelWithPairs
from limba.training import configured_trainer, trainer
from tasks import objectives
from tasks.pipeline import converters
from tests.limba import small
from tests.limba.models.test_encoder_only_model import WORDS, Words

CONFIG = encoder.EncoderConfig(
    vocab_size=128,
    emb_dim=32,
    num_heads=2,
    head_dim=16,
    mlp_dim=32,
    num_layers=1,
    max_positions=64,
    num_token_types=2,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    initializer_range=0.2,
)
IDS = objectives.VocabularyIds(len(WORDS), 0, 3, 2, 3, 4, Words.special_ids)
FACTORS = (None, 7.0, "NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE")


def _model(factor="NUM_REAL_TARGET_TOKENS", network=MaskedLanguageModelWithPairs, config=CONFIG):
    return models.EncoderOnlyModel(network(config), Words(), optax.adam(0.01), loss_normalizing_factor=factor)


def _features(rows, length, seed=0, tokens=None, kind="sentence_order", shortest=6):
    """Task features of windows of several lengths."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, length - 2, rows)
    tokens = rng.integers(5, len(WORDS), (rows, length - 3)).astype(np.int32) if tokens is None else tokens
    tokens = tokens * (np.arange(length - 3) < lengths[:, None])
    made = objectives.MaskedLM(0.3, pairs=kind).corrupt(tokens, lengths, objectives.example_seeds(seed, 0, rows), IDS)
    return {"inputs": made.inputs, "targets": made.targets} | {name: x for name, (x, _) in made.others.items()}


def _batch(features, packs=False):
    return converters.CONVERTERS["MaskedLanguageModelFeatureConverter"](features, packs)


def _initial(module, seed):
    """Parameters, by one program."""
    init = jax.jit(functools.partial(module.init, enable_dropout=False))
    return init(jax.random.key(seed), jnp.ones((1, 8), jnp.int32))["params"]


@pytest.fixture(scope="module")
def params():
    return small.random_params(_model())


def test_a_recipe_with_pairs(tmp_path):
    """The lines of docs/encoders.md."""
    lines = "include 'gin/models/encoder_pairs.gin'\nobjectives.MaskedLM.pairs = 'next_sentence'\n"
    assert lines in (gin_files.REPOSITORY / "docs" / "encoders.md").read_text(encoding="utf-8")
    (tmp_path / "run.gin").write_text(
        "from __gin__ import dynamic_registration\n\nfrom tasks import objectives\n\n"
        f"include 'gin/models/bert/tiny.gin'\n{lines}"
        "TASK_FEATURE_LENGTHS = @objectives.lengths()\nobjectives.lengths.objective = @objectives.MaskedLM()\n"
    )
    gin.clear_config()
    bindings = ["DROPOUT_RATE = 0.0", "VOCABULARY_FILE = 'none.json'", "OPTIMIZER = None"]
    gin_files.parse_gin_flags([str(tmp_path / "run.gin")], bindings)
    assert gin.query_parameter("%TASK_FEATURE_LENGTHS").scoped_configurable_fn()["pair_labels"] == 1
    module = gin.get_configurable(models.EncoderOnlyModel)(vocabulary=Words()).module
    assert isinstance(module, MaskedLanguageModelWithPairs) and module.config.num_token_types == 2
    gin.clear_config()


def test_features_by_hand():
    features = {
        "inputs": np.array([[2, 7, 3, 8, 9, 3, 0], [2, 4, 5, 3, 6, 3, 0]], np.int32),
        "targets": np.array([[8, 0, 0], [9, 0, 0]], np.int32),
        "target_positions": np.array([[3, 0, 0], [1, 0, 0]], np.int32),
        "pair_start": np.array([[3], [4]], np.int32),
        "pair_labels": np.array([[1], [2]], np.int32),
    }
    batch = _batch(features)
    assert batch["encoder_token_types"].tolist() == [[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 0]]
    assert batch["pair_positions"].tolist() == [[0], [0]] and batch["pair_labels"].tolist() == [[1], [2]]
    wide = {name: np.pad(x, [(0, 0), (0, x.shape[1] if x.shape[1] > 1 else 0)]) for name, x in features.items()}
    packed = _batch(wide, packs=True)
    assert packed["encoder_token_types"].tolist() == [[0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0]]
    assert packed["pair_positions"].tolist() == [[0, 6, 0, 0, 0, 0]]
    assert packed["pair_labels"].tolist() == [[1, 2, 0, 0, 0, 0]]
    assert packed["masked_lm_positions"].tolist() == [[3, 7, 0, 0, 0, 0]]


@pytest.mark.parametrize("pack", [False, True])
def test_shapes_are_known_without_data(pack):
    features = _features(5, 20)
    lengths = {name: x.shape[1] for name, x in features.items()}
    batch = _batch(features, pack)
    config = DatasetConfig("nobody", lengths, "train", len(batch["pair_labels"]), pack=pack)
    shapes = configured_trainer.batch_shapes(config, "MaskedLanguageModelFeatureConverter")
    assert shapes == {name: x.shape for name, x in batch.items()}


@pytest.fixture(scope="module")
def by_hand(params):
    """Features, and of each row the nats of its masked tokens and of its pair, from the whole logits."""
    features = _features(6, 20)
    batch = _batch(features)
    arguments = (batch["encoder_input_tokens"], batch["encoder_token_types"])
    logits, of_pairs = small.call(
        MaskedLanguageModelWithPairs(CONFIG), params, *arguments, pair_positions=batch["pair_positions"]
    )
    logits, of_pairs = (np.asarray(jax.nn.log_softmax(x), np.float64) for x in (logits, of_pairs))
    rows = []
    for row, label in enumerate(features["pair_labels"][:, 0]):
        places = zip(features["target_positions"][row], features["targets"][row], strict=True)
        nats = [-logits[row, place, target] for place, target in places if target]
        rows.append((nats, -of_pairs[row, 0, label - 1], of_pairs[row, 0].argmax() == label - 1))
    assert {*features["pair_labels"][:, 0]} == {1, 2} and len({len(nats) for nats, _, _ in rows}) > 2
    return features, rows


@pytest.mark.parametrize("factor", FACTORS)
def test_each_masked_token_adds_the_loss_of_its_pair(factor, params, by_hand):
    features, rows = by_hand
    count = sum(len(nats) for nats, _, _ in rows)
    if factor == "AVERAGE_PER_SEQUENCE":
        expected = np.mean([np.mean(nats) + pair for nats, pair, _ in rows])
    else:
        divisor = {None: 1, 7.0: 7, "NUM_REAL_TARGET_TOKENS": count}.get(factor, features["targets"].size)
        expected = sum(sum(nats) + len(nats) * pair for nats, pair, _ in rows) / divisor
    loss, metrics = small.loss(_model(factor), params, _batch(features))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert metrics["loss"].compute() == pytest.approx(expected, rel=1e-5)
    assert metrics["pair_loss"].compute() == pytest.approx(np.mean([pair for _, pair, _ in rows]), rel=1e-5)
    assert metrics["pair_accuracy"].compute() == pytest.approx(np.mean([right for _, _, right in rows]))
    assert metrics["nats_per_target_token"].compute() == pytest.approx(
        np.mean([x for nats, _, _ in rows for x in nats]), rel=1e-5
    )


def test_full_rows_have_the_loss_of_bert(params):
    features = _features(8, 23, shortest=20)
    assert {*np.count_nonzero(features["targets"], axis=1)} == {6}
    loss, metrics = small.loss(_model(), params, _batch(features))
    both = metrics["nats_per_target_token"].compute() + metrics["pair_loss"].compute()
    assert float(loss) == pytest.approx(both, rel=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("factor", [None, "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"])
def test_packed_rows_and_rows_of_padding_give_the_same_loss(factor, params):
    features = _features(24, 14)
    long = {name: np.pad(x, [(0, 0), (0, 3 * x.shape[1] if x.shape[1] > 1 else 0)]) for name, x in features.items()}
    packed = _batch(long, packs=True)
    assert len(packed["pair_labels"]) < 12 and packed["encoder_segment_ids"].max() >= 3
    padded = {name: np.pad(x, [(0, 4), (0, 0)]) for name, x in _batch(features).items()}
    model = _model(factor)
    alone, of_alone = small.loss(model, params, _batch(features))
    for batch in (packed, padded):
        loss, metrics = small.loss(model, params, batch)
        np.testing.assert_allclose(loss, alone, rtol=1e-5)
        assert float(metrics["pair_loss"].count) == 24
        for name in ("pair_loss", "pair_accuracy"):
            assert metrics[name].compute() == pytest.approx(of_alone[name].compute(), rel=1e-5)
    nothing, metrics = small.loss(model, params, jax.tree.map(np.zeros_like, _batch(features)))
    assert metrics["pair_loss"].compute() == 0 and (factor is not None or float(nothing) == 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("factor", [None, "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"])
def test_microbatches_have_the_loss_of_the_whole(factor, params):
    batch, model = _batch(_features(8, 20)), _model(factor)
    parts = [{name: x[begin : begin + 4] for name, x in batch.items()} for begin in (0, 4)]
    found = [float(small.loss(model, params, part)[0]) for part in parts]
    weights = [model.microbatch_weight(part) for part in parts]
    together = sum(found) if None in weights else np.average(found, weights=[float(x) for x in weights])
    loss, whole = small.loss(model, params, batch)
    np.testing.assert_allclose(loss, together, rtol=1e-5)
    _, summed = trainer.accumulate_gradients(model, params, jax.tree.map(jnp.asarray, batch), jax.random.key(0), 2)
    for name in ("loss", "pair_loss", "pair_accuracy"):
        assert summed[name].compute() == pytest.approx(whole[name].compute(), rel=1e-4), name


@pytest.mark.parametrize("adapts", [False, True])
def test_gradients_of_the_pairs_reach_pooler_and_encoder(adapts, params):
    model, batch = _model(), _batch(_features(6, 20))
    if adapts:
        model.module = LoRA(model.module)
        params = _initial(model.module, 0)

    def pair_loss(params):
        return model.loss_fn(params, batch, None)[1]["pair_loss"].total

    gradients = jax.jit(jax.grad(pair_loss))(params)
    for name in ("classifier_head", "pair_head", "encoder"):
        assert all(float(jnp.abs(x).max()) > 1e-4 for path, x in _flat(gradients[name]) if path.endswith("['kernel']"))
    assert not any(jnp.any(x) for _, x in _flat(gradients["mlm_head"]))
    # What predicts takes no pairs.
    tokens, _ = small.predictions(model, params, batch)
    assert tokens.shape == batch["decoder_target_tokens"].shape


def _flat(tree):
    return [(jax.tree_util.keystr(path), x) for path, x in jax.tree_util.tree_leaves_with_path(tree)]


def test_a_network_without_token_types_tells_segments_by_their_separator():
    model = _model(config=dataclasses.replace(CONFIG, num_token_types=0))
    batch = _batch(_features(6, 20))
    assert np.isfinite(small.loss(model, small.random_params(model), batch)[0])


def test_rows_and_network_that_do_not_belong_together(params, caplog):
    batch = _batch(_features(4, 20))
    plain = _model(network=encoder.MaskedLanguageModel)
    with pytest.raises(ValueError, match=r"MaskedLanguageModel has no head for them: include gin/models/encoder_pairs"):
        small.loss(plain, params, batch)
    single = {name: x for name, x in batch.items() if not name.startswith("pair_")}
    loss, metrics = small.loss(_model(), params, single)
    assert "this head does not learn" in caplog.text and "pair_loss" not in metrics
    caplog.clear()
    assert small.loss(plain, params, single)[0] == loss and not caplog.text


def test_a_classifier_starts_with_the_pooler(params, tmp_path):
    checkpointer = checkpointing.Checkpointer(tmp_path, checkpointing.SaveCheckpointConfig())
    checkpointer.save(TrainState(step=jnp.int32(5), params=params, opt_state={}), None, {})
    checkpointer.close()
    module = SequenceClassifier(CONFIG, ("glad", "calm", "sad"))
    new = _initial(module, 1)
    state = TrainState(step=jnp.int32(0), params=new, opt_state={})
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)
    # As gin/runs/classify.gin has it.
    config = checkpointing.RestoreCheckpointConfig(strict=False, initialize=[".*classifier_head.*"])
    restored = checkpointing.load_state(tmp_path / "checkpoint_5", shapes, config, lambda: state).params
    for name in ("kernel", "bias"):
        of_head = restored["classifier_head"]
        np.testing.assert_array_equal(of_head["dense"][name], params["classifier_head"]["dense"][name])
        np.testing.assert_array_equal(of_head["logits"][name], new["classifier_head"]["logits"][name])
