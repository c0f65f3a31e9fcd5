"""Training, `limba lint` and `limba preview` say the same of the same rows."""

import json

import pytest

from limba.addons.plan.data.lint_tasks import Purpose, check
from limba.data import contract
from tasks import pretraining, preview
from tasks.pipeline import task_batches
from tasks.supervised import SupervisedDataset, question_formats, register_supervised_task, row_preprocessor
from tasks.vocabularies import ByteVocabulary, SentencePieceVocabulary
from tests.convert import vocabularies

LENGTHS = {"inputs": 11, "targets": 8}


def _register(name, **files):
    entry = SupervisedDataset("{text}", "mood", labels=["glad", "sad"])
    register_supervised_task(name, entry, data_files=files, vocabulary=ByteVocabulary())


def _linted(name, split="train"):
    role = "train" if split == "train" else "infer_eval"
    config = contract.DatasetConfig(name, LENGTHS, split, 2)
    return [(x.name, x.severity, x.what) for x in check(config, "EncDecFeatureConverter", Purpose(role))]


def test_of_texts_that_are_cut(tmp_path, caplog, capsys):
    """The first rows in the order of the file count, whichever a reader begins with."""
    rows = "".join(f"{'x' * n},{'glad' if n % 2 else 'sad'}\n" for n in range(1, 31))
    (tmp_path / "t.csv").write_text("text,mood\n" + rows)
    _register("same_cut", train=str(tmp_path / "t.csv"))
    sentence = (
        "same_cut: 20 of the first 30 examples of split 'train' have inputs longer than 11 tokens (the longest: 31) "
        "and are cut."
    )
    next(task_batches.get_train_batches(contract.DatasetConfig("same_cut", LENGTHS, "train", 2, seed=3)))
    row_preprocessor._warned.clear()
    preview.main(["same_cut", "--inputs_length", "11", "--targets_length", "8"])
    assert "inputs 86.4%" in capsys.readouterr().out
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [f"{sentence} Raise TASK_FEATURE_LENGTHS, or shorten them."] * 2
    assert _linted("same_cut") == [("cut_texts", "warning", sentence)]


def test_of_labels_with_blanks(tmp_path, caplog):
    (tmp_path / "t.csv").write_text("text,mood\na,glad\nb, sad\nc,glad \n")
    _register("same_blanks", train=str(tmp_path / "t.csv"))
    (found,) = _linted("same_blanks")
    assert found[:2] == ("spaced_labels", "warning")
    assert found[2].startswith(
        "same_blanks: 2 of the first 3 rows of split 'train' have a label with extra blanks, such"
    )
    next(task_batches.get_train_batches(contract.DatasetConfig("same_blanks", LENGTHS, "train", 2, seed=3)))
    assert found[2] in caplog.text


def test_of_a_wrong_label(tmp_path):
    (tmp_path / "t.csv").write_text("text,mood\na,glad\nb,gald\n")
    _register("same_label", train=str(tmp_path / "t.csv"), validation=str(tmp_path / "t.csv"))
    with pytest.raises(ValueError) as error:
        task_batches.get_train_batches(contract.DatasetConfig("same_label", LENGTHS, "train", 2, seed=3))
    assert str(error.value) == (
        f"Task 'same_label', row 1 (the first is 0) of {tmp_path / 't.csv'}: column 'mood' has the label 'gald'; the "
        "known labels are 'glad', 'sad'. Correct the row, or the task's labels and columns."
    )
    assert _linted("same_label") == [("source", "error", str(error.value))]
    assert ("source", "error", str(error.value)) in _linted("same_label", "validation")


def test_of_rows_without_text_or_answer(tmp_path, caplog):
    (tmp_path / "t.csv").write_text("text,mood\na,x\n,y\nc,\n , z\n")
    register_supervised_task(
        "same_empty",
        SupervisedDataset("mood of: {text}", "mood"),
        data_files={"train": str(tmp_path / "t.csv")},
        vocabulary=ByteVocabulary(),
    )
    config = contract.DatasetConfig("same_empty", {"inputs": 20, "targets": 8}, "train", 2, seed=0)
    task_batches.get_train_batches(config)
    expected = [
        "same_empty: 1 of the first 4 rows of split 'train' have no answer.",
        "same_empty: 2 of the first 4 rows of split 'train' have no text in the columns of the inputs; the first is "
        f"row 1 (the first is 0) of {tmp_path / 't.csv'}.",
    ]
    assert [record.getMessage().rpartition(". ")[0] + "." for record in caplog.records] == expected
    remedies = [x.remedy for x in check(config, "EncDecFeatureConverter", Purpose("train")) if x.name == "empty_rows"]
    assert remedies == [
        "Leave these rows out of the file, or fill the answers: they teach to answer nothing.",
        "Leave these rows out of the file, or fill these columns: the model reads the words around them alone.",
    ]
    assert _linted("same_empty")[:2] == [("empty_rows", "warning", what) for what in expected]


def test_of_questions_without_an_answer(tmp_path):
    rows = [{"question": "who", "context": "a cat", "answers": answers} for answers in (["cat"], [], [])]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    register_supervised_task(
        "same_unanswered",
        SupervisedDataset(question_formats.Questions()),
        data_files={"train": str(tmp_path / "t.jsonl")},
        vocabulary=ByteVocabulary(),
    )
    what = "same_unanswered: 2 of the first 3 rows of split 'train' have no answer."
    assert ("unanswered_questions", "warning", what) in _linted("same_unanswered")


def test_of_documents_without_text_and_labels_that_cannot_be_written(tmp_path, caplog):
    (tmp_path / "t.jsonl").write_text('{"text": "some text of the training"}\n{"text": ""}\n')
    files = {"train": str(tmp_path / "t.jsonl")}
    pretraining.register_pretraining_task(
        "same_blank", data_files=files, vocabulary=ByteVocabulary(100), mean_noise_span_length=20.0
    )
    task_batches.get_train_batches(
        contract.DatasetConfig("same_blank", {"inputs": 64, "targets": 13}, "train", 2, seed=0)
    )
    (logged,) = (record.getMessage() for record in caplog.records)
    found = {name: what for name, _, what in _linted("same_blank")}
    assert logged == f"{found['blank_texts']} Remove these rows, or give them text." and "blank_texts" in found

    caplog.clear()
    (tmp_path / "t.csv").write_text("text,mood\na,快乐\n")
    vocabulary = SentencePieceVocabulary(str(vocabularies.train(tmp_path / "spiece.model")), extra_ids=0)
    entry = SupervisedDataset("{text}", "mood", labels={"快乐": "快乐", "悲伤": "sad"})
    register_supervised_task("same_labels", entry, data_files={"train": str(tmp_path / "t.csv")}, vocabulary=vocabulary)
    task_batches.get_train_batches(contract.DatasetConfig("same_labels", LENGTHS, "train", 2, seed=0))
    (what,) = (what for name, _, what in _linted("same_labels") if name in ("unwritten_labels",))
    assert what == "same_labels: the vocabulary does not give the labels '快乐' back."
    assert [record.getMessage().partition(" Give")[0] for record in caplog.records] == [what]


def test_a_wrong_pattern_of_the_training_is_no_problem_of_the_validation(tmp_path):
    (tmp_path / "v.jsonl").write_text('{"text": "some text of the validation"}\n')
    files = {"train": str(tmp_path / "trian-*.jsonl"), "validation": str(tmp_path / "v.jsonl")}
    pretraining.register_pretraining_task(
        "same_pattern", data_files=files, vocabulary=ByteVocabulary(100), mean_noise_span_length=20.0
    )
    assert _linted("same_pattern", "validation") == []
    (what,) = (what for name, severity, what in _linted("same_pattern") if (name, severity) == ("source", "error"))
    assert "split 'train': No file matches the pattern" in what and "validation" not in what
