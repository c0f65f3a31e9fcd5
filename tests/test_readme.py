"""README and docs name only what exists."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from limba import cli
from tests import house

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], key=str)
_PATH = re.compile(r"(?<![\w/.'-])((?:limba|tasks|gin|launch|convert|tests|benchmarks|docs)/[\w./-]*\w)")


def _page(path):
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_file_that_is_named_exists(page):
    named = set(_PATH.findall(_page(page)))
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", _page(page))
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def _anchors(page):
    """As GitHub makes them of the headings."""
    text = re.sub(r"^ *```.*?^ *```$", "", _page(page), flags=re.M | re.S)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_to_a_heading_leads_to_one(page):
    links = re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", _page(page))
    to_pages = [(page.parent / file if file else page, anchor) for file, anchor in links if "://" not in file]
    assert not [anchor for file, anchor in to_pages if anchor not in _anchors(file)]


def test_the_index_links_every_page():
    linked = re.findall(r"\]\((\w+\.md)\)", _page(ROOT / "docs/index.md"))
    assert {*linked, "index.md"} == {page.name for page in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_exists(page):
    text = _page(page)
    for command in re.findall(r"^\s+(?:\S+=\S+ )*limba ((?:vocab )?[\w-]+)", text, re.M):
        assert command in cli.COMMANDS or command.split()[0] in cli.COMMANDS, command
    for module in re.findall(r"python -m ([\w.]+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_rows_of_tables_have_a_cell_for_each_column(page):
    """A bar in a cell, or one too few, breaks the table where it is shown."""
    heads = {}
    for number, line in enumerate(_page(page).splitlines()):
        if not line.startswith("|"):
            continue
        cells = len(re.sub(r"`[^`]*`|\\\|", "", line).strip().strip("|").split("|"))
        assert "|" not in "".join(re.findall(r"`[^`]*`", line)).replace("\\|", ""), f"{page.name}:{number + 1}"
        heads[number] = heads.get(number - 1, cells)
        assert cells == heads[number], f"{page.name}:{number + 1} has {cells} cells, and its head {heads[number]}"


def test_the_two_commands_of_the_readme_and_ci():
    text = _page(ROOT / "README.md")
    assert "    bash launch/quickstart.sh " in text and "    bash tests/run.sh " in text
    assert "bash tests/run.sh" in (ROOT / ".ci" / "run").read_text()


def test_the_file_tree_has_every_folder_and_nothing_else():
    tree = _page(ROOT / "README.md").removesuffix("\n```\n").rpartition("\n```\n")[2]
    rows = [line.split(maxsplit=1) for line in tree.splitlines()]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {row[0] for row in rows} == {f"{path.partition('/')[0]}/" for path in tracked.splitlines() if "/" in path}
    assert not [row for row in rows if len(row) < 2], "each row says what is there"


def _reading_path():
    """The files of "Read the code", each with the function to look at."""
    part = _page(ROOT / "README.md").partition("\n## Read the code\n")[2]
    return re.findall(r"^\d+\. `([\w./]+)`, `([\w.]+)`: ", part, re.M)


def test_the_reading_path_is_short_and_of_the_core():
    files = [file for file, _ in _reading_path()]
    part = _page(ROOT / "README.md").partition("\n## Read the code\n")[2]
    assert len(files) == len(re.findall(r"^\d+\. ", part, re.M)) == len(set(files))
    assert 5 <= len(files) <= 10
    assert sum(len((ROOT / file).read_text("utf-8").splitlines()) for file in files) <= 5000
    modules = {file.relative_to(ROOT).as_posix(): name for name, file in house.modules().items()}
    assert not [file for file in files if file not in modules or house.is_addon(modules[file])]


@pytest.mark.parametrize(("file", "function"), _reading_path())
def test_the_functions_of_the_reading_path_exist(file, function):
    body = ast.parse((ROOT / file).read_text("utf-8")).body
    for name in function.split("."):
        found = [x for x in body if isinstance(x, ast.FunctionDef | ast.ClassDef) and x.name == name]
        assert found, name
        body = found[0].body
    assert isinstance(found[0], ast.FunctionDef)


def test_commands_in_the_table_exist():
    for name, (module, what) in cli.COMMANDS.items():
        assert what, name
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module
