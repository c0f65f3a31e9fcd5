"""Messages of the core name the keys of `limba run` while it runs, and gin's settings alone for everybody else."""

import re

import pytest

from limba.addons.run import core_words
from limba.addons.run.keys import script_keys
from limba.files import setting_names
from tasks.sources.damaged_files import missing_columns
from tests import house

SHOWN = re.compile(r"""setting_names\.shown\(['"]([^'"]+)['"](?:, (?:['"](\w+)['"]|name))?\)""")


def test_a_setting_has_its_key_while_the_command_runs():
    assert setting_names.shown("TASK_FEATURE_LENGTHS", "inputs") == "TASK_FEATURE_LENGTHS"
    with core_words.translated():
        said = setting_names.shown("TASK_FEATURE_LENGTHS", "inputs")
        assert said == "TASK_FEATURE_LENGTHS (of `limba run` max_seq_length or max_source_length)"
        assert setting_names.shown("PACK") == "PACK"
    assert setting_names.shown("text_column") == "text_column"


def test_the_table_has_the_settings_that_the_core_names_and_keys_that_there_are():
    named = {
        setting
        for module, file in house.modules().items()
        if not house.is_addon(module)
        # Gin files name the first; the second's messages are about what the core trains on.
        or module in ("limba.addons.run.script_task", "limba.addons.run.counted_documents")
        for setting, _ in SHOWN.findall(file.read_text("utf-8"))
    }
    assert {name.split()[0] for name in core_words.KEYS} == {name.split()[0] for name in named}
    keys = {key for words in core_words.KEYS.values() for key in re.split(" or | and ", words)}
    assert keys <= {*script_keys.FIELDS, *script_keys.ALIASES}


@pytest.mark.parametrize(
    ("column", "found", "hint"),
    [
        ("zzz", ["review, text", "label"], ""),
        ("review", ["review, text", "label"], "A comma in text_column_name stands between two columns: write {review,"),
        ("txt", ["text", "label"], ""),
        ("other", ["a;b"], ""),
    ],
)
def test_a_column_whose_name_has_a_comma(column, found, hint):
    error = missing_columns.error(column, found, [column], "csv", "split 'train'", "t.csv")
    with pytest.raises(ValueError, match=r"^There is no column") as raised, core_words.translated():
        raise error
    assert str(raised.value).startswith(str(error)) and hint in str(raised.value)
    assert ("A comma" in str(raised.value)) == bool(hint)
