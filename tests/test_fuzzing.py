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


def test_what_no_parser_may_do_is_noticed(tmp_path):
    result = fuzzing.run(["broken"], 6, 0, tmp_path, seconds=2)["broken"]
    outcomes = ["KeyError", "SIGSEGV", "MemoryError", "hang", "no file named", "unclear message"]
    assert [outcome for _, outcome, _ in result.failures] == outcomes
    assert [case for case, _, _ in result.failures] == list(range(6))
