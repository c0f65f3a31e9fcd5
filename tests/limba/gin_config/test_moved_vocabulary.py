"""Folders that were moved: the vocabulary beside a model.gin, and the module of tasks beside a recipe."""

import logging

import gin
import pytest

from limba.gin_config import gin_files
from limba.gin_config.gin_files import GinError

MODEL = """
from __gin__ import dynamic_registration
from tasks import vocabularies

VOCABULARY_FILE = '/gone/zh/spiece.model'
VOCABULARY = @vocabularies.SentencePieceVocabulary()
vocabularies.SentencePieceVocabulary:
  sentencepiece_model_file = %VOCABULARY_FILE
  extra_ids = 100
"""
RUN = """
from __gin__ import dynamic_registration
from limba import train as train_script
train_script.train.model = %VOCABULARY
"""


@pytest.fixture
def parse(tmp_path):
    def run(*bindings):
        gin.clear_config()
        (tmp_path / "back").mkdir(exist_ok=True)
        (tmp_path / "back" / "model.gin").write_text(MODEL)
        (tmp_path / "run.gin").write_text(RUN)
        gin_files.parse_gin_flags([str(tmp_path / "back/model.gin"), str(tmp_path / "run.gin")], bindings)
        return gin_files.value_of("%VOCABULARY").sentencepiece_model_file

    yield run
    gin.clear_config()


def test_the_vocabulary_of_a_moved_folder_lies_beside_its_gin_file(parse, tmp_path, caplog):
    assert parse() == "/gone/zh/spiece.model"  # nothing lies there: the run names what is missing
    beside = tmp_path / "back" / "spiece.model"
    beside.write_bytes(b"x")
    with caplog.at_level(logging.INFO):
        assert parse() == str(beside)
    file = tmp_path / "back" / "model.gin"
    assert f"{file} names /gone/zh/spiece.model, which is not there; the vocabulary beside it, {beside}," in caplog.text
    assert parse("VOCABULARY_FILE = '/gone/other.model'") == "/gone/other.model"  # the command line means what it says
    there = tmp_path / "there.model"
    there.write_bytes(b"x")
    assert parse(f"VOCABULARY_FILE = {str(there)!r}") == str(there)


def test_a_module_beside_the_gin_file_is_said(tmp_path, monkeypatch):
    (tmp_path / "zh").mkdir()
    (tmp_path / "en").mkdir()
    (tmp_path / "zh" / "beside_tasks.py").write_text("")
    (tmp_path / "zh" / "recipe.gin").write_text("import beside_tasks\n")
    monkeypatch.chdir(tmp_path / "en")
    remedy = (
        f"It lies in {tmp_path}/zh: work in that folder (cd {tmp_path}/zh), where relative paths, such as a "
        f"vocabulary's, are found too, or set PYTHONPATH={tmp_path}/zh."
    )
    with pytest.raises(GinError) as error:
        gin_files.parse_files(["../zh/recipe.gin"])
    assert str(error.value) == f"../zh/recipe.gin:1: No module named 'beside_tasks'. {remedy}"
    # The folder of work holds it where Python does not look: a script of another folder was started.
    monkeypatch.chdir(tmp_path / "zh")
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path])
    with pytest.raises(GinError, match=rf"It lies in {tmp_path}/zh: work in that folder"):
        gin_files.parse_files(["recipe.gin"])
