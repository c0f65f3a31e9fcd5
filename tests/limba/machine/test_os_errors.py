"""Errors of the system and of TensorStore, as people read them."""

import errno
import re

import pytest

from limba.machine import os_errors

SPEC = """ [tensorstore_spec='{"driver":"zarr"}'] [source locations='a.cc:1']"""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "/r/x"), r"/r/x does not exist\."),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "/r/x"), r"/r/x is a folder, and a file belongs there\."),
        (
            PermissionError(errno.EACCES, "Permission denied", "/r/x"),
            r"/r/x may not be read or written by this user: .*",
        ),
        (
            OSError(errno.EMFILE, "Too many open files", "/r/x"),
            r"This process may not .* limit is \d+.*: ulimit -n \d+\.",
        ),
        (ValueError("INTERNAL: Too many open files [x]"), r"This process may not open more files: .*"),
        (
            ValueError(f'DATA_LOSS: Error decoding local file "/r/manifest.ocdbt": too short{SPEC}'),
            r'/r/manifest.ocdbt is damaged or not whole \(Error decoding local file "\S+": too short\)\. Take .*',
        ),
        (ValueError("The cache x: [Errno 21] Is a directory: '/r/x'"), r"The cache x: /r/x is a folder, and a file .*"),
        (ValueError("BATCH_SIZE is 7"), None),
        (OSError("the hub does not answer"), None),
        (FileNotFoundError("There is no split 'x'"), None),
    ],
)
def test_one_sentence_with_the_file(error, words):
    said = os_errors.describe(error)
    assert said is None if words is None else re.fullmatch(words, said), said
