"""The gin lines of the pages about training can be read, after a model and a run."""

import re
import textwrap

import gin
import pytest

from limba.gin_config import gin_files, gin_names

PAGES = ("lora", "optimizers", "training")
HEAD = """
from __gin__ import dynamic_registration
{imports}
include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/finetune.gin'
include 'gin/runs/lora.gin'
"""
IMPORTS = {name: gin_names.import_line(name) for name in ("actions", "checkpoints", "trainer", "watchdog")}
IMPORTS |= {"models": "from limba import models", "train_script": "from limba import train as train_script"}
# What stands for something of the reader's.
NOT_GIN = ("limba ", "--gin")


def _examples():
    for page in PAGES:
        text = (gin_files.REPOSITORY / "docs" / f"{page}.md").read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"(?:^ {4,}\S.*\n|^\n(?= {4}))+", text, re.M)):
            lines = textwrap.dedent(block)
            bindings = [line for line in lines.splitlines() if line.strip()]
            if bindings and not bindings[0].startswith(NOT_GIN):
                yield pytest.param(lines.partition("\nlimba ")[0], id=f"{page}-{number}")


@pytest.mark.parametrize("example", _examples())
def test_gin_lines_of_the_docs(tmp_path, example):
    gin.clear_config()
    imports = [line for name, line in IMPORTS.items() if line not in example]
    file = tmp_path / "run.gin"
    file.write_text(HEAD.format(imports="\n".join(imports)) + example)
    gin_files.parse_gin_flags([str(file)], ["TRAIN_STEPS = 100"])
    gin.clear_config()
