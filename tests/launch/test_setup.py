"""`launch/setup.sh` and the check of an environment against its lock file."""

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import packaging

from tests.launch import launching

DRIFT = launching.ROOT / "launch" / "drift.py"


def _drift(*arguments):
    return subprocess.run([sys.executable, DRIFT, *arguments], capture_output=True, text=True, check=False)


def test_what_has_drifted_from_the_lock_is_named(tmp_path):
    lock, extras = tmp_path / "requirements.lock", tmp_path / "extras.lock"
    numpy, tqdm = (importlib.metadata.version(name) for name in ("numpy", "tqdm"))
    lock.write_text(f"# pins\nnumpy=={numpy}\ntqdm=={tqdm}\nno-such-package==1.0 ; python_version < '3'\n")
    extras.write_text("not-there==2.0\ntqdm==0.0.1\n")
    same = _drift(lock, extras)
    assert (same.returncode, same.stdout) == (0, "\n"), "the first lock counts, and extras that are not there do not"

    lock.write_text(f"numpy==1.0.1\ntqdm=={tqdm} ; python_version >= '3'\nno-such-package==1.0\n")
    drifted = _drift(lock)
    assert (drifted.returncode, drifted.stdout) == (1, f"numpy {numpy} (1.0.1), no-such-package is missing (1.0)\n")
    assert _drift("--pins", lock).stdout == f"numpy==1.0.1\ntqdm=={tqdm}\n"


def _setup(directory, *extras):
    """In an environment whose `uv` and `pip` write down what they are asked."""
    binaries = directory / "venv" / "bin"
    if not binaries.exists():
        binaries.mkdir(parents=True)
        for name, otherwise in (("python", f'[ "$1" != -m ] && exec {sys.executable} "$@"\n'), ("uv", "")):
            (binaries / name).write_text(f'#!/bin/sh\n{otherwise}echo {name} "$@" >> {directory}/asked\n')
            (binaries / name).chmod(0o755)
    env = launching.environment(directory, VENV=str(directory / "venv"))
    done = launching.call("setup.sh", *extras, env=env)
    asked = directory / "asked"
    return done, asked.read_text() if asked.exists() else ""


def test_extras_come_in_the_versions_of_the_lock(tmp_path):
    done, asked = _setup(tmp_path, "web", "plan")
    assert done.returncode == 0, done.stderr
    assert f"source {tmp_path}/venv/bin/activate" in done.stdout
    assert f"--constraints {launching.ROOT}/tests/requirements.lock --editable {launching.ROOT}[web,plan]" in asked
    # The settings of the working directory, a downloaded folder perhaps, do not say where packages come from.
    from_uv = [line for line in asked.splitlines() if line.startswith("uv ")]
    assert from_uv and all(line.startswith(f"uv --project {launching.ROOT} pip") for line in from_uv)


def test_an_extra_that_does_not_exist(tmp_path):
    done, asked = _setup(tmp_path, "wbe")
    assert done.returncode == 2 and asked == ""
    assert done.stderr.startswith("error: there is no extra wbe; there are seqio ")
    help_ = launching.call("setup.sh", "--help", env=launching.environment(tmp_path))
    assert help_.returncode == 0 and "usage: bash launch/setup.sh [EXTRA…]" in help_.stdout


def test_setup_installs_again_what_has_drifted(tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text("numpy==1.0.1\n")
    _setup(tmp_path)
    env = launching.environment(tmp_path, VENV=str(tmp_path / "venv"), LOCK=str(lock))
    for _ in range(2):
        done = launching.call("setup.sh", env=env)
        assert done.returncode == 0, done.stderr
    numpy = importlib.metadata.version("numpy")
    assert f"has other versions than the lock file: numpy {numpy} (1.0.1)" in done.stdout, done.stderr
    assert f"-r {lock}" in (tmp_path / "asked").read_text()


# As `PYTHON -m venv` of Python 3.11: an old setuptools, and a pip, which here writes down what it is asked.
_VENV_OF_311 = """#!/bin/sh
[ "$2" = venv ] || exec {python} "$@"
{python} -m venv --without-pip "$3" && cp -r {brought}/. "$3/lib/{version}/site-packages"
printf '#!/bin/sh\necho uv "$@" >> {asked}\n' > "$3/bin/uv" && chmod +x "$3/bin/uv"
"""
_PIP = """
import pathlib, shutil, sys
open({asked!r}, "a").write(" ".join(["pip", *sys.argv[1:]]) + "\\n")
if sys.argv[1] == "uninstall":
    for folder in pathlib.Path(__file__).parent.parent.glob(sys.argv[-1] + "*"):
        shutil.rmtree(folder)
"""


def test_a_new_environment_has_not_drifted_at_its_second_start(tmp_path):
    brought, asked = tmp_path / "brought", tmp_path / "asked"
    for folder in ("setuptools", "setuptools-65.5.0.dist-info", "pip"):
        (brought / folder).mkdir(parents=True)
    (brought / "setuptools/__init__.py").touch()
    (brought / "setuptools-65.5.0.dist-info/METADATA").write_text("Name: setuptools\nVersion: 65.5.0\n")
    (brought / "pip/__main__.py").write_text(_PIP.format(asked=str(asked)))
    shutil.copytree(Path(packaging.__file__).parent, brought / "packaging")  # drift.py reads markers with it
    (brought / "packaging-1.0.dist-info").mkdir()
    (brought / "packaging-1.0.dist-info/METADATA").write_text("Name: packaging\nVersion: 1.0\n")
    python, lock = tmp_path / "python", tmp_path / "requirements.lock"
    version = "python{}.{}".format(*sys.version_info)
    python.write_text(_VENV_OF_311.format(python=sys.executable, brought=brought, version=version, asked=asked))
    python.chmod(0o755)
    lock.write_text("packaging==1.0\n")
    env = launching.environment(tmp_path, PYTHON=str(python), VENV=str(tmp_path / "venv"), LOCK=str(lock))
    first = launching.call("setup.sh", env=env)
    assert first.returncode == 0 and "== installing into" in first.stdout, first.stderr
    installed = asked.read_text()
    assert "pip install" in installed and f"-r {lock}" in installed
    second = launching.call("setup.sh", env=env)
    assert second.returncode == 0 and "==" not in second.stdout, second.stdout
    assert asked.read_text() == installed, "the second start asks for nothing, so it needs no network"
