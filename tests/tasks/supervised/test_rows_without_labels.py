"""csv files with rows to predict, which have no column of labels."""

import pytest

from tasks.registry import TaskRegistry
from tasks.sources import corpora
from tasks.supervised import SupervisedDataset, register_supervised_task, row_formats
from tasks.supervised.row_preprocessor import check_task
from tasks.vocabularies import ByteVocabulary
from tests.convert import vocabularies

LENGTHS = {"inputs": 32, "targets": 8}


@pytest.mark.parametrize("labels", [["glad", "sad"], None, float])
def test_a_split_to_predict_needs_no_labels(tmp_path, labels, caplog):
    (tmp_path / "all.csv").write_text("text,mood\nI sing,glad\n" if labels is not float else "text,mood\nI sing,1.5\n")
    (tmp_path / "new.csv").write_text("text\nI sing\nYou sang\n")
    is_number = labels is float
    form = row_formats.Number("{text}", "mood") if is_number else "{text}"
    words = vocabularies.write_words(tmp_path / "tokenizer.json", ["sing"])
    task = register_supervised_task(
        "test_unlabelled",
        SupervisedDataset(form) if is_number else SupervisedDataset(form, "mood", labels=labels),
        data_files={
            "train": str(tmp_path / "all.csv"),
            "test": str(tmp_path / "new.csv"),
            "validation": str(tmp_path / "new.csv"),
        },
        vocabulary=words if is_number else ByteVocabulary(),
    )
    try:
        check_task(task, "test", LENGTHS)
        assert "2 of the first 2 rows of split 'test' have no label. Predict them" in caplog.text
        rows = [row for group in task.source.documents("test") for row in group]
        assert [row["text"] for row in rows] == ["I sing", "You sang"]
        assert [example.targets for row in rows for example in task.preprocessors[0].format(row)] == ["<unk>"] * 2
        with pytest.raises(ValueError, match="There is no column 'mood' in split 'validation'"):
            task.source.check("validation")
    finally:
        for name in TaskRegistry.names():
            if name.startswith("test_unlabelled"):
                TaskRegistry.remove(name)


def test_a_label_that_is_filled_is_no_column_of_the_file(tmp_path):
    (tmp_path / "train.csv").write_text("text,mood\na,b\n")
    (tmp_path / "test.csv").write_text("number,story\n1,b\n")
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "test")}
    source = corpora.HuggingFaceSource(files, ("body", "mood"), fill={"mood": "?"})
    with pytest.raises(ValueError, match=r"no column 'body' in split 'test'.* The columns are 'number', 'story'\."):
        source.check("test")
    corpora.HuggingFaceSource(files, ("story", "mood"), fill={"mood": "?"}).check("test")
