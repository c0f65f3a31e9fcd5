import json

import pytest

from limba.addons.plan.data.lint_tasks import Purpose, check
from limba.addons.vocab_build import command as build_command
from limba.data import contract
from tasks import pretraining
from tasks.pipeline import task_batches
from tasks.sources import blank_texts, corpora
from tasks.vocabularies import ByteVocabulary

TEXTS = ["a text", None, "", " \n", "another"]


@pytest.fixture
def files(tmp_path):
    rows = [{"text": text} for text in TEXTS] + [{"n": 1}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"line {i} of a text"}) + "\n" for i in range(40)))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"train": str(tmp_path / "*.jsonl"), "validation": str(tmp_path / "a.jsonl")}


def _sentence(tmp_path):
    return (
        "4 of the 46 documents of split 'train' have no text in the column 'text' (null, missing or blank) and are "
        f"left out; the first is row 1 (counted from 0) of {tmp_path / 'b.jsonl'}."
    )


def test_null_missing_empty_and_blank_count_and_the_first_is_named(files, tmp_path, monkeypatch):
    source = corpora.HuggingFaceSource(files)
    found = blank_texts.find(source, "train", "text")
    assert found == blank_texts.BlankTexts(4, 46, True, str(tmp_path / "b.jsonl"), 1)
    assert found.describe("train", "text") == _sentence(tmp_path)
    assert blank_texts.first(source, "train", "text") == (found.file, 1)
    assert blank_texts.find(source, "validation", "text").describe("validation", "text") == ""
    assert blank_texts.first(source, "validation", "text") == ("", 0)
    monkeypatch.setattr(blank_texts, "_MOST_DOCUMENTS", 10)  # a chunk is read whole
    assert blank_texts.find(source, "train", "text") == blank_texts.BlankTexts(0, 40, False)


def test_csv_and_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("text,n\nhello,1\n,2\n")
    source = corpora.HuggingFaceSource({"train": str(tmp_path / "a.csv")})
    assert blank_texts.find(source, "train", "text").count == 1
    (tmp_path / "b.jsonl").write_text('{"text": 5}\n{"text": null}\n')
    source = corpora.HuggingFaceSource({"train": str(tmp_path / "b.jsonl")})
    found = blank_texts.find(source, "train", "text")
    assert (found.count, found.row) == (1, 1)


def test_training_lint_and_vocabulary_say_the_same(files, tmp_path, caplog):
    task = pretraining.register_pretraining_task(
        "blanks", data_files=files, vocabulary=ByteVocabulary(100), mean_noise_span_length=20.0
    )
    lengths = {"inputs": 64, "targets": 13}
    config = contract.DatasetConfig(task.name, lengths, "train", 2, seed=0)
    task_batches.get_eval_batches(config)
    assert [record.getMessage() for record in caplog.records] == [
        _sentence(tmp_path) + " Remove these rows, or give them text."
    ]
    found = {finding.name: finding for finding in check(config, "EncDecFeatureConverter", Purpose("train"))}
    assert found.keys() == {"blank_texts"} and found["blank_texts"].what == _sentence(tmp_path)
    caplog.clear()
    out = tmp_path / "v.model"
    flags = ["--kind", "bpe", "--vocab_size", "384", "--out", str(tmp_path / "tokenizer.json")]
    with pytest.raises(SystemExit):  # Forty lines have too few pieces.
        build_command.main(["--data_files", files["train"], *flags])
    assert not out.exists() and [record.getMessage() for record in caplog.records] == [_sentence(tmp_path)]
