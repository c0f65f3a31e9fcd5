"""No command on our own tasks imports TensorFlow, SeqIO, PyTorch, datasets or pandas, though each could."""

import json
import os
import subprocess
import sys

import pytest

from tests import line

pytestmark = pytest.mark.slow

# Python runs `sitecustomize` at its start; this one writes down at the end what was imported.
_RECORDER = """
import atexit, sys
from tests import recorded_imports

atexit.register(lambda: recorded_imports.record(sys.argv[1:]))
"""


def test_no_command_imports_tensorflow(tmp_path, forks):
    line.write_corpus(tmp_path / "corpus")
    line.write_vocabulary(tmp_path / "corpus", tmp_path / "vocab" / "spiece.model")
    (tmp_path / "recorder").mkdir()
    (tmp_path / "recorder" / "sitecustomize.py").write_text(_RECORDER, encoding="utf-8")
    imported = tmp_path / "imported.jsonl"
    environment = {"PYTHONPATH": f"{tmp_path / 'recorder'}{os.pathsep}{line.ROOT}", "IMPORTED": str(imported)}
    run = tmp_path / "run"
    train = line.train_arguments(tmp_path, run, 2)
    recipe = train[1:]
    commands = {
        "train": ["limba", "train", *recipe],
        "eval": ["limba", "eval", "--run_dir", str(run)],
        "infer": ["limba", "infer", "--run_dir", str(run), "--input", "the list <extra_id_0> names"],
        "embed": ["limba", "embed", "--run_dir", str(run), "--input", "x", "--output_file", str(tmp_path / "x.npy")],
        "try": ["limba", "try", str(run)],
        "lint": ["limba", "lint", *recipe],
        "gin-check": ["limba", "gin-check", "gin/recipes/quickstart.gin"],
        "plan": ["limba", "plan", "--estimate_only", "--topology", "v4-8", *recipe],
        "preview": ["limba", "preview", "quickstart_span_corruption", "--module", "limba.addons.examples.quickstart"],
        "cache": [
            *("limba", "cache", "quickstart_span_corruption", "--module", "limba.addons.examples.quickstart"),
            *("--sequence_length", "inputs=32,targets=9", "--out", str(tmp_path / "cached")),
        ],
        "convert": ["limba", "convert", "to-hf", str(run), str(tmp_path / "export"), "--no-check"],
    }
    typed = {"try": "the list <extra_id_0> names\n"}
    codes = {
        name: line.command(tmp_path, *words, typed=typed[name], **environment)
        if name in typed
        else line.forked(forks, tmp_path, "tests.recorded_imports", *words[1:], **environment)
        for name, words in commands.items()
    }
    # What lint finds in so small a run does not matter here.
    failed = {name: done.stderr[-1500:] for name, done in codes.items() if done.returncode > (name == "lint")}
    assert not failed, failed
    assert "remedy" in codes["lint"].stdout
    asked, answered, _ = codes["try"].stdout.split("run, step 2> ")  # what so small a model answers does not matter
    assert "___ is a blank" in asked and answered.strip()
    records = [json.loads(text) for text in imported.read_text(encoding="utf-8").splitlines()]
    assert len(records) >= len(commands)
    # The process that reads an example for the model card has no arguments.
    assert {record["argv"][0] for record in records if record["argv"]} >= set(commands)
    heavy = {tuple(record["argv"][:2]): record["heavy"] for record in records if record["heavy"]}
    assert not heavy


def test_the_recorder_sees_tensorflow(tmp_path):
    """The test above can fail."""
    (tmp_path / "sitecustomize.py").write_text(_RECORDER, encoding="utf-8")
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{line.ROOT}", "IMPORTED": str(tmp_path / "imported.jsonl")}
    program = tmp_path / "program.py"
    program.write_text("import sys, types\nsys.modules['seqio'] = types.ModuleType('seqio')\n", encoding="utf-8")
    subprocess.run([sys.executable, str(program), "x"], env={**os.environ, **environment}, check=True)
    (record,) = [json.loads(text) for text in (tmp_path / "imported.jsonl").read_text("utf-8").splitlines()]
    assert record["heavy"] == ["seqio"] and record["argv"] == ["x"]
