"""Errors of the system and of TensorStore, as people read them."""

import errno
import re

import pytest

from limba.files import os_errors

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
            OSError(errno.ENOSPC, "No space left on device"),
            r"A file cannot be written: the disk is full\. Make room, .*",
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
        (
            ValueError('NOT_FOUND: chunk {0} stored at "w/0" in OCDBT database at local file "/r/s/" is missing'),
            r"/r/s/ is damaged or not whole \(chunk .* is missing\)\. Take .*",
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


@pytest.mark.parametrize(
    ("token", "remedy"), [(None, "There is no token, .* set HF_TOKEN, or run"), ("hf_x", "The token may not")]
)
@pytest.mark.parametrize(
    "error",
    [
        # What TensorFlow keeps of an error in a generator, and what the hub says of a file.
        RuntimeError(
            "Reading 't' failed after 0 batches: DatasetNotFoundError: Dataset 'a/b' doesn't exist on the Hub."
        ),
        RuntimeError("t.jsonl cannot be read: HTTP status 401 Access to dataset a/b is restricted. Please log in."),
        OSError("a/b is a gated dataset on the Hub"),
    ],
)
def test_without_access_to_a_data_set_the_token_is_named(monkeypatch, error, token, remedy):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    assert re.search(rf"{remedy}", os_errors.describe(error))
    assert os_errors.describe(ValueError("it is private: set HF_TOKEN (GatedRepoError)")) is None


def _refuse(file, code):
    raise OSError(code, "the system's word")


@pytest.mark.parametrize(
    ("code", "named"),
    [(errno.EIO, "read"), (errno.ESTALE, "read"), (errno.ENOSPC, "written"), (errno.EDQUOT, "written")],
)
def test_the_file_that_the_system_does_not_name_is_that_of_the_innermost_call(tmp_path, code, named):
    """A full disk is never the file's that is read."""
    (tmp_path / "read").touch()

    def copy():
        with (tmp_path / "written").open("wb") as written, (tmp_path / "read").open("rb") as read:
            _refuse((written, read)[code == errno.EIO], code)

    try:
        with (tmp_path / "outer").open("w"):
            copy()
    except OSError as error:
        raised = error
    assert os_errors.describe(raised).startswith(
        f"{tmp_path / named} cannot be " if code != errno.ESTALE else str(tmp_path)
    )
    # gin keeps the text alone, and where it was.
    copied = ValueError(str(raised)).with_traceback(raised.__traceback__)
    assert os_errors.describe(copied) == os_errors.describe(raised)
    assert os_errors.describe(OSError(code, "the system's word")).startswith("A file ")


def test_an_error_of_a_connection_names_no_file(tmp_path):
    with (tmp_path / "log").open("w") as log:
        try:
            _refuse(log, errno.ECONNRESET)
        except OSError as error:
            assert os_errors.describe(error) is None
