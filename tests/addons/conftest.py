"""Fixtures of the core's tests, for those of the add-ons: an add-on is tried on what the core makes."""

import functools

import pytest

from convert import from_hf, to_hf
from tests.convert.conftest import (  # noqa: F401
    _checks_in_forks,
    _tokenizers_are_compared_once,
    all_exported,
    exported,
    flax_t5,
    forks5,
    new_run,
    patience,
    python5,
    reference,
    sentences,
    spiece_model,
    spiece_of_few_rules,
    texts,
)
from tests.limba.conftest import kernels_are_right, whole  # noqa: F401
from tests.tasks.conftest import (  # noqa: F401
    corpus,
    data_files,
    lengths,
    make_document_fixture,
    mixture,
    places,
    task,
    write_jsonl_fixture,
)


@pytest.fixture(scope="module")
def without_checks():
    """Conversions are not compared with transformers', which has tests of its own and takes longer than they do."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((to_hf, "to_hf"), (from_hf, "from_hf"), (from_hf, "write")):
            patch.setattr(module, name, functools.partial(getattr(module, name), verify=False))
        yield
