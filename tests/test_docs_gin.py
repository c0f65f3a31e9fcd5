"""The gin lines of the pages about training and encoders can be read, pasted behind a recipe or as one."""

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
                yield pytest.param(page, lines.partition("\nlimba ")[0], id=f"{page}-{number}")


@pytest.mark.parametrize(("page", "example"), _examples())
def test_gin_lines_of_the_docs(tmp_path, page, example):
    gin.clear_config()
    imports = [] if page == "training" else [line for name, line in IMPORTS.items() if line not in example]
    file = tmp_path / "run.gin"
    file.write_text(HEAD.format(imports="\n".join(imports)) + example)
    gin_files.parse_gin_flags([str(file)], ["TRAIN_STEPS = 100"])
    gin.clear_config()


def test_recipes_of_encoders(tmp_path, monkeypatch):
    """Blocks with a run are recipes; the others are pasted behind the first of them."""
    text = (gin_files.REPOSITORY / "docs/encoders.md").read_text(encoding="utf-8")
    blocks = [block for of, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if not of]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_tasks.py").touch()
    assert len(blocks) == 5
    for block in blocks:
        gin.clear_config()
        (tmp_path / "recipe.gin").write_text(block if "'gin/runs/" in block else blocks[0] + block)
        gin_files.parse_gin_flags(["recipe.gin"], [])
        gin_files.require_training_bindings()
    gin.clear_config()
