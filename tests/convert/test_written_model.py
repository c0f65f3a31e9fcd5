"""The folder that a changed model is written to."""

import pytest

from limba.convert import written_model


def test_a_folder_with_somebodys_file_is_not_replaced(tmp_path):
    source, out = tmp_path / "model", tmp_path / "out"
    source.mkdir()
    (out / ".checkpoint_10.unfinished").mkdir(parents=True)  # of a conversion that was killed
    assert written_model.choose_empty(str(out), source) == out
    (out / "answers.txt.unfinished").write_text("of limba infer")
    with pytest.raises(ValueError, match="out is not empty; choose another OUT, or remove it"):
        written_model.choose_empty(str(out), source)
