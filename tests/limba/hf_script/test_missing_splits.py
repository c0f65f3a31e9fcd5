"""A split that is not there: the message names the key that gives it."""

import pytest

from limba.gin_config.hf_keys.script_keys import from_values
from limba.hf_script import script_data


@pytest.mark.parametrize(
    ("given", "does", "says"),
    [
        (("train", "validation"), ["do_train", "do_predict"], "'train', 'validation': give --test_file"),
        (
            ("test",),
            ["do_predict", "do_eval"],
            "has no split 'validation' to evaluate; it has 'test': give --validation_",
        ),
    ],
)
def test_the_key_is_named(tmp_path, given, does, says):
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    files = {f"{split}_file": str(tmp_path / "rows.csv") for split in given}
    keys = {"model_name_or_path": "m", "output_dir": "o", "label_column_name": "label"}
    arguments = from_values(keys | files | dict.fromkeys(does, True))[0]
    with pytest.raises(ValueError, match=says):
        script_data.find(arguments)
