"""The walks of docs/architecture.md: the files that a reader opens, as a training and an export open them."""

import collections
import json
import os
import subprocess
import sys

import pytest

from tests import house


def _neighbours():
    """Which file imports which, in both directions; what a room's face hands on belongs to who imports the face."""
    files = {module: file.relative_to(house.ROOT).as_posix() for module, file in house.modules().items()}
    handed_on = collections.defaultdict(list)
    for one in house.all_imports():
        if files[one.module].endswith("__init__.py"):
            handed_on[one.module].append(one.imported)
    beside = collections.defaultdict(set)
    for one in house.all_imports():
        for imported in [one.imported, *handed_on[one.imported]]:
            if imported in files:
                beside[files[one.module]].add(files[imported])
                beside[files[imported]].add(files[one.module])
    return beside


# gin names the mesh and the network, `limba convert` its commands by a table of texts.
NAMED_BY_TEXTS = ("convert/__main__.py", "limba/partitioning/meshes.py", "limba/network/t5.py")


@pytest.mark.parametrize("walk", house.WALKS)
def test_the_files_of_a_walk_hang_together_by_imports(walk):
    """The data's files apart from the engine's, which gets an iterator (`limba/data/contract.py`)."""
    beside = _neighbours()
    files = {file for file in house.walks()[walk] if file not in NAMED_BY_TEXTS}
    of_data = {file for file in files if file.startswith("tasks/")}
    for part in filter(None, (of_data, files - of_data)):
        reached, todo = set(), [min(part)]
        while todo:
            reached.add(file := todo.pop())
            todo += (beside[file] & part) - reached
        assert reached == part


@pytest.mark.exhaustive
def test_the_walks_are_those_of_a_training_and_an_export():
    command = [sys.executable, "-m", "tests.walks", "--json"]
    environment = os.environ | {"PYTHONPATH": str(house.ROOT)}
    out = subprocess.run(command, capture_output=True, text=True, cwd=house.ROOT, env=environment, check=False)
    assert out.returncode == 0, out.stderr[-2000:]
    recorded = json.loads(out.stdout.splitlines()[-1])
    assert recorded.keys() == house.WALKS.keys()
    for walk, files in house.walks().items():
        assert set(files) == set(recorded[walk]), walk
