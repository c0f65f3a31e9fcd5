"""Each parser reads damaged files: success or one message, within time and memory. `tests/fuzzing.py` has the damages.

The cases are the same in every run. `python -m tests.fuzzing --cases 2000` runs more of them.
"""

import pytest

from tests import fuzzing, fuzzing_formats

CASES = 25


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All formats in one process: its imports take longer than the cases."""
    return fuzzing.run(list(fuzzing_formats.FORMATS), CASES, 0, tmp_path_factory.mktemp("fuzzing"))


@pytest.mark.parametrize("name", fuzzing_formats.FORMATS)
def test_damaged_files_are_read_or_named(results, name):
    assert results[name].failures == []
    assert results[name].outcomes.total() == CASES and results[name].outcomes["message"] > 0
    assert results[name].peak < 1.5 * fuzzing.MEMORY
