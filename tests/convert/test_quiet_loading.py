"""transformers 4 and 5 load exports, run them and generate without a warning."""

import os
import sys
from pathlib import Path

import pytest

from convert.model_files.model import ModelHints
from convert.to_hf import to_hf
from tests.convert import load_quietly
from tests.convert.conftest import FAMILIES
from tests.convert.encoders.conftest import VARIANTS, new_encoder, tokenizer_file  # noqa: F401

_ENCODERS = ("bert", "roberta", "xlm_roberta", "mpnet", "modernbert", "eurobert")
# Version 5's configuration of T5s says of every model that it is tied, whatever config.json says, and only this one
# message is about the weights. It is right: they are not tied then.
_NOT_TIED = "so we will NOT tie them"


@pytest.fixture(scope="module")
def folders(new_run, new_encoder, spiece_model, tmp_path_factory) -> list[Path]:  # noqa: F811
    home = tmp_path_factory.mktemp("quiet")
    for name, fields in FAMILIES.items():
        vocab = None if name == "byt5" else spiece_model
        run = new_run(home / f"{name}-run", vocab_file=vocab, num_encoder_layers=2, num_decoder_layers=1, **fields)
        to_hf(run, home / name, hints=ModelHints(family=name), formats=["safetensors"], verify=False)
    for name in _ENCODERS:
        to_hf(new_encoder(home / f"{name}-run", **VARIANTS[name]), home / name, verify=False)
    return [home / name for name in (*FAMILIES, *_ENCODERS)]


def _said(stderr: str) -> dict[str, list[str]]:
    """The lines about each folder."""
    parts = (part.splitlines() for part in stderr.split("== ")[1:])
    return {name: [line for line in lines if line.strip()] for name, *lines in parts}


@pytest.mark.parametrize("version", [4, 5])
def test_nothing_is_said(folders, version, checks_in_forks, forks5):
    folders = [folder for folder in folders if version == 5 or folder.name != "eurobert"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "USE_TF": "0", "CUDA_VISIBLE_DEVICES": ""}
    if version == 4:
        done = checks_in_forks([sys.executable, "-m", load_quietly.__name__, *map(str, folders)], env=environment)
    else:
        done = forks5.run(load_quietly.__file__, *folders, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    said = _said(done.stderr)
    assert said.keys() == {folder.name for folder in folders}
    for name, lines in said.items():
        is_untied = name in FAMILIES and name != "t5"
        if version == 5 and is_untied:
            assert len(lines) == 1 and _NOT_TIED in lines[0], (name, lines)
        else:
            assert lines == [], (name, lines)
