"""pyproject.toml, lock files and documentation agree on what is installed; `launch/lock.sh --check` asks the index."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import house

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
BASE, SEQIO, TESTS = "launch/requirements.lock", "launch/requirements-seqio.lock", "tests/requirements.lock"
# Which extras each lock file has, beside the base.
LOCKS = {
    BASE: [],
    SEQIO: ["seqio"],
    TESTS: ["seqio", "plan", "metrics", "test", "wandb", "sweeps", "web", "pictures", "report"],
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]
ENVIRONMENTS = [
    {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": platform,
        "platform_system": platform.title(),
        "platform_machine": machine,
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    for python in PYTHONS
    for platform, machine in MACHINES
]
HEAVY = {"tensorflow", "tensorflow-text", "tensorflow-datasets", "seqio", "torch", "transformers", "keras", "libtpu"}
# Packages whose modules have another name than they.
PACKAGE_OF = {
    "fasttext": "fasttext-numpy2-wheel",
    "gin": "gin-config",
    "google": "protobuf",
    "mlflow": "mlflow-skinny",
    "orbax": "orbax-checkpoint",
    "starlette": "fastapi",
    "yaml": "pyyaml",
}
# Found at run time: those who have models in the two libraries have them, and babel is for T5's tasks of languages
# whose names are not known here.
UNDECLARED = {"babel", "torch", "transformers"}


def _lock(name, environment):
    """Versions by package, of the lines that hold in an environment."""
    lines = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    found = {}
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (pin,) = requirement.specifier
            assert pin.operator == "==" and requirement.name not in found, f"{requirement} in {name}"
            found[canonicalize_name(requirement.name)] = pin.version
    return found


def _requirements(extras, environment):
    """Of pyproject.toml: the base and some extras, without limba itself."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    found = [requirement for requirement in map(Requirement, lines) if requirement.name != "limba"]
    return [one for one in found if one.marker is None or one.marker.evaluate(environment)]


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_files_satisfy_pyproject_on_each_machine_and_python(name):
    for environment in ENVIRONMENTS:
        locked = _lock(name, environment)
        wanted = _requirements(LOCKS[name], environment)
        assert len(wanted) >= len(PROJECT["dependencies"])
        for requirement in wanted:
            version = locked[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement} in {name}: {version}"


def test_the_base_has_no_tensorflow():
    for environment in ENVIRONMENTS:
        base, seqio = (_lock(name, environment) for name in (BASE, SEQIO))
        assert not HEAVY & base.keys()
        assert ("tensorflow" in seqio) == ("seqio" in seqio) == (environment["python_version"] < "3.14")


def test_the_tests_run_the_versions_that_users_install():
    for environment in ENVIRONMENTS:
        small, middle, large = (_lock(name, environment) for name in (BASE, SEQIO, TESTS))
        assert small.items() <= middle.items() <= large.items()


@pytest.mark.parametrize("name", [BASE, SEQIO])
def test_a_lock_file_has_all_that_its_packages_need(name):
    """As their own metadata says, which the environment of the tests has."""
    locked = _lock(name, ENVIRONMENTS[PYTHONS.index(".".join(map(str, sys.version_info[:2]))) * len(MACHINES)])
    checked = 0
    for package in locked:
        for line in importlib.metadata.requires(package) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in locked, f"{package} needs {requirement}"
                checked += 1
    assert checked > len(locked)


def test_what_the_code_imports_is_declared():
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    optional = {canonicalize_name(Requirement(line).name) for lines in EXTRAS.values() for line in lines}
    for one in house.all_imports():
        module = one.imported.partition(".")[0]
        package = canonicalize_name(PACKAGE_OF.get(module, module))
        if module in (*sys.stdlib_module_names, *house.PACKAGES) or package in declared:
            continue
        assert package in optional or (module in UNDECLARED and one.lazy), one


def test_the_extras_that_are_named_exist():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = set()
    for file in tracked.splitlines():
        if file.endswith((".py", ".md", ".sh", ".gin", ".toml", ".yml")) and (ROOT / file).is_file():
            for extras in re.findall(r"limba\[([\w,]+)\]", (ROOT / file).read_text(encoding="utf-8")):
                named.update(extras.split(","))
    assert {"seqio", "metrics", "plan", "web"} <= named <= EXTRAS.keys()
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == EXTRAS.keys() - {"test"}


def test_the_pythons_are_the_same_everywhere():
    said = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert tuple(said) == PYTHONS and PROJECT["requires-python"] == f">={PYTHONS[0]}"
    script = (ROOT / "launch" / "lock.sh").read_text(encoding="utf-8")
    assert f"PYTHONS=({' '.join(PYTHONS)})" in script
    for page in ("README.md", "CONTRIBUTING.md", "docs/install.md"):
        assert "Python 3.11 to 3.1" in (ROOT / page).read_text(encoding="utf-8")
