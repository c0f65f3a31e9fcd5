"""Lines of text for encoders: masks are filled, texts and pairs get labels."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models

from limba import models
from limba.addons.serve import base_engine, request_fields, try_model
from limba.addons.vocab_build.tokenizer_training import SPECIAL_TOKENS
from limba.checkpoints import checkpointing, train_state
from limba.data import token_rows
from limba.inference import answering, blanks, embedding, likeliest, text_batches
from limba.network import t5
from limba.network.encoders import classifier, encoder
from limba.optimizers import definitions
from tasks.vocabularies import (
    ByteVocabulary,
    LabelVocabulary,
    SentencePieceVocabulary,
    T5TokenizerVocabulary,
    TokenizerVocabulary,
)
from tests.convert import vocabularies
from tests.limba import small

WORDS = ["red", "blue", "green", "cat", "dog"]
LABELS = ("no", "yes")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return TokenizerVocabulary(
        str(vocabularies.write_words(tmp_path_factory.mktemp("vocab") / "tokenizer.json", WORDS))
    )


def _config():
    sizes = {"vocab_size": 128, "emb_dim": 16, "num_heads": 1, "head_dim": 16, "mlp_dim": 16, "num_layers": 1}
    return encoder.EncoderConfig(**sizes, max_positions=64, num_token_types=2)


def _answerer(model, directory):
    params = small.random_params(model)
    checkpointer = checkpointing.Checkpointer(directory, checkpointing.SaveCheckpointConfig())
    checkpointer.save(train_state.TrainState(step=jnp.int32(0), params=params, opt_state={}), None, {})
    checkpointer.close()
    restore = checkpointing.RestoreCheckpointConfig(path=str(directory), mode="latest")
    made = answering.Answerer(
        model=model, restore_checkpoint_cfg=restore, partitioner=small.partitioner(), batch_size=2
    )
    return made, params


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """As RoBERTa's, whose mask takes in the space before it."""
    made = tokenizers.Tokenizer(tokenizer_models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = [AddedToken(name, lstrip=name == "[MASK]", special=True) for name in SPECIAL_TOKENS]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["the cat saw the dog"] * 9, trainer)
    file = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    made.save(str(file))
    return TokenizerVocabulary(str(file))


def test_a_mask_takes_in_the_space_before_it_as_its_tokenizer_says(byte_level):
    masks = text_batches._Masks(types.SimpleNamespace(input_vocabulary=byte_level))
    cls, sep, mask = byte_level.cls_id, byte_level.sep_id, byte_level.mask_id
    the, cat = byte_level.encode("the"), byte_level.encode(" cat")
    expected = [cls, *the, mask, *cat, sep]
    assert masks.encode("the [MASK] cat").ids == masks.encode("the<extra_id_0> cat").ids == expected
    # A word behind a space, and a piece that goes on with the word before.
    (begins,), (goes_on,) = byte_level.encode(" dog"), byte_level.encode("t")
    assert masks.answer("the [MASK] cat", np.int32([begins]))[1] == "the dog cat"
    assert masks.answer("the [MASK] cat", np.int32([goes_on]))[1] == "thet cat"


def test_a_wordpiece_that_goes_on_joins_the_word_before_it(tmp_path):
    file = vocabularies.write_words(tmp_path / "tokenizer.json", ["red", "##dish", "cat"])
    vocabulary = TokenizerVocabulary(str(file))
    masks = text_batches._Masks(types.SimpleNamespace(input_vocabulary=vocabulary))
    ids = [vocabulary.tokenizer.token_to_id(x) for x in ("##dish", "cat")]
    assert masks.answer("red [MASK] [MASK]", np.int32(ids)) == ("##dish cat", "reddish cat")


def test_few_numbers_of_masks_are_compiled(vocabulary):
    masks = text_batches._Masks(types.SimpleNamespace(input_vocabulary=vocabulary))
    batches = [masks.features([masks.encode("[MASK] " * count)], 512) for count in range(1, 129)]
    assert [*dict.fromkeys(batch["masked_lm_positions"].shape for batch in batches)] == [(1, 8), (1, 32), (1, 128)]


def test_masks_are_filled_with_the_likeliest_words(vocabulary, tmp_path):
    model = models.EncoderOnlyModel(encoder.MaskedLanguageModel(_config()), vocabulary, definitions.adamw())
    answerer, params = _answerer(model, tmp_path)
    lines = ["red [MASK] cat", "<extra_id_0> dog [MASK] red", "[MASK]"]
    tokens = np.zeros((3, 32), np.int32)
    tokens[0, :5], tokens[1, :6], tokens[2, :3] = [2, 5, 4, 8, 3], [2, 4, 9, 4, 5, 3], [2, 4, 3]
    logits = small.call(model.module, params, tokens)
    best = np.asarray(logits).argmax(-1)
    words = [vocabulary.decode([best[place]]) for place in ((0, 2), (1, 1), (1, 3), (2, 1))]
    answers = list(answerer.answer(lines))
    assert [x.filled for x in answers] == [f"red {words[0]} cat", f"{words[1]} dog {words[2]} red", words[3]]
    assert [x.prediction for x in answers] == [words[0], f"<extra_id_0> {words[1]} {words[2]}", words[3]]
    assert try_model.reply(answerer, "red ___ cat", mark=lambda word: f"*{word}*") == f"red *{words[0]}* cat"
    with pytest.raises(ValueError, match=r"'red cat' has no \[MASK\]: write it, or ___"):
        list(answerer.answer(["red cat"]))
    with pytest.raises(ValueError, match="an encoder, which answers at once: beams and samples are for models that"):
        answering.Answerer(model=model, restore_checkpoint_cfg=None, partitioner=None, decode_fn=print)


def test_the_likeliest_words_of_a_mask_stand_beside_the_truth(vocabulary, tmp_path, capsys):
    model = models.EncoderOnlyModel(encoder.MaskedLanguageModel(_config()), vocabulary, definitions.adamw())
    _, params = _answerer(model, tmp_path)
    tokens = np.zeros((1, 32), np.int32)
    tokens[0, :5] = [2, 5, 4, 8, 3]
    logits = np.asarray(small.call(model.module, params, tokens)[0, 2], np.float64)
    shares = np.exp(logits) / np.exp(logits).sum()
    likeliest.show_likeliest(
        model=model,
        answerer_cls=functools.partial(answering.Answerer, model=model, partitioner=small.partitioner(), batch_size=2),
        restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(path=str(tmp_path), mode="latest"),
        sentences=[("red <extra_id_0> cat", "blue")],
    )
    by_word: dict[str, float] = {}
    for token in np.argsort(-shares)[:32]:
        if word := vocabulary.decode([token]).strip():
            by_word[word] = by_word.get(word, 0) + shares[token]
    best = sorted(by_word.items(), key=lambda x: -x[1])[:4]
    words = ", ".join(f"“{word}” {share:.1%}" for word, share in best)
    assert capsys.readouterr().out.splitlines() == ["red ___ cat", f"  truth: blue; likeliest: {words}"]
    with pytest.raises(ValueError, match="decodes nothing: leave out num_decodes"):
        model.predict_batch(params, {"encoder_input_tokens": tokens}, num_decodes=2)


@pytest.mark.parametrize(
    "line", ["red cat", " red [SEP] cat ", "[SEP]", "red\t \n[SEP][SEP]\u3000 \x1ccat\n[SEP]", " [SEP]  [SEP] "]
)
def test_the_texts_of_a_pair_have_no_blanks_around_the_separator(line):
    """As a regular expression finds them, which takes n² steps for n blanks."""
    assert text_batches._texts_of_pair(line) == re.split(r"\s*\[SEP\]\s*", line)


def test_texts_and_pairs_get_labels(vocabulary, tmp_path):
    model = models.EncoderClassifier(
        classifier.SequenceClassifier(_config(), LABELS), vocabulary, LabelVocabulary(LABELS), definitions.adamw()
    )
    answerer, params = _answerer(model, tmp_path)
    tokens = np.zeros((2, 32), np.int32)
    tokens[0, :4], tokens[1, :5] = [2, 5, 8, 3], [2, 5, 3, 8, 3]
    types = np.zeros((2, 32), np.int32)
    types[1, 3:5] = 1
    logits = small.call(model.module, params, tokens, types)[:, 0]
    answers = list(answerer.answer(["red cat", "red [SEP] cat"]))
    assert [x.filled for x in answers] == [LABELS[i] for i in np.asarray(logits).argmax(-1)]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose([x.score for x in answers], np.log(probabilities.max(-1)), rtol=1e-5)


def test_lines_are_cut_to_the_table_of_positions(vocabulary, tmp_path, caplog):
    model = models.EncoderClassifier(
        classifier.SequenceClassifier(_config(), LABELS), vocabulary, LabelVocabulary(LABELS), definitions.adamw()
    )
    answerer, params = _answerer(model, tmp_path)
    (answer,) = answerer.answer(["red " * 100])
    tokens = np.array([[2, *[5] * 63]], np.int32)
    logits = small.call(model.module, params, tokens, np.zeros_like(tokens))
    assert answer.filled == LABELS[int(np.asarray(logits)[0, 0].argmax())]
    assert "1 of 1 inputs are longer than 64 tokens and were cut" in caplog.text


def test_a_cut_line_keeps_the_masks_that_it_lost(vocabulary):
    model = models.EncoderOnlyModel(encoder.MaskedLanguageModel(_config()), vocabulary, definitions.adamw())
    texts = text_batches.for_model(model, 8)
    assert texts.answer("[MASK] cat [MASK]", np.array([5, 0], np.int32)) == ("red", "red cat [MASK]")


def test_each_word_gets_the_label_of_its_first_piece(vocabulary, tmp_path):
    model = models.EncoderClassifier(
        classifier.TokenClassifier(_config(), LABELS), vocabulary, LabelVocabulary(LABELS), definitions.adamw()
    )
    answerer, params = _answerer(model, tmp_path)
    tokens = np.zeros((1, 32), np.int32)
    # The vocabulary divides "cat-dog" into cat, an unknown one and dog.
    tokens[0, :7] = [2, 5, 8, 1, 9, 6, 3]
    logits = small.call(model.module, params, tokens, np.zeros_like(tokens))[0]
    best = [LABELS[np.asarray(logits)[place].argmax()] for place in (1, 2, 5)]
    (answer,) = answerer.answer(["red  cat-dog blue "])
    assert answer.prediction == " ".join(best)
    assert answer.filled == f"red/{best[0]} cat-dog/{best[1]} blue/{best[2]}"
    # The table of 64 positions has room for 62 words between [CLS] and [SEP]; those behind have no label.
    (cut,) = answerer.answer(["red " * 65])
    assert cut.prediction.split()[61] in LABELS and cut.prediction.split()[62:] == ["?"] * 3

    # A batch with weights asks for some places alone.
    weights = np.zeros_like(tokens)
    weights[0, [1, 2, 5]] = 1
    some = jax.jit(model.predict_batch)(params, {"encoder_input_tokens": tokens, "decoder_loss_weights": weights})
    assert model.output_vocabulary.decode(np.asarray(some[0]).tolist()) == answer.prediction
    assert np.flatnonzero(some[0]).tolist() == [1, 2, 5]


def test_words_of_a_t5_get_labels():
    config = t5.T5Config(vocab_size=384, emb_dim=8, num_heads=1, head_dim=8, mlp_dim=8)
    model = models.EncoderClassifier(
        classifier.TokenClassifier(config, LABELS), ByteVocabulary(), LabelVocabulary(LABELS), definitions.adamw()
    )
    texts = text_batches.for_model(model, 8)
    assert texts.encode("é ab").ids == [*(byte + 3 for byte in "é ab".encode()), 1]
    # Behind the end of a cut line there is no label.
    assert texts.answer("é ab x", np.array([1, 2, 2, 2, 1, 1], np.int32)) == (
        f"{LABELS[0]} {LABELS[1]} ?",
        f"é/{LABELS[0]} ab/{LABELS[1]} x/?",
    )


def test_a_blank_beside_a_bracket_is_a_blank(tmp_path):
    """SentencePiece knows a sentinel only behind a space; a tokenizer.json and transformers know it anywhere."""
    from tasks.vocabularies import SentencePieceVocabulary

    vocabulary = SentencePieceVocabulary(str(vocabularies.train(tmp_path / "spiece.model")), 100)
    of_model = text_batches.Sequences(vocabulary, vocabulary, 8)
    encode = lambda line: of_model.encode(line).ids  # noqa: E731
    apart = vocabulary.encode("ba, <extra_id_0>. ce")
    assert 511 in apart and encode("ba,<extra_id_0>. ce") == encode("ba, <extra_id_0>. ce") == [*apart, 1]
    assert text_batches.row_of(vocabulary, "ba,<extra_id_0>. ce").ids == [*apart, 1]  # Of `limba embed`, too.
    assert 511 not in vocabulary.encode("ba,<extra_id_0>. ce")  # As SeqIO has it.


@pytest.mark.parametrize("kind", [TokenizerVocabulary, T5TokenizerVocabulary, SentencePieceVocabulary])
def test_which_vocabularies_have_pairs_is_known_without_their_files(kind):
    assert token_rows.has_pairs(kind("/none/tokenizer.json")) is (kind is TokenizerVocabulary)
    assert not token_rows.has_pairs(object())


@pytest.mark.parametrize("digits", ["0" * 5000, "1234567890"])
def test_a_sentinel_with_too_many_digits_is_refused_wherever_it_is_read(tmp_path, digits):
    """Python reads no number of more than 4,300 digits, and says so in its own words."""
    from tasks.vocabularies import SentencePieceVocabulary

    vocabulary = SentencePieceVocabulary(str(vocabularies.train(tmp_path / "spiece.model")), 100)
    line = f"ba <extra_id_{digits}> ___"
    message = rf"The sentinel <extra_id_{digits[:9]}…> has a number of {len(digits):,} digits; models have <extra_id_0>"
    embedder = embedding.Embedder.__new__(embedding.Embedder)
    embedder._model, embedder._longest = types.SimpleNamespace(input_vocabulary=vocabulary), 512
    of_model = text_batches.Sequences(vocabulary, vocabulary, 8)
    readers = [blanks.typed, of_model.encode, lambda text: embedder.embed([text])]
    for read in readers:
        with pytest.raises(ValueError, match=message):
            read(line)
    reader = {"has_blanks": True, "input_vocabulary": vocabulary, "texts": of_model, "max_input_tokens": 512}
    engine = types.SimpleNamespace(**reader)
    engine._encode = functools.partial(base_engine.BaseEngine._encode, engine)
    for max_tokens in (0, 8):
        with pytest.raises(request_fields.RequestError, match=message) as error:
            base_engine.BaseEngine.read(engine, line, max_tokens)
        assert error.value.status == 422
    assert blanks.typed("a <extra_id_٣> ___") == "a <extra_id_٣> <extra_id_0>", "digits of ASCII only"
