"""Classifiers and regressors on the encoder of a T5: its hidden states, and labels that it learns."""

import csv
import functools

import jax
import numpy as np
import pytest

from limba import models
from limba.data.contract import DatasetConfig
from limba.network import t5
from limba.network.encoders import classifier
from tasks import supervised
from tasks.metrics import text_metrics
from tasks.pipeline import converters, predictions
from tasks.registry import TaskRegistry, task_vocabularies
from tasks.supervised import several_answers
from tasks.vocabularies import ByteVocabulary, LabelVocabulary, MultiLabelVocabulary, NumberVocabulary
from tests.limba import small

LABELS = ("no", "yes")
VOCABULARY = ByteVocabulary(0)
SIZES = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64}


def _config(**fields):
    return t5.T5Config(vocab_size=384, num_encoder_layers=2, num_decoder_layers=1, dropout_rate=0.0, **(SIZES | fields))


def _classifier(config, labels=LABELS, **fields):
    return classifier.SequenceClassifier(config, labels, pooling="mean", activation=None, **fields)


@pytest.mark.sample(1)
@pytest.mark.parametrize("fields", [{}, {"scan_layers": True}, {"relative_bias_per_layer": True}], ids=str)
def test_hidden_states_are_those_of_the_t5(fields):
    config = _config(**fields)
    tokens = np.random.default_rng(0).integers(3, 250, (3, 7)).astype(np.int32)
    tokens[1, 4:] = tokens[2, 1:] = 0
    whole = t5.Transformer(config)
    init = functools.partial(whole.init, enable_dropout=False)
    params = jax.jit(init)(jax.random.key(0), tokens, tokens, tokens)["params"]
    encoded = np.asarray(jax.jit(functools.partial(whole.apply, method=whole.encode, enable_dropout=False))(
        {"params": params}, tokens
    ))  # fmt: skip
    kernel, bias = np.random.default_rng(1).normal(size=(32, 2)).astype(np.float32), np.array([0.5, -2], np.float32)
    head = {"logits": {"kernel": kernel, "bias": bias}}
    params = {"token_embedder": params["token_embedder"], "encoder": params["encoder"], "classifier_head": head}

    module = _classifier(config)
    logits = jax.jit(functools.partial(module.apply, enable_dropout=False))({"params": params}, tokens)
    means = np.stack([row[: np.count_nonzero(x)].mean(0) for row, x in zip(encoded, tokens, strict=True)])
    np.testing.assert_allclose(logits[:, 0], means @ kernel + bias, atol=1e-5)
    of_tokens = classifier.TokenClassifier(config, LABELS)
    logits = jax.jit(functools.partial(of_tokens.apply, enable_dropout=False))({"params": params}, tokens)
    np.testing.assert_allclose(logits, encoded @ kernel + bias, atol=1e-5)


def test_a_head_can_have_a_transform_and_a_norm():
    module = _classifier(_config()).clone(activation="gelu", use_norm=True)
    tokens = np.ones((1, 4), np.int32)
    shapes = jax.eval_shape(functools.partial(module.init, enable_dropout=False), jax.random.key(0), tokens)
    head = shapes["params"]["classifier_head"]
    assert {name: sorted(x) for name, x in head.items()} == {
        "dense": ["bias", "kernel"],
        "layer_norm": ["scale"],
        "logits": ["bias", "kernel"],
    }


# ------------------------------------------------------- a task ------------------------------------------------------


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Is there an a?"""
    folder = tmp_path_factory.mktemp("letters")
    rng = np.random.default_rng(0)
    for split, count in (("train", 600), ("validation", 100)):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for _ in range(count):
                text = "".join(rng.choice(list("aabcdefg"), int(rng.integers(1, 5))))
                writer.writerow([text, "yes" if "a" in text else "no"])
    supervised.register_supervised_task(
        "test_letters",
        supervised.SupervisedDataset("letters: {text}", "label", labels=LABELS),
        data_files={split: str(folder / f"{split}.csv") for split in ("train", "validation")},
        vocabulary=VOCABULARY,
    )
    yield TaskRegistry.get("test_letters_label")
    for name in ("test_letters", "test_letters_rank", "test_letters_label"):
        TaskRegistry.remove(name)


def test_the_task_has_t5_s_inputs_and_labels_as_targets(task):
    lengths = {"inputs": 16}
    first, of_text = (
        next(predictions.examples(x, DatasetConfig(x.name, lengths, "validation", 1)))
        for x in (task, TaskRegistry.get("test_letters"))
    )
    np.testing.assert_array_equal(first["inputs"], of_text["inputs"])
    assert first["inputs"][-1] == VOCABULARY.eos_id
    assert list(first["targets"]) == [1 + (first["targets_pretokenized"] == b"yes")]
    assert set(task.splits) == {"train", "validation"}


def test_other_labels_are_named_with_the_binding_that_mends_them(task):
    config = DatasetConfig(task.name, {"inputs": 16, "targets": 1}, "train", 1)
    message = (
        r"makes targets with the labels 'no', 'yes', and the model has the labels 'yes', 'no': bind LABELS = \['no'"
    )
    with pytest.raises(ValueError, match=message):
        task_vocabularies.check_task_vocabularies(config, VOCABULARY, LabelVocabulary(["yes", "no"]))


def test_similarities_have_numbers_as_targets():
    supervised.register_supervised_task("glue_stsb", vocabulary=VOCABULARY)
    task = TaskRegistry.get("glue_stsb_label")
    try:
        assert task.output_features["targets"].vocabulary == NumberVocabulary()
        (example,) = task.preprocessors[0].format({"sentence1": "a", "sentence2": "b", "label": 2.7})
        assert (example.inputs, example.targets) == ("stsb sentence1: a sentence2: b", "2.7")
        assert task.metric_fns == (text_metrics.pearson_corrcoef, text_metrics.spearman_corrcoef)
        assert "glue_stsb_rank" not in TaskRegistry.names()
    finally:
        TaskRegistry.remove("glue_stsb")
        TaskRegistry.remove("glue_stsb_label")


def test_several_labels_of_a_row_are_learned_on_the_encoder_of_a_t5(tmp_path):
    """The task has one target for each label, and the loss is PyTorch's of the mean hidden state."""
    import torch

    (tmp_path / "rows.csv").write_text("text,cats,dogs\nab,1,0\nb,1,1\nabc,0,0\n")
    form = several_answers.MultiLabel("animals: {text}", ["cats", "dogs"])
    task = supervised.register_supervised_task(
        "test_t5_animals",
        supervised.SupervisedDataset(form),
        data_files={"train": str(tmp_path / "rows.csv")},
        vocabulary=VOCABULARY,
    )
    assert "test_t5_animals_label" not in TaskRegistry.names()
    try:
        rows = [*predictions.examples(task, DatasetConfig(task.name, {"inputs": 16, "targets": 2}, "train", 1))]
    finally:
        TaskRegistry.remove(task.name)
    targets = np.stack([row["targets"] for row in rows])
    assert sorted(targets.tolist()) == [[1, 1], [2, 1], [2, 2]]
    inputs = np.stack([np.pad(row["inputs"], (0, 16 - len(row["inputs"]))) for row in rows])
    assert (inputs == VOCABULARY.eos_id).sum() == 3
    labels = MultiLabelVocabulary(["cats", "dogs"])
    factor = "NUM_REAL_TARGET_TOKENS"
    model = models.EncoderMultiLabelClassifier(
        _classifier(_config(), labels.labels), VOCABULARY, labels, None, loss_normalizing_factor=factor
    )
    params = small.random_params(model)
    batch = converters.CONVERTERS[model.FEATURE_CONVERTER_CLS]({"inputs": inputs, "targets": targets}, False)
    loss, _ = small.loss(model, params, batch)
    logits = np.asarray(model.module.apply({"params": params}, inputs, enable_dropout=False))[:, 0]
    expected = torch.nn.BCEWithLogitsLoss()(torch.tensor(logits), torch.tensor(targets - 1.0, dtype=torch.float32))
    np.testing.assert_allclose(loss, float(expected), rtol=1e-5)
