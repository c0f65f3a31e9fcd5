"""CTranslate2 behind the server: the answers and vectors of `limba serve` on the run that the folder was made of."""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import shutil
import sys
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from limba import models
from limba.addons.engines.to_ct2 import to_ct2
from limba.addons.serve import candidates, command, ct2_engine, run_engine
from limba.addons.serve import engine as serving
from limba.addons.serve.request_fields import RequestError
from limba.addons.serve.streams import Streams
from limba.checkpoints import checkpointing
from limba.inference import embedding
from limba.network.encoders.config import EncoderConfig
from limba.network.encoders.encoder import MaskedLanguageModel
from limba.network.t5 import T5Config, Transformer
from tasks.pretraining import masked_text
from tests.convert.conftest import UNTIED, new_run, spiece_model  # noqa: F401, fixtures
from tests.convert.encoders.conftest import VARIANTS, new_encoder, tokenizer_file  # noqa: F401, fixtures
from tests.limba import small

pytest.importorskip("ctranslate2", reason="pip install 'limba[ct2]'")

# In one batch: of several lengths, with blanks and without.
LINES = ["vîbudu", "rabu ___ vățaga ce", "ba ce ___ și ___ nabafuțu", "ba " * 6, "tifâtâ 35"]


def _parts(run, config_cls, network, model_cls):
    """What an engine of Limba needs of a run."""
    info = checkpointing.load_run_info(run)
    vocabulary = masked_text.open_vocabulary(info["vocabulary"])
    module = network(config_cls(**info["network"]))
    of_model = [module, vocabulary] + [vocabulary] * (network is Transformer)
    restore = checkpointing.RestoreCheckpointConfig(path=str(run), mode="latest")
    model = model_cls(*of_model, optimizer_def=None)
    return {"model": model, "restore_checkpoint_cfg": restore, "partitioner": small.partitioner()}


@pytest.fixture(scope="module")
def t5(new_run, tmp_path_factory):  # noqa: F811
    """A folder, an engine of the run that it was made of, and its own."""
    folder = tmp_path_factory.mktemp("t5")
    run = new_run(folder / "run", num_encoder_layers=1, num_decoder_layers=1, **UNTIED)
    to_ct2(run, folder / "ct2", verify=False)
    parts = _parts(run, T5Config, Transformer, models.EncoderDecoderModel)
    limits = {"max_input_tokens": 40}
    engine = serving.Engine(**parts, max_batch=8, max_new_tokens=8, **limits)
    return folder / "ct2", engine, ct2_engine.Ct2Engine(folder / "ct2", **limits)


def _both(t5, *settings):
    """The replies of both engines to one batch of all lines."""
    return [engine.run([engine.read(line, *of) for line, of in zip(LINES, settings, strict=True)]) for engine in t5[1:]]


def test_greedy_answers_of_a_batch_are_those_of_the_run(t5):
    expected, found = _both(t5, *[(8,)] * len(LINES))
    assert found == expected and len({reply.text for reply in found}) == len(LINES)


def test_rows_of_a_batch_have_their_own_lengths(t5):
    expected, found = _both(t5, (8,), (1,), (2,), (5,), (8,))
    assert found == expected and [reply.num_tokens for reply in found][1:4] == [1, 2, 5]
    assert found[1].finish_reason == "length"


def test_an_answer_that_ends_at_once_is_empty(t5, monkeypatch):
    """CTranslate2 by itself gives a token at least."""
    *_, engine = t5
    asked = {}
    found = engine._model.translate_batch([["</s>"]], beam_size=1, max_decoding_length=1)
    stub = lambda rows, **options: asked.update(options) or found  # noqa: E731
    monkeypatch.setattr(engine, "_model", type("Stub", (), {"translate_batch": staticmethod(stub)}))
    engine.run([engine.read("ba", 8)])
    assert asked["min_decoding_length"] == 0 and asked["max_input_length"] == 0


def test_a_temperature_is_that_of_the_batch_and_samples(t5):
    *_, engine = t5
    cold, hot = engine.read("ba ce", 8), engine.read("ba ce", 8, 2.0)
    assert cold.kind != hot.kind and hot.kind == engine.read("rabu", 3, 2.0).kind
    texts = [reply.text for reply in engine.run([hot] * 6)]
    assert len({*texts, engine.run([cold])[0].text}) > 3


def test_candidates_have_the_probabilities_of_the_run(t5):
    """Of a blank's words and what ends them, behind the greedy answer up to its sentinel."""
    *_, ct2 = t5
    line = "ba ce ___ și ___ nabafuțu"
    text = ct2.read(line, 8, 0.0, 4)
    tokens = [ct2._tokens[i] for i in text.ids]
    answer = ["ba", "<extra_id_0>", "ce", "<extra_id_1>"]
    answer = [token if token in ct2._ids else ct2._tokens[5] for token in answer]
    found = candidates.find(ct2._model, tokens, answer, text.line, ct2._ends, 4)
    assert len(found) == 2 and found[0]
    for blank, beams in zip(("<extra_id_0>", "<extra_id_1>"), found, strict=True):
        prefix = answer[: answer.index(blank) + 1]
        for beam, score in beams:
            (scored,) = ct2._model.score_batch([tokens], [[*prefix, *beam, "<extra_id_0>"]])
            inside = sum(scored.log_probs[len(prefix) : len(prefix) + len(beam)])
            assert score < inside + 1e-5 and not {*beam} & {*ct2._ends}
    unmentioned = candidates.find(ct2._model, tokens, answer[:2], text.line, ct2._ends, 4)
    assert [beam for beam, _ in unmentioned[0]] == [beam for beam, _ in found[0]] and unmentioned[1] == []
    words = candidates.words([("a", np.log(0.2)), ("b", np.log(0.3)), ("a", np.log(0.25))], 4)
    assert words == [("a", pytest.approx(0.45)), ("b", pytest.approx(0.3))]
    assert len(candidates.words([(word, -1.0) for word in "abc"], 2)) == 2


def test_engines_without_candidates_refuse_them(t5):
    _, engine, ct2 = t5
    with pytest.raises(RequestError, match="candidates is 2; CTranslate2 gives them, for T5s that fill blanks"):
        engine.read("ba ___", 8, 0.0, 2)
    (reply,) = ct2.run([ct2.read("ba ___", 8, 0.0, 2)])
    assert len(reply.candidates) == 1 and reply.text == ct2.run([ct2.read("ba ___", 8)])[0].text


def test_what_a_t5_does_not_give(t5):
    *_, engine = t5
    with pytest.raises(RequestError, match=r"CTranslate2 gives no vectors of a T5\. Ask for /v1/completions") as error:
        engine.read("ba")
    assert error.value.status == 422
    with pytest.raises(RequestError, match=r"A text has \d+ tokens; at most 40 are taken"):
        engine.read("ba " * 60, 8)


def test_a_run_answers_in_ctranslate2_and_has_vectors_of_jax(t5):
    folder, engine, ct2 = t5
    opened = []
    both = run_engine.RunEngine(folder, 40, lambda: opened.append(engine) or engine)
    answers = both.run([both.read(line, 8) for line in LINES])
    assert answers == ct2.run([ct2.read(line, 8) for line in LINES]) and not opened
    for _ in range(2):
        found, expected = ([reply.vector for reply in x.run([x.read("ba ce")])] for x in (both, engine))
        np.testing.assert_array_equal(found, expected)
    assert opened == [engine]


def _opened(t5, monkeypatch, error=None, **flags):
    """The engine of a run, where the folder is there or making it fails."""
    folder, engine, _ = t5

    @contextlib.contextmanager
    def kept_folder(*_):
        if error:
            raise error
        yield folder

    monkeypatch.setattr(run_engine.table, "parts", lambda what: iter([SimpleNamespace(kept_folder=kept_folder)]))
    usual = {"engine": "auto", "average": False, "gin_file": [], "gin_bindings": [], "max_input_tokens": 40}
    with run_engine.opened(lambda: engine, "run", argparse.Namespace(**(usual | flags))) as found:
        return "jax" if found is engine else type(found)


def test_the_engine_of_a_run(t5, monkeypatch, caplog):
    caplog.set_level("INFO")
    failed = ValueError("ctranslate2 is not here")
    assert _opened(t5, monkeypatch) is run_engine.RunEngine
    assert _opened(t5, monkeypatch, engine="jax", error=AssertionError()) == "jax"
    assert _opened(t5, monkeypatch, error=failed) == "jax"
    assert "JAX serves this run, not CTranslate2: ctranslate2 is not here" in caplog.messages
    assert _opened(t5, monkeypatch, gin_bindings=["x = 1"]) == "jax"
    assert "not CTranslate2: --gin and --gin_file change what JAX computes" in caplog.text
    for given in ({"error": failed}, {"gin_file": ["x.gin"]}):
        with pytest.raises(ValueError, match=r"ctranslate2 is not here|leave them out for CTranslate2\."):
            _opened(t5, monkeypatch, engine="ctranslate2", **given)
    monkeypatch.setattr(run_engine.jax, "default_backend", lambda: "gpu")
    assert _opened(t5, monkeypatch) == "jax" and _opened(t5, monkeypatch, engine="ctranslate2") != "jax"


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_vectors_are_those_of_embed(family, new_encoder, tmp_path):  # noqa: F811
    run = new_encoder(tmp_path / "run", **VARIANTS[family])
    to_ct2(run, tmp_path / "ct2", verify=False)
    engine = ct2_engine.Ct2Engine(tmp_path / "ct2")
    assert engine.max_input_tokens == 48, "the positions of the network"
    lines = ["w7 w9", "w8", "w5 w6 w7 unknown w9 w10"]
    embedder = embedding.Embedder(**_parts(run, EncoderConfig, MaskedLanguageModel, models.EncoderOnlyModel))
    engine.warm_up()
    found = [reply.vector for reply in engine.run([engine.read(line) for line in lines])]
    np.testing.assert_allclose(found, embedder.embed(lines), atol=2e-5)
    with pytest.raises(RequestError, match=r"its head is not in a folder for CTranslate2\. Ask for /v1/embeddings"):
        engine.read("w7 [MASK]", 5)


def test_folders_that_cannot_be_served(t5, tmp_path, monkeypatch):
    folder, *_ = t5
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)

    def refused(words, *flags):
        with pytest.raises(ValueError, match=words):
            command.main([str(copy), "--port", "0", *flags])

    refused("is a folder for CTranslate2: leave out --average", "--average")
    (copy / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:1000])
    refused("CTranslate2 4.* cannot load .*copy: .* Write it with `limba convert to-ct2 RUN FOLDER --overwrite`")
    (copy / "model.bin").unlink()
    refused("copy is not whole: it lacks model.bin. Write it with")
    shutil.copy(folder / "model.bin", copy)
    report = json.loads((copy / "conversion_report.json").read_text())
    (copy / "conversion_report.json").write_text(json.dumps({**report, "vocabulary": None}))
    refused("was written by an earlier version")
    changed = {**report, "vocabulary": {**report["vocabulary"], "extra_ids": "x"}}
    (copy / "conversion_report.json").write_text(json.dumps(changed))
    refused("conversion_report.json is damaged: vocabulary.extra_ids is 'x'")
    (copy / "conversion_report.json").write_text(json.dumps(report))
    for tokens, what in ((3, "it is 3 and no list of tokens"), (["a"], "it has 1 of the [0-9,]+ tokens")):
        (copy / "shared_vocabulary.json").write_text(json.dumps(tokens))
        refused(f"shared_vocabulary.json is damaged: {what}")
    (copy / "conversion_report.json").unlink()
    refused("has no conversion_report.json: a copy of it was interrupted, or another program wrote it")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'limba\[serve,ct2\]'"):
        ct2_engine.Ct2Engine(folder)


@pytest.mark.parametrize("which", [1, 2], ids=["run", "folder"])
def test_pieces_of_a_stream_are_the_answer(t5, which):
    engine = t5[which]
    texts = [engine.read(line, 8) for line in LINES]
    expected = engine.run(texts)

    async def streamed():
        found = [[] for _ in LINES]
        streams = Streams(engine.partial, texts, 60)
        results = [Future() for _ in LINES]
        streams.expect(results)

        def work():
            for result, reply in zip(results, engine.run(streams.texts), strict=True):
                result.set_result(reply)

        running = asyncio.get_running_loop().run_in_executor(None, work)
        async for number, piece, reply in streams.pieces():
            found[number].append(piece)
            assert reply in (None, expected[number])
        await running
        return found

    found = asyncio.run(streamed())
    assert ["".join(pieces) for pieces in found] == [reply.text for reply in expected]
    # A blank may be filled once more by a later token: these answers come as a whole.
    assert [len(pieces) > 3 for pieces in found] == ["___" not in line for line in LINES]


@pytest.mark.parametrize("which", [1, 2], ids=["run", "folder"])
def test_a_row_whose_listener_has_left_ends_and_others_do_not(t5, which):
    engine = t5[which]
    texts = [engine.read(line, 8) for line in LINES]
    expected = engine.run(texts)
    heard = [[] for _ in LINES]

    def listener(number):
        return lambda token: heard[number].append(token) or (number == 1 and len(heard[1]) == 3)

    replies = engine.run([dataclasses.replace(text, listener=listener(i)) for i, text in enumerate(texts)])
    assert [len(tokens) for tokens in heard] == [8, 3, 8, 8, 8] and replies[1].num_tokens == 3
    assert replies[:1] + replies[2:] == expected[:1] + expected[2:]
