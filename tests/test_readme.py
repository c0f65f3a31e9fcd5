"""README and docs name only what exists."""

import re
import subprocess
from pathlib import Path

import pytest

from limba import cli

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


def test_commands_in_the_table_exist():
    for name, (module, what) in cli.COMMANDS.items():
        assert what, name
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module
