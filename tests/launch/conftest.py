"""What the tests of the launchers share."""

import pytest

from tests.launch import launching


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """A clean repository with this one's files; tests leave it clean, further commits are fine."""
    return launching.committed_copy(tmp_path_factory.mktemp("launch"))
