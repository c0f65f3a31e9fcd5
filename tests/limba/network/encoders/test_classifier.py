"""Classifiers give the logits of Hugging Face's classes, and learn labels from a csv."""

import csv
import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from limba import models
from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig
from limba.inference import task_metrics
from limba.network.encoders import classifier, encoder
from limba.optimizers import definitions, schedules
from limba.train import train
from limba.training import configured_trainer, trainer
from tasks import objectives, pretraining, supervised
from tasks.pipeline import converters, predictions
from tasks.registry import TaskRegistry
from tasks.vocabularies import ByteVocabulary, LabelVocabulary, TokenizerVocabulary
from tests.convert import vocabularies
from tests.limba import small
from tests.limba.network.encoders import encoder_weights
from tests.limba.network.encoders.encoder_weights import Row
from tests.limba.network.encoders.test_variants import EPSILON, VOCAB_SIZE, make_batch, make_their_model

LABELS = ("glad", "calm", "sad")
_OUT = Row("classifier_head/logits", "classifier")
_OF_ROBERTA = (Row("classifier_head/dense", "classifier.dense"), Row("classifier_head/logits", "classifier.out_proj"))
_OF_MODERNBERT = (Row("classifier_head/dense", "head.dense"), Row("classifier_head/layer_norm", "head.norm"), _OUT)
_MODERNBERT = {"activation": "gelu_erf", "use_norm": True, "dense_bias": False}
_BERT, _MODERN = encoder_weights.bert("absolute"), encoder_weights.modernbert(biases=False)

# A class of ours with its fields, one of theirs, what it is a head on, settings of theirs, and the modules of the head.
HEADS = {
    "bert": (
        functools.partial(classifier.SequenceClassifier),
        ("BertForSequenceClassification", _BERT, {}),
        (Row("classifier_head/dense", "bert.pooler.dense"), _OUT),
    ),
    "bert, tokens": (classifier.TokenClassifier, ("BertForTokenClassification", _BERT, {}), (_OUT,)),
    "roberta_prelayernorm": (
        classifier.SequenceClassifier,
        ("RobertaPreLayerNormForSequenceClassification", encoder_weights.ROBERTA_PRELAYERNORM, {}),
        _OF_ROBERTA,
    ),
    "mpnet": (
        classifier.SequenceClassifier,
        ("MPNetForSequenceClassification", encoder_weights.MPNET, {}),
        _OF_ROBERTA,
    ),
    "roformer": (
        functools.partial(classifier.SequenceClassifier, activation="gelu_erf"),
        ("RoFormerForSequenceClassification", encoder_weights.ROFORMER, {}),
        _OF_ROBERTA,
    ),
    "modernbert": (
        functools.partial(classifier.SequenceClassifier, **_MODERNBERT),
        ("ModernBertForSequenceClassification", _MODERN, {"classifier_pooling": "cls"}),
        _OF_MODERNBERT,
    ),
    "modernbert, mean": (
        functools.partial(classifier.SequenceClassifier, pooling="mean", **_MODERNBERT),
        ("ModernBertForSequenceClassification", _MODERN, {"classifier_pooling": "mean"}),
        _OF_MODERNBERT,
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", HEADS)
def test_logits_are_those_of_hugging_face(name):
    import torch

    make, (their_name, of_class, settings), rows = HEADS[name]
    settings = of_class.settings | settings | {"num_labels": 3}
    of_class = dataclasses.replace(
        of_class,
        name=their_name,
        settings=settings,
        rows=(*rows, *of_class.rows),
        unused=f"{of_class.unused}|mpnet.pooler",
    )
    model, tensors = make_their_model(of_class, seed=len(name))
    sizes = {"vocab_size": VOCAB_SIZE, "emb_dim": 24, "num_heads": 3, "head_dim": 8, "mlp_dim": 20, "num_layers": 4}
    config = encoder.EncoderConfig(**(sizes | of_class.fields | {"norm_epsilon": EPSILON}))
    module = make(config, LABELS)
    tokens, types = make_batch(config, seed=len(name))
    shapes = jax.eval_shape(functools.partial(module.init, enable_dropout=False), jax.random.key(0), tokens, types)
    params = encoder_weights.params(of_class, tensors, shapes["params"])
    ours = jax.jit(functools.partial(module.apply, enable_dropout=False))({"params": params}, tokens, types)

    inputs = {"input_ids": tokens, "attention_mask": (tokens != config.pad_id).astype(np.int32)}
    inputs |= {} if types is None else {"token_type_ids": types}
    with torch.no_grad():
        theirs = model(**{key: torch.from_numpy(x.astype(np.int64)) for key, x in inputs.items()}).logits.numpy()
    assert np.abs(theirs).max() > 0.1
    if ours.shape[1] == 1:
        np.testing.assert_allclose(ours[:, 0], theirs, atol=1e-5, rtol=0)
    else:
        real = tokens != config.pad_id
        np.testing.assert_allclose(ours[real], theirs[real], atol=1e-5, rtol=0)


def test_a_pooling_that_is_none_is_refused():
    module = classifier.SequenceClassifier(_config(), LABELS, pooling="last")
    with pytest.raises(ValueError, match="pooling is 'last'; it can be 'first' or 'mean' or 'late'"):
        jax.eval_shape(module.init, jax.random.key(0), np.ones((1, 4), np.int32))


# ------------------------------------------------------ the model ----------------------------------------------------

_WORDS = ["red", "blue", "green", "cat", "dog", "sky", "sea"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return TokenizerVocabulary(
        str(vocabularies.write_words(tmp_path_factory.mktemp("vocab") / "tokenizer.json", _WORDS))
    )


def _config(**fields):
    sizes = {"vocab_size": 128, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 32, "num_layers": 1}
    return encoder.EncoderConfig(**sizes, max_positions=16, dropout_rate=0.0, attention_dropout_rate=0.0, **fields)


def _optimizer():
    return definitions.adamw()


def _model(vocabulary, labels=("no", "yes"), cls=classifier.SequenceClassifier, **fields):
    return models.EncoderClassifier(
        cls(_config(**fields), labels),
        vocabulary,
        LabelVocabulary(labels),
        _optimizer(),
        loss_normalizing_factor="NUM_REAL_TARGET_TOKENS",
    )


def test_second_texts_have_token_type_1(vocabulary):
    model = _model(vocabulary, num_token_types=2)
    tokens = np.array([[2, 5, 8, 3, 6, 3, 0, 0], [2, 5, 8, 3, 0, 0, 0, 0]], np.int32)
    types = [[0, 0, 0, 0, 1, 1, 0, 0], [0] * 8]
    np.testing.assert_array_equal(model._token_types(tokens), types)
    given = 1 - np.array(types)  # Those of the tokenizer count.
    np.testing.assert_array_equal(model._token_types(tokens, given), given)
    assert _model(vocabulary)._token_types(tokens) is None
    params = small.random_params(model)
    logits = model.logits(params, {"encoder_input_tokens": tokens})
    expected = small.call(model.module, params, tokens, np.array(types))
    np.testing.assert_array_equal(logits, expected)
    without = small.call(model.module, params, tokens)
    assert float(np.abs(logits - without)[0].max()) > 1e-3


def test_loss_accuracy_and_predictions_count_labels(vocabulary):
    model = _model(vocabulary, LABELS)
    params = small.random_params(model)
    inputs = np.random.default_rng(0).integers(5, 12, (6, 8)).astype(np.int32)
    targets = np.array([[1], [2], [3], [1], [0], [0]], np.int32)  # the last two have no label
    batch = converters.CONVERTERS[model.FEATURE_CONVERTER_CLS]({"inputs": inputs, "targets": targets}, False)
    config = DatasetConfig("nobody", {"inputs": 8, "targets": 1}, "train", 6)
    shapes = configured_trainer.batch_shapes(config, model.FEATURE_CONVERTER_CLS)
    # The rows of a tokenizer.json come with their token types.
    of_tokenizer = configured_trainer.batch_shapes(config, model.FEATURE_CONVERTER_CLS, has_token_types=True)
    assert of_tokenizer == {**shapes, "encoder_token_types": (6, 8)}
    assert shapes == {name: x.shape for name, x in batch.items()}
    loss, metrics = small.loss(model, params, batch)
    logits = np.asarray(small.call(model.module, params, inputs), np.float64)[:, 0]
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nats = -log_probabilities[np.arange(4), [0, 1, 2, 0]]
    np.testing.assert_allclose(loss, nats.mean(), rtol=1e-5)
    assert metrics["accuracy"].compute() == (logits[:4].argmax(-1) == [0, 1, 2, 0]).mean()
    labels, aux = small.predictions(model, params, batch)
    np.testing.assert_array_equal(labels[:, 0], logits.argmax(-1) + 1)
    np.testing.assert_allclose(aux["probabilities"][:, 0], np.exp(log_probabilities), rtol=1e-5)
    assert model.output_vocabulary.decode(labels[0].tolist()) == LABELS[logits[0].argmax()]
    with pytest.raises(ValueError, match="decodes nothing: leave out num_decodes"):
        model.predict_batch(params, batch, num_decodes=2)
    with pytest.raises(ValueError, match="are not packed: set PACK = False"):
        converters.CONVERTERS[model.FEATURE_CONVERTER_CLS]({"inputs": inputs, "targets": targets}, True)


def test_tokens_have_labels_and_padding_none(vocabulary):
    model = _model(vocabulary, LABELS, classifier.TokenClassifier)
    params = small.random_params(model)
    inputs = np.array([[2, 5, 6, 7, 3, 0, 0]], np.int32)
    labels = jax.jit(model.predict_batch)(params, {"encoder_input_tokens": inputs})
    assert labels.shape == (1, 7) and (np.asarray(labels[0, :5]) > 0).all() and not np.asarray(labels[0, 5:]).any()


def test_other_numbers_of_labels_are_refused(vocabulary):
    with pytest.raises(ValueError, match="The network has 3 labels and LabelVocabulary 2: bind both with LABELS"):
        models.EncoderClassifier(
            classifier.SequenceClassifier(_config(), LABELS), vocabulary, LabelVocabulary(["a", "b"]), _optimizer()
        )
    for wrong in ("one", ["one"], ["a", "a"], ["a", 1]):
        with pytest.raises(ValueError, match="give at least two different texts"):
            LabelVocabulary(wrong)


# ------------------------------------------------------- a task ------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts to pre-train on, and pairs of a colour and an animal: is it a cat, and not blue?"""
    made = tmp_path_factory.mktemp("pairs")
    rng = np.random.default_rng(0)
    for split, count in (("train", 600), ("validation", 100)):
        with (made / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["colour", "animal", "match"])
            for _ in range(count):
                colour, animal = rng.choice(["red", "blue", "green"]), rng.choice(["cat", "dog"])
                match = colour != "blue" and animal == "cat"
                writer.writerow([colour, animal, "yes" if match else "no"])
        text = "".join(json.dumps({"text": " ".join(rng.choice(_WORDS, 40))}) + "\n" for _ in range(count))
        (made / f"{split}.jsonl").write_text(text)
    return made


@pytest.fixture(scope="module")
def task(folder, vocabulary):
    task = supervised.register_supervised_task(
        "test_pairs",
        supervised.SupervisedDataset("{colour} [SEP] {animal}", "match", labels=["no", "yes"]),
        data_files={split: str(folder / f"{split}.csv") for split in ("train", "validation")},
        vocabulary=vocabulary,
    )
    yield task
    TaskRegistry.remove(task.name)


def test_an_encoder_s_task_has_separators_and_numbers(task, vocabulary):
    assert "test_pairs_rank" not in TaskRegistry.names()
    lengths = {"inputs": 6, "targets": 1}
    first = next(predictions.examples(task, DatasetConfig(task.name, lengths, "validation", 1)))
    colour, animal = (vocabulary.encode(word)[0] for word in first["inputs_pretokenized"].decode().split(" [SEP] "))
    assert list(first["inputs"]) == [2, colour, 3, animal, 3]
    assert list(first["targets"]) == [1 + (first["targets_pretokenized"] == b"yes")]
    with pytest.raises(ValueError, match=r"Task 'free' has no fixed set of labels"):
        supervised.register_supervised_task(
            "free", supervised.SupervisedDataset("{a}", "b"), data_files={"train": "x.csv"}, vocabulary=vocabulary
        )
    mrpc = supervised.register_supervised_task("glue_mrpc", vocabulary=vocabulary)
    try:
        (example,) = mrpc.preprocessors[0].format({"sentence1": "a", "sentence2": "b", "label": 1})
        assert (example.inputs, example.targets) == ("a [SEP] b", "equivalent")
        assert mrpc.output_features["targets"].vocabulary == LabelVocabulary(["not_equivalent", "equivalent"])
    finally:
        TaskRegistry.remove("glue_mrpc")


def _train(model, task, lengths, model_dir, steps, restore=None, evaluates=False):
    def config(split):
        return DatasetConfig(task, lengths, split, 32, seed=0)

    train(
        model=model,
        train_dataset_cfg=config("train"),
        train_eval_dataset_cfg=config("validation"),
        infer_eval_dataset_cfg=config("validation") if evaluates else None,
        inference_evaluator_cls=task_metrics.Evaluator,
        checkpoint_cfg=checkpointing.CheckpointConfig(
            save=checkpointing.SaveCheckpointConfig(period=1000), restore=restore
        ),
        partitioner=small.partitioner(),
        trainer_cls=lambda **arguments: trainer.Trainer(
            learning_rate_fn=schedules.create_learning_rate_scheduler("constant", 0.003), **arguments
        ),
        model_dir=str(model_dir),
        total_steps=steps,
        eval_period=steps,
        random_seed=0,
    )


@pytest.mark.slow
def test_a_pre_trained_encoder_learns_labels(folder, task, vocabulary, tmp_path):
    fields = {"num_token_types": 2, "norm_position": "pre"}
    pretraining_task = pretraining.register_pretraining_task(
        "test_pairs_text",
        data_files={split: str(folder / f"{split}.jsonl") for split in ("train", "validation")},
        vocabulary=vocabulary,
        objective=objectives.MaskedLM(),
    )
    lengths = objectives.lengths(objectives.MaskedLM(), 16)
    masked = models.EncoderOnlyModel(
        encoder.MaskedLanguageModel(_config(**fields)),
        vocabulary,
        _optimizer(),
        loss_normalizing_factor="NUM_REAL_TARGET_TOKENS",
    )
    try:
        _train(masked, pretraining_task.name, lengths, tmp_path / "text", 5)
    finally:
        TaskRegistry.remove(pretraining_task.name)
    restore = checkpointing.RestoreCheckpointConfig(
        path=str(tmp_path / "text"), strict=False, initialize=[".*classifier_head.*"], reset=["step", "optimizer"]
    )
    model = _model(vocabulary, **fields)
    _train(model, task.name, {"inputs": 6, "targets": 1}, tmp_path / "pairs", 150, restore, evaluates=True)
    metrics = [json.loads(x) for x in (tmp_path / "pairs" / "metrics.jsonl").read_text().splitlines()]
    (evaluated,) = (x for x in metrics if x["dataset"] == "inference_eval/test_pairs")
    # Neither colour nor animal tells alone; two of three pairs are none.
    assert evaluated["eval/majority_accuracy"] < 75 and evaluated["eval/accuracy"] == 100
    assert evaluated["eval/yes_precision"] == evaluated["eval/no_recall"] == evaluated["eval/macro_f1"] == 100
    record = json.loads((tmp_path / "pairs" / "checkpoint_150" / "run" / "run.json").read_text())
    assert record["labels"] == ["no", "yes"] and record["vocabulary"]["class"] == "TokenizerVocabulary"
    kept = tmp_path / "pairs" / "checkpoint_150" / "run" / "tokenizer.json"
    assert TokenizerVocabulary(str(kept)).digest == vocabulary.digest


def test_bytes_have_no_labels_of_their_own():
    """A T5's vocabulary keeps tasks of text to text."""
    task = supervised.register_supervised_task(
        "test_texts",
        supervised.SupervisedDataset("{a}", "b", labels=["no", "yes"]),
        data_files={"train": "x.csv", "validation": "y.csv"},
        vocabulary=ByteVocabulary(100),
    )
    assert task.output_features["targets"].vocabulary == ByteVocabulary(100)
    TaskRegistry.remove("test_texts")
    TaskRegistry.remove("test_texts_rank")
