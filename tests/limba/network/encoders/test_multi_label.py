"""Encoders give several labels, or several numbers, of a row: their ids, losses, tasks, metrics and answers."""

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
from tasks import preview, supervised
from tasks.metrics import text_metrics
from tasks.pipeline import converters, predictions
from tasks.registry import TaskRegistry
from tasks.supervised.several_answers import MultiLabel, Numbers
from tasks.vocabularies import MultiLabelVocabulary, NumberVocabulary, TokenizerVocabulary
from tests.convert import vocabularies
from tests.limba import small
from tests.limba.network.encoders import short_training

_LABELS = ["cats", "two dogs", "birds"]
_WORDS = ["cats", "dogs", "birds", "and", "no"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return TokenizerVocabulary(
        str(vocabularies.write_words(tmp_path_factory.mktemp("vocab") / "tokenizer.json", _WORDS))
    )


def _model(vocabulary, kind, labels, **head):
    sizes = {"vocab_size": 128, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 32, "num_layers": 1}
    config = encoder.EncoderConfig(**sizes, max_positions=32, norm_position="pre", dropout_rate=0.0)
    return kind(
        classifier.SequenceClassifier(config, labels.labels, **head),
        vocabulary,
        labels,
        definitions.adamw(),
        loss_normalizing_factor="NUM_REAL_TARGET_TOKENS",
    )


def _batch(model, texts, length=8):
    inputs = np.random.default_rng(0).integers(5, 10, (len(texts), length)).astype(np.int32)
    targets = np.array([model.output_vocabulary.encode(text) for text in texts], np.int32)
    return converters.CONVERTERS[model.FEATURE_CONVERTER_CLS]({"inputs": inputs, "targets": targets}, False)


def test_ids_say_of_each_label_whether_it_is_right():
    vocabulary = MultiLabelVocabulary(_LABELS)
    assert vocabulary.encode("birds\tcats") == [2, 1, 2] and vocabulary.decode([2, 1, 2]) == "cats\tbirds"
    assert vocabulary.encode("") == [1, 1, 1] and vocabulary.decode([1, 1, 1]) == ""
    assert vocabulary.encode("<unk>") == vocabulary.encode("cats\tmice") == [0, 0, 0]
    assert MultiLabelVocabulary(["toxic"]).encode("toxic") == [2]
    numbers = NumberVocabulary(["a", "b"])
    assert numbers.decode(numbers.encode("0.5 0")) == "0.5 0.0"
    assert numbers.encode("1") == numbers.encode("1 x") == [0, 0] and numbers.encode("nan 1")[0] == 0
    for wrong in ("cats", [], ["a", "a"], [1]):
        with pytest.raises(ValueError, match="give different texts"):
            MultiLabelVocabulary(wrong)


def test_the_loss_of_labels_is_that_of_pytorch(vocabulary):
    import torch

    model = _model(vocabulary, models.EncoderMultiLabelClassifier, MultiLabelVocabulary(_LABELS))
    params = small.random_params(model)
    batch = _batch(model, ["cats\tbirds", "", "two dogs", "unknown"])
    loss, metrics = small.loss(model, params, batch)
    logits = np.asarray(small.call(model.module, params, batch["encoder_input_tokens"]))
    logits, right = logits[:, 0], np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
    expected = torch.nn.BCEWithLogitsLoss()(torch.tensor(logits[:3]), torch.tensor(right, dtype=torch.float32))
    np.testing.assert_allclose(loss, float(expected), rtol=1e-5)
    np.testing.assert_allclose(metrics["nats_per_target_token"].compute(), float(expected), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"].compute(), np.mean((logits[:3] > 0) == right), rtol=1e-6)

    ids, aux = small.predictions(model, params, batch)
    np.testing.assert_array_equal(ids, (logits > 0) + 1)
    np.testing.assert_allclose(aux["probabilities"][..., 1], 1 / (1 + np.exp(-logits)), rtol=1e-5)
    short = {name: x[:, :1] if name.startswith("decoder") else x for name, x in batch.items()}
    with pytest.raises(ValueError, match="have 1 targets, and there are 3 labels: set 'targets': 3 in TASK_FEAT"):
        model.loss_fn(params, short, None)


def test_the_loss_of_numbers_is_their_mean_squared_error(vocabulary):
    model = _model(vocabulary, models.EncoderRegressor, NumberVocabulary(["joy", "fear"]))
    params = small.random_params(model)
    batch = _batch(model, ["0 2.5", "-1 0.5", "none"])
    loss, metrics = small.loss(model, params, batch)
    logits = np.asarray(small.call(model.module, params, batch["encoder_input_tokens"]))
    expected = np.mean(np.square(logits[:2, 0] - [[0, 2.5], [-1, 0.5]]))
    np.testing.assert_allclose([loss, metrics["mean_squared_error"].compute()], expected, rtol=1e-5)
    ids, _ = small.predictions(model, params, batch)
    np.testing.assert_array_equal(np.asarray(ids).view(np.float32), logits[:, 0])
    with pytest.raises(ValueError, match="set 'targets': 2"):
        model.loss_fn(params, {n: x[:, :1] if n.startswith("decoder") else x for n, x in batch.items()}, None)


def test_rows_have_a_column_for_each_label_or_a_list():
    columns = MultiLabel("{text}", _LABELS)
    assert columns.columns == ("text", *_LABELS) and not columns.nested_columns
    row = {"text": "x", "cats": "1", "two dogs": 0, "birds": True}
    assert [x.targets for x in columns(row)] == ["cats\tbirds"]
    assert columns(row | {"birds": "<unk>"})[0].targets == "<unk>"
    with pytest.raises(ValueError, match="column 'birds' has 2; it needs 1 where"):
        columns(row | {"birds": 2})
    listed = MultiLabel("{text}", _LABELS, "animals")
    assert listed.columns == ("text",) and listed.nested_columns == ("animals",)
    lists = {"[2, 1]": "two dogs\tbirds", '["birds", "cats"]': "cats\tbirds", "[]": "", "cats": "cats"}
    for value, targets in (*lists.items(), (["birds"], "birds")):
        assert listed({"text": "x", "animals": value})[0].targets == targets
    with pytest.raises(ValueError, match="has the label 'mice'; the known labels are 'cats', "):
        listed({"text": "x", "animals": ["mice"]})
    assert listed.prediction("cats\tbirds") == [1, 0, 1] and listed.prediction("") == [0, 0, 0]

    numbers = Numbers("{a} [SEP] {b}", ["joy", "fear"], "scores")
    (example,) = numbers({"a": "x", "b": "y", "scores": "[0.5, 2]"})
    assert (example.inputs, example.targets) == ("x [SEP] y", "0.5 2.0")
    with pytest.raises(ValueError, match="and needs 2 numbers"):
        numbers({"a": "x", "b": "y", "scores": [1]})
    assert numbers.prediction("0.5 2") == [0.5, 2.0] and numbers.prediction("0.5") == [-1.0, -1.0]


def test_metrics_by_hand():
    measure = text_metrics.multi_label_scores(["a", "b", "c"])
    found = measure([[1, 0, 0], [1, 1, 0], [0, 1, 0]], [[1, 0, 0], [1, 0, 0], [0, 1, 1]])
    assert found["exact_match"] == pytest.approx(100 / 3)
    assert (found["a_f1"], found["b_recall"], found["c_precision"]) == pytest.approx((100, 50, 0))
    assert found["micro_precision"] == found["micro_recall"] == found["micro_f1"] == pytest.approx(75)
    assert found["macro_f1"] == pytest.approx((100 + 200 / 3 + 0) / 3)
    of_numbers = text_metrics.correlations(["x", "y z"])([[1, 3], [2, 2], [4, 1]], [[1, 1], [2, 3], [3, 2]])
    assert of_numbers["x_spearman_corrcoef"] == pytest.approx(100)
    assert of_numbers["y_z_spearman_corrcoef"] == pytest.approx(-50)
    assert of_numbers["spearman_corrcoef"] == pytest.approx(25)
    assert of_numbers["x_pearson_corrcoef"] == pytest.approx(100 * np.corrcoef([1, 2, 4], [1, 2, 3])[0, 1])


@pytest.fixture
def task(tmp_path, vocabulary):
    """Which animals a text names."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 300), ("validation", 60)):
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", *_LABELS])
            for _ in range(count):
                there = rng.integers(0, 2, 3)
                words = [word for word, is_there in zip(_WORDS, there, strict=False) if is_there]
                writer.writerow([" and ".join(words) or "no", *there])
    yield supervised.register_supervised_task(
        "test_animals",
        supervised.SupervisedDataset(MultiLabel("{text}", _LABELS)),
        data_files={split: str(tmp_path / f"{split}.csv") for split in ("train", "validation")},
        vocabulary=vocabulary,
    )
    TaskRegistry.remove("test_animals")


def test_a_task_has_a_target_for_each_label(task, vocabulary):
    assert preview.feature_lengths(task, 8, None)["targets"] == 3
    config = DatasetConfig(task.name, {"inputs": 8, "targets": 3}, "validation", 1)
    for example in predictions.examples(task, config):
        text = example["inputs_pretokenized"].decode()
        assert [word in text for word in _WORDS[:3]] == [x == 2 for x in example["targets"]]


@pytest.mark.slow
def test_several_labels_are_learned(task, vocabulary, tmp_path):
    head = {"activation": None, "pooling": "mean"}
    model = _model(vocabulary, models.EncoderMultiLabelClassifier, MultiLabelVocabulary(_LABELS), **head)
    lengths = {"inputs": 8, "targets": 3}
    metrics = short_training.metrics_of_training(model, task.name, lengths, tmp_path / "run")
    last = {line["dataset"]: line for line in metrics}["inference_eval/test_animals"]
    assert last["eval/exact_match"] > 95 and last["eval/micro_f1"] > 98 and last["eval/two_dogs_f1"] > 98
    record = json.loads((tmp_path / "run" / "checkpoint_100" / "run" / "run.json").read_text())
    assert record["labels"] == _LABELS and record["head"]["problem_type"] == "multi_label_classification"
    restore = checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "run"), mode="latest")
    answerer = Answerer(model=model, restore_checkpoint_cfg=restore, partitioner=small.partitioner())
    assert [x.filled for x in answerer.answer(["cats and birds", "no"])] == ["cats\tbirds", ""]
