"""Add-ons: each is described, nothing but the table knows it, and Limba works without it."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from limba import cli
from limba.addons import table
from tests import compilation, house, line

FOLDER = house.ROOT / "limba/addons"


def _said(name: str) -> dict[str, str]:
    text = (FOLDER / name / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 12, "ten lines, and two of a list"
    return dict(re.findall(r"^- ([^:\n]+): ((?:.+\n)(?:(?!- ).+\n)*)", text, flags=re.M))


def _gin_files(name: str) -> list[str]:
    """Those that a README lists; of folders all files."""
    found = []
    for listed in re.findall(r"gin/[\w/.]+", _said(name)["gin files"]):
        below = (house.ROOT / listed).rglob("*.gin")
        found += [listed] if listed.endswith(".gin") else [str(file.relative_to(house.ROOT)) for file in below]
    return found


def test_each_folder_has_a_row_and_each_row_a_folder():
    folders = {path.name for path in FOLDER.iterdir() if (path / "__init__.py").is_file()}
    assert folders == table.ADDONS.keys()


@pytest.mark.parametrize("name", table.ADDONS)
def test_an_addon_says_what_it_is_and_has_tests(name):
    said = _said(name)
    assert said.keys() == {"For", "Extra of pyproject.toml", "Begin with", "gin files", "Page"}
    extras = tomllib.loads((house.ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = said["Extra of pyproject.toml"].strip().split(", ")
    assert named == ["none"] or set(named) <= extras.keys()
    assert (FOLDER / name / said["Begin with"].strip(" `\n")).is_file()
    assert all((house.ROOT / page).is_file() for page in said["Page"].strip().split(", "))
    assert list((house.ROOT / "tests/addons" / name).rglob("test_*.py"))
    row = table.ADDONS[name]
    title = (FOLDER / name / "README.md").read_text("utf-8").partition("\n")[0]
    assert all(word.split()[-1] in title for word in (*row.commands, *row.conversions)), title
    modules = [module for module, _ in (*row.commands.values(), *row.conversions.values())]
    modules += [*row.parts.values(), *row.families, *row.gin_modules, *row.gin_hidden, *row.gin_names]
    modules += [program.rpartition(".")[0] for program in row.gin_programs]
    if row.t5x_names:
        found = importlib.import_module(row.t5x_names).MODULES
        modules += [row.t5x_names, *(module for ours in found.values() for module in ours)]
        assert all(module.startswith("t5x.contrib.") for module in found)
    assert modules or name == "examples", "what the row names belongs to this add-on"
    assert all(module.startswith(f"limba.addons.{name}") and module in {*house.modules()} for module in modules)
    assert row.parts.keys() <= table.PARTS.keys()


@pytest.mark.parametrize("name", table.ADDONS)
def test_the_gin_files_of_an_addon_are_those_that_name_it(name):
    row, own = table.ADDONS[name], rf"limba\.addons\.{name}"
    of_t5x = [
        rf"|from {module}\b" for module in (importlib.import_module(row.t5x_names).MODULES if row.t5x_names else ())
    ]
    naming = re.compile(
        rf"^\s*(?:from {own}\b|from limba\.addons import {name}\b|import {own}\b{''.join(of_t5x)})", re.M
    )
    texts = {str(x.relative_to(house.ROOT)): x.read_text("utf-8") for x in (house.ROOT / "gin").rglob("*.gin")}
    found, more = set(), {file for file, text in texts.items() if naming.search(text)}
    while more:
        found |= more
        includes = re.compile(rf"^include '({'|'.join(map(re.escape, more))})'", re.M)
        more = {file for file, text in texts.items() if includes.search(text)} - found
    listed = {*_gin_files(name)}
    of_folders = {file for file in listed if file not in _said(name)["gin files"]}
    assert found <= listed and listed - of_folders <= found, "of a folder all files belong to it"


def test_the_core_names_no_addon_but_in_the_table():
    files = [file for module, file in house.modules().items() if not house.is_addon(module)]
    own = FOLDER / "table.py"
    naming = re.compile(r"limba[./]addons(?!\.table|/table| import table)\b")
    assert not [file for file in files if file != own and naming.search(file.read_text("utf-8"))]


def _copy_without(names: list[str], copy: Path) -> None:
    """A clone's files in a new folder, without what belongs to some add-ons."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=house.ROOT, capture_output=True, text=True, check=True)
    gone = [f"{folder}/{name}/" for name in names for folder in ("limba/addons", "tests/addons")]
    gone += [file for name in names for file in [*_gin_files(name), f"tests/smoke/test_{name}.py"]]
    for file in tracked.stdout.split("\0"):
        is_there = (house.ROOT / file).is_file() or (house.ROOT / file).is_symlink()
        if file and is_there and not file.startswith(tuple(gone)):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(house.ROOT / file, copy / file, follow_symlinks=False)
            compiled = Path(importlib.util.cache_from_source(file)) if file.endswith(".py") else None
            if compiled and (house.ROOT / compiled).is_file():  # Compiling all modules takes as long as the test.
                (copy / compiled).parent.mkdir(exist_ok=True)
                shutil.copy2(house.ROOT / compiled, copy / compiled)
    file = copy / "limba/addons/table.py"
    lines = file.read_text("utf-8").splitlines(keepends=True)
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "ADDONS":
            assert isinstance(node.value, ast.Dict)
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                assert isinstance(key, ast.Constant) and value.end_lineno is not None
                if key.value in names:
                    lines[key.lineno - 1 : value.end_lineno] = [""] * (value.end_lineno - key.lineno + 1)
    file.write_text("".join(lines), "utf-8")


def _run(copy: Path, *arguments: str) -> str:
    env = line.environment(copy) | {"PYTHONPATH": "", "XLA_FLAGS": compilation.FAST}
    done = subprocess.run([sys.executable, *arguments], cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


# The line of tests/smoke/test_t5.py in one process.
_LINE = """
import sys
from pathlib import Path
from convert import __main__ as convert
from limba import infer, train
from tests import line
from tests.smoke import test_t5 as smoke

folder = Path(sys.argv[1])
line.write_corpus(folder / "corpus")
line.write_vocabulary(folder / "corpus", folder / "vocab/spiece.model")
(folder / "my_smoke_tasks.py").write_text(smoke.TASKS.format(folder=folder))
(folder / "recipe.gin").write_text(smoke.RECIPE.format(folder=folder))
sys.path.insert(0, str(folder))
codes = [train.main([f"--gin_file={folder}/recipe.gin", "--gin.TRAIN_STEPS=2"])]
codes.append(convert.main(["to-hf", f"{folder}/run", f"{folder}/export", "--format=safetensors", "--no-check"]))
print(codes, infer.main(["--run_dir", f"{folder}/run", "--input=the list of ___ is a file"]))
"""


_COMMANDS = "import limba, convert.__main__; from limba import cli; print(limba.__file__, *cli.COMMANDS, sep='\\n')"


def _check_commands(said: str, copy: Path, names: list[str]) -> None:
    place, *commands = said.splitlines()
    assert Path(place).is_relative_to(copy), "the copy runs, and not what is installed"
    assert set(commands) == cli.COMMANDS.keys() - {x for name in names for x in table.ADDONS[name].commands}


@pytest.mark.slow
def test_limba_works_without_addons(tmp_path):
    _copy_without([*table.ADDONS], tmp_path)
    said = _run(tmp_path, "-c", f"{_COMMANDS}\nprint('trained:'){_LINE}", str(tmp_path / "made"))
    commands, _, trained = said.partition("trained:\n")
    _check_commands(commands, tmp_path, [*table.ADDONS])
    assert trained.endswith("[0, 0] 0\n")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", table.ADDONS)
def test_the_smoke_tier_passes_without(name, tmp_path):
    _copy_without([name], tmp_path)
    _check_commands(_run(tmp_path, "-c", _COMMANDS), tmp_path, [name])
    files = sorted((tmp_path / "tests").rglob("test_*.py"))
    asked = [x for x in files if "mark.smoke" in x.read_text("utf-8") and x.name != Path(__file__).name]
    said = _run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-m", "smoke", "-rA", *map(str, asked))
    assert " passed" in said and "failed" not in said and "skipped" not in said
