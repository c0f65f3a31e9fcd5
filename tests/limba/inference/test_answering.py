import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.checkpoints import checkpointing, train_state
from limba.inference import answering, blanks, likeliest
from limba.models import decoding
from tasks.vocabularies import SentencePieceVocabulary
from tests.convert import vocabularies
from tests.limba import small


@pytest.mark.parametrize(
    ("text", "prediction", "filled"),
    [
        ("a <extra_id_0> b", "<extra_id_0> x y", "a x y b"),
        ("<extra_id_0> and <extra_id_1>.", "<extra_id_0> this <extra_id_1> that <extra_id_2>", "this and that."),
        ("a <extra_id_0> b <extra_id_1>", "<extra_id_1> z", "a <extra_id_0> b z"),
        ("no blanks", "an answer", "an answer"),
    ],
)
def test_fill_blanks(text, prediction, filled):
    assert blanks.fill_blanks(text, prediction) == filled


def save_model(directory, decode_fn):
    """A random model and its checkpoint: `(model, params, RestoreCheckpointConfig)`."""
    model = small.model(decode_fn=decode_fn, emb_dim=32, num_encoder_layers=1, num_decoder_layers=1)
    params = small.random_params(model)
    state = train_state.TrainState(step=jnp.int32(0), params=params, opt_state={})
    checkpointer = checkpointing.Checkpointer(directory, checkpointing.SaveCheckpointConfig())
    checkpointer.save(state, None, {})
    checkpointer.close()
    return model, params, checkpointing.RestoreCheckpointConfig(path=str(directory), mode="latest")


def test_an_answer_that_fills_no_blank_is_shown():
    """Underscores of a text are blanks for a model that answers with a label."""
    assert blanks.fill_blanks("a <extra_id_0> 类别:", "体育") == "体育"
    assert blanks.fill_blanks("a <extra_id_0> b", "<extra_id_3> c") == "<extra_id_3> c"
    assert blanks.fill_blanks("a <extra_id_0> b", "<extra_id_0> c") == "a c b"
    assert likeliest.fills([("体育", -1.0), ("<extra_id_0> c", -2.0)]) == [("c", pytest.approx(math.exp(-2)))]


@pytest.fixture(scope="module")
def greedy(tmp_path_factory):
    decode_fn = functools.partial(decoding.temperature_sample, rescale_log_probs=False)
    return save_model(tmp_path_factory.mktemp("run"), decode_fn)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_answers_are_those_of_predict_batch(greedy, num_devices):
    model, params, restore = greedy
    lines = ["5 6 7", "8 9 10 11 12", "200"]
    answerer = answering.Answerer(
        model=model,
        restore_checkpoint_cfg=restore,
        partitioner=small.partitioner(num_devices),
        max_decode_length=5,
        batch_size=2,
    )
    results = list(answerer.answer(lines))
    predict = jax.jit(model.predict_batch_with_aux)
    assert [r.input for r in results] == lines
    for result, line in zip(results, lines, strict=True):
        tokens = np.zeros((1, 32), np.int32)
        ids = [*map(int, line.split()), 1]
        tokens[0, : len(ids)] = ids
        batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": np.zeros((1, 5), np.int32)}
        expected, aux = predict(params, batch)
        text = " ".join(str(t) for t in expected[0].tolist() if t > 1)
        assert result.prediction == result.filled == text and result.others == ()
        assert result.score == pytest.approx(float(aux["scores"][0]), abs=1e-3)
        assert result.score < -1


def test_several_decodes_the_best_first(greedy):
    model, params, restore = greedy
    answerer = answering.Answerer(
        model=model,
        decode_fn=decoding.beam_search,
        restore_checkpoint_cfg=restore,
        partitioner=small.partitioner(),
        max_decode_length=5,
        num_decodes=3,
    )
    (answer,) = answerer.answer(["5 6 7"])
    batch = {"encoder_input_tokens": np.array([[5, 6, 7, 1] + [0] * 28]), "decoder_input_tokens": np.zeros((1, 5), int)}
    searching = model.with_decode_fn(decoding.beam_search)
    beams, aux = small.predictions(searching, params, batch, num_decodes=3, return_all_decodes=True)
    texts = [" ".join(str(t) for t in row if t > 1) for row in np.asarray(beams[0])]
    assert [answer.prediction, *answer.others] == texts[::-1] and len(set(texts)) == 3
    assert answer.score == pytest.approx(float(aux["scores"][0, -1]), abs=1e-4)


def test_samples_do_not_depend_on_where_a_call_begins(greedy):
    model, _, restore = greedy
    sampling = functools.partial(decoding.temperature_sample, topk=0)
    model = small.model(decode_fn=sampling, emb_dim=32, num_encoder_layers=1, num_decoder_layers=1)
    answerer = answering.Answerer(
        model=model, restore_checkpoint_cfg=restore, partitioner=small.partitioner(), max_decode_length=5, batch_size=1
    )
    lines = ["5 6 7"] * (answerer.lines_at_once + 3)
    whole = list(answerer.answer(lines))
    assert list(answerer.answer(lines, done=answerer.lines_at_once)) == whole[answerer.lines_at_once :]
    assert len({answer.prediction for answer in whole}) > 10


def test_lines_and_numbers_that_cannot_be(greedy):
    model, _, config = greedy
    answerer = answering.Answerer(model=model, restore_checkpoint_cfg=config, partitioner=small.partitioner())
    with pytest.raises(ValueError, match=r"Line 2, 'caf\\udce9', is not UTF-8"):
        list(answerer.answer(["a", "caf\udce9"]))
    for name in ("batch_size", "max_inputs_length", "max_decode_length"):
        with pytest.raises(ValueError, match=f"Answerer.{name} is 0; it is a whole number"):
            answering.Answerer(model=None, restore_checkpoint_cfg=None, partitioner=None, **{name: 0})


def test_without_a_checkpoint(greedy):
    with pytest.raises(ValueError, match="No checkpoint"):
        answering.Answerer(
            model=greedy[0],
            restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(),
            partitioner=small.partitioner(),
        )


def test_blanks_are_no_unknown_characters(greedy, tmp_path):
    """Whose letters and brackets the vocabulary may lack."""
    model, _, restore = greedy
    answerer = answering.Answerer(model=model, restore_checkpoint_cfg=restore, partitioner=small.partitioner())
    file = vocabularies.train(tmp_path / "spiece.model")
    answerer._model = types.SimpleNamespace(input_vocabulary=SentencePieceVocabulary(str(file), extra_ids=100))
    assert answerer.find_unknown(["a <extra_id_0> line", "the [MASK] line"]) == ""
    assert answerer.find_unknown(["a <extra_id_0> Ա", "a"]).startswith("1 of 2 inputs have characters")
