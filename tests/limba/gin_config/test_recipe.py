"""Gin files as objects: what they have, and that writing changes nothing."""

import gin
import pytest

from limba.files.repository import REPOSITORY
from limba.gin_config import gin_files, recipe
from limba.gin_config.recipe import Binding, Block, Include, Recipe, Reference

FILES = sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "gin").rglob("*.gin"))
GIN = """\
from __gin__ import dynamic_registration
from limba.training import trainer as t
include 'gin/runs/training.gin'
BATCH_SIZE = 8  # rows
MODEL = @models.EncoderDecoderModel()
train/data.DatasetConfig.batch_size = %BATCH_SIZE
data.DatasetConfig.batch_size = 4
t.Trainer:
  num_microbatches = None
  weights = {'a': [@one/f.g, ('%text', -1e-05)]}
"""


def _values(read):
    return {x.name: x.value for x in read.bindings}


def test_what_a_file_has():
    read = Recipe.parse(GIN)
    assert read.modules == ["__gin__.dynamic_registration", "limba.training.trainer"]
    assert read.statements[2] == Include("gin/runs/training.gin") and read.macros_read == {"BATCH_SIZE"}
    assert read.macros == {"BATCH_SIZE": 8, "MODEL": "@models.EncoderDecoderModel()"}
    assert _values(read) == read.macros | {
        "train/data.DatasetConfig.batch_size": "%BATCH_SIZE",
        "data.DatasetConfig.batch_size": 4,
        "t.Trainer.num_microbatches": None,
        "t.Trainer.weights": {"a": ["@one/f.g", ("%text", -1e-05)]},
    }
    assert isinstance(read.macros["MODEL"], Reference) and [x.line for x in read.bindings][:3] == [4, 5, 6]
    assert read.parameters("Trainer")["num_microbatches"] is None
    assert Recipe.parse(GIN.replace("= 4", "= %BATCH_SIZE")).parameters("DatasetConfig") == {"batch_size": 8}


def test_what_is_written():
    written = Recipe(
        [
            "# A comment",
            Include("it's.gin"),
            Binding("A", [Reference("@f()"), "@f()"], "why"),
            Block("x.f", {"b": Reference("%A"), "c": None}),
        ]
    )
    assert written.text() == (
        "# A comment\ninclude \"it's.gin\"\nA = [@f(), '@f()']  # why\nx.f:\n  b = %A\n  c = None\n"
    )
    assert _values(Recipe.parse(written.text())) == {"A": ["@f()", "@f()"], "x.f.b": "%A", "x.f.c": None}
    assert recipe.lines({"A": 1, "B": None, "C": "%x"}) == ["A = 1", "C = '%x'"]


@pytest.mark.parametrize("file", FILES)
def test_writing_a_file_changes_nothing(file):
    text = (REPOSITORY / file).read_text("utf-8")
    read = Recipe.parse(text, file)
    assert read.statements and Recipe.parse(read.text(), file) == read
    assert read.text().count("\n") <= text.count("\n") + 1


@pytest.mark.parametrize("file", [x for x in FILES if x.startswith("gin/recipes/")])
def test_gin_reads_the_same_from_what_is_written(file, tmp_path):
    written = tmp_path / "written.gin"
    written.write_text(Recipe.parse((REPOSITORY / file).read_text("utf-8")).text())
    configurations = []
    for path in (file, str(written)):
        gin.clear_config()
        gin_files.parse_files([path])
        configurations.append(gin.config_str())
    gin.clear_config()
    assert configurations[0] == configurations[1]


@pytest.mark.parametrize("text", ["x.y = = 3", "x.y = " + "[" * 100_000, "x.y = [1,", "x.y = '\0'"])
def test_what_is_not_gin_is_named(text):
    with pytest.raises(ValueError, match=r"^my.gin cannot be read as gin: ") as error:
        Recipe.parse(text, "my.gin")
    assert len(str(error.value)) < 400
