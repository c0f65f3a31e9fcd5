"""A column that is not there: the nearest one, another delimiter, or no header."""

import re

import pytest

from tasks import sources
from tasks.sources.damaged_files import missing_columns

ROWS = "Ana walks along the long road to the sea, glad\nIon waits, sad\n"


def _check(file, columns, **options):
    sources.HuggingFaceSource({"train": str(file)}, columns, **options).check("train")


def test_the_remedy_for_another_delimiter_works_as_it_is_written(tmp_path):
    file = tmp_path / "stories.csv"
    file.write_text("story;mood\nwind;glad\nrain;sad\n")
    with pytest.raises(ValueError, match="is separated by ';'") as caught:
        _check(file, ["story", "mood"])
    remedy = re.search(r"data_files=(sources\.HuggingFaceSource\(.*\)) with all splits", str(caught.value))[1]
    source = eval(remedy, {"sources": sources})
    assert [document["mood"] for batch in source.documents("train") for document in batch] == ["glad", "sad"]


def test_a_csv_without_a_header(tmp_path):
    file = tmp_path / "stories.csv"
    file.write_text(ROWS)
    with pytest.raises(
        ValueError, match=r"The first line of a csv must be its header.*'Ana walks.* such as 'story,mood'"
    ):
        _check(file, ["story", "mood"])
    file.write_text("stories,moods\n" + ROWS)
    with pytest.raises(ValueError, match=r"The columns are 'stories', 'moods'; did you mean 'stories'\?"):
        _check(file, ["story", "mood"])
    with pytest.raises(ValueError, match=r"no column 'text' .*'moods'\. If these are values, put a header"):
        _check(file, ["text"])
    file.write_text(",".join(f"{'c' * 30}{i}" for i in range(300)) + "\n" + "," * 299 + "\n")
    with pytest.raises(ValueError, match=r"(?s)^(?=.*'c{30}19' and 280 more\.).{0,2000}$"):
        _check(file, ["text"])


def test_more_readers_than_documents(tmp_path):
    (tmp_path / "one.txt").write_text("The only document.\n")
    source = sources.HuggingFaceSource({"train": str(tmp_path / "one.txt")})
    with pytest.raises(ValueError, match=r"set DatasetConfig\.num_readers to at most the number of documents\.$"):
        source.chunks_of("train", False, 0, reader=1, num_readers=8)


def test_a_column_with_braces_in_its_name(tmp_path):
    file = tmp_path / "stories.csv"
    file.write_text("{doc},mood\nwind,glad\n")
    with pytest.raises(
        ValueError, match=r"no column 'doc' in .*: braces stand for .* the column is \{doc\}\. Rename it"
    ):
        _check(file, ["doc", "mood"])


def test_a_name_in_another_form_of_unicode(tmp_path):
    """A "did you mean" would show the same letters twice."""
    file = tmp_path / "weather.csv"
    file.write_text("i\u0302nghet\nda\n", "utf-8")
    with pytest.raises(ValueError, match=r"looks the same, and has 7 characters where yours has 6: .*\(NFC, NFD\)"):
        _check(file, ["\u00eenghet"])


def test_a_name_with_a_comma(tmp_path):
    file = tmp_path / "texts.csv"
    file.write_text('"Text, raw",Sum\na,b\n')
    with pytest.raises(missing_columns.MissingColumnError, match=r"did you mean 'Text, raw'\?$") as raised:
        _check(file, ["Text"])
    assert raised.value.nearest == "Text, raw"
