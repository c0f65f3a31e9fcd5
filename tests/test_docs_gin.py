"""The gin lines of the pages about training and encoders can be read, pasted behind a recipe or as one."""

import re
import textwrap

import gin
import pytest

from limba.gin_config import gin_files, gin_names

PAGES = ("averages", "lora", "optimizers", "training")
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
    """Blocks with a run are recipes; others stand behind the first of them, and a model file in place of its model."""
    text = (gin_files.REPOSITORY / "docs/encoders.md").read_text(encoding="utf-8")
    blocks = [block for of, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if not of]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_tasks.py").touch()
    assert len(blocks) == 7
    for block in blocks:
        gin.clear_config()
        first = blocks[0]
        if "'gin/runs/" in block:
            first = ""
        elif model := re.search(r"include 'gin/models/\w+/\w+.gin'\n", block):
            first, block = re.sub(r"include 'gin/models/.*\n", model[0], first), block.replace(model[0], "")
        (tmp_path / "recipe.gin").write_text(first + block)
        gin_files.parse_gin_flags(["recipe.gin"], [])
        gin_files.require_training_bindings()
    gin.clear_config()


def _read_recipe(block, tmp_path, monkeypatch, *bindings):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_tasks.py").touch()
    (tmp_path / "my_recipe.gin").write_text(textwrap.dedent(block))
    gin.clear_config()
    gin_files.parse_gin_flags(["my_recipe.gin"], list(bindings))


def test_the_recipe_of_the_readme_takes_sizes_and_changes_none(tmp_path, monkeypatch):
    text = (gin_files.REPOSITORY / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^   ```\n(   from __gin__.*?)^   ```$", text, re.M | re.S)
    _read_recipe(block, tmp_path, monkeypatch)
    gin_files.require_training_bindings()
    assert gin_files.value_of("network.T5Config.emb_dim") == 256
    _read_recipe(re.sub("^.*T5Config.*\n", "", block, flags=re.M), tmp_path, monkeypatch)
    assert gin_files.value_of("network.T5Config.emb_dim") == 256
    _read_recipe(block + "network.T5Config.num_decoder_layers = 2\n", tmp_path, monkeypatch)
    assert gin_files.value_of("network.T5Config.num_decoder_layers") == 2
    gin.clear_config()


def test_the_names_of_the_page_about_gin_have_their_imports_and_values(tmp_path, monkeypatch):
    """Each name with a module of its table can stand in the recipe below it; sizes are those of T5 1.1 base."""
    text = (gin_files.REPOSITORY / "docs/gin.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\n(from __gin__.*?)^```$", text, re.M | re.S)
    rows = dict(re.findall(r"^\| `(\w+\.\w+\.[\w{},*]+)` \| ([^|]*) \|", text, re.M))
    modules = {name.partition(".")[0] for name in rows}
    assert modules == {"trainer", "partitioning", "network", "checkpoints", "schedules"}
    for module in modules:
        assert gin_names.import_line(module) in block
    _read_recipe(block, tmp_path, monkeypatch, "TRAIN_STEPS = 1")
    assert gin_files.value_of("network.T5Config.num_encoder_layers") == 6
    gin.clear_config()
    gin_files.parse_gin_flags(["gin/models/t5_1_1/base.gin"], ["DROPOUT_RATE = 0.0"])
    sizes = {name: value for name, value in rows.items() if value.startswith("base: ")}
    assert len(sizes) == 3
    for names, values in sizes.items():
        of, _, inside = names.partition("{")
        for name, value in zip(inside.rstrip("}").split(","), values.removeprefix("base: ").split(", "), strict=True):
            assert gin_files.value_of(f"{of}{name}") == int(value)
    gin.clear_config()
