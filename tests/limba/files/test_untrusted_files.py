import os
import socket
from pathlib import Path

import pytest

from limba.files import untrusted_files
from limba.files.untrusted_files import shown


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.symlink_to("gone.bin"), r"file is a link to gone\.bin, which does not exist"),
        (lambda path: path.symlink_to(path), "file cannot be opened: Too many levels of symbolic links"),
        (lambda path: path.mkdir(), "file is a folder, not a file"),
        (os.mkfifo, "file is a FIFO, not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "file is a device, not a file"),
        (lambda path: path.symlink_to("/proc/self/environ"), "file is of the kernel, not a file"),
        (lambda path: path.symlink_to("/proc/self/mem"), "file is of the kernel, not a file"),
        (lambda path: None, "There is no file .*file .working directory"),
    ],
    ids=["dangling", "circle", "folder", "fifo", "device", "environment", "memory", "nothing"],
)
def test_what_is_no_file_is_named_and_not_opened(tmp_path, make, words):
    path = tmp_path / "file"
    make(path)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        untrusted_files.read_bytes(path)


def test_a_socket_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Names of sockets are short.
    make_socket("file")
    with pytest.raises(ValueError, match="file is a socket, not a file"):
        untrusted_files.check_is_file(Path("file"))


def test_sizes(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert untrusted_files.check_is_file(tmp_path / "file") == 5
    assert untrusted_files.read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(ValueError, match="file has 5 bytes; a file of this kind has at most 4"):
        untrusted_files.read_bytes(tmp_path / "file", 4)


def test_values_are_short():
    nested = []
    for _ in range(100):
        nested = [nested, nested]  # Its repr has 2**100 brackets.
    values = [None, True, 3, 2.5, "a", "b" * 100, "\ud800", 10**5000, [], nested, {"a": 1}, (1, 2), b"abc", object()]
    assert [shown(value) for value in values] == [
        *("None", "True", "3", "2.5", "'a'", repr("b" * 60 + "…"), r"'\ud800'"),
        *("a whole number of about 5,001 digits", "an empty list", "a list of 2", "a table of 1", "a tuple of 2"),
        *("3 bytes", "an object"),
    ]
    assert untrusted_files.shown_list([1, "a", 3]) == "[1, 'a', 3]"
    assert untrusted_files.shown_list(range(9)) == "[0, 1, 2, 3, 4, 5, …]"


@pytest.mark.parametrize("cell", ["=1+1", "@a", "-b", "\t=1"])
def test_a_spreadsheet_computes_no_text(cell):
    assert untrusted_files.cell(cell) == f"'{cell}"
    assert [*map(untrusted_files.cell, ("a=1", "-0.5", "", -0.5, None))] == ["a=1", "-0.5", "", -0.5, None]
