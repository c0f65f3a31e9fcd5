"""A tiny random model behind the server: answers as of `limba infer --greedy`, vectors as of `limba embed`."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from limba import models
from limba.addons.serve import app, page
from limba.addons.serve import engine as serving
from limba.addons.serve.base_engine import sizes
from limba.addons.serve.request_fields import RequestError
from limba.checkpoints import checkpointing, train_state
from limba.inference import answering, blanks, decoding_flags, embedding
from limba.network.encoders import encoder
from limba.network.finite_numbers.layers import NotFiniteError
from limba.optimizers import definitions
from tasks.vocabularies import TokenizerVocabulary
from tests.convert import vocabularies
from tests.limba import small

# Of three lengths: padded to 32, 40 and 40.
LINES = ["5 6 7", "8 9 10 11 12", "200", " ".join(str(3 + i) for i in range(36)), "77 " * 39]


def _save(model, folder):
    params = small.random_params(model)
    checkpointer = checkpointing.Checkpointer(folder, checkpointing.SaveCheckpointConfig())
    checkpointer.save(train_state.TrainState(step=jnp.int32(0), params=params, opt_state={}), None, {})
    checkpointer.close()
    restore = checkpointing.RestoreCheckpointConfig(path=str(folder), mode="latest")
    return {"model": model, "restore_checkpoint_cfg": restore, "partitioner": small.partitioner()}


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    model = small.model(emb_dim=32, num_encoder_layers=1, num_decoder_layers=1)
    parts = _save(model, tmp_path_factory.mktemp("t5"))
    engine = serving.Engine(**parts, max_batch=4, max_input_tokens=40, max_new_tokens=6, has_blanks=False)
    return parts, engine


def _run(engine, texts):
    """Replies, by kind and at most four at a time, as the batcher does it."""
    found = {}
    for kind in dict.fromkeys(text.kind for text in texts):
        of_kind = [text for text in texts if text.kind == kind]
        for start in range(0, len(of_kind), 4):
            part = of_kind[start : start + 4]
            found |= {id(text): reply for text, reply in zip(part, engine.run(part), strict=True)}
    return [found[id(text)] for text in texts]


def test_shapes():
    assert sizes(32, 512) == [32, 128, 512] and sizes(32, 20) == [20] and sizes(1, 1) == [1]
    assert sizes(1, 16) == [1, 4, 16] and sizes(1, 10) == [1, 4, 10]


def test_greedy_answers_are_those_of_infer(t5):
    parts, engine = t5
    greedy = decoding_flags.Decoding(greedy=True, max_decode_length=6).arguments()
    expected = [answer.filled for answer in answering.Answerer(**parts, **greedy).answer(LINES)]
    replies = _run(engine, [engine.read(line, 6) for line in LINES])
    assert [reply.text for reply in replies] == expected and len(set(expected)) == len(LINES)
    for reply in replies:
        assert reply.num_tokens == len(reply.text.split()) and (reply.finish_reason == "length") == (
            reply.num_tokens == 6
        )
    assert engine.run([engine.read(LINES[1], 6)])[0] == replies[1], "alone as with others"


def test_rows_of_a_batch_have_their_own_lengths_and_temperatures(t5):
    _, engine = t5
    whole = engine.run([engine.read("5 6 7", 6)])[0].text
    texts = [
        engine.read("5 6 7", 2),
        engine.read("5 6 7", 6, 2.0),
        engine.read("5 6 7", 6),
        engine.read("5 6 7", 6, 2.0),
    ]
    assert len({text.kind for text in texts}) == 1
    first, hot, greedy, hotter = engine.run(texts)
    assert first.text == " ".join(whole.split()[:2]) and first.finish_reason == "length" and first.num_tokens == 2
    assert greedy.text == whole and len({whole, hot.text, hotter.text}) == 3


def test_vectors_are_those_of_embed(t5):
    parts, engine = t5
    expected = embedding.Embedder(**parts).embed(LINES)
    replies = _run(engine, [engine.read(line) for line in LINES])
    np.testing.assert_allclose([reply.vector for reply in replies], expected, atol=1e-5)


def test_what_is_too_long_or_no_text(t5):
    _, engine = t5
    with pytest.raises(RequestError, match="A text has 41 tokens; at most 40 are taken: make it shorter") as error:
        engine.read("7 " * 40, 6)
    assert error.value.status == 413
    with pytest.raises(RequestError, match="A text has 2,561 characters; at most 2,560 are taken") as error:
        engine.read("7" + " " * 64 * 40, 6)
    assert error.value.status == 413 and engine.read("7" + " " * (64 * 40 - 1), 6).ids == engine.read("7", 6).ids
    with pytest.raises(RequestError, match="A text is not UTF-8") as error:
        engine.read("caf\udce9", 6)
    assert error.value.status == 422


def test_of_a_batch_only_what_is_not_finite_fails(t5, monkeypatch):
    _, engine = t5
    texts = [engine.read(line, 6) for line in LINES[:3]]
    whole = engine._decode

    def decode(some):
        if texts[1] in some:
            raise NotFiniteError("The output for a text is not finite.")
        return whole(some)

    expected = engine.run(texts)
    monkeypatch.setattr(engine, "_decode", decode)
    first, failed, last = engine.run(texts)
    assert (first, last) == (expected[0], expected[2]) and isinstance(failed, NotFiniteError)


def test_an_encoder_fills_its_masks(tmp_path):
    words = ["red", "blue", "green", "cat", "dog"]
    vocabulary = TokenizerVocabulary(str(vocabularies.write_words(tmp_path / "tokenizer.json", words)))
    sizes = {"vocab_size": 128, "emb_dim": 16, "num_heads": 1, "head_dim": 16, "mlp_dim": 16, "num_layers": 1}
    config = encoder.EncoderConfig(**sizes, max_positions=24)
    model = models.EncoderOnlyModel(encoder.MaskedLanguageModel(config), vocabulary, definitions.adamw())
    parts = _save(model, tmp_path / "bert")
    engine = serving.Engine(**parts, max_batch=4)
    assert engine.max_input_tokens == 24, "the network's longest row"
    expected = [x.filled for x in answering.Answerer(**parts).answer(["red [MASK]", "[MASK] dog [MASK]"])]
    replies = engine.run([engine.read("red ___", 5), engine.read("___ dog ___", 5)])
    assert [(reply.text, reply.finish_reason) for reply in replies] == [(text, "stop") for text in expected]
    (vector,) = engine.run([engine.read("red cat")])
    np.testing.assert_allclose(vector.vector, embedding.Embedder(**parts).embed(["red cat"])[0], atol=1e-5)
    unknown = (
        "The text has characters that the vocabulary does not know ('Ա' 2 times); the model reads each as unknown."
    )
    assert answering.Answerer(**parts).find_unknown(["[MASK] ԱԱ"]) == unknown
    (filled,), (vector,) = engine.run([engine.read("___ ԱԱ", 5)]), engine.run([engine.read("ԱԱ")])
    assert (filled.hint, vector.hint) == (unknown, unknown) and not any(reply.hint for reply in replies)
    for arguments, words in (
        (("red cat", 5), "has no .MASK."),
        (("red ___", 5, 0.5), "temperature is 0.5; this model"),
    ):
        with pytest.raises(RequestError, match=words) as error:
            engine.read(*arguments)
        assert error.value.status == 422


def test_a_network_without_an_encoder_is_refused():
    decoder = object.__new__(models.DecoderOnlyModel)
    with pytest.raises(ValueError, match="DecoderOnlyModel is not served: models with an encoder are"):
        serving.Engine(model=decoder, restore_checkpoint_cfg=None, partitioner=None)


def test_an_answer_of_blanks_to_a_text_without_any_has_a_hint(t5, monkeypatch):
    """As `limba try` says it; the page shows it below the answer."""
    _, engine = t5
    text = engine.read("5 6", 4, 0.0)
    for has_blanks, prediction, line, hint in (
        (True, "<extra_id_0> c", text.line, blanks.HINT),
        (True, "c", text.line, ""),
        (True, "<extra_id_0> c", "a <extra_id_0>", ""),
        (False, "<extra_id_0> c", text.line, ""),
    ):
        monkeypatch.setattr(engine, "has_blanks", has_blanks)
        monkeypatch.setattr(engine.texts, "answer", lambda line, row, found=prediction: (found, found))
        reply = engine.reply(dataclasses.replace(text, line=line), np.array([5, 1]))
        both = engine.reply(dataclasses.replace(text, line=line, unknown="ș is unknown."), np.array([5, 1]))
        assert both.hint == f"{hint} ș is unknown.".strip()
        assert reply.hint == hint and reply.text == prediction.replace("<extra_id_0>", "___")


def test_the_hint_is_in_the_choice_and_on_the_page():
    assert app._choice(0, "x", "stop") == {"index": 0, "text": "x", "logprobs": None, "finish_reason": "stop"}
    hint = "This model fills blanks: write ___ where words are missing."
    assert app._choice(0, "x", "stop", blanks.HINT)["hint"] == hint
    assert app._hint("") == {} and app._hint(hint) == {"hint": hint}
    assert 'choice.hint ? "\\n(" + choice.hint + ")" : ""' in page.html("m", True, False)
