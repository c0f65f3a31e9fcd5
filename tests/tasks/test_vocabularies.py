import numpy as np
import pytest
import sentencepiece
import seqio

from tasks import sources, vocabularies


@pytest.fixture
def source(tmp_path, write_jsonl):
    """Random words of 26 letters, enough for some hundred pieces."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(2000)]
    documents = [{"text": " ".join(rng.choice(words, 30))} for _ in range(400)]
    return sources.HuggingFaceSource({"train": write_jsonl(tmp_path / "text.jsonl", documents)})


def test_t5_ids(source, tmp_path):
    file = vocabularies.train_vocabulary(source, tmp_path / "new" / "spiece.model", vocab_size=512)
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert (model.pad_id(), model.eos_id(), model.unk_id(), model.bos_id()) == (0, 1, 2, -1)
    assert model.get_piece_size() == 412
    assert not list(file.parent.glob("*.tmp"))
    vocabulary = seqio.SentencePieceVocabulary(str(file), extra_ids=100)
    assert vocabulary.vocab_size == 512
    assert vocabularies.num_sentinels(vocabulary) == 100
    assert vocabulary.tokenizer.id_to_piece(511) == "▁<extra_id_0>"
    vocabularies.check_vocabulary(vocabulary)
    with pytest.raises(ValueError, match="open it with extra_ids=100"):
        vocabularies.check_vocabulary(seqio.SentencePieceVocabulary(str(file), extra_ids=0))


def test_byte_fallback_spells_what_it_does_not_know(source, tmp_path):
    file = vocabularies.train_vocabulary(source, tmp_path / "spiece.model", vocab_size=512, byte_fallback=True)
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert model.decode(model.encode("abc 你")) == "abc 你"


def test_too_small_a_corpus_names_the_largest_size(source, tmp_path, write_jsonl):
    with pytest.raises(ValueError, match=r"too small for a vocabulary of 65536; the largest possible") as error:
        vocabularies.train_vocabulary(source, tmp_path / "spiece.model", vocab_size=65536)
    largest = int(str(error.value).rstrip(".").split()[-1])
    assert largest % 128 == 0
    vocabularies.train_vocabulary(source, tmp_path / "spiece.model", vocab_size=largest)
    tiny = sources.HuggingFaceSource({"train": write_jsonl(tmp_path / "tiny.jsonl", [{"text": "a b c"}] * 5)})
    with pytest.raises(ValueError, match="too small for a vocabulary of 8192; give it more text"):
        vocabularies.train_vocabulary(tiny, tmp_path / "tiny.model", vocab_size=8192)
    assert not (tmp_path / "tiny.model").exists()


def test_too_many_characters(tmp_path, write_jsonl):
    text = " ".join(chr(0x4E00 + i) for i in range(600))
    source = sources.HuggingFaceSource({"train": write_jsonl(tmp_path / "han.jsonl", [{"text": text}] * 3)})
    with pytest.raises(ValueError, match=r"no room for the characters of split 'train'; set vocab_size to 768 or more"):
        vocabularies.train_vocabulary(source, tmp_path / "spiece.model", vocab_size=256)


def test_size_must_be_a_multiple_of_128(source, tmp_path):
    with pytest.raises(ValueError, match="multiple of 128, sentinels included: 1024"):
        vocabularies.train_vocabulary(source, tmp_path / "spiece.model", vocab_size=1000)


def test_sampling_is_bounded_and_long_lines_are_cut(tmp_path, write_jsonl):
    file = write_jsonl(tmp_path / "long.jsonl", [{"text": "word " * 1000 + "\nsecond line"}, {"text": "third"}])
    source = sources.HuggingFaceSource({"train": file})
    sentences = list(vocabularies._sentences(source, "train", "text", 100))
    assert sentences[-2:] == ["second line", "third"]
    assert max(len(sentence.encode()) for sentence in sentences) <= 4192
    assert sum(len(sentence.split()) for sentence in sentences) == 1000 + 3
    assert len(list(vocabularies._sentences(source, "train", "text", 2))) == 2
