import contextlib

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from limba.addons.vocab_build import command as build_command
from tasks.sources import corpora
from tasks.vocabularies import SentencePieceVocabulary, sentencepiece_models, sentencepiece_training, training_text
from tests.loopback_hub import LoopbackHub


@pytest.fixture
def source(tmp_path, write_jsonl):
    """Random words of 26 letters, enough for some hundred pieces."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(2000)]
    documents = [{"text": " ".join(rng.choice(words, 30))} for _ in range(400)]
    return corpora.HuggingFaceSource({"train": write_jsonl(tmp_path / "text.jsonl", documents)})


def test_t5_ids(source, tmp_path):
    file = sentencepiece_training.train_vocabulary(source, tmp_path / "new" / "spiece.model", vocab_size=512)
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert (model.pad_id(), model.eos_id(), model.unk_id(), model.bos_id()) == (0, 1, 2, -1)
    assert model.get_piece_size() == 412
    assert not list(file.parent.glob("*.tmp"))
    vocabulary = SentencePieceVocabulary(str(file), extra_ids=100)
    assert vocabulary.vocab_size == 512
    assert sentencepiece_models.num_sentinels(vocabulary) == 100
    assert vocabulary.tokenizer.id_to_piece(511) == "▁<extra_id_0>"
    sentencepiece_models.check_vocabulary(vocabulary)
    with pytest.raises(ValueError, match="open it with extra_ids=100"):
        sentencepiece_models.check_vocabulary(SentencePieceVocabulary(str(file), extra_ids=0))


def test_letters_of_three_bytes_have_pieces_as_good_as_those_of_one(source, tmp_path, write_jsonl):
    """SentencePiece 0.2.3 looked for repeated bytes, and lost what ended inside letters."""
    texts = [row["text"] for rows in source.documents("train") for row in rows]
    georgian = str.maketrans({chr(ord("a") + i): chr(ord("ა") + i) for i in range(26)})
    tokens = []
    for name, lines in (("latin", texts), ("georgian", [text.translate(georgian) for text in texts])):
        rows = write_jsonl(tmp_path / f"{name}.jsonl", [{"text": line} for line in lines])
        of_script = corpora.HuggingFaceSource({"train": rows})
        file = sentencepiece_training.train_vocabulary(of_script, tmp_path / f"{name}.model", vocab_size=512)
        model = sentencepiece.SentencePieceProcessor(model_file=str(file))
        tokens.append(sum(map(len, model.encode(lines))))
    assert tokens[1] == pytest.approx(tokens[0], rel=0.01)


def test_files_that_cannot_be_opened(source, tmp_path):
    file = sentencepiece_training.train_vocabulary(source, tmp_path / "spiece.model", vocab_size=512)
    proto = sentencepiece_model_pb2.ModelProto.FromString(file.read_bytes())
    for i in reversed(range(100)):
        proto.pieces.add(piece=f"▁<extra_id_{i}>", score=0.0, type=proto.SentencePiece.USER_DEFINED)
    own = tmp_path / "own.model"
    own.write_bytes(proto.SerializeToString())
    sentencepiece_models.check_vocabulary(SentencePieceVocabulary(str(own), extra_ids=0))
    with pytest.raises(ValueError, match="has sentinels of its own and cannot be opened with extra_ids=100"):
        sentencepiece_models.check_vocabulary(SentencePieceVocabulary(str(own), extra_ids=100))
    (tmp_path / "text.model").write_text("words")
    with pytest.raises(ValueError, match="Is it a SentencePiece model"):
        sentencepiece_models.check_vocabulary(SentencePieceVocabulary(str(tmp_path / "text.model"), extra_ids=100))


def test_a_vocabulary_is_not_overwritten_unasked(source, tmp_path):
    file = tmp_path / "spiece.model"
    file.write_bytes(b"the vocabulary of a run")
    with pytest.raises(FileExistsError, match=r"spiece\.model exists, and runs .* cannot resume .*--overwrite"):
        sentencepiece_training.train_vocabulary(source, file, vocab_size=256)
    assert file.read_bytes() == b"the vocabulary of a run"
    sentencepiece_training.train_vocabulary(source, file, vocab_size=256, overwrite=True)
    assert SentencePieceVocabulary(str(file), extra_ids=100).vocab_size == 256


def test_byte_fallback_spells_what_it_does_not_know(source, tmp_path):
    file = sentencepiece_training.train_vocabulary(
        source, tmp_path / "spiece.model", vocab_size=512, byte_fallback=True
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert model.decode(model.encode("abc 你")) == "abc 你"


def test_too_small_a_corpus_names_the_largest_size(source, tmp_path, write_jsonl):
    with pytest.raises(ValueError, match=r"too small for a vocabulary of 65536; the largest possible") as error:
        sentencepiece_training.train_vocabulary(source, tmp_path / "spiece.model", vocab_size=65536)
    largest = int(str(error.value).rstrip(".").split()[-1])
    assert largest % 128 == 0
    sentencepiece_training.train_vocabulary(source, tmp_path / "spiece.model", vocab_size=largest)
    tiny = corpora.HuggingFaceSource({"train": write_jsonl(tmp_path / "tiny.jsonl", [{"text": "a b c"}] * 5)})
    with pytest.raises(
        ValueError,
        match=r"too small for a vocabulary of 8192; it makes 1\d\d ids, and the smallest vocab_size is 256: give it",
    ):
        sentencepiece_training.train_vocabulary(tiny, tmp_path / "tiny.model", vocab_size=8192)
    assert not (tmp_path / "tiny.model").exists()


def test_too_many_characters(tmp_path, write_jsonl):
    text = " ".join(chr(0x4E00 + i) for i in range(600))
    source = corpora.HuggingFaceSource({"train": write_jsonl(tmp_path / "han.jsonl", [{"text": text}] * 3)})
    with pytest.raises(ValueError, match=r"no room for the characters of split 'train'; set vocab_size to 768 or more"):
        sentencepiece_training.train_vocabulary(source, tmp_path / "spiece.model", vocab_size=256)


def test_size_must_be_a_multiple_of_128(source, tmp_path):
    with pytest.raises(ValueError, match="multiple of 128, sentinels included: 1024"):
        sentencepiece_training.train_vocabulary(source, tmp_path / "spiece.model", vocab_size=1000)


def test_long_lines_are_cut(tmp_path, write_jsonl):
    file = write_jsonl(tmp_path / "long.jsonl", [{"text": "word " * 1000 + "\nsecond line"}, {"text": "third"}])
    source = corpora.HuggingFaceSource({"train": file})
    sentences = list(training_text.sentences(training_text.TrainingText(source)))
    assert sentences[-2:] == ["second line", "third"]
    assert max(len(sentence.encode()) for sentence in sentences) <= 4192
    assert sum(len(sentence.split()) for sentence in sentences) == 1000 + 3


def test_documents_are_read_from_all_shards_in_turn(tmp_path, write_jsonl):
    for shard in range(3):
        write_jsonl(tmp_path / f"{shard}.jsonl", [{"text": f"{shard} {row}"} for row in range(1500)])
    source = corpora.HuggingFaceSource({"train": str(tmp_path / "*.jsonl")})
    read = list(training_text.sentences(training_text.TrainingText(source, max_documents=2500)))
    assert len(read) == 2500
    assert [sum(line.startswith(f"{shard} ") for line in read) for shard in range(3)] == [1024, 1024, 452]


def test_the_sample_is_of_the_whole_stream_and_repeats():
    lines = [str(i) for i in range(20_000)]
    sample = training_text.sample(iter(lines), 1000, seed=0)
    numbers = [int(line) for line in sample]
    assert len(set(numbers)) == 1000 and numbers == sorted(numbers)
    # Each tenth of the stream has its share: 100, with a standard deviation of 9.2.
    assert all(60 < count < 140 for count in np.histogram(numbers, bins=10, range=(0, 20_000))[0])
    assert sample == training_text.sample(iter(lines), 1000, seed=0)
    assert sample != training_text.sample(iter(lines), 1000, seed=1)
    # Every line is as likely as another, the first and the last too.
    hits = np.zeros(12)
    for seed in range(2000):
        hits[[int(line) for line in training_text.sample(iter(lines[:12]), 3, seed)]] += 1
    assert abs(hits / 2000 - 0.25).max() < 0.04
    assert training_text.sample(iter(lines[:5]), 1000, seed=0) == lines[:5]


def test_symbols_of_the_user(source, tmp_path):
    symbols = ["[NLU]", "[S2S]"]
    file = sentencepiece_training.train_vocabulary(
        source, tmp_path / "spiece.model", vocab_size=512, user_symbols=symbols
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert [model.piece_to_id(symbol) for symbol in symbols] == [3, 4]
    assert 3 in model.encode("abc [NLU] def") and model.get_piece_size() == 412
    for symbol, message in {
        "a b": "has a space in it",
        "": "is empty",
        "<extra_id_0>": "the sentinels are added behind the last piece",
        "</s>": "has a meaning of its own",
    }.items():
        with pytest.raises(ValueError, match=message):
            sentencepiece_training.train_vocabulary(source, tmp_path / "x.model", vocab_size=512, user_symbols=[symbol])
    with pytest.raises(ValueError, match="given twice"):
        sentencepiece_training.train_vocabulary(source, tmp_path / "x.model", vocab_size=512, user_symbols=["a", "a"])


def test_bad_numbers_and_places(source, tmp_path):
    for name, value in {"num_sentences": 0, "max_documents": 0, "character_coverage": 1.5}.items():
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            sentencepiece_training.train_vocabulary(source, tmp_path / "x.model", vocab_size=512, **{name: value})
    blank = tmp_path / "blank.txt"
    blank.write_text("\n\n  \n")
    with pytest.raises(ValueError, match="no text in the column 'text': all lines are blank"):
        sentencepiece_training.train_vocabulary(
            corpora.HuggingFaceSource({"train": blank}), tmp_path / "x.model", vocab_size=512
        )
    with pytest.raises(ValueError, match="is a directory; name the file"):
        sentencepiece_training.train_vocabulary(source, tmp_path, vocab_size=512)


def test_the_command_says_what_is_wrong(tmp_path):
    with pytest.raises(SystemExit, match="error: There is no file"):
        build_command.main(["--data_files", str(tmp_path / "gone.jsonl"), "--out", str(tmp_path / "x.model")])
    with pytest.raises(SystemExit, match="error: vocab_size is 1000"):
        build_command.main(["--data_files", "x", "--out", str(tmp_path / "x.model"), "--vocab_size=1000"])


def test_a_data_set_on_the_hub(tmp_path, monkeypatch, write_jsonl):
    (tmp_path / "corpus").mkdir()
    words = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "lmnrst"]
    rows = [{"text": " ".join(words[(7 * i + j * j) % 240] for j in range(30))} for i in range(300)]
    write_jsonl(tmp_path / "corpus" / "train-0.jsonl", rows[:200])
    write_jsonl(tmp_path / "corpus" / "train-1.jsonl", rows[200:])
    hub = LoopbackHub()
    hub.use(monkeypatch, tmp_path / "home")
    hub.add("org/corpus", tmp_path / "corpus")
    built = ["--vocab_size=256", "--out"]
    with contextlib.closing(hub):
        build_command.main(["--dataset=org/corpus", *built, str(tmp_path / "hub.model")])
        with pytest.raises(SystemExit, match="error: "):
            build_command.main(["--dataset=org/gone", *built, str(tmp_path / "gone.model")])
    build_command.main(["--data_files", str(tmp_path / "corpus/train-*"), *built, str(tmp_path / "x.model")])
    hub_model, files_model = ((tmp_path / name).read_bytes() for name in ("hub.model", "x.model"))
    assert hub_model == files_model
