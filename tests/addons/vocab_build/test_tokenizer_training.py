"""Training WordPiece and byte-level BPE: what is in the files, the same ones each time, and the command."""

import json
import random
import re
import subprocess
import sys
import unicodedata

import pytest

from limba.addons.surgery import check as check_vocabulary
from limba.addons.vocab_build import command as build_command
from limba.addons.vocab_build import tokenizer_training
from tasks.sources import corpora
from tasks.vocabularies import TokenizerVocabulary
from tasks.vocabularies.training_text import TrainingText
from tests import house
from tests.convert import vocabularies

TRAIN = {"wordpiece": tokenizer_training.train_wordpiece, "bpe": tokenizer_training.train_bpe}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "text.txt"
    file.write_text("\n".join([*vocabularies.sentences(600), "☃"]), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def text(corpus):
    return TrainingText(corpora.HuggingFaceSource({"train": str(corpus)}))


@pytest.mark.parametrize("kind", TRAIN)
def test_the_same_text_gives_the_same_file(kind, text, corpus, tmp_path):
    """In other processes too, where hash tables have another order."""
    first, second = (TRAIN[kind](text, tmp_path / name / "tokenizer.json", vocab_size=512) for name in "ab")
    arguments = ["--kind", kind, "--data_files", str(corpus), "--vocab_size=512", "--out"]
    code = "import sys; from limba.addons.vocab_build import command; command.main(sys.argv[1:])"
    third = tmp_path / "c" / "tokenizer.json"
    subprocess.run([sys.executable, "-c", code, *arguments, str(third)], check=True, cwd=house.ROOT)
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()
    assert sorted(path.name for path in third.parent.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]


def tokens(file):
    ids = json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"]
    assert sorted(ids.values()) == list(range(len(ids)))
    return ids


def test_wordpiece(text, tmp_path):
    file = tokenizer_training.train_wordpiece(text, tmp_path / "tokenizer.json", vocab_size=512)
    vocab = tokens(file)
    assert list(vocab)[:5] == list(tokenizer_training.SPECIAL_TOKENS) and len(vocab) == 512
    assert {"ș", "##ș", "S", "â"} <= vocab.keys() and "☃" not in vocab
    vocabulary = TokenizerVocabulary(str(file))
    assert vocabulary.encode("ș") != vocabulary.encode("s") and vocabulary.encode("S") != vocabulary.encode("s")
    assert vocabulary.encode("☃") == [1]
    assert vocabulary.decode(vocabulary.encode("bă, și")) == "bă, și"


def test_wordpiece_of_lower_case_without_accents(text, tmp_path):
    file = tokenizer_training.train_wordpiece(
        text, tmp_path / "tokenizer.json", vocab_size=384, lowercase=True, keep_accents=False, character_coverage=1.0
    )
    vocab = tokens(file)
    assert "☃" in vocab and not {"ș", "S", "##â"} & vocab.keys()
    vocabulary = TokenizerVocabulary(str(file))
    assert vocabulary.encode("ȘÂ Să") == vocabulary.encode("sa sa")


def test_bytes_spell_every_text(text, tmp_path):
    file = tokenizer_training.train_bpe(text, tmp_path / "tokenizer.json", vocab_size=512)
    assert list(tokens(file))[:5] == list(tokenizer_training.SPECIAL_TOKENS)
    vocabulary = TokenizerVocabulary(str(file))
    for written in ("ștîă s\u0326", "🦊👩‍🚀 日本語", "a\tb\n  c ", " x", "\x00\x7f"):
        assert vocabulary.decode(vocabulary.encode(written)) == unicodedata.normalize("NFC", written)
        assert 1 not in vocabulary.encode(written)


@pytest.mark.parametrize("kind", TRAIN)
def test_sizes(kind, text, tmp_path):
    file = tmp_path / "tokenizer.json"
    with pytest.raises(ValueError, match="multiple of 128, special tokens included: 1024"):
        TRAIN[kind](text, file, vocab_size=1000)
    with pytest.raises(ValueError, match="too small for a vocabulary of 65536; the largest possible") as error:
        TRAIN[kind](text, file, vocab_size=65536)
    assert not file.exists()
    largest = int(str(error.value).rstrip(".").split()[-1])
    assert largest % 128 == 0 and TokenizerVocabulary(str(TRAIN[kind](text, file, vocab_size=largest))).mask_id == 4


def test_too_many_characters(tmp_path, write_jsonl):
    characters = " ".join(chr(0x4E00 + i) for i in range(600))
    source = corpora.HuggingFaceSource({"train": write_jsonl(tmp_path / "han.jsonl", [{"text": characters}] * 3)})
    with pytest.raises(ValueError, match=r"no room for the characters of split 'train'; set vocab_size to 640 or more"):
        tokenizer_training.train_wordpiece(TrainingText(source), tmp_path / "tokenizer.json", vocab_size=256)
    with pytest.raises(ValueError, match="too small for 256 bytes and 5 special tokens; set it to 384"):
        tokenizer_training.train_bpe(TrainingText(source), tmp_path / "tokenizer.json", vocab_size=256)


def test_files_are_not_overwritten_unasked(text, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text("the vocabulary of a run")
    with pytest.raises(FileExistsError, match=r"tokenizer\.json exists, and runs .* cannot resume .*--overwrite"):
        tokenizer_training.train_bpe(text, file, vocab_size=384)
    assert file.read_text() == "the vocabulary of a run"
    file.rename(config := tmp_path / "tokenizer_config.json")
    with pytest.raises(FileExistsError, match=r"tokenizer_config\.json exists, and belongs to another tokenizer"):
        tokenizer_training.train_bpe(text, file, vocab_size=384)
    tokenizer_training.train_bpe(text, file, vocab_size=384, overwrite=True)
    assert json.loads(config.read_text())["mask_token"] == "[MASK]"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    with pytest.raises(ValueError, match=r"is a directory; name the file to write, such as .*/tokenizer\.json"):
        tokenizer_training.train_bpe(text, tmp_path, vocab_size=384)
    with pytest.raises(ValueError, match=r"The file to write is words\.json.*give --out .*/words/tokenizer\.json"):
        tokenizer_training.train_bpe(text, tmp_path / "words.json", vocab_size=384)


def test_the_command(corpus, tmp_path, capsys):
    built = ["--data_files", str(corpus), "--vocab_size=384", "--out", str(tmp_path / "tokenizer.json")]
    build_command.main(["--kind=wordpiece", "--lowercase", "--no-keep_accents", *built])
    assert capsys.readouterr().out.endswith("tokenizer.json: 384 ids, 5 of them special tokens\n")
    assert "ș" not in tokens(tmp_path / "tokenizer.json")
    with pytest.raises(SystemExit, match=r"error: .*exists"):
        build_command.main(["--kind=bpe", *built])
    with pytest.raises(SystemExit, match=r"error: .*is no JSON: name it spiece\.model"):
        build_command.main(built)
    for flag, message in {
        "--byte_fallback": "--byte_fallback is a flag of --kind sentencepiece, and --kind is bpe; leave it out",
        "--character_coverage=1.0": "--character_coverage is a flag of --kind sentencepiece and wordpiece",
        "--lowercase": "--lowercase is a flag of --kind wordpiece, and --kind is bpe",
        "--keep_accents": "--keep_accents is a flag of --kind wordpiece, and --kind is bpe",
    }.items():
        with pytest.raises(SystemExit):
            build_command.main(["--kind=bpe", flag, *built])
        assert message in capsys.readouterr().err


def test_the_check(text, tmp_path, capsys):
    file = tokenizer_training.train_wordpiece(text, tmp_path / "tokenizer.json", vocab_size=384)
    renamed = tmp_path / "words.json"
    renamed.write_bytes(file.read_bytes())
    assert check_vocabulary.main([str(renamed)]) == 0
    out = capsys.readouterr().out
    assert "mask  " in out and "transformers (looks for tokenizer.json, and the file is words.json)" in out
    assert out.endswith("what was compared agrees; EncoderConfig.vocab_size = 384 has a row for each\n")
    assert check_vocabulary.main([str(renamed), "--embedding_rows=256"]) == 1
    assert "DISAGREES: The embedding has 256 rows, and the highest id is 383." in capsys.readouterr().out
    (tmp_path / "other.json").write_text(file.read_text(encoding="utf-8").replace("[MASK]", "[OTHER]"))
    assert check_vocabulary.main([str(tmp_path / "other.json")]) == 1
    assert "DISAGREES: There is no mask token" in capsys.readouterr().out


@pytest.mark.slow
def test_the_check_against_transformers(text, tmp_path, capsys):
    tokenizer_training.train_bpe(text, tmp_path / "tokenizer.json", vocab_size=384)
    assert check_vocabulary.main([str(tmp_path)]) == 0
    assert "transformers 4" in capsys.readouterr().out
    config = tmp_path / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"mask_token": "[MASK]"', '"mask_token": "[SEP]"'))
    assert check_vocabulary.main([str(tmp_path)]) == 1
    assert "DISAGREES: The mask token is 3 in transformers" in capsys.readouterr().out


def test_wordpiece_of_scripts_without_blanks_and_with_joiners(tmp_path, capsys):
    """A clause of Thai is a word; the library's limit of 100 characters made it [UNK] as a whole."""
    words, numbers = ["ภาษา", "ไทย", "ไม่มี", "ช่องว่าง", "ระหว่าง", "คำ", "ผู้ใหญ่", "บ้าน", "เมือง", "หลวง"], random.Random(0)
    clauses = ["".join(numbers.choices(words, k=40)) for _ in range(60)]
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n".join([*clauses, *["می\u200cخواهم کتاب\u200cها را"] * 60]), encoding="utf-8")
    source = TrainingText(corpora.HuggingFaceSource({"train": str(corpus)}))
    vocabulary = TokenizerVocabulary(
        str(tokenizer_training.train_wordpiece(source, tmp_path / "tokenizer.json", vocab_size=256))
    )
    assert [vocabulary.decode(vocabulary.encode(clause)) for clause in clauses] == clauses
    assert "dropped: U+200C ZERO WIDTH NON-JOINER dropped 120 times; BERT's" in capsys.readouterr().err


# A word of each script, with a mark that BERT's strip_accents drops.
WITH_SIGNS = {
    "Devanagari": "हिन्दुस्तान",
    "Bengali": "বাংলাদেশু",
    "Tamil": "தமிழ்",
    "Telugu": "తెలుగు",
    "Sinhala": "සිංහල",
    "Thai": "ภาษาไทยที่",
    "Lao": "ພາສາລາວທີ່",
    "Khmer": "ភាសាខ្មែរ",
    "Myanmar": "မြန်မာစကားကို",
    "Tibetan": "བོད་སྐད",
    "Arabic": "مُحَمَّد",
    "Hebrew": "שָׁלוֹם",
    "Hiragana": "がくせいだ",
}


@pytest.mark.parametrize("script", WITH_SIGNS)
def test_vowel_signs_are_dropped_only_if_asked_for_twice(script, tmp_path, write_jsonl, capsys):
    rows = [{"text": f"{WITH_SIGNS[script]} ana {letter}"} for letter in "abcdefghijklmnop" * 20]
    corpus = corpora.HuggingFaceSource({"train": write_jsonl(tmp_path / "rows.jsonl", rows)})

    def build(**options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return tokenizer_training.train_wordpiece(TrainingText(corpus), folder / "tokenizer.json", **options)

    with pytest.raises(ValueError, match=rf"the text has {script}, where marks are vowels .*U\+.*--drop_vowel_signs"):
        build(vocab_size=256, keep_accents=False)
    with pytest.raises(ValueError, match="too small for a vocabulary"):
        build(vocab_size=256, keep_accents=False, drop_vowel_signs=True)
    said = capsys.readouterr().err
    assert "normalized: " in said and "--no-keep_accents and BERT's uncased" in said
    with pytest.raises(ValueError, match="too small for a vocabulary"):
        build(vocab_size=256)
    assert "normalized: " not in capsys.readouterr().err  # Nothing is dropped by itself.


def test_accents_of_latin_are_dropped_and_all_are_named(text, tmp_path, capsys):
    tokenizer_training.train_wordpiece(text, tmp_path / "tokenizer.json", vocab_size=384, keep_accents=False)
    said = capsys.readouterr().err
    assert re.search(
        r"normalized: [\d,]+ of [\d,]+ characters \(0\.\d+ of all\), \d+ kinds, are read as others: ", said
    )
    assert "'ș' (U+0219) as 's' " in said
