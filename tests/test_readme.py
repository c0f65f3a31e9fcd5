"""README and docs name only what exists."""

import re
from pathlib import Path

import pytest

from limba import cli

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")], key=str)
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
    for command in re.findall(r"^\s+(?:\S+=\S+ )*limba ([\w-]+)", text, re.M):
        assert command in cli._COMMANDS, command
    for module in re.findall(r"python -m ([\w.]+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_two_commands_of_the_readme_and_ci():
    text = _page(ROOT / "README.md")
    assert "    bash launch/quickstart.sh " in text and "    bash tests/run.sh " in text
    assert "bash tests/run.sh" in (ROOT / ".ci" / "run").read_text()


def test_the_house_lists_every_room():
    text = _page(ROOT / "README.md")
    rooms = [p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))]
    tracked = [room for room in rooms if room not in ("runs", "build", "dist") and not room.endswith(".egg-info")]
    assert not [room for room in tracked if f"`{room}/`" not in text]


def test_commands_in_the_table_exist():
    for name, (module, what) in cli._COMMANDS.items():
        assert what, name
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module
