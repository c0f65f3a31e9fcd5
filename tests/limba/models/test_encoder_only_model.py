"""A masked language model: its loss, its predictions, packed rows, and a training from a corpus."""

import json

import jax
import numpy as np
import pytest

from limba import models
from limba.data.contract import DatasetConfig
from limba.network.encoders import encoder
from limba.optimizers import adafactor
from limba.training import configured_trainer
from tasks import objectives, pretraining
from tasks.pipeline import converters, task_batches
from tasks.registry import TaskRegistry
from tasks.vocabularies import Vocabulary
from tests.limba import small

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(59))]


class Words(Vocabulary):
    """A word a token."""

    eos_id = sep_id = 3
    unk_id, cls_id, mask_id = 1, 2, 4
    special_ids = (0, 1, 2, 3, 4)
    continues_word = np.zeros(len(WORDS), bool)
    _base_vocab_size = len(WORDS)

    def _encode(self, s):
        return [WORDS.index(word) for word in s.split()]

    def _decode(self, ids):
        return " ".join(WORDS[i] for i in ids)


def _model(**fields):
    sizes = {"vocab_size": 128, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 32, "num_layers": 1}
    config = encoder.EncoderConfig(**sizes, max_positions=64, dropout_rate=0.0, attention_dropout_rate=0.0, **fields)
    optimizer = adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())
    return models.EncoderOnlyModel(
        encoder.MaskedLanguageModel(config), Words(), optimizer, loss_normalizing_factor="NUM_REAL_TARGET_TOKENS"
    )


def _features(rows, length, seed=0):
    """Task features of short windows, each padded to the length."""
    lengths = np.random.default_rng(seed).integers(4, length - 2, rows)
    tokens = np.random.default_rng(seed).integers(5, len(WORDS), (rows, length - 2)).astype(np.int32)
    tokens *= np.arange(length - 2) < lengths[:, None]
    ids = objectives.VocabularyIds(len(WORDS), 0, 3, 2, 3, 4, Words.special_ids)
    made = objectives.MaskedLM(0.3).corrupt(tokens, lengths, objectives.example_seeds(seed, 0, rows), ids)
    return {"inputs": made.inputs, "targets": made.targets, "target_positions": made.others["target_positions"][0]}


@pytest.fixture(scope="module")
def model():
    return _model()


@pytest.fixture(scope="module")
def params(model):
    return small.random_params(model)


def _batch(features, packs=False):
    return converters.CONVERTERS["MaskedLanguageModelFeatureConverter"](features, packs)


def test_the_loss_is_that_of_the_masked_places(model, params):
    features = _features(6, 20)
    loss, metrics = small.loss(model, params, _batch(features))
    logits = small.call(model.module, params, features["inputs"])
    log_probabilities = np.asarray(jax.nn.log_softmax(logits), np.float64)
    found = [
        (-log_probabilities[row, place, target], log_probabilities[row, place].argmax() == target)
        for row in range(6)
        for place, target in zip(features["target_positions"][row], features["targets"][row], strict=True)
        if target
    ]
    nats, right = np.array(found).T
    assert 10 < len(found) == metrics["accuracy"].count
    np.testing.assert_allclose(loss, nats.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["nats_per_target_token"].compute(), nats.mean(), rtol=1e-5)
    assert metrics["accuracy"].compute() == pytest.approx(right.mean())
    tokens, aux = small.predictions(model, params, _batch(features))
    assert tokens.shape == features["targets"].shape
    best = [log_probabilities[0, place].argmax() for place in features["target_positions"][0] if place]
    assert tokens[0, : len(best)].tolist() == best and not tokens[0, len(best) :].any()
    most = sum(log_probabilities[0, place].max() for place in features["target_positions"][0] if place)
    np.testing.assert_allclose(aux["scores"][0], most, rtol=1e-5)
    with pytest.raises(ValueError, match="decodes nothing: leave out num_decodes"):
        model.predict_batch(params, _batch(features), num_decodes=4)


def test_packed_rows_give_the_loss_of_separate_ones(model, params):
    features = _features(24, 12)
    long = {name: np.pad(x, [(0, 0), (0, 3 * x.shape[1])]) for name, x in features.items()}
    packed = _batch(long, packs=True)
    assert len(packed["encoder_input_tokens"]) < 12 and packed["encoder_segment_ids"].max() >= 3
    # What stands at the places of the row is what stood at those of the examples.
    places = packed["masked_lm_positions"]
    there = np.take_along_axis(packed["encoder_input_tokens"], places, axis=1)[places > 0]
    at = np.take_along_axis(features["inputs"], features["target_positions"], axis=1)[features["target_positions"] > 0]
    np.testing.assert_array_equal(there, at)
    alone, of_alone = small.loss(model, params, _batch(features))
    together, of_together = small.loss(model, params, packed)
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    assert of_together["accuracy"].compute() == of_alone["accuracy"].compute()
    names = {"batch": len(places), **{name: x.shape[1] for name, x in long.items()}}
    config = DatasetConfig("nobody", names | {"batch": 1}, "train", len(places), pack=True)
    shapes = configured_trainer.batch_shapes(config, model.FEATURE_CONVERTER_CLS)
    assert shapes == {name: x.shape for name, x in packed.items()}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Documents of one word each, which the row around a mask tells."""
    folder = tmp_path_factory.mktemp("masked")
    rng = np.random.default_rng(0)
    for name, documents in (("train", 400), ("validation", 40)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for _ in range(documents):
                text = " ".join([f"w{rng.integers(0, 59)}"] * rng.integers(200, 300))
                file.write(json.dumps({"text": text}) + "\n")
    task = pretraining.register_pretraining_task(
        "test_masked_lm",
        data_files={split: str(folder / f"{split}.jsonl") for split in ("train", "validation")},
        vocabulary=Words(),
        objective=objectives.MaskedLM(),
    )
    yield task.name
    TaskRegistry.remove(task.name)


def test_batches_of_a_task(task):
    config = DatasetConfig(task, objectives.lengths(objectives.MaskedLM(), 32), "train", 8, seed=0)
    stream = task_batches.open_stream(config, "MaskedLanguageModelFeatureConverter")
    assert stream is not None
    with pytest.raises(ValueError, match="EncDecFeatureConverter does not read the target_positions of task"):
        task_batches.open_stream(config, "EncDecFeatureConverter")
    with pytest.raises(ValueError, match="needs inputs, targets and target_positions"):
        converters.check_features("MaskedLanguageModelFeatureConverter", "other", ["inputs", "targets"])
