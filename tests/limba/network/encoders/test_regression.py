"""Encoders give numbers: their ids, losses, tasks and answers."""

import csv
import json

import numpy as np
import pytest

from limba import models
from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig
from limba.inference.answering import Answerer
from limba.network.encoders import classifier, encoder
from limba.optimizers import definitions
from limba.training import configured_trainer
from tasks import supervised
from tasks.metrics import text_metrics
from tasks.pipeline import converters, predictions
from tasks.registry import TaskRegistry
from tasks.supervised import row_formats
from tasks.vocabularies import ByteVocabulary, NumberVocabulary, TokenizerVocabulary
from tests.convert import vocabularies
from tests.limba import small
from tests.limba.network.encoders import short_training

_WORDS = ["no", "some", "many", "cats", "dogs"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return TokenizerVocabulary(
        str(vocabularies.write_words(tmp_path_factory.mktemp("vocab") / "tokenizer.json", _WORDS))
    )


def _model(vocabulary):
    sizes = {"vocab_size": 128, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 32, "num_layers": 1}
    config = encoder.EncoderConfig(**sizes, max_positions=32, norm_position="pre", dropout_rate=0.0, num_token_types=2)
    return models.EncoderRegressor(
        classifier.SequenceClassifier(config, ["much"]),
        vocabulary,
        NumberVocabulary(["much"]),
        definitions.adamw(),
        loss_normalizing_factor="NUM_REAL_TARGET_TOKENS",
    )


def test_numbers_are_ids():
    vocabulary = NumberVocabulary(["much"])
    for text in ("3.8", "-0.25", "0.0", "1e-30", "5.0"):
        (id_,) = vocabulary.encode(text)
        assert id_ != 0 and -(2**31) <= id_ < 2**31
        assert np.float32(vocabulary.decode([id_])) == np.float32(text)
    assert vocabulary.encode("3.8") == [int(np.float32(3.8).view(np.int32))] and vocabulary.decode([0]) == ""
    assert vocabulary.encode("0") == [-(2**31)] and vocabulary.decode([-(2**31)]) == "0.0"
    assert vocabulary.encode("much") == vocabulary.encode("nan") == vocabulary.encode("inf") == [0]
    # The name does not change ids.
    assert vocabulary == NumberVocabulary() and vocabulary.labels == ("much",)
    assert vocabulary != NumberVocabulary(["a", "b"])
    for wrong in ("much", [], ["a", "a"], [1]):
        with pytest.raises(ValueError, match="give the name of each"):
            NumberVocabulary(wrong)


def test_the_loss_is_the_squared_error_and_answers_are_numbers(vocabulary):
    model = _model(vocabulary)
    params = small.random_params(model)
    inputs = np.random.default_rng(0).integers(5, 10, (4, 8)).astype(np.int32)
    targets = np.array([model.output_vocabulary.encode(x) for x in ("0.0", "2.5", "-1", "none")], np.int32)
    batch = converters.CONVERTERS[model.FEATURE_CONVERTER_CLS]({"inputs": inputs, "targets": targets}, False)
    np.testing.assert_array_equal(batch["decoder_target_values"][:3, 0], [0, 2.5, -1])
    np.testing.assert_array_equal(batch["decoder_loss_weights"][:, 0], [1, 1, 1, 0])
    shapes = configured_trainer.batch_shapes(
        DatasetConfig("nobody", {"inputs": 8, "targets": 1}, "train", 4), model.FEATURE_CONVERTER_CLS
    )
    assert shapes == {name: x.shape for name, x in batch.items()}

    loss, metrics = small.loss(model, params, batch)
    types = model._token_types(inputs)
    logits = np.asarray(small.call(model.module, params, inputs, types))[:, 0, 0]
    expected = np.mean(np.square(logits[:3] - [0, 2.5, -1]))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["mean_squared_error"].compute(), expected, rtol=1e-5)
    assert "accuracy" not in metrics and "nats_per_target_token" not in metrics
    ids, aux = small.predictions(model, params, batch)
    np.testing.assert_array_equal(aux["scores"], logits)
    assert [float(model.output_vocabulary.decode(row)) for row in ids.tolist()] == pytest.approx(logits, rel=1e-6)
    with pytest.raises(ValueError, match="are not packed: set PACK = False"):
        converters.CONVERTERS[model.FEATURE_CONVERTER_CLS]({"inputs": inputs, "targets": targets}, True)


def test_stsb_is_a_task_of_numbers(vocabulary):
    task = supervised.register_supervised_task("glue_stsb", vocabulary=vocabulary)
    try:
        form = task.preprocessors[0].format
        row = {"sentence1": "a", "sentence2": "b", "label": 3.773}
        (example,) = form(row)
        assert (example.inputs, example.targets) == ("a [SEP] b", "3.773")
        (secret,) = form(row | {"label": -1.0})
        assert (secret.targets, secret.reference) == ("<unk>", -1.0)
        with pytest.raises(ValueError, match="column 'label' has nan, which is not a number"):
            form(row | {"label": float("nan")})
        assert task.output_features["targets"].vocabulary == NumberVocabulary()
        assert task.metric_fns == (text_metrics.pearson_corrcoef, text_metrics.spearman_corrcoef)
        assert "glue_stsb_rank" not in TaskRegistry.names()
    finally:
        TaskRegistry.remove("glue_stsb")
    number = supervised.SupervisedDataset(row_formats.Number("{a} [SEP] {b}", "c"))
    assert number.metrics == [text_metrics.pearson_corrcoef, text_metrics.spearman_corrcoef]
    of_t5 = supervised.register_supervised_task(
        "numbers", number, vocabulary=ByteVocabulary(), data_files={"train": "x.csv"}
    )
    assert of_t5.output_features["targets"].vocabulary == NumberVocabulary()
    TaskRegistry.remove("numbers")


@pytest.fixture
def task(tmp_path, vocabulary):
    """How many animals there are: a number that is the sum of two words'."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 300), ("validation", 60)):
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["first", "second", "sum"])
            for _ in range(count):
                a, b = rng.integers(0, 3, 2)
                writer.writerow([f"{_WORDS[a]} cats", f"{_WORDS[b]} dogs", f"{a + 0.5 * b}"])
    yield supervised.register_supervised_task(
        "test_sums",
        supervised.SupervisedDataset(row_formats.Number("{first} [SEP] {second}", "sum")),
        data_files={split: str(tmp_path / f"{split}.csv") for split in ("train", "validation")},
        vocabulary=vocabulary,
    )
    TaskRegistry.remove("test_sums")


def test_the_targets_of_a_task_are_its_numbers(task, vocabulary):
    config = DatasetConfig(task.name, {"inputs": 8, "targets": 1}, "validation", 1)
    for example in predictions.examples(task, config):
        assert example["targets"].view(np.float32)[0] == np.float32(example["targets_pretokenized"].decode())


@pytest.mark.slow
def test_numbers_are_learned(task, vocabulary, tmp_path):
    model = _model(vocabulary)
    lengths = {"inputs": 8, "targets": 1}
    metrics = short_training.metrics_of_training(model, task.name, lengths, tmp_path / "run")
    last = {line["dataset"]: line for line in metrics}
    assert last["inference_eval/test_sums"]["eval/pearson_corrcoef"] > 98
    assert last["training_eval/test_sums"]["mean_squared_error"] < 0.05
    record = json.loads((tmp_path / "run" / "checkpoint_100" / "run" / "run.json").read_text())
    assert record["labels"] == ["much"] and record["head"]["class"] == "SequenceClassifier"
    restore = checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "run"), mode="latest")
    answerer = Answerer(model=model, restore_checkpoint_cfg=restore, partitioner=small.partitioner())
    few, many = answerer.answer(["no cats [SEP] some dogs", "many cats [SEP] many dogs"])
    assert float(few.filled) == pytest.approx(0.5, abs=0.5) and float(many.filled) == pytest.approx(3, abs=0.5)
    assert many.score == pytest.approx(float(many.filled), rel=1e-6)
