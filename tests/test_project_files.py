"""License, citation, changelog and GitHub's files exist and agree with each other."""

import hashlib
import json
import re
import tomllib
from pathlib import Path

import yaml

import limba
from tests import house

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _yaml(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_license_is_the_whole_text():
    """As https://www.apache.org/licenses/LICENSE-2.0.txt has it."""
    text = (ROOT / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])


def test_version_and_authors_are_the_same_everywhere():
    citation = _yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and {"message", "title"} <= citation.keys()
    assert PROJECT["dynamic"] == ["version"], "limba/files/version.py has it"
    assert limba.__version__ == citation["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"] == [{"name": "The Limba authors"}]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## [{limba.__version__}] " in changes and len(changes.splitlines()) < 60, "a page, and no diary"


def test_each_bound_of_a_dependency_has_its_reason():
    """In a comment behind it."""
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in (x for group in groups for x in group):
        stated = [line for line in lines if json.dumps(requirement) in line]
        assert stated and all("] # " in line or ", # " in line for line in stated), requirement


def test_github_runs_the_checks_and_asks_for_the_environment():
    job = _yaml(".github/workflows/ci.yml")["jobs"]["test"]
    assert job["steps"][-1] == {"run": "bash .ci/run"} and job["timeout-minutes"] == 120
    assert f">={job['steps'][1]['with']['python-version']}" == PROJECT["requires-python"]
    audit = _yaml(".github/workflows/ci.yml")["jobs"]["audit"]["steps"][-1]["run"]
    locks = [
        file.relative_to(ROOT).as_posix() for folder in ("launch", "tests") for file in ROOT.glob(f"{folder}/*.lock")
    ]
    assert len(locks) == 5 and all(lock in audit for lock in locks), "pip-audit reads each of the lock files"
    form = _yaml(".github/ISSUE_TEMPLATE/bug.yml")
    assert {"name", "description", "body"} <= form.keys()
    questions = {part["id"]: part for part in form["body"]}
    assert questions.keys() == {"command", "expected", "log", "environment"}
    assert all(part["validations"]["required"] for part in questions.values())
    assert "`limba env`" in questions["environment"]["attributes"]["label"]


def test_each_promise_of_the_page_on_security_has_a_test():
    page = (house.ROOT / "docs/security.md").read_text(encoding="utf-8")
    promises = page.partition("## Promises")[2].partition("## Not promised")[0]
    rows = [
        row.split(" | ") for row in promises.splitlines() if row.startswith("| ") and not row.startswith("| promise")
    ]
    assert len(rows) > 15
    for promise, tests in rows:
        files = [house.ROOT / name for name in re.findall(r"`(tests/[\w/]+\.py)`", tests)]
        files += [files[0].parent / name for name in re.findall(r"`(test_\w+\.py)`", tests)]
        assert files, promise
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        assert all(f"def {name}(" in text for name in re.findall(r"`(test_\w+)`", tests)), tests
