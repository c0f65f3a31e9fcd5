"""The doors of models."""

import pytest

from convert.model_files import any_format
from limba.gin_config import closed_list, importing


@pytest.mark.parametrize("place", ["run", "run/checkpoint_10"])
def test_no_module_in_the_folder_of_a_model_is_imported(new_run, tmp_path, monkeypatch, place):
    """`run.json` may name an attention layer, without gin."""
    run = new_run(tmp_path / "run")
    (run / "beside_it.py").write_text("raise AssertionError('code of the run ran')")
    monkeypatch.syspath_prepend(str(run))
    any_format.open_model(tmp_path / place)
    with pytest.raises(closed_list.RefusedNameError, match="it lies in the folder of the run or model"):
        importing.load("beside_it")
