"""A student and its teacher: the loss by hand, the teacher's tokens by another way, layers, and a run by gin."""

import dataclasses
import json

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from convert.compare import forward
from convert.model_files import any_format
from limba import train
from limba.addons.distill import distilled_model, student, teacher
from limba.addons.distill.distilled_model import LOG_PROBS, TEMPERATURE, TOKENS, WEIGHTS
from limba.checkpoint_files import saved_tensors
from limba.data.contract import TaskBatches, encoder_decoder_features
from tasks.vocabularies import ByteVocabulary, SentencePieceVocabulary
from tests.convert import conftest
from tests.convert.conftest import UNTIED
from tests.limba import small
from tests.test_finetuning import tasks  # noqa: F401

TOP_K = 4


def _features(rows=2, vocab=60):
    rng = np.random.default_rng(3)
    inputs, targets = (rng.integers(2, vocab, (rows, length)).astype(np.int32) for length in (9, 6))
    targets[1, 4:] = 0
    return encoder_decoder_features(inputs, targets)


class _Stream:
    """A stream of numbered batches with a position."""

    task_groups = {"a": [0]}

    def __init__(self):
        self.number = 0

    def __next__(self):
        self.number += 1
        return _features() | {"number": np.int32(self.number)}

    def __iter__(self):
        return self

    def save_state(self):
        return {"reader": str(self.number).encode()}

    def restore_state(self, state):
        self.number = int(state["reader"])

    def epochs(self):
        return {"a": 0.5}


def _taught(path, vocabulary, stream=None, devices=1, **settings):
    return teacher.add_teacher(
        stream or _Stream(),
        partitioner=small.partitioner(devices),
        checkpoint_cfg=None,
        teacher=str(path),
        vocabulary=vocabulary,
        **({"top_k": TOP_K} | settings),
    )


# --------------------------------------------------- the loss -------------------------------------------------------


def _teacher_batch(rows=3, vocab=small.VOCAB_SIZE, temperature=1.0, k=TOP_K):
    """A batch, and the log probabilities of a made-up teacher over all tokens."""
    batch = small.batch(0, rows=rows)
    logits = np.random.default_rng(5).normal(0, 2, (*batch["decoder_target_tokens"].shape, vocab)) / temperature
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    tokens = np.argsort(-log_p, axis=-1)[..., :k].astype(np.int32)
    values = np.take_along_axis(log_p, tokens, -1).astype(np.float32)
    given = {TOKENS: tokens, LOG_PROBS: values, TEMPERATURE: np.full(rows, temperature, np.float32)}
    weights = np.random.default_rng(8).integers(0, 2, tokens.shape[:2]).astype(np.float32)
    return batch | given | {WEIGHTS: weights}, log_p


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_part_of_the_teacher_by_hand(temperature):
    batch, log_p = _teacher_batch(temperature=temperature)
    logits = np.random.default_rng(6).normal(0, 2, log_p.shape)
    found = distilled_model.teacher_losses(jnp.float32(logits), batch[TOKENS], batch[LOG_PROBS], batch[TEMPERATURE])
    q = np.exp(logits / temperature)
    q /= q.sum(-1, keepdims=True)
    expected = np.zeros(log_p.shape[:-1])
    for place in np.ndindex(*expected.shape):
        kept = list(batch[TOKENS][place])
        p_kept, q_kept = np.exp(log_p[place][kept]), q[place][kept]
        expected[place] = -(p_kept * np.log(q_kept)).sum() - (1 - p_kept.sum()) * np.log(1 - q_kept.sum())
    assert np.abs(np.asarray(found) / temperature**2 - expected).max() < 1e-5
    # With all tokens it is the cross entropy of two distributions, and least where both are one.
    full, _ = _teacher_batch(temperature=temperature, k=small.VOCAB_SIZE)
    loss = lambda x: jnp.sum(distilled_model.teacher_losses(x, full[TOKENS], full[LOG_PROBS], full[TEMPERATURE]))  # noqa: E731
    expected = -(np.exp(log_p) * np.log(q)).sum() * temperature**2
    assert float(loss(jnp.float32(logits))) == pytest.approx(expected, rel=1e-5)
    assert np.abs(jax.grad(loss)(jnp.float32(log_p * temperature))).max() < 1e-5 * temperature


def test_the_share_weighs_both_parts_and_an_evaluation_has_the_targets_alone():
    plain = small.model(**small.TINY)
    params, (batch, _) = small.random_params(plain), _teacher_batch()
    rng = jax.random.key(0)

    @jax.jit
    def losses(params):
        taught = [distilled_model.DistilledModel(plain, share, top_k=TOP_K) for share in (0.0, 0.25, 1.0)]
        return (
            [model.loss_fn(params, batch, rng) for model in taught],
            plain.loss_fn(params, batch, rng),
            plain.logits(params, batch),
        )

    ((none, _), (quarter, metrics), (all_, _)), (expected, plain_metrics), logits = losses(params)
    by_position = distilled_model.teacher_losses(logits, batch[TOKENS], batch[LOG_PROBS], batch[TEMPERATURE])
    weights = batch["decoder_loss_weights"] * batch[WEIGHTS]
    of_teacher = float(np.sum(np.asarray(by_position) * weights))
    assert float(none) == pytest.approx(float(expected), rel=1e-6)
    assert float(all_) == pytest.approx(of_teacher, rel=1e-5)
    assert float(quarter) == pytest.approx(0.75 * float(expected) + 0.25 * of_teacher, rel=1e-5)
    assert metrics["teacher/nats"].compute() == pytest.approx(of_teacher / weights.sum(), rel=1e-5)
    share = weights.sum() / batch["decoder_loss_weights"].sum()
    assert 0.2 < share < 0.8 and metrics["teacher/answered"].compute() == pytest.approx(share, rel=1e-6)
    name = "cross_ent_loss"
    assert float(metrics[name].total) == float(plain_metrics[name].total)
    distilled = distilled_model.DistilledModel(plain, 0.5, top_k=TOP_K)
    unseen = {name: x for name, x in batch.items() if not name.startswith("teacher")}
    assert float(small.loss(distilled, params, unseen)[0]) == float(small.loss(plain, params, unseen)[0])
    with pytest.raises(ValueError, match=r"bind train\.prepare_train_iter_fn to @teacher\.add_teacher"):
        distilled.loss_fn(params, unseen, rng)
    with pytest.raises(ValueError, match=r"DistilledModel\.top_k is 5, and the batches have 4 of the teacher's tokens"):
        distilled_model.DistilledModel(plain, 0.5, top_k=5).loss_fn(params, batch, rng)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"share": 1.5}, "DistilledModel.share is 1.5; it is a share of the loss, from 0 to 1"),
        ({"share": float("nan")}, "DistilledModel.share is nan"),
        ({"top_k": 0}, "DistilledModel.top_k is 0"),
    ],
)
def test_numbers_that_cannot_be(settings, words):
    with pytest.raises(ValueError) as raised:
        distilled_model.DistilledModel(small.tiny_model(), **settings)
    assert str(raised.value).startswith(words)


# --------------------------------------------------- the teacher ----------------------------------------------------


def test_the_likeliest_tokens_of_a_run_and_of_its_hugging_face_folder(all_exported, spiece_model):
    made = all_exported["t5_1_1-t5"]
    vocabulary = SentencePieceVocabulary(str(spiece_model), 100)
    model = any_format.open_model(made.run)
    features = {name: x for name, x in _features().items() if name.endswith("tokens")}
    logits = forward.logits(model.config, model.tensors, features) / 2
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for path, devices in ((made.run, 1), (made.folder, 2)):
        batch = next(_taught(path, vocabulary, devices=devices, temperature=2.0))
        assert batch[TOKENS].shape == batch[LOG_PROBS].shape == (2, 6, TOP_K)
        assert batch[TEMPERATURE].tolist() == [2.0, 2.0] and batch[WEIGHTS].tolist() == [[1.0] * 6] * 2
        assert batch[TOKENS].tolist() == np.argsort(-log_probs, axis=-1, kind="stable")[..., :TOP_K].tolist()
        expected = np.take_along_axis(log_probs, batch[TOKENS], -1)
        assert np.abs(batch[LOG_PROBS] - expected).max() < 1e-5
    # Of an embedding with more rows than tokens, the others do not count: a student's may not have them.
    fewer = SentencePieceVocabulary(str(spiece_model), 0)
    found = teacher.Likeliest(model, fewer, TOP_K, 2.0, "float32", jax.devices()[:1])(_features())
    log_probs -= np.log(np.exp(log_probs[..., : fewer.vocab_size]).sum(-1, keepdims=True))
    expected = -np.sort(-log_probs[..., : fewer.vocab_size], axis=-1)[..., :TOP_K]
    assert np.abs(found[LOG_PROBS] - expected).max() < 1e-5 and found[TOKENS].max() < fewer.vocab_size == 412


def test_the_position_is_that_of_the_stream_below(all_exported, spiece_model):
    batches = _taught(all_exported["t5_1_1-t5"].run, SentencePieceVocabulary(str(spiece_model), 100))
    assert isinstance(batches, TaskBatches) and batches.task_groups == {"a": [0]} and batches.epochs() == {"a": 0.5}
    assert [int(next(batches)["number"]) for _ in range(2)] == [1, 2]
    state = batches.save_state()
    assert int(next(batches)["number"]) == 3
    batches.restore_state(state)
    assert int(next(batches)["number"]) == 3
    assert batches.number == 3 and not hasattr(batches, "documents")


def test_what_cannot_be_a_teacher(all_exported, spiece_model, tmp_path, monkeypatch):
    run, vocabulary = all_exported["t5_1_1-t5"].run, SentencePieceVocabulary(str(spiece_model), 100)
    with pytest.raises(ValueError, match="has another vocabulary than the student"):
        _taught(run, ByteVocabulary())
    packed = _Stream()
    packed.is_packed = True
    with pytest.raises(ValueError, match=r"these are packed: set DatasetConfig\.pack = False"):
        _taught(run, ByteVocabulary(), packed, aligns_texts=True)
    with pytest.raises(ValueError, match=r"add_teacher\.top_k .* is 100000; teacher and student have \d+ tokens"):
        _taught(run, vocabulary, top_k=100_000)
    with pytest.raises(ValueError, match=r"add_teacher\.dtype is 'int8'; it is one of float32, bfloat16"):
        _taught(run, vocabulary, dtype="int8")
    with pytest.raises(ValueError, match=r"train\.get_dataset_fn is another function"):
        _taught(run, vocabulary, iter([1]))
    with pytest.raises(FileNotFoundError, match="nothing"):
        _taught(tmp_path / "nothing", vocabulary)
    unknown = dataclasses.replace(any_format.open_model(run), vocabulary=None)
    monkeypatch.setattr(teacher, "open_teacher", lambda path: unknown)
    with pytest.raises(FileNotFoundError, match=r"does not say its vocabulary\. .* convert from-t5x .* --vocab FILE"):
        _taught(run, vocabulary)


# -------------------------------------------------- layers, a run ---------------------------------------------------


def test_which_layers_a_student_takes():
    assert [student.layers(n, 12) for n in (1, 2, 4, 12)] == [[0], [0, 11], [0, 4, 7, 11], list(range(12))]


def _model_like(run, **fields):
    config = {"vocab_size": 0, **vars(any_format.open_model(run).config)} | fields
    model = small.model(module=None, **config)
    model._output_vocabulary = ByteVocabulary(conftest.ByteVocabulary.extra_ids)
    return model


def test_a_student_begins_with_layers_of_its_teacher(new_run, tmp_path):
    run = new_run(tmp_path / "run", vocab_file=None, **UNTIED, num_decoder_layers=3) / "checkpoint_10"
    model = _model_like(run, num_encoder_layers=2, num_decoder_layers=1)
    begin = student.FromTeacher(teacher=str(run))
    begin.check(model)
    given = {name: np.asarray(x) for name, x in saved_tensors.open_tensors(run).items()}
    params = traverse_util.flatten_dict(begin(small.random_params(model), model=model, dataset=None), sep="/")
    for name, value in params.items():
        source = name.replace("encoder/layers_1/", "encoder/layers_2/")
        assert np.array_equal(value, given[f"target/{source}"]), name
    with pytest.raises(ValueError, match=r"num_decoder_layers is 4, and the decoder of the teacher .* has 3 layers"):
        begin.check(_model_like(run, num_decoder_layers=4))
    model._output_vocabulary = ByteVocabulary()
    with pytest.raises(ValueError, match=r"has its teacher's vocabulary, and .*checkpoint_10 has another one"):
        begin.check(model)
    with pytest.raises(ValueError, match=r"the same widths: .* in the student and \[\d+, \d+\] in .*Change T5Config"):
        begin.check(_model_like(run, mlp_dim=20))


RECIPE = """
from __gin__ import dynamic_registration
from limba import train as train_script
from limba.addons.distill import student
from limba.network import t5 as network

include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/pretrain.gin'
include 'gin/runs/distill.gin'
include 'tests/small_training.gin'
MIXTURE_OR_TASK_NAME = 'finetuning_a'
EVAL_PERIOD = 4
TRAIN_STEPS = 4
train_script.train.stats_period = 1
train_script.train.run_eval_before_training = False
train_script.train.baselines = None
train_script.train.initial_values_fn = @student.FromTeacher()
student.FromTeacher.teacher = %TEACHER
"""


@pytest.mark.usefixtures("one_device")
def test_a_run_with_a_teacher(tmp_path, new_run, tasks, monkeypatch):  # noqa: F811
    gin.clear_config()
    monkeypatch.setattr(conftest.ByteVocabulary, "extra_ids", 0)  # as of the task
    fields = {"emb_dim": 64, "num_heads": 2, "head_dim": 64, "mlp_dim": 128}
    one_layer = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    large = new_run(tmp_path / "large", vocab_file=None, vocab_size=384, **fields, **UNTIED, **one_layer)
    (tmp_path / "my.gin").write_text(RECIPE + "".join(f"network.T5Config.{k} = {v}\n" for k, v in fields.items()))
    run = tmp_path / "run"
    kept = tmp_path / "kept"
    bindings = {"TEACHER": f"'{large}'", "MODEL_DIR": f"'{run}'", "DROPOUT_RATE": "0.0", "TEACHER_ANSWERS": f"'{kept}'"}
    assert train.main([f"--gin_file={tmp_path}/my.gin", *(f"--gin.{k}={v}" for k, v in bindings.items())]) == 0
    lines = [x for x in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if x["dataset"] == "train"]
    assert len(lines) == 4 and all(0 < x["teacher/nats"] < 6 for x in lines)
    names = set(saved_tensors.open_tensors(run / "checkpoint_4"))
    assert not any("teacher" in name for name in names) and "target/encoder/layers_0/attention/query/kernel" in names
    assert "DistilledModel" not in (run / "model.gin").read_text()
    assert [x["teacher/answered"] for x in lines] == [1.0] * 4
    assert len(list(kept.glob("*.answers"))) == 1
