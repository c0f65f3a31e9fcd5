"""Characters that a vocabulary reads as others: what is said of them, and a vocabulary that keeps all."""

import functools
import json
import random

import pytest

from convert.model_files.hf import hf_tokenizer, tokenizer_json
from limba.addons.surgery import check as check_vocabulary
from limba.addons.vocab_build import command as build_command
from tasks.sources import corpora
from tasks.vocabularies import (
    SentencePieceVocabulary,
    normalization,
    sentencepiece_models,
    sentencepiece_training,
    tokenizer_texts,
)
from tests.convert import vocabularies


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """2,000 lines with a full-width comma and a full stop that NFKC leaves alone; 20 have an exclamation mark."""
    rng = random.Random(0)
    letters = "的一是不了在人有我他这中大来上国个到说们为子和你地出道也时年得就那要下以生"
    lines = [
        "".join(rng.choices(letters, k=6)) + "，" + "".join(rng.choices(letters, k=5)) + ("！" if n < 20 else "。")
        for n in range(2000)
    ]
    file = tmp_path_factory.mktemp("corpus") / "zh.jsonl"
    file.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    return str(file)


def _build(corpus, folder, *flags):
    out = folder / "spiece.model"
    build_command.main(["--data_files", corpus, "--vocab_size", "256", "--out", str(out), *flags])
    return out


def test_the_command_says_what_is_normalized(corpus, tmp_path, capsys):
    out = _build(corpus, tmp_path)
    said = (
        "2,020 of 26,000 characters (0.078 of all), 2 kinds, are read as others: '，' (U+FF0C) as ',' 2,000 times; "
        "'！' (U+FF01) as '!' 20 times"
    )
    assert f"normalized: {said}; T5's and mT5's do so too (--normalization none keeps all)\n" in capsys.readouterr().err
    assert check_vocabulary.main([str(out), "--data_files", corpus]) == 0
    assert f"normalized: {said}\n" in capsys.readouterr().out


def test_a_trace_is_not_worth_a_line(tmp_path, capsys):
    text = [{"text": line} for line in vocabularies.sentences(3000)]
    text[0]["text"] += " ½ …"
    file = tmp_path / "ro.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in text), encoding="utf-8")
    _build(str(file), tmp_path)
    assert "normalized" not in capsys.readouterr().err


def test_a_vocabulary_that_keeps_all_characters(corpus, tmp_path, capsys):
    out = _build(corpus, tmp_path, "--normalization", "none")
    assert "normalized" not in capsys.readouterr().err
    vocabulary = SentencePieceVocabulary(str(out), extra_ids=100)
    assert vocabulary.decode(vocabulary.encode("人，\u3000我。")) == "人， 我。"
    # Exports agree, and have T5's own class.
    record = hf_tokenizer.open_model(out, None)
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(record.vocabulary), tmp_path)
    assert not tokenizer_texts.differences_of_files(record.vocabulary, tmp_path)
    model = tokenizer_json.sentencepiece_pb2.ModelProto.FromString(out.read_bytes())
    assert tokenizer_json.is_as_t5s(model, ())
    # No path of this machine is in the file, so the same corpus gives the same file.
    (tmp_path / "again").mkdir()
    assert _build(corpus, tmp_path / "again", "--normalization", "none").read_bytes() == out.read_bytes()


def test_normalizations_that_there_are(corpus, tmp_path, capsys):
    source = corpora.HuggingFaceSource({"train": corpus})
    with pytest.raises(ValueError, match="normalization is 'nfc'; give 'nfkc' or 'none'"):
        sentencepiece_training.train_vocabulary(source, tmp_path / "x.model", vocab_size=256, normalization="nfc")
    with pytest.raises(SystemExit):
        _build(corpus, tmp_path, "--kind", "bpe", "--normalization", "none")
    assert "--normalization is a flag of --kind sentencepiece" in capsys.readouterr().err


def test_a_joiner_is_read_as_a_blank_and_said_so(corpus, tmp_path):
    """Persian words fall apart at it; it was said to be read as nothing."""
    model = _build(corpus, tmp_path)
    opened = SentencePieceVocabulary(str(model)).tokenizer
    read_as = normalization.changed(
        functools.partial(normalization.by_sentencepiece, opened), "\u200c\u200d\u200fa\u00ad，"
    )
    assert read_as == {"\u200c": " ", "\u200f": " ", "，": ","}


def test_what_is_said_of_changes():
    counts = {"a": 10**6, "\u093f": 900, "\u200c": 3, "ﬁ": 7, **{chr(0x3041 + i): 20 for i in range(10)}}
    found = {c: "" for c in counts if c not in "aﬁ\u200c"}
    kinds = (
        "1,100 of 1,001,110 characters (0.0011 of all), 11 kinds, are dropped: U+093F DEVANAGARI VOWEL SIGN I dropped"
    )
    assert normalization.describe(found, counts).startswith(f"{kinds} 900 times; 'ぁ' (U+3041) dropped 20 times; ")
    assert normalization.describe(found, counts).endswith("; 3 more kinds")
    # A trace is nothing, but for a joiner, of which each is a word that falls apart.
    assert normalization.describe({"ﬁ": "fi"}, counts) == ""
    said = "(3e-06 of all), 1 kind, are read as others: U+200C ZERO WIDTH NON-JOINER as ' ' 3 times"
    assert normalization.describe({"ﬁ": "fi", "\u200c": " "}, counts) == f"3 of 1,001,110 characters {said}"


# What becomes of the joiners of Persian and Hindi words: docs/data.md has this table.
JOINED = ("می\u200cخواهم", "क्\u200dष")


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ([], ["می خواهم", JOINED[1]]),
        (["--normalization", "none"], [*JOINED]),
        (["--kind", "wordpiece"], ["میخواهم", "क्ष"]),
        (["--kind", "bpe"], [*JOINED]),
    ],
)
def test_joiners_in_all_kinds_of_vocabularies(tmp_path, capsys, flags, kept):
    """Those that are dropped or changed are said, however rare they are."""
    lines = [*vocabularies.sentences(3000), *[" ".join(JOINED)] * 2]
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    out = tmp_path / ("tokenizer.json" if "--kind" in flags else "spiece.model")
    build_command.main(["--data_files", str(file), "--vocab_size", "384", "--out", str(out), *flags])
    opened = sentencepiece_models.open_vocabulary(str(out))
    assert [opened.decode(opened.encode(word)) for word in JOINED] == kept
    said = capsys.readouterr().err
    assert ("U+200C ZERO WIDTH NON-JOINER" in said) == (kept[0] != JOINED[0])
    assert ("U+200D ZERO WIDTH JOINER" in said) == (kept[1] != JOINED[1])
