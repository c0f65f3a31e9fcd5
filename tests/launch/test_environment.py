"""launch/environment.sh: which lock file, and which Python fits it."""

import subprocess
import sys

import pytest

from tests.launch import launching


def _bash(script, **variables):
    lines = f"set -euo pipefail; REPOSITORY={launching.ROOT}; source launch/environment.sh; {script}"
    env = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "LIMBA_ACCELERATOR": "cpu"} | variables
    command = ["bash", "-c", lines]
    return subprocess.run(command, cwd=launching.ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, f"{launching.ROOT}/launch/requirements.lock"),
        ({"LOCK": "seqio"}, f"{launching.ROOT}/launch/requirements-seqio.lock"),
        ({"LOCK": "none"}, "none"),
        ({"LOCK": "my.lock"}, "my.lock"),
    ],
)
def test_the_lock_file(given, used):
    assert _bash('echo "$LOCK"', **given).stdout == f"{used}\n"


def _python(folder, version):
    """An interpreter that takes itself for another version."""
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "Python {version.replace(", ", ".")}"; exit; fi\n'
        f'exec {sys.executable} -c "import sys; sys.version_info = ({version}, 0); exec(sys.argv[1])" "$2"\n'
    )
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    ("version", "fits_base", "fits_seqio"),
    [
        ("3, 10", False, False),
        ("3, 11", True, True),
        ("3, 13", True, True),
        ("3, 14", True, False),
        ("3, 15", False, False),
    ],
)
def test_which_python_fits(tmp_path, version, fits_base, fits_seqio):
    python = _python(tmp_path, version)
    for lock, fits in (("requirements", fits_base), ("requirements-seqio", fits_seqio)):
        assert (_bash(f"fits {python} launch/{lock}.lock").returncode == 0) == fits


def test_a_python_that_does_not_fit_is_an_error(tmp_path):
    place = {"VENV": str(tmp_path / "venv"), "PYTHON": _python(tmp_path, "3, 14"), "LOCK": "seqio"}
    result = _bash('setup_environment "$LOCK"', **place)
    assert result.returncode == 1 and not (tmp_path / "venv").exists()
    assert result.stderr == (
        f"error: {place['PYTHON']} is Python 3.14; {launching.ROOT}/launch/requirements-seqio.lock needs "
        "Python 3.11 to 3.13. Set PYTHON=…\n"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"LOCK": "seqoi"}, "error: LOCK is 'seqoi', and there is no such file. LOCK can be seqio, none, or the path"),
        ({"PYTHON": "/usr/bin/nope"}, "error: PYTHON is '/usr/bin/nope', and there is no such program; "),
    ],
)
def test_a_lock_file_or_a_python_that_is_not_there(tmp_path, given, message):
    result = _bash('setup_environment "$LOCK"', VENV=str(tmp_path / "venv"), **given)
    assert result.returncode == 1 and not (tmp_path / "venv").exists()
    assert result.stderr.startswith(message) and result.stderr.count("\n") == 1
