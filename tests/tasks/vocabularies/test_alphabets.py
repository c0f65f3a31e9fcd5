"""A vocabulary keeps the letters of its language, and says which characters it left out."""

import json
import random
import re
import unicodedata

import pytest
import sentencepiece

from limba.addons.vocab_build import tokenizer_training
from tasks.sources import corpora
from tasks.vocabularies import (
    SentencePieceVocabulary,
    TokenizerVocabulary,
    alphabets,
    known_text,
    sentencepiece_training,
)
from tasks.vocabularies.training_text import TrainingText

# Of a few hundred words; the rare letters of the language are in one line of 4,000.
UKRAINIAN = "абвгдежзиіклмнопрстух"
RARE = "ЮЇҐґ’'їщєЩ"


@pytest.fixture
def corpus(tmp_path, write_jsonl):
    rng = random.Random(0)
    words = ["".join(rng.choices(UKRAINIAN, k=rng.randint(2, 6))) for _ in range(400)]
    rows = [{"text": " ".join(rng.choices(words, k=12))} for _ in range(4000)]
    rows[1234] = {"text": "Юрко, Їжак, Ґанок і ґедзь: м’ята, п'ять, їжа, щось, є, Що?"}
    rows[2345] = {"text": "одна 日 і 🦊"}
    return corpora.HuggingFaceSource({"train": write_jsonl(tmp_path / "a.jsonl", rows)})


def unknown_of(vocabulary, characters):
    return alphabets.unknown(lambda texts: [vocabulary.encode(t) for t in texts], vocabulary.unk_id, characters)


@pytest.mark.parametrize("sample", [1_000_000, 500])
def test_sentencepiece_keeps_rare_letters(corpus, sample, tmp_path, capsys):
    """Also those of lines that are not in the sample."""
    file = sentencepiece_training.train_vocabulary(
        corpus, tmp_path / "spiece.model", vocab_size=512, num_sentences=sample
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert model.get_piece_size() == 412
    assert not [c for c in RARE + UKRAINIAN + "日" if model.unk_id() in model.encode(c)]
    said = capsys.readouterr().err
    assert "left out: 1 character, 1 of 1" in said and "'🦊' 1 time, first in 'одна 日 і 🦊'." in said
    assert "--character_coverage 1.0 keeps all. --byte_fallback spells them as bytes." in said


def test_a_coverage_leaves_out_and_says_what(corpus, tmp_path, capsys):
    """What was the default."""
    file = sentencepiece_training.train_vocabulary(
        corpus, tmp_path / "spiece.model", vocab_size=512, character_coverage=0.9995
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    lost = [c for c in RARE if model.unk_id() in model.encode(c)]
    assert len(lost) > 5
    said = capsys.readouterr().err
    assert ("left out: " in said and f"{lost[0]!r} " in said) or len(lost) > 5
    fallback = sentencepiece_training.train_vocabulary(
        corpus, tmp_path / "bytes.model", vocab_size=768, character_coverage=0.9995, byte_fallback=True
    )
    assert fallback.exists() and "left out" not in capsys.readouterr().err


def test_wordpiece_keeps_rare_letters_everywhere_in_a_word(corpus, tmp_path, capsys):
    file = tokenizer_training.train_wordpiece(TrainingText(corpus), tmp_path / "tokenizer.json", vocab_size=512)
    vocabulary = TokenizerVocabulary(str(file))
    letters = [c for c in RARE + UKRAINIAN if c.isalpha()]
    assert not unknown_of(vocabulary, letters)
    for word in ("ЮЇҐ", "аЮа", "ґґ", "м’ята", "мЩ"):
        assert vocabulary.unk_id not in vocabulary.encode(word), word
    said = capsys.readouterr().err
    assert "'🦊' 1 time" in said and "A word with one is [UNK]; --kind bpe spells every text as bytes." in said
    # й and ї are letters, unless it is said that they are not; then it is said what that does.
    assert vocabulary.encode("ї") != vocabulary.encode("і")
    tokenizer_training.train_wordpiece(
        TrainingText(corpus), tmp_path / "b/tokenizer.json", vocab_size=384, keep_accents=False
    )
    said = capsys.readouterr().err
    assert "'ї' (U+0457) as 'і' " in said and "'Ї' (U+0407) as 'І' " in said


def test_wordpiece_keeps_signs_of_money_behind_a_number_too(corpus, tmp_path, capsys):
    """The text has it alone; BERT makes no word of it, as it does of punctuation."""
    rows = [document for batch in corpus.documents("train") for document in batch]
    rows[2345] = {"text": "одна ₾ і € ≈ °"}
    file = tmp_path / "b.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text = TrainingText(corpora.HuggingFaceSource({"train": str(file)}))
    tokenizer_training.train_wordpiece(text, tmp_path / "tokenizer.json", vocab_size=512)
    vocabulary = TokenizerVocabulary(str(tmp_path / "tokenizer.json"))
    for words in ("п₾", "п€", "€п", "а≈"):
        assert vocabulary.unk_id not in vocabulary.encode(words), words
    assert "'°' 1 time" in (said := capsys.readouterr().err) and "₾" not in said.partition("first in")[0]
    assert not {f"##{sign}" for sign in "!?+$-’"} & {*vocabulary.tokenizer.get_vocab()}


def test_the_alphabet():
    counts = {"a": 10**6, "é": 3, "日": 5, "🦊": 2, "€": 1, "\u200c": 1, "№": 1, "^": 1, "`": 1}
    kept = alphabets.alphabet(counts, None)
    assert kept == sorted("aé日€\u200c^`") and alphabets.alphabet(counts, 0.9995) == ["a"]
    assert alphabets.alphabet(counts, 1.0) == sorted(counts)
    # What is seen once in 200 MB is noise.
    assert "é" not in alphabets.alphabet({"a": 4 * 10**8, "é": 3}, None)
    assert "é" in alphabets.alphabet({"a": 2 * 10**8, "é": 3}, None)
    # Some thousand Chinese characters are kept in a Chinese text, and not in a text of another language.
    han = {chr(0x4E00 + i): 3 for i in range(3000)}
    assert {*han} <= {*alphabets.alphabet(han | {"a": 50_000}, None)}
    foreign = alphabets.alphabet(han | {"a": 10**8}, None)
    assert foreign == ["a"]
    assert len(alphabets.alphabet({chr(0x4E00 + i): 3 for i in range(9000)} | {"a": 10**5, "b": 1}, None)) < 9001


def test_characters_are_counted_with_an_example():
    characters = alphabets.Characters()
    for i in range(3000):
        characters.add("slova " * 100, f"a.jsonl, row {i}")
    characters.add("tut ye ї i\tй", "b.jsonl, row 7")
    counts = characters.counts
    assert counts["s"] == 300_000 and counts["ї"] == 1 and " " not in counts and "\t" not in counts
    assert counts["й"] == 1 and "\u0306" not in counts  # composed
    assert characters.example("ї") == "b.jsonl, row 7: 'lova tut ye ї i й'" or "b.jsonl, row 7" in characters.example(
        "ї"
    )
    assert characters.example("s").startswith("a.jsonl, row 0: 'slova")
    shown = alphabets.describe(["й", "s"], characters)
    assert shown.startswith("2 characters, 300,001 of ") and ": 's' 300,000 times, first in a.jsonl, row 0: " in shown
    assert alphabets.Characters().counts == {}
    assert alphabets.unknown(lambda texts: [[2]] * len(texts), None, "a") == []
    lone = alphabets.Characters()
    lone.add("a\ud800b")
    assert lone.counts == {"a": 1, "b": 1}


def test_a_letter_with_thousands_of_accents_takes_time_by_its_length(monkeypatch):
    """Unicode's form NFC takes n² steps for these: 1.4 s, and half an hour for a row of a megabyte."""
    normalize, lengths = unicodedata.normalize, []
    monkeypatch.setattr(unicodedata, "normalize", lambda form, x: lengths.append(len(x)) or normalize(form, x))
    composed = alphabets.composed("e\u0301 " + "\u0344\u0301\u0315\u0323" * 8000 + " e\u0301")
    assert composed[:2] == "é " and composed[-2:] == " é" and len(composed) == 40_004
    assert max(lengths) < 100
    assert alphabets.composed("ﬁ e\u0323\u0301 " * 500, "NFKC") == "fi ẹ\u0301 " * 500


@pytest.mark.parametrize("normalization", ["nfkc", "none"])
def test_build_and_check_count_the_same_unknown_characters(normalization, corpus, tmp_path, capsys):
    """Private use, C1 controls and symbols; letters whose accents stand apart are known, as they are read."""
    rows = [document for batch in corpus.documents("train") for document in batch]
    rows[77] = {"text": "\ue000одна\ue000 \x80 і\x99 ☃"}
    rows[78] = {"text": "и\u0306 е\u0301 ｆ"}
    file = tmp_path / "b.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = sentencepiece_training.train_vocabulary(
        corpora.HuggingFaceSource({"train": str(file)}),
        tmp_path / "spiece.model",
        vocab_size=512,
        normalization=normalization,
    )
    said = [line for line in capsys.readouterr().err.splitlines() if "left out: " in line]
    texts = [
        (row["text"], "")
        for batch in corpora.HuggingFaceSource({"train": str(file)}).documents("train")
        for row in batch
    ]
    measure = known_text.measure(SentencePieceVocabulary(str(out), extra_ids=100), texts)
    found = [line for line in measure.describe() if line.startswith(("unknown: ", "other unknown characters: "))]
    assert measure.unknown.counts == {"\ue000": 2, "\x80": 1, "\x99": 1, "☃": 1, "🦊": 1}
    numbers, built = (
        [re.sub(r", first in [^;]*", "", line.partition(": ")[2]) for line in lines] for lines in (found, said)
    )
    assert len(numbers) == 2 and numbers == built
