"""The example on the page, of the rows that a run keeps."""

import json

import pytest

from limba.addons.serve import page_example
from limba.checkpoint_files import run_folder

_ROW = "the end. Nils was given a small ___ puppy. Last winter Olga painted the old fence. And then ___ danced. It </s>"


@pytest.mark.parametrize(
    ("has_blanks", "rows", "example"),
    [
        (True, [{"inputs": "cut ___"}, {"inputs": _ROW}], "Last winter Olga ___ the old fence."),
        (True, [{"inputs": "none"}, 3, {"inputs": [1]}, {"inputs": "no ___ sentence </s>"}], "no ___ sentence"),
        (True, [{"inputs": "ab ___ " + "long " * 99}], "ab ___ " + "long " * 57 + "long"),
        (True, [{"inputs": "long " * 99 + "___"}], ""),
        (False, [{"inputs": "long " * 99}, {"inputs": "translate: ab ___ c </s>"}], "translate: ab ___ c"),
        (True, "damaged", ""),
    ],
)
def test_it_is_a_sentence_of_a_row_or_a_whole_row(has_blanks, rows, example, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "has_blanks", lambda path: has_blanks)
    (tmp_path / "first_rows.json").write_text(json.dumps({"rows": rows}))
    assert page_example.find(str(tmp_path / "checkpoint_5")) == example
    (tmp_path / "first_rows.json").unlink()
    assert page_example.find(str(tmp_path / "checkpoint_5")) == ""
