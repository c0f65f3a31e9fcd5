"""Every script explains itself and stops at errors. (tests/run.sh runs shellcheck.)"""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.launch import launching

SCRIPTS = sorted(
    [*(launching.ROOT / "launch").glob("*.s[hb]*"), launching.ROOT / "tests/run.sh"], key=lambda path: path.name
)
SOURCED = {
    "environment.sh",
    "gcloud_errors.sh",
    "pod_check.sh",
    "pod_compute.sh",
    "pod_rental.sh",
    "pod_tpus.sh",
    "pod_workers.sh",
    "supervise_pod.sh",
    "variables.sh",
}
RUN = [path for path in SCRIPTS if path.name not in SOURCED]


@pytest.mark.parametrize("script", RUN, ids=lambda path: path.name)
def test_every_script_has_help(script):
    result = subprocess.run(["bash", str(script), "--help"], capture_output=True, text=True, check=False, timeout=20)
    assert result.returncode == 0, result.stderr
    assert "usage: " in result.stdout and script.name in result.stdout


@pytest.mark.parametrize("script", RUN, ids=lambda path: path.name)
def test_every_script_stops_at_an_error(script):
    assert "set -euo pipefail" in script.read_text()


@pytest.mark.parametrize("name", ["ro_t5_base", "ro_t5_large", "ro_mt5_base", "ro_mt5_large"])
def test_ready_made_recipes_pass_on_what_they_are_given(tmp_path, name):
    launching.make_environment(tmp_path)
    env = launching.environment(tmp_path, LIMBA_LOGS=str(tmp_path / "logs"))
    result = launching.call(f"{name}.sh", "--gin.TRAIN_STEPS=1", "--gin.MODEL_DIR='runs/a b'", env=env)
    assert result.returncode == 0, result.stderr
    said = (tmp_path / "logs" / "worker-0.log").read_text()
    assert f"limba train --gin_file=gin/recipes/{name}.gin --gin.TRAIN_STEPS=1 --gin.MODEL_DIR=" in said


# A program that writes down how it was called: words end with NUL, calls with a line.
RECORDS = """#!/bin/sh
for word in "${0##*/}" "$@"; do printf '%s\\0' "$word"; done >>"$CALLS"
echo >>"$CALLS"
"""


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    """What each script of a whole line prints, with programs that only record; and the calls of all."""
    folder, outputs = tmp_path_factory.mktemp("scripts"), {}
    venv = folder / "my venv"
    (venv / "bin").mkdir(parents=True)
    for program in ("python", "limba"):
        (venv / "bin" / program).write_text(RECORDS)
        (venv / "bin" / program).chmod(0o755)
    for script, name in LINES.items():
        env = launching.environment(folder, VENV=str(venv), CALLS=str(folder / "calls"))
        done = launching.call(script, env=env | {f"LIMBA_{name}_DIR": str(folder / ODD)})
        assert done.returncode == 0, done.stderr
        assert not (launching.ROOT / "touched").exists(), "no part of a folder's name is a command"
        outputs[script] = done.stdout
    return folder, outputs, [line.split("\0")[:-1] for line in (folder / "calls").read_text().splitlines()]


# The name of a folder that would be words, commands and the end of a text, if a script let it.
ODD = 'runs\' "a" $(touch touched) `touch touched` \\&'
LINES = {"quickstart.sh": "QUICKSTART", "moods.sh": "MOODS", "encoder.sh": "ENCODER"}


@pytest.mark.parametrize("script", LINES)
def test_the_last_screen_names_what_works_in_a_new_shell(called, script):
    folder, outputs, _ = called
    screen = outputs[script].partition("Done. Where everything lies:\n")[2]
    assert f"\n  source {folder}/my\\ venv/bin/activate" in screen
    rows = screen.partition("\n\n")[0].splitlines()
    assert len(rows) >= 3 and len({row.index(f" {folder}/{ODD}") for row in rows}) == 1, "the paths are a column"


def test_what_they_call_are_commands_with_their_words(called, forks, tmp_path):
    calls = [list(words) for words in dict.fromkeys(map(tuple, called[2])) if words[1] != "-c"]
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    done = forks.run(["tests.parsed_commands", str(tmp_path / "calls.json")], dict(os.environ))
    assert [problem for problem in json.loads(done.stdout) if problem] == []
    folders = [ast.literal_eval(word.partition("=")[2]) for words in calls for word in words if "MODEL_DIR=" in word]
    assert len(folders) == 5 and {str(Path(x).parent) for x in folders} == {str(called[0] / ODD)}
    assert {"limba train", "limba convert", "limba vocab", "python -m"} <= {" ".join(words[:2]) for words in calls}
