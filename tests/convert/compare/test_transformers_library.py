"""transformers, which asks on the terminal whether to run a folder's own code, is never allowed to."""

import ast
import json

import pytest

from convert import check_vocabulary
from convert.compare import auto_tokenizer, tokenizer_readers
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


def test_all_that_loads_a_folder_says_so():
    """Other classes than Auto… have no code of a folder."""
    calls = [
        (file.name, call)
        for file in (line.ROOT / "convert").rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr in ("from_pretrained", "from_config")
        if ast.unparse(call.func.value) not in ("slow", "transformers.GenerationConfig")
    ]
    assert len(calls) >= 8
    for file, call in calls:
        assert "**transformers_library.NO_CODE" in ast.unparse(call), (file, ast.unparse(call))
