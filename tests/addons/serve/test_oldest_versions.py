"""The server on the lowest versions that pyproject.toml allows: the token, limits of bodies, streams, slow clients."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import house

_TESTS = ("test_app.py", "test_listening.py", "test_web_server.py", "test_web_guard.py")


@pytest.fixture
def packages():
    """tests/run.sh makes this folder; without it, a test that is run by hand is left out."""
    given = os.environ.get("LIMBA_SERVE_OLDEST")
    folder = Path(given or house.ROOT / ".venv-serve-oldest")
    if not given and not folder.is_dir():
        pytest.skip(f"There is no {folder}. tests/run.sh makes it; LIMBA_SERVE_OLDEST may name another.")
    return folder


@pytest.mark.slow
def test_the_server_on_its_lowest_versions(packages):
    project = tomllib.loads((house.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [re.fullmatch(r"([\w-]+)>=([\d.]+)", bound) for bound in project["optional-dependencies"]["serve"]]
    lowest = {bound[1].replace("-", "_"): bound[2].split(".") for bound in bounds}
    assert {"fastapi", "starlette", "uvicorn", "h11"} <= lowest.keys()
    found = {
        x.name.replace("-", "_"): x.version.split(".") for x in importlib.metadata.distributions(path=[str(packages)])
    }
    assert found.keys() == lowest.keys()
    assert all(found[name][: len(version)] == version for name, version in lowest.items())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(house.ROOT)])}
    where = "import starlette, fastapi, uvicorn, h11; print(*(x.__file__ for x in (starlette, fastapi, uvicorn, h11)))"
    imported = subprocess.run(
        [sys.executable, "-c", where], env=environment, capture_output=True, text=True, check=True
    )
    assert all(file.startswith(str(packages)) for file in imported.stdout.split())
    files = [str(Path(__file__).with_name(file)) for file in _TESTS]
    # What is left out waits, and asks nothing of the packages.
    picked = ["-k", "not (room or signal or sigterm or descriptors or errors_of_one_place or keep_nobody_out)"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *picked, *files]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=house.ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
