"""Contrastive training: the loss by hand, on two devices, and a training of both kinds of encoders."""

import csv
import functools
import json

import jax
import numpy as np
import pytest

from limba import models
from limba.addons.examples import python_docs
from limba.data.contract import DatasetConfig
from limba.inference import embedding, text_batches
from limba.network import t5
from limba.network.encoders import encoder, text_encoder
from limba.optimizers import definitions
from limba.training import configured_trainer
from tasks.metrics import text_pair_metrics
from tasks.metrics.text_pair_metrics import TextPair
from tasks.pipeline import converters, predictions
from tasks.registry import MixtureRegistry, TaskRegistry
from tasks.supervised import row_preprocessor, text_pairs
from tasks.vocabularies import ByteVocabulary
from tests.limba import small

SIZES = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 16, "dropout_rate": 0.0}
ENCODER = encoder.EncoderConfig(vocab_size=384, num_layers=1, max_positions=32, **SIZES)
T5 = t5.T5Config(vocab_size=384, num_encoder_layers=1, num_decoder_layers=1, **SIZES)


def _model(config=ENCODER, vocabulary=None, pooling="mean", **options):
    network = text_encoder.TextEncoder(config, pooling, max_length=12)
    return models.ContrastiveModel(network, vocabulary or ByteVocabulary(0), definitions.adamw(), **options)


def _batch(model, rows=6):
    rng = np.random.default_rng(0)
    inputs, targets = (rng.integers(3, 250, (rows, length)).astype(np.int32) for length in (8, 5))
    inputs[1:2, 4:] = targets[0, 2:] = 0
    return converters.CONVERTERS[model.FEATURE_CONVERTER_CLS]({"inputs": inputs, "targets": targets}, False)


@pytest.fixture(scope="module", params=[ENCODER, T5], ids=["encoder", "t5"])
def of_kind(request):
    """A model with random parameters, and the hidden states of its encoder."""
    model = _model(request.param)
    params = small.random_params(model)
    run = jax.jit(lambda tokens: embedding.encode(model, params, {"encoder_input_tokens": tokens}))
    return request.param, params, run


def _by_hand(hidden, batch, pooling):
    """The vectors of both sides, `[batch, embed]`, of length 1."""
    sides = []
    for tokens in (batch["encoder_input_tokens"], batch["decoder_target_tokens"]):
        rows = [x[: max(np.count_nonzero(row), 1)] for x, row in zip(np.asarray(hidden(tokens)), tokens, strict=True)]
        reduce = {"mean": lambda x: x.mean(0), "max": lambda x: x.max(0), "first": lambda x: x[0]}[pooling]
        vectors = np.array([reduce(row) for row in rows], np.float64)
        sides.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return sides


def _cross_entropy(logits, i, others):
    return -logits[i] + np.log(sum(np.exp(logits[j]) for j in others))


@pytest.mark.sample(2)
@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_the_loss_by_hand(of_kind, pooling):
    """Of pairs with equal texts, which are no negatives of each other, and of a row that fills the batch up."""
    config, params, hidden = of_kind
    model = _model(config, pooling=pooling, scale=7.0)
    batch = _batch(model)
    batch["decoder_target_tokens"][4] = batch["decoder_target_tokens"][2]
    batch["encoder_input_tokens"][3] = batch["encoder_input_tokens"][0]
    for name in batch:
        batch[name][5] = 0
    first, second = _by_hand(hidden, batch, pooling)
    cosines = first @ second.T
    others = {0: [0, 1, 2, 4], 1: [0, 1, 2, 3, 4], 2: [0, 1, 2, 3], 3: [1, 2, 3, 4], 4: [0, 1, 3, 4]}
    forward = [_cross_entropy(7 * cosines[i], i, others[i]) for i in range(5)]
    backward = [_cross_entropy(7 * cosines[:, i], i, others[i]) for i in range(5)]
    loss, metrics = small.loss(model, params, batch)
    np.testing.assert_allclose(loss, np.mean(forward), rtol=1e-5)
    nearest = [all(cosines[i, i] > cosines[i, j] for j in others[i] if j != i) for i in range(5)]
    assert metrics["accuracy"].compute() == pytest.approx(np.mean(nearest))
    assert metrics["mean_of_target_tokens"].count == model.microbatch_weight(batch) == 5 and model.loss_is_mean
    both, _ = small.loss(_model(config, pooling=pooling, scale=7.0, symmetric=True), params, batch)
    np.testing.assert_allclose(both, (np.mean(forward) + np.mean(backward)) / 2, rtol=1e-5)
    assert abs(both - loss) > 1e-4
    gradient = jax.jit(jax.grad(lambda x: model.loss_fn(x, batch, None)[0]))(params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    cosine, vectors = jax.jit(model.score_batch)(params, batch)
    np.testing.assert_allclose(cosine[:5], np.diagonal(cosines)[:5], atol=1e-5)
    np.testing.assert_allclose(vectors["second"][:5], second[:5], atol=1e-5)


def test_two_devices_have_the_loss_of_one():
    """The negatives are those of the global batch."""
    model = _model()
    params, batch = small.random_params(model), _batch(model)
    loss = {}
    for devices in (1, 2):
        partitioner = small.partitioner(devices)
        step = partitioner.jit(jax.value_and_grad(lambda p, b: model.loss_fn(p, b, None)[0]))
        placed = partitioner.shard_batch(batch)
        assert len(placed["encoder_input_tokens"].sharding.device_set) == devices
        loss[devices] = step(params, placed)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), loss[1], loss[2])
    parts = ({name: x[rows] for name, x in batch.items()} for rows in (np.s_[:3], np.s_[3:]))
    halves = [small.loss(model, params, part)[0] for part in parts]
    assert abs(np.mean(halves) - loss[1][0]) > 0.1


def test_what_cannot_be():
    model = _model()
    params = small.random_params(model)
    with pytest.raises(ValueError, match="batch of 1 pair has no negatives: set BATCH_SIZE"):
        model.loss_fn(params, _batch(model, 1), None)
    for scale in (0, -1.0, float("inf"), "20"):
        with pytest.raises(ValueError, match=r"ContrastiveModel\.scale is .*above 0"):
            _model(scale=scale)
    with pytest.raises(ValueError, match=r"pooling is 'middle'; it can be mean, max, first"):
        small.random_params(_model(pooling="middle"))
    with pytest.raises(ValueError, match="Pairs of texts are not packed: set PACK = False"):
        converters.CONVERTERS[model.FEATURE_CONVERTER_CLS]({}, True)
    with pytest.raises(ValueError, match="gives vectors of texts and no answers: `limba embed RUN`"):
        text_batches.for_model(model, 4)
    assert text_encoder.configured(lambda: ENCODER) is ENCODER
    with pytest.raises(ValueError, match=r"No gin file has the sizes of an encoder\. .*decoder-only models have no"):
        text_encoder.configured(encoder.EncoderConfig)
    shapes = configured_trainer.batch_shapes(
        DatasetConfig("nobody", {"inputs": 8, "targets": 5}, "train", 6), model.FEATURE_CONVERTER_CLS
    )
    assert shapes == {name: x.shape for name, x in _batch(model).items()}


# ------------------------------------------------------- tasks -------------------------------------------------------


def _write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([header, *rows])
    return str(path)


@pytest.fixture
def names():
    """Of tasks, which are removed."""
    found: list[str] = []
    yield found
    for name in found:
        for registry in (TaskRegistry, MixtureRegistry):
            if name in registry.names():
                registry.remove(name)


def test_pairs_of_a_file(tmp_path, names):
    """Known columns, named ones, and those with scores."""
    names += ["tp_a", "tp_b", "tp_b_scores", "tp_b_and_scores"]
    vocabulary = ByteVocabulary(0)
    file = _write(tmp_path / "a.tsv", ["answer", "id", "query"], [[" Yes. ", "1", "Is it\nso?"]])
    task = text_pairs.register_text_pairs("tp_a", data_files={"train": file}, vocabulary=vocabulary)
    (example,) = predictions.examples(task, DatasetConfig("tp_a", {"inputs": 32, "targets": 4}, "train", 1))
    assert example["inputs"].tolist() == [*vocabulary.encode("Is it\nso?"), 1]
    assert example["targets"].tolist() == [*vocabulary.encode("Yes"), 1]
    assert task.postprocess_fn("", example=example, is_target=True) == TextPair("Is it\nso?", "Yes.")
    assert task.metric_fns == (text_pair_metrics.retrieval,)

    pairs = _write(tmp_path / "b.csv", ["name", "text"], [["a", "b"]])
    scores = _write(tmp_path / "c.csv", ["sentence1", "sentence2", "score"], [["a", "b", "2.5"], ["a", "c", "4"]])
    arguments = {"vocabulary": vocabulary, "files": {"train": pairs}, "columns": ("name", "text"), "scores": scores}
    assert text_pairs.task("tp_b", **arguments) == "tp_b_and_scores" == text_pairs.task("tp_b", **arguments)
    scored = TaskRegistry.get("tp_b_scores")
    examples = predictions.examples(scored, DatasetConfig(scored.name, None, "validation", 1))
    found = [scored.postprocess_fn("", example=x) for x in examples]
    assert found == [TextPair("a", "b", 2.5), TextPair("a", "c", 4.0)]
    assert scored.metric_fns == (text_pair_metrics.cosine_correlations,)


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (["text"], ["a"], r"has the columns 'text', and none of the known .*query and answer.*PAIR_COLUMNS"),
        (["anchor", "positive"], ["a", " "], r"row 0 .* of .*x\.csv: column 'positive' is empty, and a pair has two"),
        (["anchor", "positive", "score"], ["a", "b", "x"], r"row 0 .* of .*x\.csv: column 'score' has 'x' where a num"),
        (["anchor", "positive", "score"], ["a", "b", "nan"], r"column 'score' has 'nan' where a number is needed"),
        (["anchor;positive"], ["a;b"], r"its header 'anchor;positive' is separated by ';'"),
    ],
)
def test_files_that_are_no_pairs(tmp_path, names, header, row, message):
    names.append("tp_bad")
    file = _write(tmp_path / "x.csv", header, [row])
    with pytest.raises(ValueError, match=message):
        task = text_pairs.register_text_pairs("tp_bad", data_files={"validation": file}, vocabulary=ByteVocabulary(0))
        list(predictions.examples(task, DatasetConfig("tp_bad", None, "validation", 1)))


def test_scores_are_evaluated_and_not_trained_on(tmp_path):
    file = _write(tmp_path / "x.csv", ["sentence1", "sentence2", "score"], [["a", "b", "1"]])
    with pytest.raises(ValueError, match=r"trains on pairs with scores .*columns=\('sentence1', 'sentence2'\)"):
        text_pairs.register_text_pairs("tp_bad", data_files={"train": file}, vocabulary=ByteVocabulary(0))
    with pytest.raises(ValueError, match="columns are 'a'; name those of the two texts"):
        text_pairs.find_columns({"train": file}, "a")


def test_the_metrics_by_hand():
    pairs = [TextPair("a", "x"), TextPair("b", "y"), TextPair("b", "z"), TextPair("c", "y")]
    vectors = {"first": [[1, 0], [0, 1], [0, 1], [0, 1]], "second": [[0.6, 0.8], [0.8, 0.6], [0, 1], [0.8, 0.6]]}
    # a: y is nearer. b: x is nearer than y, z is right too. b: z is the nearest. c: z, then x are nearer than y.
    found = text_pair_metrics.retrieval(pairs, ([0] * 4, vectors))
    assert found == {"accuracy_at_1": 25.0, "mrr": pytest.approx(100 * (1 / 3 + 1 / 2 + 1 + 1 / 3) / 4), "num_pairs": 4}
    # A model that gives all texts one vector finds nothing.
    collapsed = {name: np.ones((600, 2)) for name in ("first", "second")}
    many = [TextPair(str(i), f"t{i}") for i in range(600)]
    assert text_pair_metrics.retrieval(many, ([], collapsed))["mrr"] == pytest.approx(100 / 600)
    one_hot = {"first": np.eye(600), "second": np.roll(np.eye(600), 0, 0)}
    assert text_pair_metrics.retrieval(many, ([], one_hot))["accuracy_at_1"] == 100
    scored = [TextPair("a", "b", score) for score in (1.0, 2.0, 4.0)]
    found = text_pair_metrics.cosine_correlations(scored, ([0.1, 0.2, 0.9], {}))
    assert found["spearman_corrcoef"] == pytest.approx(100)
    assert found["pearson_corrcoef"] == pytest.approx(100 * np.corrcoef([1, 2, 4], [0.1, 0.2, 0.9])[0, 1])


def test_pairs_of_the_embedded_corpus(tmp_path):
    """The first two paragraphs of a document, where the second one is long enough."""
    for split in ("train", "validation"):
        texts = ['A, b c.\nOne "two" three four.\nFive.', "Alone", "First.\nToo short"]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{split}-00000-of-00001.jsonl").write_text(lines)
    assert python_docs.write_pairs(tmp_path, tmp_path / "pairs") == {"train": 1, "validation": 1}
    with (tmp_path / "pairs/train.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["anchor", "positive"], ["A, b c.", 'One "two" three four.']]


# ------------------------------------------------------ training -----------------------------------------------------


def test_long_texts_name_the_setting_of_their_length(tmp_path, caplog):
    """The recipe derives TASK_FEATURE_LENGTHS from it; and nothing is generated that an evaluation could cut."""
    (tmp_path / "pairs.csv").write_text("anchor,positive\nshort,a text that is much longer\n")
    task = text_pairs.register_text_pairs(
        "test_long_pairs", data_files={"validation": str(tmp_path / "pairs.csv")}, vocabulary=ByteVocabulary(0)
    )
    try:
        row_preprocessor.check_generated(task, "validation", {"inputs": 8, "targets": 8})
    finally:
        TaskRegistry.remove(task.name)
    assert "1 examples of split 'validation' have targets longer than 8 tokens" in caplog.text
    assert "Raise MAX_LENGTH, or shorten them." in caplog.text and "generated" not in caplog.text
