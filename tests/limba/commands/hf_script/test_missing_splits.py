"""A split that is not there: the message names the key that gives it."""

import pytest

from limba.commands.hf_script import script_data
from limba.gin_config.hf_keys.script_keys import from_values


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


def test_an_evaluation_alone_of_documents_has_the_part_that_a_training_holds_out(tmp_path):
    """As run_mlm.py does; the scripts of rows with answers want a validation file."""
    (tmp_path / "corpus.txt").write_text("a\nb\n")
    keys = {"model_name_or_path": "m", "output_dir": "o", "train_file": str(tmp_path / "corpus.txt"), "do_eval": True}
    assert script_data.find(from_values(keys)[0]).splits == {"train": "train[5%:]", "validation": "train[:5%]"}
    with pytest.raises(ValueError, match="no split 'validation' to evaluate"):
        script_data.find(from_values(keys | {"label_column_name": "label"})[0])
