import gzip
import json

import pytest

from tasks import pretraining
from tasks.pipeline import input_rows
from tasks.supervised import SupervisedDataset, register_supervised_task
from tasks.vocabularies import ByteVocabulary

ROWS = [{"story": "Ana, 007", "mood": "glad"}, {"story": "NA", "mood": "sad"}]


@pytest.fixture
def files(tmp_path):
    """The same two rows in each format, the last without answers."""
    (tmp_path / "a.csv").write_text('story,mood\n"Ana, 007",glad\nNA,sad\n')
    (tmp_path / "a.tsv").write_text("story\tmood\nAna, 007\tglad\nNA\tsad\n")
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.json").write_text(json.dumps([{"story": row["story"]} for row in ROWS]))
    return [str(tmp_path / name) for name in ("a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.json")]


def _register(name, inputs="{story} mood:", labels=("glad", "sad")):
    register_supervised_task(
        name,
        SupervisedDataset(inputs, "mood", list(labels)),
        data_files={"train": "x.csv"},
        vocabulary=ByteVocabulary(),
    )


def test_a_column_of_every_format_and_what_is_no_table(files):
    assert all(map(input_rows.is_table, files))
    assert not any(map(input_rows.is_table, ("a.txt", "a.txt.gz", "questions", "a.")))
    assert [input_rows.of_column(file, "story") for file in files] == [["Ana, 007", "NA"]] * 5
    assert input_rows.column_names(files[0]) == input_rows.column_names(files[2]) == ["story", "mood"]
    with pytest.raises(ValueError, match=r"There is no column 'stori' .*did you mean 'story'\?"):
        input_rows.of_column(files[0], "stori")


def test_a_task_reads_rows_as_in_training_and_needs_no_answers(files):
    _register("rows_moods")
    for file in files:
        assert input_rows.of_task(file, "rows_moods", None) == (["Ana, 007 mood:", "NA mood:"], "'{story} mood:'")
    pretraining.register_pretraining_task(
        "rows_corpus", data_files={"train": "x.jsonl"}, vocabulary=ByteVocabulary(100), text_column="story"
    )
    assert input_rows.of_task(files[2], "rows_corpus", None) == (["Ana, 007", "NA"], "column 'story'")
    with pytest.raises(ValueError, match="no task or mixture 'rows_mood'"):
        input_rows.of_task(files[0], "rows_mood", None)


def test_a_missing_text_is_an_empty_one_so_that_rows_and_answers_are_as_many(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": null}\n{"n": 1}\n{"text": ""}\n{"text": "b"}\n')
    assert input_rows.of_column(str(tmp_path / "a.jsonl"), "text") == ["a", "", "", "", "b"]
