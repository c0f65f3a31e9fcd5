"""Messages name files of Limba's temporary folders without the folder, and files of the user's with all of it."""

import json
import pathlib
import tempfile

import pytest

from limba import command_line
from limba.addons.run import command
from limba.command_line import run_command


def test_only_folders_of_limba_are_left_out():
    tmp = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="limba-gin-") as folder:
        assert command_line.without_temporary_folders(f"{folder}/run.gin:3: no") == "run.gin:3: no"
    for kept in (f"{tmp}/limba-runs/a.gin", f"{tmp}/tmpab12cd34/a.gin", f"{tmp}/my/limba-gin-abcd1234/a.gin"):
        assert command_line.without_temporary_folders(kept) == kept


def test_a_network_by_default_that_cannot_be(tmp_path, capsys, monkeypatch):
    """Its config.json lies in a temporary folder, and the keys of the command are what can be changed."""
    pieces = {piece: number for number, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": {"type": "WordPiece", "vocab": pieces}}
    tokenizer["model"] |= {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "text.txt").write_text("a\n")
    keys = {"model_type": "bert", "tokenizer_name": tmp_path, "train_file": tmp_path / "text.txt", "output_dir": "out"}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        run_command(
            command.main,
            [f"--{name}={value}" for name, value in keys.items()] + ["--do_train", "--config_overrides=hidden_size=7"],
        )
    said = capsys.readouterr().err
    assert error.value.code == 1 and "error: " in said and f"{tempfile.gettempdir()}/limba-" not in said
    assert not pathlib.Path("out").exists()
