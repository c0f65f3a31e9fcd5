"""Vocabularies against SeqIO's: ids, texts, sentinels, equality, and copies."""

import copy
import pickle
import shutil

import numpy as np
import pytest
import seqio
import tensorflow as tf

from tasks.vocabularies import (
    ByteVocabulary,
    PassThroughVocabulary,
    SentencePieceVocabulary,
    sentencepiece_models,
    without_tensorflow,
)
from tasks.vocabularies.vocabulary import encode_batch
from tests.convert import vocabularies

TEXTS = ["", "a", "The cat  sat.", "ștîă 你好", "tab\tand\nline", "</s> <extra_id_0> <pad>", "x" * 300, "e\u0301 ﬁ"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(vocabularies.train(tmp_path_factory.mktemp("vocabulary") / "spiece.model"))


@pytest.fixture(params=["bytes", "bytes_100", "sentencepiece", "sentencepiece_100"])
def pair(request, model):
    """Ours, and SeqIO's."""
    extra_ids = 100 if request.param.endswith("100") else 0
    if request.param.startswith("bytes"):
        return ByteVocabulary(extra_ids), seqio.ByteVocabulary(extra_ids)
    return SentencePieceVocabulary(model, extra_ids), seqio.SentencePieceVocabulary(model, extra_ids)


def test_facts(pair):
    ours, theirs = pair
    for name in ("vocab_size", "extra_ids", "eos_id", "pad_id", "unk_id", "bos_id", "_base_vocab_size"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert sentencepiece_models.num_sentinels(ours) == sentencepiece_models.num_sentinels(theirs) == ours.extra_ids
    if isinstance(ours, SentencePieceVocabulary):
        assert ours.sp_model == theirs.sp_model
        assert ours.sentencepiece_model_file == theirs.sentencepiece_model_file


def test_encoding(pair):
    ours, theirs = pair
    for text in TEXTS:
        assert list(ours.encode(text)) == list(theirs.encode(text)), text
        assert (
            ours.encode_tf(tf.constant(text)).numpy().tolist() == theirs.encode_tf(tf.constant(text)).numpy().tolist()
        )
    for vocabulary in pair:
        ids, lengths = encode_batch(vocabulary, [text.encode() for text in TEXTS])
        assert (ids.dtype, lengths.dtype) == (np.int32, np.int64)
        parts = np.split(ids, np.cumsum(lengths)[:-1])
        assert [part.tolist() for part in parts] == [list(theirs.encode(text)) for text in TEXTS]
        empty, none = encode_batch(vocabulary, [])
        assert empty.shape == none.shape == (0,)
    # What is not UTF-8 does not stop a run.
    assert len(encode_batch(ours, [b"a\xff"])[0]) >= 2


@pytest.mark.parametrize("seed", range(20))
def test_decoding(pair, seed):
    """Random ids: padding, EOS, unknown, bytes that are not text, sentinels, and ids beyond the last."""
    ours, theirs = pair
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, ours.vocab_size + 3 * (seed % 2), 12)
    if seed % 3:
        ids[ids == 1] = 3
    if isinstance(ours, SentencePieceVocabulary):
        ids = np.minimum(ids, ours.vocab_size - 1)
    assert ours.decode(ids) == theirs.decode(ids.tolist())
    assert ours.decode(ids.tolist()) == ours.decode(tf.constant(ids)) == theirs.decode(ids.tolist())
    batch = tf.constant(ids.reshape(2, 6), tf.int32)
    assert ours.decode_tf(batch).numpy().tolist() == theirs.decode_tf(batch).numpy().tolist()
    for text in TEXTS:
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


def test_texts_end_at_eos(pair):
    ours, theirs = pair
    ids = [*ours.encode("abc"), 1, *ours.encode("def"), 0]
    assert ours.decode(ids) == theirs.decode(ids)
    assert ours.decode(ids).startswith("abc") and "def" not in ours.decode(ids)
    assert ours.decode([]) == theirs.decode([]) == ""


def test_equality_and_conversion(pair, model):
    ours, theirs = pair
    assert without_tensorflow(theirs) == ours and without_tensorflow(ours) is ours
    assert ours.to_seqio() == theirs and type(ours.to_seqio()) is type(theirs)
    assert {ours, without_tensorflow(theirs)} == {ours} and hash(ours) == hash(without_tensorflow(theirs))
    others = [ByteVocabulary(3), SentencePieceVocabulary(model, 3), SentencePieceVocabulary("other.model", 100)]
    others += [PassThroughVocabulary(259), None, "vocabulary"]
    assert ours == theirs and all(ours != other for other in others)
    assert eval(repr(ours)) == ours


def test_copies(pair):
    """Configurations are copied and sent to other processes, before and after a model was opened."""
    ours, _ = pair
    for _ in range(2):
        for copied in (copy.deepcopy(ours), copy.copy(ours), pickle.loads(pickle.dumps(ours))):
            assert copied == ours and copied.encode("a b") == ours.encode("a b")
    assert len(pickle.dumps(ours)) < 500


def test_ids_that_pass_through():
    ours, theirs = PassThroughVocabulary(50, 7), seqio.PassThroughVocabulary(50, 7)
    for ids in ([3, 4, 7, 5], [], [60, 7], [2]):
        assert ours.encode(ids) == theirs.encode(ids) == ids
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.decode([0.5, 1.5]) == theirs.decode([0.5, 1.5])
    assert (ours.vocab_size, ours.eos_id, ours.unk_id, ours.size) == (50, 7, None, 50)
    assert without_tensorflow(theirs) == ours != PassThroughVocabulary(50) and ours.to_seqio() == theirs
    assert copy.deepcopy(ours) == ours and {ours, PassThroughVocabulary(50, 7)} == {ours}


def test_what_only_seqio_has_stays_seqio_s(model):
    class Own(seqio.ByteVocabulary):
        pass

    others = [
        Own(),
        seqio.UnigramVocabulary(["a", "b"]),
        seqio.SentencePieceVocabulary(model, 100, reverse_extra_ids=False),
    ]
    for vocabulary in others:
        assert without_tensorflow(vocabulary) is vocabulary
    ids, lengths = encode_batch(Own(), [b"ab", b"c"])
    assert ids.tolist() == [100, 101, 102] and lengths.tolist() == [2, 1]


def test_a_model_is_read_when_it_is_used(tmp_path, model):
    late = SentencePieceVocabulary(str(tmp_path / "late.model"), 100)
    with pytest.raises((OSError, FileNotFoundError)):
        late.encode("a")
    shutil.copy(model, tmp_path / "late.model")
    assert late.encode("a b") == SentencePieceVocabulary(model, 100).encode("a b")
