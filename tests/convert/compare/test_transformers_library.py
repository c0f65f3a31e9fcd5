"""transformers, which asks on the terminal whether to run a folder's own code, is never allowed to."""

import ast
import json
import os

import pytest

from convert.compare import auto_tokenizer
from limba.addons.surgery import check as check_vocabulary
from limba.addons.surgery import tokenizer_readers
from tests import line

READERS = {
    "vocab check of a T5": lambda folder: str([x.note for x in check_vocabulary._transformers(folder, False)]),
    "vocab check of an encoder": lambda folder: tokenizer_readers._transformers(folder, "tokenizer.json"),
    "exports": lambda folder: auto_tokenizer.main(str(folder), "[]"),
}


@pytest.mark.parametrize("reader", READERS)
def test_the_class_of_a_tokenizer_s_folder_is_not_run(tmp_path, monkeypatch, reader):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Tok: pass\n")
    settings = {"tokenizer_class": "Tok", "auto_map": {"AutoTokenizer": ["theirs.Tok", "theirs.Tok"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    try:
        said = READERS[reader](folder)
    except ValueError as error:
        said = str(error)
    assert not (tmp_path / "ran").exists() and "custom code" in str(said)


@pytest.mark.parametrize("key", ["tokenizer_file", "vocab_file"])
@pytest.mark.parametrize("reader", READERS)
def test_a_device_that_a_tokenizer_s_folder_names_is_not_read(tmp_path, reader, key):
    """Here a pipe: what reads it would wait for ever."""
    os.mkfifo(pipe := tmp_path / "pipe")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", key: str(pipe)}))
    try:
        said = READERS[reader](tmp_path)
    except ValueError as error:
        said = str(error)
    assert f"{key}: {pipe} is a FIFO" in said


def test_all_that_loads_a_folder_says_so():
    """Other classes than Auto… have no code of a folder."""
    calls = [
        (file.name, call)
        for file in [*(line.ROOT / "convert").rglob("*.py"), *(line.ROOT / "limba/addons").rglob("*.py")]
        for call in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr in ("from_pretrained", "from_config")
        if ast.unparse(call.func.value) not in ("slow", "transformers.GenerationConfig")
    ]
    assert len(calls) >= 8
    for file, call in calls:
        assert "**transformers_library.NO_CODE" in ast.unparse(call), (file, ast.unparse(call))
