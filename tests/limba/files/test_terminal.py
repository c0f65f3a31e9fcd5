"""Texts of others are shown on a terminal, and do nothing there."""

import io
import os
import pty
import subprocess
import sys

import pytest

from limba.files import terminal

HOSTILE = {
    "\x1b[2J": r"\x1b[2J",
    "cod.\u202e": r"cod.\u202e",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x9b2J": r"\x9b2J",
    "a\x08b": r"a\x08b",
    "\x1b[3A": r"\x1b[3A",
    "\x7f": r"\x7f",
}
PLAIN = ("a\tb\n", "ȘȚ – 日本\n", "\x1b[1mbold\x1b[0m", "\x1b[38;5;9mred", "\r 50%|███", "\x1b[A", "")


def test_commands_are_written_out():
    for text, shown in HOSTILE.items():
        assert terminal.plain(f"a{text}b") == f"a{shown}b"
    assert all(terminal.plain(text) == text for text in PLAIN)


class _Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_terminals_are_protected(is_terminal, monkeypatch):
    out = _Screen() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with terminal.obeying_colours_alone():
        print("\x1b[2Jx", end="")
        terminal.clear()
    assert out.getvalue() == (rf"\x1b[2Jx{terminal.CLEAR}" if is_terminal else "\x1b[2Jx")
    assert sys.stdout is out


def test_a_command_on_a_terminal(tmp_path):
    """The name of a folder is in an error."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "limba", "runs", str(tmp_path / "a\x1b[2Jb")]
    process = subprocess.run(command, stdout=child, stderr=child, check=False)
    os.close(child)
    shown = os.read(parent, 100_000).decode()
    os.close(parent)
    assert process.returncode == 1 and r"a\x1b[2Jb" in shown and "\x1b[2J" not in shown
