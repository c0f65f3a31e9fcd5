"""Vocabularies are the same if they give texts the same ids, whatever is written in their files."""

import json

import pytest
import tokenizers
from sentencepiece import sentencepiece_model_pb2

from tasks.pipeline import fingerprints
from tasks.vocabularies import (
    ByteVocabulary,
    SentencePieceVocabulary,
    T5TokenizerVocabulary,
    TokenizerVocabulary,
    same_vocabulary,
)
from tests.convert import vocabularies


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return vocabularies.train(tmp_path_factory.mktemp("vocabulary") / "spiece.model")


def changed(model, path, change, extra_ids=100):
    """The vocabulary of a copy that `change` has changed."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.read_bytes())
    change(proto)
    path.write_bytes(proto.SerializeToString())
    assert path.read_bytes() != model.read_bytes()
    return SentencePieceVocabulary(str(path), extra_ids)


def _only_what_training_left(proto):
    proto.trainer_spec.input.append("corpus.txt")
    proto.trainer_spec.character_coverage = 0.5
    proto.normalizer_spec.name = "of another name"
    for piece in proto.pieces:
        piece.type = piece.type  # said, where it was understood
    proto.pieces[0].score = -3.0  # no text is padding


def test_what_decides_no_id_does_not_count(model, tmp_path):
    original = SentencePieceVocabulary(str(model), 100)
    other = changed(model, tmp_path / "x.model", _only_what_training_left)
    assert same_vocabulary(original, other) and original != other
    # With its sentinels as pieces of its own, as mT5's.
    (tmp_path / "mt5.model").write_bytes(vocabularies.with_sentinels(model, 100))
    assert same_vocabulary(original, SentencePieceVocabulary(str(tmp_path / "mt5.model"), 0))


CHANGES = {
    "piece": lambda proto: setattr(proto.pieces[20], "piece", "zzz"),
    "score": lambda proto: setattr(proto.pieces[20], "score", proto.pieces[20].score - 1e-3),
    "type": lambda proto: setattr(proto.pieces[20], "type", sentencepiece_model_pb2.ModelProto.SentencePiece.UNUSED),
    "order": lambda proto: proto.pieces.sort(key=lambda piece: (len(piece.piece) > 6, piece.score)),
    "prefix": lambda proto: setattr(proto.normalizer_spec, "add_dummy_prefix", False),
    "spaces": lambda proto: setattr(proto.normalizer_spec, "remove_extra_whitespaces", False),
    "charsmap": lambda proto: setattr(proto.normalizer_spec, "precompiled_charsmap", b""),
    "bytes": lambda proto: setattr(proto.trainer_spec, "byte_fallback", True),
    "kind": lambda proto: setattr(proto.trainer_spec, "model_type", sentencepiece_model_pb2.TrainerSpec.BPE),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_decides_ids_counts(model, tmp_path, name):
    original = SentencePieceVocabulary(str(model), 100)
    if name == "bytes":  # Such a model opens only with pieces for them.
        model = vocabularies.train(tmp_path / "bytes.model", vocab_size=640, byte_fallback=True)
        assert not same_vocabulary(original, SentencePieceVocabulary(str(model), 100))
        return
    assert not same_vocabulary(original, changed(model, tmp_path / "x.model", CHANGES[name]))


def test_sentinels_and_kinds_count(model):
    original = SentencePieceVocabulary(str(model), 100)
    assert not same_vocabulary(original, SentencePieceVocabulary(str(model), 99))
    assert not same_vocabulary(original, ByteVocabulary(100)) and same_vocabulary(ByteVocabulary(3), ByteVocabulary(3))
    assert not same_vocabulary(ByteVocabulary(3), ByteVocabulary(4))


@pytest.fixture
def words(tmp_path):
    return vocabularies.write_words(tmp_path / "a" / "tokenizer.json", ["one", "two"])


def test_a_tokenizer_that_was_written_again_is_the_same(words, tmp_path):
    """With what a Trainer leaves, and without what the library fills in by itself."""
    tokenizer = tokenizers.Tokenizer.from_file(str(words))
    tokenizer.enable_truncation(12)
    tokenizer.enable_padding(length=12)
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    (tmp_path / "b").mkdir()
    tokenizer.save(str(tmp_path / "b/tokenizer.json"))
    content = json.loads(words.read_text())
    del content["decoder"], content["truncation"]
    content["model"] = dict(reversed(content["model"].items()))
    (tmp_path / "c").mkdir()
    (tmp_path / "c/tokenizer.json").write_text(json.dumps(content))
    first, *others = (TokenizerVocabulary(str(tmp_path / name)) for name in "abc")
    assert all(same_vocabulary(first, other) for other in others)
    assert not same_vocabulary(first, T5TokenizerVocabulary(str(words)))
    content["added_tokens"][4]["lstrip"] = True
    (tmp_path / "d").mkdir()
    (tmp_path / "d/tokenizer.json").write_text(json.dumps(content))
    assert not same_vocabulary(first, TokenizerVocabulary(str(tmp_path / "d")))


def test_positions_know_equal_vocabularies(model, words, tmp_path):
    """Also positions of before, which have a checksum of the file alone."""
    original = fingerprints.of_vocabulary(SentencePieceVocabulary(str(model), 100))
    equal = fingerprints.of_vocabulary(changed(model, tmp_path / "x.model", _only_what_training_left))
    other = fingerprints.of_vocabulary(changed(model, tmp_path / "y.model", CHANGES["score"]))
    assert original[0] == 512 and len(original) == 3 and original != equal
    for saved in (original, original[:2]):
        assert not list(fingerprints.differences({"vocabulary": saved}, {"vocabulary": original}))
        (difference,) = fingerprints.differences({"vocabulary": saved}, {"vocabulary": other})
        assert difference == "vocabulary has changed, its pieces are others"
    assert not list(fingerprints.differences({"vocabulary": original}, {"vocabulary": equal}))
    fewer = fingerprints.of_vocabulary(SentencePieceVocabulary(str(model), 99))
    (difference,) = fingerprints.differences({"vocabulary": original}, {"vocabulary": fewer})
    assert difference == "vocabulary has changed, it had 512 ids and has 511"
