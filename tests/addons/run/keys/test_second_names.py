"""Two keys of one script that are one here."""

import pytest

from limba.addons.run.keys.script_keys import from_command_line, from_values

BASE = {"model_name_or_path": "m", "train_file": "t.json", "output_dir": "o", "summary_column": "summary"}


@pytest.mark.parametrize(
    ("first", "second", "key", "values"),
    [
        ("num_beams", "generation_num_beams", "generation_num_beams", (1, 4)),
        ("max_source_length", "max_length", "max_seq_length", (512, 128)),
        ("hub_token", "token", "hub_token", ("write", "read")),
        ("per_gpu_train_batch_size", "per_device_train_batch_size", "per_device_train_batch_size", (2, 8)),
    ],
)
def test_the_key_that_the_script_reads_counts_in_either_order(first, second, key, values):
    given = dict(zip((first, second), values, strict=True))
    for keys in (given, dict(reversed(given.items()))):
        arguments, notes = from_values(BASE | keys)
        assert getattr(arguments, key) == values[0]
        assert f"Without effect: {second} ({first} is given, and counts, as in the scripts)." in notes


def test_equal_values_need_no_note():
    flags = [f"--{name}={value}" for name, value in (BASE | {"num_beams": 4, "generation_num_beams": 4}).items()]
    arguments, notes = from_command_line(flags)
    assert arguments.generation_num_beams == 4 and not any("num_beams" in note for note in notes)
    # A key of null is not given.
    assert from_values(BASE | {"num_beams": None, "generation_num_beams": 2})[0].generation_num_beams == 2


def test_other_names_of_one_key_stay_an_error():
    with pytest.raises(ValueError, match="num_warmup_steps is 5: they are names of one key"):
        from_values(BASE | {"warmup_steps": 4, "num_warmup_steps": 5})
