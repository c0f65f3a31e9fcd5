"""Files of other kinds that are given as a gin file are named, with what to do."""

import json
import time

import gin
import pytest

from limba.gin_config import gin_files

MESH = "import mesh_tensorflow.optimize\nimport t5.models.mesh_transformer\n\nd_ff = 2048\nrun.autostack = True\n"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("operative_config.gin", MESH, "a configuration of Mesh TensorFlow .*gin/models/t5_1_0"),
        ("a.gin", MESH.partition("\n")[2], r"imports t5\.models\.mesh_transformer"),
        ("config.json", json.dumps({"model_type": "t5"}), "config.json of a model .*from-hf .* runs/NAME"),
        ("a.gin", json.dumps({"architectures": ["X"]}), "config.json of a model of Hugging Face"),
        ("run.json", json.dumps({"output_dir": "o"}), r"keys of a script .*`limba run .*run\.json`"),
        ("a.json", "[1]", "it is JSON, and a gin file binds values"),
        ("a.json", "{", "it is JSON by its name"),
        ("a.yaml", "a: 3\n", r"it is YAML: .*limba sweep .*a\.yaml"),
        ("a.gin", "# of a sweep\n---\na: 3\n", "it is YAML"),
        ("my_tasks.py", "import os\n", "it is Python: a gin file imports a module"),
        ("a.gin", "import os\ndef f():\n  pass\n", "it is Python"),
        ("a.gin", "<!DOCTYPE html>\n<html>", "a web page"),
        ("model.safetensors", "\0", "it holds weights"),
        ("spiece.model", "\0", "a SentencePiece model: bind VOCABULARY_FILE"),
    ],
)
def test_another_kind_of_file_is_named(tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    (tmp_path / "outer.gin").write_text(f"include {str(tmp_path / name)!r}\n")
    for file in (name, "outer.gin"):
        with pytest.raises(gin_files.GinError, match=f"{name} is no gin file: .*{says}"):
            gin_files.parse_files([str(tmp_path / file)])
    gin.clear_config()


@pytest.mark.parametrize("text", ["\n" * 27 + "A = 1\n", "A = 1\n" + "\n" * 40_000])
def test_many_blank_lines_take_no_minutes(tmp_path, text):
    (tmp_path / "a.gin").write_text(text)
    begun = time.process_time()
    gin_files.parse_files([str(tmp_path / "a.gin")])
    assert time.process_time() - begun < 3
    gin.clear_config()


@pytest.mark.parametrize(
    ("name", "on_hub"),
    [("google/t5-v1_1-small", True), ("me/model", True), ("google/small.gin", False), ("gin/modles", False)],
)
def test_a_name_of_the_hub(name, on_hub):
    with pytest.raises(gin_files.GinError, match="There is no gin file") as error:
        gin_files.parse_files([name])
    assert (f"by `limba convert from-hf {name} runs/NAME`" in str(error.value)) == on_hub
