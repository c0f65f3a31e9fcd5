"""Every script explains itself and stops at errors. (tests/run.sh runs shellcheck.)"""

import subprocess

import pytest

from tests.launch import launching

SCRIPTS = sorted(
    [*(launching.ROOT / "launch").glob("*.s[hb]*"), launching.ROOT / "tests/run.sh"], key=lambda path: path.name
)
SOURCED = {
    "environment.sh",
    "gcloud_errors.sh",
    "pod_check.sh",
    "pod_slices.sh",
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


@pytest.mark.parametrize(
    ("script", "folder"), [("quickstart.sh", "QUICKSTART"), ("moods.sh", "MOODS"), ("encoder.sh", "ENCODER")]
)
def test_the_last_screen_names_what_works_in_a_new_shell(tmp_path, script, folder):
    venv = tmp_path / "my venv"
    (venv / "bin").mkdir(parents=True)
    for program in ("python", "limba"):
        (venv / "bin" / program).write_text("#!/bin/sh\n")
        (venv / "bin" / program).chmod(0o755)
    env = launching.environment(tmp_path, VENV=str(venv)) | {f"LIMBA_{folder}_DIR": str(tmp_path / "runs")}
    done = launching.call(script, env=env)
    assert done.returncode == 0, done.stderr
    screen = done.stdout.partition("Done. Where everything lies:\n")[2]
    assert f"\n  source {tmp_path}/my\\ venv/bin/activate" in screen
    rows = screen.partition("\n\n")[0].splitlines()
    assert len(rows) >= 3 and len({row.index(f" {tmp_path}/runs") for row in rows}) == 1, "the paths are a column"
