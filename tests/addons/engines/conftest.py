"""Runs of all families of T5."""

import functools

import pytest

from tests.convert.conftest import FAMILIES


@pytest.fixture(scope="module")
def runs(request, new_run, tmp_path_factory):
    """`runs(family)` saves a run when it is asked for; `fields_of(family)` of the module says its sizes."""
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def of(family):
        bytes_ = {"vocab_file": None} if family == "byt5" else {}
        return new_run(folder / family, **bytes_, **(FAMILIES[family] | request.module.fields_of(family)))

    return of
